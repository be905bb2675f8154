// Package peers keeps the switch in step with the other nodes' HostSubnets.
package peers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
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

// multicastKey stands in the queue for the replication list, which all peers together make. No node can have
// this name: it is no DNS subdomain.
const multicastKey = "*multicast"

// multicastDelay lets a burst of HostSubnets become one new list.
const multicastDelay = 200 * time.Millisecond

// workers bounds how many changes wait for the switch at once; the store sends them in one bundle.
const workers = 16

// Bridge is what the peers need of the switch besides the store.
type Bridge interface {
	DumpFlows(ctx context.Context) ([]ovs.DumpedFlow, error)
}

// VTEPs admits tunnels to this node by their source address.
type VTEPs interface {
	Allow(ctx context.Context, name string, vtep netip.Addr)
	Settle(ctx context.Context, name string, vtep netip.Addr) // removes the name's other addresses; with the zero Addr all
}

// Peers compiles HostSubnets other than this node's own.
type Peers struct {
	self    string
	network *config.Network
	node    pipeline.Node
	lister  networklisters.HostSubnetLister
	bridge  Bridge
	store   *store.Store
	loop    *reconcile.Loop

	follower func(name string, peer *Peer) // nil: none
	vteps    VTEPs

	mu        sync.Mutex
	peers     map[string]Peer
	endpoints *endpoints
}

// A Peer is where copies of multicast may go to.
type Peer struct {
	VTEP   netip.Addr
	IsNode bool // of the cluster: its pods are known to the API server; else it may be a machine with pods of any VNID

	FixedVNID    config.VNID // all that the machine knows of, if HasFixedVNID
	HasFixedVNID bool
}

// Follow tells f of every peer: its state, or nil when it is gone. f must not block. It is for once, before Prime.
func (p *Peers) Follow(f func(name string, peer *Peer)) { p.follower = f }

// New returns the feature; informer is that of lister, and the store that of the bridge. vteps has the address of a peer before its flows
// are written, and until they are removed.
func New(self string, network *config.Network, node pipeline.Node, lister networklisters.HostSubnetLister,
	informer cache.SharedIndexInformer, bridge Bridge, vteps VTEPs, st *store.Store) (*Peers, error) {
	p := &Peers{self: self, network: network, node: node, lister: lister, bridge: bridge, vteps: vteps, store: st, peers: map[string]Peer{}, endpoints: newEndpoints(node.VTEP)}
	p.loop = reconcile.New("peers", p.serve)
	if err := p.loop.Watch(informer); err != nil {
		return nil, err
	}
	return p, nil
}

// Prime puts all peers into the store without waiting for the switch. The informer must have synced, and the bridge must still
// have the flows of before.
func (p *Peers) Prime(ctx context.Context) error {
	all, err := p.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("listing HostSubnets: %w", err)
	}
	// Of two that claim the same, the store keeps the first. A node's own must not lose to one that somebody made by hand.
	slices.SortFunc(all, config.CompareHostSubnets)
	var unusable []*networkv1.HostSubnet
	for _, o := range all {
		if p.isNone(o) {
			continue
		}
		if peer, err := p.parse(o); err == nil {
			p.claim(o, peer.VTEP)
			p.putIfHolder(ctx, o.Name, peer)
		} else {
			unusable = append(unusable, o)
		}
	}
	if err := p.recover(ctx, unusable); err != nil {
		return err
	}
	p.setMulticast()
	return nil
}

// recover reads the peers of invalid HostSubnets from the flows of the bridge: an agent that starts, or follows another network, must not
// cut off nodes that all others still reach. A peer that conflicts with a valid HostSubnet is not used.
func (p *Peers) recover(ctx context.Context, objects []*networkv1.HostSubnet) error {
	if len(objects) == 0 {
		return nil
	}
	dump, err := p.bridge.DumpFlows(ctx)
	if err != nil {
		return fmt.Errorf("read the flows of %d invalid HostSubnets from the bridge: %w", len(objects), err)
	}
	flows := map[uint64][]ovs.DumpedFlow{}
	for _, o := range objects {
		flows[owner(o.Name).Cookie()] = nil
	}
	for _, f := range dump {
		if _, wanted := flows[f.Cookie]; wanted {
			flows[f.Cookie] = append(flows[f.Cookie], f)
		}
	}
	for _, o := range objects {
		name := o.Name
		peer, ok := pipeline.PeerOf(flows[owner(name).Cookie()])
		h := &config.HostSubnet{Node: name, HostIP: peer.VTEP, Subnets: peer.Subnets}
		if !ok || p.network.CheckHostSubnet(h) != nil {
			klog.FromContext(ctx).Info("HostSubnet is not usable, and the bridge does not know what it was: its node is out of reach", "hostsubnet", name)
			continue
		}
		// Flows of the previous version and of mode subnet don't show which peers are nodes.
		peer.IsNode = peer.FixedVNID == nil && (peer.IsNode || config.IsNode(o))
		p.claim(o, peer.VTEP)
		p.putIfHolder(ctx, name, peer)
	}
	return nil
}

// Run follows the HostSubnets until the context ends.
func (p *Peers) Run(ctx context.Context) { p.loop.Run(ctx, workers) }

func (p *Peers) serve(ctx context.Context, key string) error {
	if key == multicastKey {
		return p.setMulticast().Wait(ctx)
	}
	commit, err := p.set(ctx, key)
	if err != nil || commit == nil {
		return err
	}
	if err := commit.Wait(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	vtep := p.peers[key].VTEP
	p.mu.Unlock()
	p.vteps.Settle(ctx, key, vtep)
	return nil
}

// set compiles one HostSubnet, present or gone. It returns nil when there is nothing to do. One that is wrong keeps
// its former state: a typing error must not cut a node off. The controller tells people of it.
func (p *Peers) set(ctx context.Context, name string) (*store.Commit, error) {
	o, err := p.lister.Get(name)
	if apierrors.IsNotFound(err) || err == nil && p.isNone(o) {
		p.unclaim(name)
		return p.remove(name), nil
	}
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s: %w", name, err)
	}
	peer, err := p.parse(o)
	if err != nil {
		klog.FromContext(ctx).Error(err, "HostSubnet is not usable, its former state stays", "hostsubnet", name)
		if p.holder(name) != name {
			return p.remove(name), nil
		}
		return nil, nil // only an edit of the object helps, and that comes as an event
	}
	p.claim(o, peer.VTEP)
	return p.putIfHolder(ctx, name, peer), nil
}

// claim records the peer's tunnel endpoint, and queues the HostSubnets that gain or lose theirs by that.
func (p *Peers) claim(o *networkv1.HostSubnet, vtep netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, name := range p.endpoints.set(o, vtep) {
		p.loop.Add(name)
	}
}

func (p *Peers) unclaim(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, other := range p.endpoints.delete(name) {
		p.loop.Add(other)
	}
}

func (p *Peers) holder(name string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.endpoints.holder(name)
}

// putIfHolder installs the peer, or removes it if its tunnel endpoint belongs to another HostSubnet: then packets from there are the other's,
// and packets for this peer's subnet would reach the other.
func (p *Peers) putIfHolder(ctx context.Context, name string, peer pipeline.Peer) *store.Commit {
	if holder := p.holder(name); holder != name {
		klog.FromContext(ctx).Error(nil, "Tunnel endpoint belongs to another HostSubnet", "hostsubnet", name, "vtep", peer.VTEP, "holder", cmp.Or(holder, p.self),
			"action", "give each HostSubnet a hostIP of its own")
		return p.remove(name)
	}
	return p.put(ctx, name, peer)
}

func (p *Peers) remove(name string) *store.Commit {
	p.forget(name)
	return p.store.Delete(owner(name))
}

// isNone says whether no peer is behind the HostSubnet: it is this node's own, or its subnet is not given yet.
func (p *Peers) isNone(o *networkv1.HostSubnet) bool {
	return o.Name == p.self || config.IsProposed(o)
}

func owner(name string) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindHostSubnet, Key: name}
}

func (p *Peers) put(ctx context.Context, name string, peer pipeline.Peer) *store.Commit {
	p.vteps.Allow(ctx, name, peer.VTEP)
	known := Peer{VTEP: peer.VTEP, IsNode: peer.IsNode}
	if peer.FixedVNID != nil {
		known.FixedVNID, known.HasFixedVNID = *peer.FixedVNID, true
	}
	p.remember(name, known)
	return p.store.Set(owner(name), p.node.Peer(peer))
}

func (p *Peers) parse(o *networkv1.HostSubnet) (pipeline.Peer, error) {
	h, err := config.ParseHostSubnet(o)
	if err != nil {
		return pipeline.Peer{}, err
	}
	peer := pipeline.Peer{VTEP: h.HostIP, Subnets: h.Subnets}
	vnid, fixed, err := config.FixedVNID(o)
	if fixed {
		peer.FixedVNID = &vnid
	}
	peer.IsNode = config.IsNode(o)
	return peer, errors.Join(err, p.network.CheckHostSubnet(h))
}

func (p *Peers) remember(name string, peer Peer) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.peers[name] != peer {
		p.peers[name] = peer
		p.tell(name, &peer)
	}
}

func (p *Peers) forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, ok := p.peers[name]; ok {
		delete(p.peers, name)
		p.tell(name, nil)
	}
}

func (p *Peers) tell(name string, peer *Peer) {
	p.loop.AddAfter(multicastKey, multicastDelay)
	if p.follower != nil {
		p.follower(name, peer)
	}
}

// setMulticast makes the list of those who get the multicast of VNIDs whose listeners are not known. A machine with a fixed VNID is not
// among them: it would take another VNID's for its own.
func (p *Peers) setMulticast() *store.Commit {
	p.mu.Lock()
	vteps := make([]netip.Addr, 0, len(p.peers))
	for _, peer := range p.peers {
		if !peer.HasFixedVNID {
			vteps = append(vteps, peer.VTEP)
		}
	}
	p.mu.Unlock()
	slices.SortFunc(vteps, netip.Addr.Compare)
	return p.store.Set(pipeline.Owner{Kind: pipeline.KindMulticast, Key: "nodes"}, p.node.MulticastNodes(slices.Compact(vteps)))
}
