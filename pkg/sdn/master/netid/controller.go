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
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
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

// Controller creates a NetNamespace with a VNID for each Namespace, changes the VNID as requested by networkv1.ChangePodNetworkAnnotation,
// and deletes the NetNamespace after the Namespace. It works in every mode, so that namespaces have VNIDs when the mode changes, but
// refuses change requests outside of mode multitenant.
//
// No VNID is allocated to two namespaces. The allocator ensures that within the term of one leader. A leader that was suspended may still
// write when the next one has taken over. Its updates conflict if the next leader has changed the object, but it could create a NetNamespace
// with a VNID that the next leader has allocated to another namespace. Therefore each term, numbered by the transitions of the Lease,
// allocates from a partition of the VNIDs of its own. A conflict would need a leader suspended for 255 terms, or one that had used
// all 65,536 VNIDs of its partition. (HostSubnets are proposed and confirmed instead, which has no such exception but takes two
// writes. Subnets are too few for partitions, and namespaces too many for two writes.)
//
// The quarantine of VNIDs ends with the leader. It can: the next leader allocates from another partition.
//
// After New, the caller starts the informers and calls Load, SetMode and Run, in this order. SetMode can be called again.
type Controller struct {
	Clients
	global        map[string]bool // names of namespaces that are created with GlobalVNID
	mode          atomic.Uint32   // a config.Mode; ModeSubnet before the first SetMode
	namespaces    corelisters.NamespaceLister
	netNamespaces networklisters.NetNamespaceLister
	synced        []cache.InformerSynced
	loop          *reconcile.Loop // names of Namespaces and of their NetNamespaces
	vnids         *Allocator

	// changes serializes change requests: two namespaces that join each other at the same time would swap their VNIDs.
	changes sync.Mutex

	mu     sync.Mutex
	states map[string]state // by name
}

// New returns a controller that watches the informers, which must not be started yet. global are the names of namespaces that are created with
// GlobalVNID. term numbers the terms of leaders.
func New(clients Clients, namespaces coreinformers.NamespaceInformer, netNamespaces networkinformers.NetNamespaceInformer,
	global []string, term int) (*Controller, error) {
	c := &Controller{
		Clients:       clients,
		global:        map[string]bool{},
		namespaces:    namespaces.Lister(),
		netNamespaces: netNamespaces.Lister(),
		synced:        []cache.InformerSynced{namespaces.Informer().HasSynced, netNamespaces.Informer().HasSynced},
		vnids:         NewAllocator(term, rand.Uint32N, time.Now),
		states:        map[string]state{},
	}
	for _, name := range global {
		c.global[name] = true
	}
	c.loop = reconcile.New("netnamespaces", c.sync)
	if err := c.loop.WatchUnless(namespaces.Informer(), sameNamespace); err != nil {
		return nil, err
	}
	if err := c.loop.WatchUnless(netNamespaces.Informer(), reconcile.SameVersion); err != nil {
		return nil, err
	}
	return c, nil
}

func sameNamespace(before, now any) bool {
	b, ok := before.(*corev1.Namespace)
	n, ok2 := now.(*corev1.Namespace)
	return ok && ok2 && b.UID == n.UID && b.Annotations[config.LogDeniedAnnotation] == n.Annotations[config.LogDeniedAnnotation]
}

// Load marks the VNIDs of all existing NetNamespaces as allocated. It waits for the informers, and fails only when the context ends.
func (c *Controller) Load(ctx context.Context) error {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return fmt.Errorf("wait for the caches of Namespaces and NetNamespaces: %w", context.Cause(ctx))
	}
	existing, err := c.netNamespaces.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list NetNamespaces in the cache: %w", err)
	}
	for _, o := range existing {
		vnid, _ := effectiveVNID(o)
		c.vnids.Set(o.Name, vnid)
		c.updateState(o.Name, func(s *state) { s.preexisting, s.namespace = true, namespaceUID(o) })
	}
	klog.FromContext(ctx).Info("Loaded NetNamespaces", "netNamespaces", len(existing))
	return nil
}

// SetMode sets the mode. When it becomes multitenant, SetMode reports isolated namespaces of --global-namespaces.
func (c *Controller) SetMode(ctx context.Context, mode config.Mode) {
	if before := config.Mode(c.mode.Swap(uint32(mode))); before != mode && mode == config.ModeMultitenant {
		c.reportIsolated(ctx)
	}
}

// Run reconciles until the context ends.
func (c *Controller) Run(ctx context.Context, workers int) {
	klog.FromContext(ctx).Info("Starting NetNamespace controller", "workers", workers)
	c.loop.Run(ctx, workers)
}

// reportIsolated reports the namespaces of --global-namespaces that have a VNID of their own: they were created before the flag was set, or
// isolated since. Only a change request changes a VNID.
func (c *Controller) reportIsolated(ctx context.Context) {
	for name := range c.global {
		nn, err := c.netNamespaces.Get(name)
		if err != nil {
			continue
		}
		vnid, valid := effectiveVNID(nn)
		if !valid || vnid.IsGlobal() {
			continue
		}
		err = fmt.Errorf("--global-namespaces names %s, but it has VNID %s, which stays: set the annotation %s=%s to make it global",
			name, vnid, networkv1.ChangePodNetworkAnnotation, config.ActionGlobal)
		klog.FromContext(ctx).Info("Global namespace is isolated", "namespace", name, "err", err)
		c.Events.Event(nn, corev1.EventTypeWarning, eventreason.GlobalNamespaceIsolated, err.Error())
	}
}
