// Package vnids publishes the VNID of each namespace, and installs the multicast of VNIDs that have it enabled.
package vnids

import (
	"context"
	"fmt"
	"sync"

	networkv1 "github.com/openshift/api/network/v1"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// workers bounds how many changes wait for the switch at once; the store sends them in one bundle.
const workers = 16

// Getter reads a NetNamespace from the API server.
type Getter func(ctx context.Context, name string) (*networkv1.NetNamespace, error)

// Bridge reads the flows of the previous agent (*native.Native).
type Bridge interface {
	DumpFlows(ctx context.Context) ([]ovs.DumpedFlow, error)
}

// Follower finds other nodes with receivers of a VNID's multicast, and publishes them (*multicast.Listeners). Its methods never block.
type Follower interface {
	// Follow sets the namespaces of a VNID that has multicast and pods on this node; none: it has no longer both.
	Follow(vnid config.VNID, namespaces []string)
}

// Options are the dependencies of VNIDs.
type Options struct {
	Node     pipeline.Node
	Lister   networklisters.NetNamespaceLister
	Informer cache.SharedIndexInformer // that of Lister
	Get      Getter
	Store    *flowstore.Store
	Bridge   Bridge   // that of Store; nil: VNIDs are not recovered from flows
	Follower Follower // nil: multicast goes to all nodes
}

// VNIDs publishes the VNIDs of namespaces. In mode subnet all namespaces have the same VNID.
//
// Its lock is held during store.Update, which never blocks, so that the store gets updates in the order of events.
type VNIDs struct {
	node     pipeline.Node
	lister   networklisters.NetNamespaceLister
	get      Getter
	store    *flowstore.Store
	bridge   Bridge
	follower Follower
	loop     *reconcile.Loop // nil in mode subnet
	fetches  singleflight.Group

	mu         sync.Mutex
	namespaces map[string]namespace // with a valid NetNamespace
	networks   map[config.VNID]network
	replicated map[config.VNID]bool   // VNIDs whose multicast flows are in the store
	invalid    map[string]namespace   // of NetNamespaces without a valid VNID
	onBridge   map[uint64]config.VNID // of the previous agent's flows, by cookie; nil unless a NetNamespace is invalid
}

// namespace is a namespace with a valid NetNamespace.
type namespace struct {
	object    types.UID // of the NetNamespace
	uid       types.UID // of the Namespace; "" if unknown
	vnid      config.VNID
	multicast bool
}

// New returns VNIDs that watch the informer, and registers their inputs with the store.
func New(o Options) (*VNIDs, error) {
	v := &VNIDs{
		node:       o.Node,
		lister:     o.Lister,
		get:        o.Get,
		store:      o.Store,
		bridge:     o.Bridge,
		follower:   o.Follower,
		namespaces: map[string]namespace{},
		networks:   map[config.VNID]network{},
		replicated: map[config.VNID]bool{},
		invalid:    map[string]namespace{},
	}
	v.store.Source(inputs.KindNamespaceUID, flowstore.Source{Default: types.UID("")})
	if v.flat() {
		v.store.Source(inputs.KindVNID, flowstore.Source{Default: config.GlobalVNID})
		v.store.Source(inputs.KindNamespaceVNID, flowstore.Source{Default: config.GlobalVNID})
		return v, nil
	}
	v.store.Source(inputs.KindVNID, flowstore.Source{Resolve: v.resolve, Missing: v.adopt})
	v.store.Source(inputs.KindNamespaceVNID, flowstore.Source{})
	v.store.Source(inputs.KindPorts, flowstore.Source{Default: []int(nil), Changed: v.portsChanged})
	v.store.Source(inputs.KindMulticastNodes, flowstore.Source{Default: inputs.MulticastNodes{}})
	v.loop = reconcile.New("vnids", v.reconcile)
	if err := v.loop.Watch(o.Informer); err != nil {
		return nil, err
	}
	return v, nil
}

// flat reports whether all namespaces have one VNID.
func (v *VNIDs) flat() bool { return v.node.Mode == config.ModeSubnet }

// Prime publishes the VNIDs of all NetNamespaces. The informer must have synced, and the bridge must still have the flows of the previous agent.
func (v *VNIDs) Prime(ctx context.Context) error {
	if v.flat() {
		return nil
	}
	all, err := v.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list NetNamespaces: %w", err)
	}
	var invalid []*networkv1.NetNamespace
	for _, o := range all {
		v.apply(ctx, o)
		if _, err := config.ParseNetNamespace(o); err != nil {
			invalid = append(invalid, o)
		}
	}
	return v.recover(ctx, invalid)
}

// Run reconciles NetNamespaces until the context ends.
func (v *VNIDs) Run(ctx context.Context) {
	if v.flat() {
		return
	}
	v.loop.Run(ctx, workers)
}

func (v *VNIDs) reconcile(ctx context.Context, name string) error {
	o, err := v.lister.Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return flowstore.WaitAll(ctx, v.removeNamespace(name))
	case err != nil:
		return fmt.Errorf("NetNamespace %s: %w", name, err)
	}
	return flowstore.WaitAll(ctx, v.apply(ctx, o))
}

// apply publishes the VNID of a NetNamespace. If it has no valid VNID, the previous one remains published.
func (v *VNIDs) apply(ctx context.Context, o *networkv1.NetNamespace) []*flowstore.Commit {
	n, err := config.ParseNetNamespace(o)
	if err != nil {
		klog.FromContext(ctx).Error(err, "NetNamespace is invalid; retained its previous state", "netNamespace", o.Name, "action", "correct the NetNamespace")
		return nil
	}
	if n.Fault != nil { // ovsdn-controller reports it to users
		klog.FromContext(ctx).Info("NetNamespace is invalid; using its assigned VNID", "netNamespace", o.Name, "vnid", n.VNID, "err", n.Fault)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.setNamespace(ctx, n)
}

// setNamespace publishes the VNID of a valid NetNamespace. The caller holds the lock.
func (v *VNIDs) setNamespace(ctx context.Context, n *config.NetNamespace) []*flowstore.Commit {
	previous, exists := v.namespaces[n.Name]
	if exists && previous.vnid != n.VNID {
		klog.FromContext(ctx).Info("VNID of namespace changed", "namespace", n.Name, "vnid", n.VNID, "previousVNID", previous.vnid)
	}
	ns := namespace{n.UID, n.NamespaceUID, n.VNID, n.Multicast}
	if ns.uid == "" && ns.object == previous.object { // another client removed the annotation; the controller restores it
		ns.uid = previous.uid
	}
	c := v.newChange()
	c.join(n.Name, ns)
	return c.send()
}

// removeNamespace handles the deletion of a NetNamespace. The namespace's remaining pods and services retain its VNID.
func (v *VNIDs) removeNamespace(name string) []*flowstore.Commit {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.invalid, name)
	c := v.newChange()
	c.retire(name)
	c.leave(name)
	c.update.Retire = append(c.update.Retire, inputs.VNID(name))
	c.update.Withdraw = []flowstore.Input{inputs.NamespaceUID(name)}
	return c.send()
}
