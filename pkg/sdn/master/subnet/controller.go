package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions/network/v1"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/nodecondition"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// syncTimeout bounds the API calls of one sync, so that an unresponsive API server does not block a worker.
const syncTimeout = 30 * time.Second

// Clients are the clients of the API server.
type Clients struct {
	Kube    kubernetes.Interface
	Network networkclient.Interface
	Events  record.EventRecorder
}

// Controller creates a HostSubnet for each Node, updates its address, and deletes it some time after the Node. It does not change a subnet that a user has
// edited: if that is invalid, it reports the error on the Node.
//
// After New, the caller starts the informers and calls Load, SetNetwork and Run, in this order. SetNetwork can be called again.
type Controller struct {
	Clients
	network           atomic.Pointer[config.Network] // nil before the first SetNetwork
	nodes             corelisters.NodeLister
	hostSubnets       networklisters.HostSubnetLister
	nodeIndexer       cache.Indexer // by InternalIP
	hostSubnetIndexer cache.Indexer // by overlap, by retention and by hostIP
	synced            []cache.InformerSynced
	loop              *reconcile.Loop // names of Nodes and of their HostSubnets
	allocator         *Allocator
	waitQueue         *waitQueue
	retention         time.Duration // of HostSubnets of deleted Nodes
}

// New returns a controller that watches the informers, which must not be started yet. It retains HostSubnets of deleted Nodes for the time of retention.
func New(clients Clients, nodes coreinformers.NodeInformer, hostSubnets networkinformers.HostSubnetInformer, retention time.Duration) (*Controller, error) {
	if err := hostSubnets.Informer().AddIndexers(cache.Indexers{overlapIndex: overlapKeys, retainedIndex: retainedKeys}); err != nil {
		return nil, fmt.Errorf("index HostSubnets by overlap and by retention: %w", err)
	}
	c := &Controller{
		Clients:           clients,
		nodes:             nodes.Lister(),
		hostSubnets:       hostSubnets.Lister(),
		nodeIndexer:       nodes.Informer().GetIndexer(),
		hostSubnetIndexer: hostSubnets.Informer().GetIndexer(),
		synced:            []cache.InformerSynced{nodes.Informer().HasSynced, hostSubnets.Informer().HasSynced},
		allocator:         NewAllocator(),
		waitQueue:         newWaitQueue(),
		retention:         retention,
	}
	c.loop = reconcile.New("hostsubnets", c.sync)
	if err := c.loop.WatchUnless(nodes.Informer(), sameNode); err != nil {
		return nil, err
	}
	if err := c.loop.WatchUnless(hostSubnets.Informer(), reconcile.SameVersion); err != nil {
		return nil, err
	}
	if err := c.watchHostIPs(nodes.Informer(), hostSubnets.Informer()); err != nil {
		return nil, err
	}
	return c, nil
}

// sameNode ignores the kubelet's status updates of other fields.
func sameNode(before, now any) bool {
	b, ok := before.(*corev1.Node)
	n, ok2 := now.(*corev1.Node)
	return ok && ok2 && b.UID == n.UID && slices.Equal(b.Status.Addresses, n.Status.Addresses) &&
		nodecondition.Equal(config.NetworkUnavailable(b), config.NetworkUnavailable(n))
}

// Load marks the subnets of all existing HostSubnets as allocated. It waits for the informers, and fails only when the context ends.
func (c *Controller) Load(ctx context.Context) error {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return fmt.Errorf("wait for the caches of Nodes and HostSubnets: %w", context.Cause(ctx))
	}
	existing, err := c.hostSubnets.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list HostSubnets in the cache: %w", err)
	}
	for _, o := range existing {
		c.allocator.MarkAllocated(o.Name, subnets(o)...)
	}
	klog.FromContext(ctx).Info("Loaded HostSubnets", "hostSubnets", len(existing))
	return nil
}

// SetNetwork sets the network that subnets are allocated from. It changes nothing and returns the error of config.Network.CheckChange if the change
// conflicts with HostSubnets in use. No subnet is allocated between that check and the change.
func (c *Controller) SetNetwork(network *config.Network) error {
	err := c.allocator.SetNetworks(network.ClusterNetworks, func(allocations []Allocation) error {
		if current := c.network.Load(); current != nil {
			if err := current.CheckChange(network, c.inUse(allocations)); err != nil {
				return err
			}
		}
		c.network.Store(network)
		return nil
	})
	if err != nil {
		return err
	}
	// The result of validation or of an allocation may be different in the new network.
	for _, indexer := range []cache.Indexer{c.nodeIndexer, c.hostSubnetIndexer} {
		for _, name := range indexer.ListKeys() {
			c.loop.Add(name)
		}
	}
	return nil
}

// inUse returns the allocated subnets, including those of writes in progress, and the hostIPs.
func (c *Controller) inUse(allocations []Allocation) []config.HostSubnet {
	list := make([]config.HostSubnet, 0, 2*len(allocations))
	for _, a := range allocations {
		list = append(list, config.HostSubnet{Node: a.Owner, Subnets: []netip.Prefix{a.Subnet}})
	}
	names := c.hostSubnetIndexer.ListKeys()
	slices.Sort(names)
	for _, name := range names {
		if hs, err := c.hostSubnets.Get(name); err == nil {
			if addr, err := config.ParseHostIP(hs.HostIP); err == nil {
				list = append(list, config.HostSubnet{Node: name, HostIP: addr})
			}
		}
	}
	return list
}

// Run reconciles until the context ends.
func (c *Controller) Run(ctx context.Context, workers int) error {
	klog.FromContext(ctx).Info("Starting HostSubnet controller", "workers", workers)
	c.loop.Run(ctx, workers)
	return nil
}
