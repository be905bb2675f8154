// Package multicast knows which other nodes have somebody who listens to a VNID's multicast, so that nobody else gets copies.
//
// It watches pods of no more than the namespaces whose multicast is on and that share a VNID with pods here. Whatever it does
// not know (yet) goes to all nodes: a copy too many is dropped where it arrives, a copy too few is a loss.
package multicast

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/peers"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// refreshDelay lets pods that come together become one change of the switch. A pod that was just scheduled needs longer to listen.
const refreshDelay = 200 * time.Millisecond

// workers bounds how many VNIDs wait for the switch at once.
const workers = 4

// Listeners holds who listens to the VNIDs that it is asked to follow.
type Listeners struct {
	self    string
	client  kubernetes.Interface
	refresh func(config.VNID) []*store.Commit
	loop    *reconcile.Loop // of VNIDs
	watches sync.WaitGroup

	mu       sync.Mutex
	nodes    map[string]netip.Addr // the VTEPs of the cluster's other nodes
	machines map[string]peers.Peer // that are no nodes: nobody tells what they have
	networks map[config.VNID]network
}

// network is the namespaces of a VNID.
type network map[string]*pods

// New returns the feature for the node of that name.
func New(self string, client kubernetes.Interface) *Listeners {
	l := &Listeners{
		self:     self,
		client:   client,
		nodes:    map[string]netip.Addr{},
		machines: map[string]peers.Peer{},
		networks: map[config.VNID]network{},
	}
	l.loop = reconcile.New("multicast", l.serve)
	return l
}

// Run watches until the context ends, and calls refresh when others listen to a VNID than before, some times a second at most.
func (l *Listeners) Run(ctx context.Context, refresh func(config.VNID) []*store.Commit) {
	l.refresh = refresh
	l.loop.Run(ctx, workers)
	l.watches.Wait()
}

// Peer takes note of a HostSubnet; nil: it is gone.
func (l *Listeners) Peer(name string, peer *peers.Peer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, machine := l.machines[name]
	delete(l.nodes, name)
	delete(l.machines, name)
	switch {
	case peer == nil:
	case peer.IsNode && !peer.HasFixedVNID:
		l.nodes[name] = peer.VTEP
	default:
		l.machines[name] = *peer
		machine = true
	}
	for vnid, n := range l.networks {
		if machine || !n.synced() || n.on(name) {
			l.loop.AddAfter(vnid.String(), refreshDelay)
		}
	}
}

// Follow names the namespaces that a VNID with multicast has; none: nobody here listens any more.
func (l *Listeners) Follow(vnid config.VNID, namespaces []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.networks[vnid]
	left := maps.Clone(n)
	for _, name := range namespaces {
		delete(left, name)
		if n[name] != nil {
			continue
		}
		if n == nil {
			n = network{}
			l.networks[vnid] = n
		}
		n[name] = newPods()
		l.loop.Add(vnid.String())
	}
	for name, p := range left {
		p.stop()
		delete(n, name)
	}
	if len(n) == 0 {
		delete(l.networks, vnid)
	}
}

// Nodes returns the VTEPs of all others who listen to the VNID, each once, and whether they are known.
func (l *Listeners) Nodes(vnid config.VNID) (vteps []netip.Addr, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.networks[vnid]
	listening := map[netip.Addr]bool{}
	known = len(n) > 0 && n.synced()
	for _, p := range n {
		for name := range p.nodes {
			if vtep, ok := l.nodes[name]; ok {
				listening[vtep] = true
			} else if _, ok := l.machines[name]; !ok {
				known = false // a node that has no HostSubnet, or none that can be read
			}
		}
	}
	only := false // there are machines that the multicast for all does not reach
	for _, m := range l.machines {
		if !m.HasFixedVNID || m.FixedVNID == vnid {
			listening[m.VTEP] = true
			only = only || m.HasFixedVNID
		}
	}
	if !known && !only {
		return nil, false
	}
	if !known {
		for _, vtep := range l.nodes {
			listening[vtep] = true
		}
	}
	return slices.SortedFunc(maps.Keys(listening), netip.Addr.Compare), true
}

// synced tells whether all pods of the VNID are known.
func (n network) synced() bool {
	for _, p := range n {
		if !p.synced {
			return false
		}
	}
	return true
}

// on tells whether the node has pods of the VNID.
func (n network) on(node string) bool {
	for _, p := range n {
		if p.nodes[node] > 0 {
			return true
		}
	}
	return false
}

func (l *Listeners) serve(ctx context.Context, key string) error {
	vnid, err := config.ParseVNID(key)
	if err != nil {
		return err
	}
	if err := l.start(ctx, vnid); err != nil {
		return fmt.Errorf("watch the pods of VNID %s: %w", vnid, err)
	}
	var errs []error
	for _, commit := range l.refresh(vnid) {
		errs = append(errs, commit.Wait(ctx))
	}
	return errors.Join(errs...)
}

// start begins to watch what came since.
func (l *Listeners) start(ctx context.Context, vnid config.VNID) error {
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
