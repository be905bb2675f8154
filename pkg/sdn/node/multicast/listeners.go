// Package multicast publishes which other nodes have receivers of a VNID's multicast, so that only they get copies.
//
// It watches only pods of namespaces that have multicast enabled and share a VNID with pods of this node. Until their nodes are known, all nodes get
// copies: the receiving node drops a copy without receivers.
package multicast

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// publishDelay batches changes of pods into one change of the switch. A new pod takes longer to start.
const publishDelay = 200 * time.Millisecond

// workers is the number of VNIDs that wait for the switch at the same time.
const workers = 4

// Listeners publishes the nodes with receivers of the followed VNIDs.
type Listeners struct {
	self    string
	client  kubernetes.Interface
	store   *flowstore.Store
	loop    *reconcile.Loop // keys are VNIDs
	watches sync.WaitGroup

	mu       sync.Mutex
	nodes    map[string]netip.Addr        // VTEPs of the cluster's other nodes, by name
	machines map[string]inputs.RemoteNode // outside of the cluster: their receivers are unknown
	networks map[config.VNID]network
}

// network has the pods of a followed VNID, by namespace.
type network map[string]*podWatch

// New returns Listeners for the node with the name.
func New(self string, client kubernetes.Interface, st *flowstore.Store) *Listeners {
	l := &Listeners{
		self:     self,
		client:   client,
		store:    st,
		nodes:    map[string]netip.Addr{},
		machines: map[string]inputs.RemoteNode{},
		networks: map[config.VNID]network{},
	}
	l.loop = reconcile.New("multicast", l.reconcile)
	return l
}

// Run watches until the context ends.
func (l *Listeners) Run(ctx context.Context) {
	l.loop.Run(ctx, workers)
	l.watches.Wait()
}

// SetRemoteNode sets a remote node, or deletes it if it is nil.
func (l *Listeners) SetRemoteNode(name string, peer *inputs.RemoteNode) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, affectsAll := l.machines[name]
	delete(l.nodes, name)
	delete(l.machines, name)
	switch {
	case peer == nil:
	case peer.IsNode && !peer.HasFixedVNID:
		l.nodes[name] = peer.VTEP
	default:
		l.machines[name] = *peer
		affectsAll = true
	}
	for vnid, n := range l.networks {
		if affectsAll || !n.synced() || n.hasPodsOn(name) {
			l.loop.AddAfter(vnid.String(), publishDelay)
		}
	}
}

// Follow sets the namespaces of a VNID that has multicast and pods on this node; none: it has no longer both. Until the pods of a new namespace are
// known, all nodes get the multicast: that is published before Follow returns.
func (l *Listeners) Follow(vnid config.VNID, namespaces []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.networks[vnid]
	removed := maps.Clone(n)
	changed := false
	for _, name := range namespaces {
		delete(removed, name)
		if n[name] != nil {
			continue
		}
		if n == nil {
			n = network{}
			l.networks[vnid] = n
		}
		n[name] = newPodWatch()
		changed = true
		l.loop.Add(vnid.String())
	}
	for name, p := range removed {
		p.cancel()
		delete(n, name)
		changed = true
	}
	if len(n) == 0 {
		delete(l.networks, vnid)
	}
	if changed {
		l.publish(vnid)
	}
}

// publish publishes the nodes with receivers of the VNID. The caller holds the lock.
func (l *Listeners) publish(vnid config.VNID) []*flowstore.Commit {
	if l.networks[vnid] == nil {
		return l.store.Update(flowstore.Update{Withdraw: []flowstore.Input{inputs.MulticastNodesOf(vnid)}})
	}
	return l.store.Update(flowstore.Update{Publish: []flowstore.Published{{Input: inputs.MulticastNodesOf(vnid), Value: l.nodesOf(vnid)}}})
}

// nodesOf returns the nodes that get the VNID's multicast.
func (l *Listeners) nodesOf(vnid config.VNID) inputs.MulticastNodes {
	n := l.networks[vnid]
	vteps := map[netip.Addr]bool{}
	known := len(n) > 0 && n.synced()
	for _, p := range n {
		for name := range p.nodes {
			if vtep, ok := l.nodes[name]; ok {
				vteps[vtep] = true
			} else if _, ok := l.machines[name]; !ok {
				known = false // the node has no valid HostSubnet
			}
		}
	}
	fixed := false // a machine has the VNID as its fixed one: the replication list for all VNIDs omits it
	for _, m := range l.machines {
		if !m.HasFixedVNID || m.FixedVNID == vnid {
			vteps[m.VTEP] = true
			fixed = fixed || m.HasFixedVNID
		}
	}
	if !known && !fixed {
		return inputs.MulticastNodes{}
	}
	if !known {
		for _, vtep := range l.nodes {
			vteps[vtep] = true
		}
	}
	return inputs.MulticastNodes{VTEPs: slices.SortedFunc(maps.Keys(vteps), netip.Addr.Compare), Known: true}
}

// synced reports whether all pods of the VNID are known.
func (n network) synced() bool {
	for _, p := range n {
		if !p.synced {
			return false
		}
	}
	return true
}

// hasPodsOn reports whether the node has pods of the VNID.
func (n network) hasPodsOn(node string) bool {
	for _, p := range n {
		if p.nodes[node] > 0 {
			return true
		}
	}
	return false
}

func (l *Listeners) reconcile(ctx context.Context, key string) error {
	vnid, err := config.ParseVNID(key)
	if err != nil {
		return err
	}
	if err := l.startWatches(ctx, vnid); err != nil {
		return fmt.Errorf("watch the pods of VNID %s: %w", vnid, err)
	}
	l.mu.Lock()
	commits := l.publish(vnid)
	l.mu.Unlock()
	return flowstore.WaitAll(ctx, commits)
}

// startWatches starts the watches of the VNID's new namespaces.
func (l *Listeners) startWatches(ctx context.Context, vnid config.VNID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for namespace, p := range l.networks[vnid] {
		if p.started {
			continue
		}
		if err := l.watch(ctx, vnid, namespace, p); err != nil {
			return err
		}
		p.started = true
	}
	return nil
}
