package netid

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
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

// Reasons of Events on NetNamespaces, and of the last on Namespaces. People and alerts match them: they don't change.
const (
	reasonChanged   = "NetworkChanged"
	reasonRefused   = "NetworkChangeRefused"
	reasonNoVNID    = "NoVNID"                  // on a Namespace too: none is free for it
	reasonInvalid   = "InvalidNetNamespace"     // the assigned VNID stays in use
	reasonByHand    = "VNIDWrittenByHand"       // others have it too, and nobody asked for that as it is asked for
	reasonNotGlobal = "GlobalNamespaceIsolated" // one that is to be global has a VNID of its own
	reasonNotLogged = "InvalidLogDenied"        // what config.LogDeniedAnnotation says is nothing
)

// Clients are how the controller reaches the cluster.
type Clients struct {
	Kube    kubernetes.Interface
	Network networkclient.Interface
	Events  record.EventRecorder
}

// Controller keeps one NetNamespace a Namespace: it makes it with a VNID, changes that when asked to by
// networkv1.ChangePodNetworkAnnotation, and deletes it after the Namespace. In every mode, so that namespaces have VNIDs when
// the mode changes; other modes than multitenant isolate by other means, and refuse the changes.
//
// No VNID is given twice. One leader's allocator sees to that as long as the leader leads. A leader that was stopped for a
// while may write when the next one already works: an update then fails if the next one has seen to the object, since that
// changed it; but a new VNID that the late leader has chosen may be one that the next has given to another namespace.
// Therefore each term draws its VNIDs from a class of its own, by the number of terms before, of which there are as many as
// the Lease has changed hands. The late leader would have to sleep through 255 terms, or to have given all 65,536 of
// its class. HostSubnets are proposed and confirmed instead, which allows no exception but takes two writes; there
// are too few of them for classes, and too many namespaces for two writes.
//
// The quarantine does not outlive the leader. Nor need it: what the last term has freed can be in the next one's class only if
// it was given out 255 terms ago, and then the odds are one in 65,536 for each.
//
// Its caller makes it, starts the informers, and calls Load, Follow and Run in this order. Follow may be called again.
type Controller struct {
	Clients
	global        map[string]bool // that are made with GlobalVNID
	mode          atomic.Uint32   // a config.Mode; ModeSubnet before the first Follow
	namespaces    corelisters.NamespaceLister
	netNamespaces networklisters.NetNamespaceLister
	synced        []cache.InformerSynced
	loop          *reconcile.Loop // names of namespaces
	vnids         *Allocator

	// changes is held from the look at the other namespace to the write: two that join each other at once would else
	// swap their VNIDs.
	changes sync.Mutex

	mu       sync.Mutex
	written  map[string]*networkv1.NetNamespace // by this controller, unless the cache is as new
	found    map[string]bool                    // by Load: whoever shares a VNID there was joined by somebody
	disputed map[string]bool                    // have a VNID that is not theirs to have
	assigned map[string]config.VNID             // by namespace: the last VNID that it had rightfully
}

// New returns a controller that hears of changes from the informers, which must not run yet. Namespaces of these names are
// made global. Term tells this leader from the ones before and after.
func New(clients Clients, namespaces coreinformers.NamespaceInformer, netNamespaces networkinformers.NetNamespaceInformer,
	global []string, term int) (*Controller, error) {
	c := &Controller{
		Clients:       clients,
		global:        map[string]bool{},
		namespaces:    namespaces.Lister(),
		netNamespaces: netNamespaces.Lister(),
		synced:        []cache.InformerSynced{namespaces.Informer().HasSynced, netNamespaces.Informer().HasSynced},
		vnids:         NewAllocator(term, rand.Uint32N, time.Now),
		written:       map[string]*networkv1.NetNamespace{},
		found:         map[string]bool{},
		disputed:      map[string]bool{},
		assigned:      map[string]config.VNID{},
	}
	for _, name := range global {
		c.global[name] = true
	}
	c.loop = reconcile.New("netnamespaces", c.serve)
	if err := c.loop.WatchUnless(namespaces.Informer(), sameNamespace); err != nil {
		return nil, err
	}
	if err := c.loop.WatchUnless(netNamespaces.Informer(), sameNetNamespace); err != nil {
		return nil, err
	}
	return c, nil
}

func sameNamespace(before, now any) bool {
	b, ok := before.(*corev1.Namespace)
	n, ok2 := now.(*corev1.Namespace)
	return ok && ok2 && b.UID == n.UID && b.Annotations[config.LogDeniedAnnotation] == n.Annotations[config.LogDeniedAnnotation]
}

func sameNetNamespace(before, now any) bool {
	b, ok := before.(*networkv1.NetNamespace)
	n, ok2 := now.(*networkv1.NetNamespace)
	return ok && ok2 && b.ResourceVersion == n.ResourceVersion
}

// Load marks all VNIDs that are in use: none is given out before that. It waits for the informers, and fails only when the
// context ends.
func (c *Controller) Load(ctx context.Context) error {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return fmt.Errorf("wait for the caches of Namespaces and NetNamespaces: %w", context.Cause(ctx))
	}
	existing, err := c.netNamespaces.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list the NetNamespaces in the cache: %w", err)
	}
	for _, o := range existing {
		vnid, _ := inUse(o)
		c.vnids.Set(o.Name, vnid)
		c.found[o.Name] = true
	}
	klog.FromContext(ctx).Info("Know what is in use", "netNamespaces", len(existing))
	return nil
}

// Follow puts the mode into force.
func (c *Controller) Follow(ctx context.Context, mode config.Mode) {
	if before := config.Mode(c.mode.Swap(uint32(mode))); before != mode && mode == config.ModeMultitenant {
		c.warnOfIsolated(ctx)
	}
}

// Run works until the context ends.
func (c *Controller) Run(ctx context.Context, workers int) {
	klog.FromContext(ctx).Info("Giving namespaces their VNIDs", "workers", workers)
	c.loop.Run(ctx, workers)
}

// warnOfIsolated says which namespaces are to be global and are not: they had a VNID before that was wished for, or were
// isolated since, and nothing but a change that is asked for takes a VNID away. It matters from the moment on in which VNIDs isolate.
func (c *Controller) warnOfIsolated(ctx context.Context) {
	for name := range c.global {
		nn, err := c.netNamespaces.Get(name)
		if err != nil {
			continue
		}
		vnid, usable := inUse(nn)
		if !usable || vnid.IsGlobal() {
			continue
		}
		err = fmt.Errorf("--global-namespaces names %s, but it has VNID %s, which stays: set the annotation %s=%s to make it global",
			name, vnid, networkv1.ChangePodNetworkAnnotation, config.ActionGlobal)
		klog.FromContext(ctx).Info("A namespace is isolated", "why", err)
		c.Events.Event(nn, corev1.EventTypeWarning, reasonNotGlobal, err.Error())
	}
}

func (c *Controller) serve(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	return c.sync(ctx, name)
}
