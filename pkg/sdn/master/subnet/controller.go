package subnet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions/network/v1"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/wait"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

const (
	// What fails is tried again after 100 ms, and from then on at half the pace each time, to a minute.
	firstRetry = 100 * time.Millisecond
	lastRetry  = time.Minute

	// What people must mend is tried again when the node, its HostSubnet or the free space changes, and is said again at
	// this pace: Events are gone after an hour, and the recorder lets one in five minutes pass for an object.
	complaintInterval = 5 * time.Minute

	// syncTimeout bounds the few API calls of one sync, so that a server that hangs doesn't hold a worker for ever.
	syncTimeout = 30 * time.Second
)

// Clients are how the controller reaches the cluster.
type Clients struct {
	Kube    kubernetes.Interface
	Network networkclient.Interface
	Events  record.EventRecorder
}

// Controller keeps one HostSubnet a Node: it makes it, follows the node's address, and deletes it after the node.
// What people changed in a HostSubnet's subnet it leaves as it is, and says on the node what is wrong with it.
type Controller struct {
	Clients
	network     *config.Network
	nodes       corelisters.NodeLister
	hostSubnets networklisters.HostSubnetLister
	synced      []cache.InformerSynced
	queue       workqueue.TypedRateLimitingInterface[string] // names of nodes and of HostSubnets, which are the same
	allocator   *Allocator
	waiting     waiting
}

// New returns a controller for the network that hears of changes from the informers. Its caller starts them, then Run.
func New(clients Clients, network *config.Network, nodes coreinformers.NodeInformer, hostSubnets networkinformers.HostSubnetInformer) (*Controller, error) {
	c := &Controller{
		Clients:     clients,
		network:     network,
		nodes:       nodes.Lister(),
		hostSubnets: hostSubnets.Lister(),
		synced:      []cache.InformerSynced{nodes.Informer().HasSynced, hostSubnets.Informer().HasSynced},
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry),
			workqueue.TypedRateLimitingQueueConfig[string]{Name: "hostsubnets"}),
		allocator: NewAllocator(network.ClusterNetworks),
		waiting:   waiting{present: map[string]bool{}},
	}
	for _, i := range []struct {
		informer cache.SharedInformer
		same     func(before, now any) bool
	}{
		{nodes.Informer(), sameNode},
		{hostSubnets.Informer(), sameHostSubnet},
	} {
		if _, err := i.informer.AddEventHandler(c.handler(i.same)); err != nil {
			return nil, fmt.Errorf("listen to an informer: %w", err)
		}
	}
	return c, nil
}

// handler queues the name of what changed. Nodes report in every few minutes: what is the same here is passed over.
func (c *Controller) handler(same func(before, now any) bool) cache.ResourceEventHandler {
	add := func(o any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o); err == nil { // informers hold nothing without a name
			c.queue.Add(key)
		}
	}
	return cache.ResourceEventHandlerFuncs{
		AddFunc: add,
		UpdateFunc: func(before, now any) {
			if !same(before, now) {
				add(now)
			}
		},
		DeleteFunc: add,
	}
}

func sameNode(before, now any) bool {
	b, ok := before.(*corev1.Node)
	n, ok2 := now.(*corev1.Node)
	return ok && ok2 && b.UID == n.UID && slices.Equal(b.Status.Addresses, n.Status.Addresses)
}

func sameHostSubnet(before, now any) bool {
	b, ok := before.(*networkv1.HostSubnet)
	n, ok2 := now.(*networkv1.HostSubnet)
	return ok && ok2 && b.ResourceVersion == n.ResourceVersion
}

// Run works until the context ends. Nothing is given out before all that is in use has been marked.
func (c *Controller) Run(ctx context.Context, workers int) error {
	defer c.queue.ShutDown()
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return nil // only the end of the context ends the wait
	}
	existing, err := c.hostSubnets.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list the HostSubnets in the cache: %w", err)
	}
	for _, o := range existing {
		c.allocator.MarkAllocated(o.Name, claims(o)...)
	}
	klog.FromContext(ctx).Info("Giving nodes their subnets", "hostSubnets", len(existing), "workers", workers)

	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for c.work(ctx) {
			}
		})
	}
	<-ctx.Done()
	c.queue.ShutDown()
	running.Wait()
	return nil
}

// work syncs the next name, and returns false when there will be none.
func (c *Controller) work(ctx context.Context) bool {
	name, shutdown := c.queue.Get()
	if shutdown {
		return false
	}
	defer c.queue.Done(name)
	logger := klog.FromContext(ctx).WithValues("node", klog.KRef("", name))
	attempt, cancel := context.WithTimeout(klog.NewContext(ctx, logger), syncTimeout)
	defer cancel()

	err := c.sync(attempt, name)
	if ctx.Err() != nil {
		return false
	}
	switch _, told := errors.AsType[complaint](err); {
	case err == nil:
		c.queue.Forget(name)
	case told:
		logger.Error(err, "The node's HostSubnet is not in order")
		c.queue.Forget(name)
		c.queue.AddAfter(name, wait.Jitter(complaintInterval, 0.2))
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		logger.V(2).Info("Somebody else wrote meanwhile, trying again", "err", err)
		c.queue.AddRateLimited(name)
	default:
		logger.Error(err, "The node's HostSubnet could not be seen to, trying again")
		c.queue.AddRateLimited(name)
	}
	return true
}
