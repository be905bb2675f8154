// Package egressassignment assigns egress IPs to the nodes with egressCIDRs, writes which nodes that host egress IPs can't be reached, and reports conflicts in Events.
package egressassignment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/reachability"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// maxBackoff is the longest pause after a failed write: another client's write conflicts for a moment, and egress IPs must not wait for it.
const maxBackoff = 10 * time.Second

// Keys of the loop. Those of objects have a prefix.
const (
	planKey       = "plan"
	networkKey    = "network"
	namespaceKey  = "netnamespace/"
	hostSubnetKey = "hostsubnet/"
)

// egressIndex lists the NetNamespaces that have egress IPs, under one key.
const egressIndex = "hasEgressIPs"

// Clients are the clients of the API server.
type Clients struct {
	Network networkclient.Interface
	Events  record.EventRecorder
}

// Informers are those of NetNamespaces, HostSubnets and Nodes, which the caller starts.
type Informers struct{ NetNamespaces, HostSubnets, Nodes cache.SharedIndexInformer }

// Controller assigns egress IPs in the modes that have VNIDs. One worker handles all events, and plans when those that have arrived are handled.
type Controller struct {
	Clients
	informers Informers
	network   atomic.Pointer[config.Network]
	loop      *reconcile.Loop
	prober    *reachability.Prober
	reports   *reporter
	synced    []cache.InformerSynced
	usage     atomic.Pointer[Usage]
	failovers atomic.Uint64

	// Of the loop's only worker.
	table      *egressip.Table // nil: the mode has no egress IPs
	namespaces map[string]*namespace
	hosts      map[string]*hostSubnet
	written    map[string]*written
	placed     map[netip.Addr]string // the node that hosted a wanted IP last
	unhosted   map[netip.Addr]time.Time
}

// namespace is a NetNamespace with egress IPs.
type namespace struct {
	object *networkv1.NetNamespace
	fault  error // of invalid entries
}

// hostSubnet is a HostSubnet that has egress IPs, egressCIDRs or an annotation of this controller.
type hostSubnet struct {
	object *networkv1.HostSubnet
	config.EgressNode
	addr  netip.Addr // invalid: the HostSubnet is
	fault error      // of invalid entries
}

// isAutomatic reports whether the controller writes the HostSubnet's egressIPs.
func (h *hostSubnet) isAutomatic() bool {
	return len(h.object.EgressCIDRs) > 0 && config.IsNode(h.object) && !config.IsProposed(h.object)
}

// isProbed reports whether the node hosts egress IPs, or may host some.
func (h *hostSubnet) isProbed() bool { return h.addr.IsValid() && len(h.IPs)+len(h.CIDRs) > 0 }

// written is the version of a HostSubnet that this controller wrote last, while the cache has an earlier one.
type written struct {
	object     *networkv1.HostSubnet
	superseded []string // resourceVersions
}

// New returns a controller, which does nothing before SetNetwork and Run. dial sends a probe.
func New(clients Clients, informers Informers, dial reachability.Dial) (*Controller, error) {
	c := &Controller{
		Clients: clients, informers: informers, reports: newReporter(clients.Events),
		namespaces: map[string]*namespace{}, hosts: map[string]*hostSubnet{}, written: map[string]*written{},
		placed: map[netip.Addr]string{}, unhosted: map[netip.Addr]time.Time{},
		synced: []cache.InformerSynced{informers.Nodes.HasSynced},
	}
	c.loop = reconcile.New("egress-ips", c.reconcile).WithMaxBackoff(maxBackoff)
	c.prober = reachability.New(dial, c.isReady, func() { c.loop.Add(planKey) })
	err := informers.NetNamespaces.AddIndexers(cache.Indexers{egressIndex: func(obj any) ([]string, error) {
		if o, ok := obj.(*networkv1.NetNamespace); ok && len(o.EgressIPs) > 0 {
			return []string{""}, nil
		}
		return nil, nil
	}})
	return c, errors.Join(err, watch(c, informers.NetNamespaces, namespaceKey, sameNetNamespace), watch(c, informers.HostSubnets, hostSubnetKey, sameHostSubnet))
}

// watch adds the keys of changed objects. same compares two versions; nil is an object that does not exist.
func watch[T any](c *Controller, informer cache.SharedIndexInformer, prefix string, same func(before, now *T) bool) error {
	handle := func(before, now any) {
		key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(now)
		if err != nil {
			key, err = cache.DeletionHandlingMetaNamespaceKeyFunc(before)
		}
		b, _ := before.(*T)
		n, _ := now.(*T)
		if err == nil && !same(b, n) {
			c.loop.Add(prefix + key)
		}
	}
	registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(now any) { handle(nil, now) },
		UpdateFunc: handle,
		DeleteFunc: func(before any) {
			if tombstone, ok := before.(cache.DeletedFinalStateUnknown); ok {
				before = tombstone.Obj
			}
			handle(before, nil)
		},
	})
	if err != nil {
		return fmt.Errorf("add event handler: %w", err)
	}
	c.synced = append(c.synced, registration.HasSynced)
	return nil
}

func sameNetNamespace(before, now *networkv1.NetNamespace) bool {
	switch {
	case before == nil || now == nil:
		return (before == nil || len(before.EgressIPs) == 0) && (now == nil || len(now.EgressIPs) == 0)
	case len(before.EgressIPs) == 0 && len(now.EgressIPs) == 0:
		return true
	}
	return before.UID == now.UID && slices.Equal(before.EgressIPs, now.EgressIPs)
}

func sameHostSubnet(before, now *networkv1.HostSubnet) bool {
	return before != nil && now != nil && before.UID == now.UID && before.Host == now.Host && before.HostIP == now.HostIP && before.Subnet == now.Subnet &&
		slices.Equal(before.EgressIPs, now.EgressIPs) && slices.Equal(before.EgressCIDRs, now.EgressCIDRs) && maps.Equal(before.Annotations, now.Annotations)
}

// SetNetwork sets the network, whose mode and ranges decide about egress IPs.
func (c *Controller) SetNetwork(network *config.Network) {
	c.network.Store(network)
	c.loop.Add(networkKey)
}

// Run assigns and probes until the context ends.
func (c *Controller) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), c.synced...) {
		return
	}
	var running sync.WaitGroup
	running.Go(func() { c.prober.Run(ctx) })
	running.Go(func() { c.reports.loop.Run(ctx, 1) })
	c.loop.Run(ctx, 1)
	running.Wait()
}

// isReady reports the condition Ready of a Node.
func (c *Controller) isReady(name string) bool {
	obj, _, err := c.informers.Nodes.GetStore().GetByKey(name)
	node, ok := obj.(*corev1.Node)
	return err == nil && ok && slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
}

func (c *Controller) reconcile(ctx context.Context, key string) error {
	network := c.network.Load()
	if network == nil {
		return nil
	}
	if key == networkKey {
		c.load(network)
		c.loop.Add(planKey)
		return nil
	}
	if c.table == nil {
		return nil
	}
	changed := false
	if name, is := strings.CutPrefix(key, namespaceKey); is {
		changed = c.setNamespace(name)
	} else if name, is := strings.CutPrefix(key, hostSubnetKey); is {
		changed = c.setHostSubnet(name)
	} else {
		return c.assign(ctx)
	}
	if changed {
		c.loop.Add(planKey) // behind the events that have arrived
	}
	return nil
}
