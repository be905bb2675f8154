package subnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
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
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// syncTimeout bounds the few API calls of one sync, so that a server that hangs doesn't hold a worker for ever.
const syncTimeout = 30 * time.Second

// Clients are how the controller reaches the cluster.
type Clients struct {
	Kube    kubernetes.Interface
	Network networkclient.Interface
	Events  record.EventRecorder
}

// Controller keeps one HostSubnet a Node: it makes it, follows the node's address, and deletes it after the node.
// What people changed in a HostSubnet's subnet it leaves as it is, and says on the node what is wrong with it.
//
// Its caller makes it, starts the informers, and calls Load, Follow and Run in this order. Follow may be called again.
type Controller struct {
	Clients
	network     atomic.Pointer[config.Network] // nil before the first Follow
	nodes       corelisters.NodeLister
	hostSubnets networklisters.HostSubnetLister
	written     cache.Indexer // of hostSubnets, by overlap and by hostIP
	reported    cache.Indexer // of nodes, by InternalIP
	synced      []cache.InformerSynced
	loop        *reconcile.Loop // names of nodes and of HostSubnets, which are the same
	allocator   *Allocator
	waiting     waiting
}

// New returns a controller that hears of changes from the informers, which must not run yet.
func New(clients Clients, nodes coreinformers.NodeInformer, hostSubnets networkinformers.HostSubnetInformer) (*Controller, error) {
	if err := hostSubnets.Informer().AddIndexers(cache.Indexers{overlapIndex: overlapKeys}); err != nil {
		return nil, fmt.Errorf("index HostSubnets by overlap: %w", err)
	}
	c := &Controller{
		Clients:     clients,
		nodes:       nodes.Lister(),
		hostSubnets: hostSubnets.Lister(),
		written:     hostSubnets.Informer().GetIndexer(),
		reported:    nodes.Informer().GetIndexer(),
		synced:      []cache.InformerSynced{nodes.Informer().HasSynced, hostSubnets.Informer().HasSynced},
		allocator:   NewAllocator(),
		waiting:     waiting{present: map[string]bool{}},
	}
	c.loop = reconcile.New("hostsubnets", c.serve)
	if err := c.loop.WatchUnless(nodes.Informer(), sameNode); err != nil {
		return nil, err
	}
	if err := c.loop.WatchUnless(hostSubnets.Informer(), sameHostSubnet); err != nil {
		return nil, err
	}
	if err := c.watchVTEPs(nodes.Informer(), hostSubnets.Informer()); err != nil {
		return nil, err
	}
	return c, nil
}

// sameNode passes over heartbeats, which come every few minutes.
func sameNode(before, now any) bool {
	b, ok := before.(*corev1.Node)
	n, ok2 := now.(*corev1.Node)
	return ok && ok2 && b.UID == n.UID && slices.Equal(b.Status.Addresses, n.Status.Addresses) &&
		saysTheSame(config.NetworkUnavailable(b), config.NetworkUnavailable(n))
}

func sameHostSubnet(before, now any) bool {
	b, ok := before.(*networkv1.HostSubnet)
	n, ok2 := now.(*networkv1.HostSubnet)
	return ok && ok2 && b.ResourceVersion == n.ResourceVersion
}

// Load marks all that is in use: nothing is judged or given out before that. It waits for the informers, and fails only
// when the context ends.
func (c *Controller) Load(ctx context.Context) error {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return fmt.Errorf("wait for the caches of nodes and HostSubnets: %w", context.Cause(ctx))
	}
	existing, err := c.hostSubnets.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list the HostSubnets in the cache: %w", err)
	}
	for _, o := range existing {
		c.allocator.MarkAllocated(o.Name, claims(o)...)
	}
	klog.FromContext(ctx).Info("Know what is in use", "hostSubnets", len(existing))
	return nil
}

// Follow puts the network into force: at first any, from then on one that all in use has its place in (see
// config.Network.CheckChange, whose error it returns otherwise, and then nothing changes). Nothing is given out between the
// question and the change.
func (c *Controller) Follow(to *config.Network) error {
	err := c.allocator.SetNetworks(to.ClusterNetworks, func(held []Hold) error {
		if now := c.network.Load(); now != nil {
			if err := now.CheckChange(to, c.inUse(held)); err != nil {
				return err
			}
		}
		c.network.Store(to)
		return nil
	})
	if err != nil {
		return err
	}
	// What did not fit may do so now, and who waits may find space.
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list the nodes in the cache: %w", err)
	}
	for _, node := range nodes {
		c.loop.Add(node.Name)
	}
	for _, name := range c.written.ListKeys() {
		c.loop.Add(name)
	}
	return nil
}

// inUse returns who has which subnets, also those that are on their way to the API server, and which addresses.
func (c *Controller) inUse(held []Hold) []config.HostSubnet {
	list := make([]config.HostSubnet, 0, 2*len(held))
	for _, h := range held {
		list = append(list, config.HostSubnet{Node: h.Holder, Subnets: []netip.Prefix{h.Subnet}})
	}
	names := c.written.ListKeys()
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

// Run works until the context ends.
func (c *Controller) Run(ctx context.Context, workers int) error {
	klog.FromContext(ctx).Info("Giving nodes their subnets", "workers", workers)
	c.loop.Run(ctx, workers)
	return nil
}

func (c *Controller) serve(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	return c.sync(ctx, name)
}
