// Package vnids knows which VNID every namespace has, and keeps the flows that depend on it in step: when a namespace gets
// another VNID, all of its pods and services on this node change in one bundle.
package vnids

import (
	"context"
	"errors"
	"fmt"
	"sync"

	networkv1 "github.com/openshift/api/network/v1"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	"golang.org/x/sync/singleflight"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// workers bounds how many changes wait for the switch at once; the store sends them in one bundle.
const workers = 16

// Store holds desired state (*store.Store).
type Store interface {
	SetAll(changes ...store.Change) []*store.Commit
}

// Getter reads a NetNamespace from the API server.
type Getter func(ctx context.Context, name string) (*networkv1.NetNamespace, error)

// Bridge is what VNIDs needs of the switch besides the store.
type Bridge interface {
	DumpFlows(ctx context.Context) ([]ovs.DumpedFlow, error)
}

// Options is what VNIDs works with.
type Options struct {
	Node     pipeline.Node
	Lister   networklisters.NetNamespaceLister
	Informer cache.SharedIndexInformer // that of Lister
	Get      Getter
	Store    Store
	Bridge   Bridge // that of Store; nil: recover no VNIDs from flows

	Elsewhere Elsewhere // nil: multicast goes to all nodes
}

// VNIDs holds who depends on a namespace's VNID. In mode subnet all namespaces have the same.
//
// Its lock is held while a change is given to the store, which never blocks: so the order of changes is that of what is known, and a pod that
// comes while its namespace changes is in one state or the other, with all others of that namespace.
type VNIDs struct {
	node      pipeline.Node
	lister    networklisters.NetNamespaceLister
	get       Getter
	store     Store
	bridge    Bridge
	elsewhere Elsewhere
	loop      *reconcile.Loop // nil in mode subnet
	fetches   singleflight.Group

	mu         sync.Mutex
	namespaces map[string]*namespace
	homes      map[pipeline.Owner]string // the namespace that a dependent is in
	networks   map[config.VNID]*network
	onBridge   map[uint64]config.VNID // by the cookie of the owner, when Prime read the bridge; nil unless a NetNamespace needs it
}

// New returns the feature.
func New(o Options) (*VNIDs, error) {
	v := &VNIDs{
		node:       o.Node,
		lister:     o.Lister,
		get:        o.Get,
		store:      o.Store,
		bridge:     o.Bridge,
		elsewhere:  o.Elsewhere,
		namespaces: map[string]*namespace{},
		homes:      map[pipeline.Owner]string{},
		networks:   map[config.VNID]*network{},
	}
	if v.elsewhere == nil {
		v.elsewhere = nowhere{}
	}
	if v.flat() {
		return v, nil
	}
	v.loop = reconcile.New("vnids", v.serve)
	if err := v.loop.Watch(o.Informer); err != nil {
		return nil, err
	}
	return v, nil
}

// flat says that namespaces have no VNID of their own.
func (v *VNIDs) flat() bool { return v.node.Mode == config.ModeSubnet }

// A Dependent is something whose flows depend on its namespace's VNID.
type Dependent struct {
	Compile func(config.VNID) pipeline.State
	OFPort  int // where the VNID's multicast goes to; 0: nowhere
}

// namespace is what is known of one, and who depends on it.
type namespace struct {
	vnid       config.VNID
	known      bool // else its dependents have no flows
	exists     bool // as a NetNamespace: one that is gone keeps its VNID for those who are left
	multicast  bool
	unusable   bool // Prime found its NetNamespace without a valid VNID; the bridge may have one
	unsettled  bool // the switch refused some of what follows from the VNID, or nobody knows whether it did
	dependents map[pipeline.Owner]Dependent
}

// Prime reads all NetNamespaces. The informer must have synced, and the bridge must still have the flows of the previous agent.
func (v *VNIDs) Prime(ctx context.Context) error {
	if v.flat() {
		return nil
	}
	all, err := v.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing NetNamespaces: %w", err)
	}
	var unusable []*networkv1.NetNamespace
	for _, o := range all {
		v.learn(ctx, o)
		if _, err := config.ParseNetNamespace(o); err != nil {
			unusable = append(unusable, o)
		}
	}
	return v.recover(ctx, unusable)
}

// Run follows the NetNamespaces until the context ends.
func (v *VNIDs) Run(ctx context.Context) {
	if v.flat() {
		return
	}
	v.loop.Run(ctx, workers)
}

func (v *VNIDs) serve(ctx context.Context, name string) error {
	o, err := v.lister.Get(name)
	var commits []*store.Commit
	switch {
	case apierrors.IsNotFound(err):
		commits = v.unlearn(name)
	case err != nil:
		return fmt.Errorf("NetNamespace %s: %w", name, err)
	default:
		commits = v.learn(ctx, o)
	}
	err = wait(ctx, commits)
	if err != nil && ctx.Err() == nil {
		v.unsettle(name)
	}
	return err
}

// unsettle has the namespace compiled anew when it is served next: whoever was refused has the flows of before.
func (v *VNIDs) unsettle(name string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ns := v.namespaces[name]; ns != nil {
		ns.unsettled = true
	}
}

func wait(ctx context.Context, commits []*store.Commit) error {
	var errs []error
	for _, c := range commits {
		errs = append(errs, c.Wait(ctx))
	}
	return errors.Join(errs...)
}

// learn makes all that depends on the namespace follow it. A NetNamespace without a valid VNID changes nothing.
func (v *VNIDs) learn(ctx context.Context, o *networkv1.NetNamespace) []*store.Commit {
	n, err := config.ParseNetNamespace(o)
	if err != nil {
		klog.FromContext(ctx).Error(err, "NetNamespace is not usable, its former state stays", "netnamespace", o.Name)
		return nil
	}
	if n.Fault != nil { // ovsdn-controller reports it to users
		klog.FromContext(ctx).Info("NetNamespace is invalid; using its assigned VNID", "netnamespace", o.Name, "vnid", n.VNID, "err", n.Fault)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.take(ctx, n)
}

// take is learn with the lock held.
func (v *VNIDs) take(ctx context.Context, n *config.NetNamespace) []*store.Commit {
	ns := v.namespace(n.Name)
	another := !ns.known || ns.vnid != n.VNID
	changed := another || ns.unsettled
	if !changed && ns.exists && ns.multicast == n.Multicast {
		return nil
	}
	c := v.newChange()
	c.leave(n.Name, ns)
	ns.vnid, ns.known, ns.exists, ns.multicast, ns.unsettled, ns.unusable = n.VNID, true, true, n.Multicast, false, false
	c.enter(n.Name, ns)
	if changed {
		for owner, d := range ns.dependents {
			c.set(owner, ns.compile(d))
		}
	}
	if another && len(ns.dependents) > 0 {
		klog.FromContext(ctx).Info("Namespace has another VNID", "namespace", n.Name, "vnid", n.VNID, "dependents", len(ns.dependents))
	}
	return c.send()
}

// unlearn forgets the VNID of a NetNamespace that is gone, unless somebody is left who has it.
func (v *VNIDs) unlearn(name string) []*store.Commit {
	v.mu.Lock()
	defer v.mu.Unlock()
	ns := v.namespaces[name]
	if ns == nil {
		return nil
	}
	c := v.newChange()
	c.leave(name, ns)
	ns.exists, ns.unusable = false, false
	c.enter(name, ns)
	v.collect(name)
	return c.send()
}

func (v *VNIDs) namespace(name string) *namespace {
	ns := v.namespaces[name]
	if ns == nil {
		ns = &namespace{known: v.flat()}
		v.namespaces[name] = ns
	}
	return ns
}

func (v *VNIDs) collect(name string) {
	if ns := v.namespaces[name]; ns != nil && !ns.exists && !ns.unusable && len(ns.dependents) == 0 {
		delete(v.namespaces, name)
	}
}

// current says whether the VNID is that of a NetNamespace that there is.
func (ns *namespace) current() bool { return ns != nil && ns.known && ns.exists }

func (ns *namespace) compile(d Dependent) pipeline.State {
	if !ns.known {
		return pipeline.State{}
	}
	return d.Compile(ns.vnid)
}

// Set makes the owner one of the namespace's dependents, whose flows follow its VNID from now on. While that is not known it has none.
func (v *VNIDs) Set(name string, owner pipeline.Owner, d Dependent) *store.Commit {
	v.mu.Lock()
	defer v.mu.Unlock()
	ns := v.namespace(name)
	c := v.newChange()
	if ns.dependents == nil {
		ns.dependents = map[pipeline.Owner]Dependent{}
	}
	ns.dependents[owner] = d
	v.homes[owner] = name
	adopted := v.adopt(ns, owner)
	c.set(owner, ns.compile(d))
	c.plug(ns, owner, d)
	if adopted {
		c.enter(name, ns)
		for other, d := range ns.dependents {
			if other != owner {
				c.set(other, ns.compile(d))
			}
		}
	}
	return c.send()[0]
}

// Delete takes everything of the owner off the switch.
func (v *VNIDs) Delete(owner pipeline.Owner) *store.Commit {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.newChange()
	c.set(owner, pipeline.State{})
	if name, ok := v.homes[owner]; ok {
		ns := v.namespaces[name]
		c.unplug(ns, owner)
		delete(ns.dependents, owner)
		delete(v.homes, owner)
		v.collect(name)
	}
	return c.send()[0]
}

// Of returns the namespace's VNID, and whether it is known.
func (v *VNIDs) Of(name string) (config.VNID, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if ns := v.namespaces[name]; ns != nil {
		return ns.vnid, ns.known
	}
	return config.GlobalVNID, v.flat()
}

// Recompile sends another feature's changes to the switch, and in the same bundle what the owners' flows are now, for those of them that
// are dependents. The commits of the changes come first.
func (v *VNIDs) Recompile(changes []store.Change, owners ...pipeline.Owner) []*store.Commit {
	v.mu.Lock()
	defer v.mu.Unlock()
	c := v.newChange()
	c.changes = append(c.changes, changes...)
	for _, owner := range owners {
		if name, ok := v.homes[owner]; ok {
			ns := v.namespaces[name]
			c.set(owner, ns.compile(ns.dependents[owner]))
		}
	}
	return c.send()
}
