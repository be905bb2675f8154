// Package remotenodes installs the flows for the HostSubnets of other nodes, and of machines outside of the cluster.
package remotenodes

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
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// multicastKey is the queue's key of the multicast replication list. No HostSubnet has this name: it is no DNS subdomain.
const multicastKey = "*multicast"

// multicastDelay batches changes of HostSubnets into one update of the replication list.
const multicastDelay = 200 * time.Millisecond

// workers bounds how many changes wait for the switch at once; the store sends them in one bundle.
const workers = 16

// Bridge reads the flows of the previous agent (*native.Native).
type Bridge interface {
	DumpFlows(ctx context.Context) ([]ovs.DumpedFlow, error)
}

// VTEPs is the set of addresses from which the host accepts VXLAN (*hostnet.VTEPs).
type VTEPs interface {
	Allow(ctx context.Context, name string, vtep netip.Addr)
	Settle(ctx context.Context, name string, vtep netip.Addr) // removes the name's other addresses; with the zero Addr all
}

// RemoteNodes compiles the HostSubnets of other nodes and machines.
type RemoteNodes struct {
	self    string
	network *config.Network
	node    pipeline.Node
	lister  networklisters.HostSubnetLister
	bridge  Bridge
	store   *flowstore.Store
	loop    *reconcile.Loop

	follower func(name string, node *inputs.RemoteNode) // may be nil
	vteps    VTEPs

	mu        sync.Mutex
	nodes     map[string]inputs.RemoteNode
	endpoints *endpoints
}

// Follow calls f for each change of a remote node, with nil when it is deleted. f must not block. Follow is called once, before Prime.
func (r *RemoteNodes) Follow(f func(name string, node *inputs.RemoteNode)) { r.follower = f }

// New returns RemoteNodes that watch the informer, which is that of the lister. It adds the address of a peer to vteps before it installs the
// peer's flows, and removes it after the flows.
func New(self string, network *config.Network, node pipeline.Node, lister networklisters.HostSubnetLister,
	informer cache.SharedIndexInformer, bridge Bridge, vteps VTEPs, st *flowstore.Store) (*RemoteNodes, error) {
	r := &RemoteNodes{
		self: self, network: network, node: node, lister: lister, bridge: bridge, vteps: vteps, store: st,
		nodes: map[string]inputs.RemoteNode{}, endpoints: newEndpoints(node.VTEP),
	}
	r.loop = reconcile.New("remotenodes", r.reconcile)
	if err := r.loop.Watch(informer); err != nil {
		return nil, err
	}
	return r, nil
}

// Prime stores the flows of all HostSubnets without waiting for the switch. The informer must have synced, and the bridge must still have the
// flows of the previous agent.
func (r *RemoteNodes) Prime(ctx context.Context) error {
	all, err := r.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list HostSubnets: %w", err)
	}
	// Of HostSubnets with conflicting flows the store installs the first: it must be the senior one.
	slices.SortFunc(all, config.CompareHostSubnets)
	var invalid []*networkv1.HostSubnet
	for _, o := range all {
		if r.isIgnored(o) {
			continue
		}
		if peer, err := r.parse(o); err == nil {
			r.claim(o, peer.VTEP)
			r.install(ctx, o.Name, peer)
		} else {
			invalid = append(invalid, o)
		}
	}
	if err := r.recover(ctx, invalid); err != nil {
		return err
	}
	r.setMulticast()
	return nil
}

// recover reads the peers of invalid HostSubnets from the previous agent's flows: a restart of the agent, or a change of the ClusterNetwork, must
// not disconnect nodes that other nodes still reach. A peer that conflicts with a valid HostSubnet is not used.
func (r *RemoteNodes) recover(ctx context.Context, objects []*networkv1.HostSubnet) error {
	if len(objects) == 0 {
		return nil
	}
	dump, err := r.bridge.DumpFlows(ctx)
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
		if !ok || r.network.CheckHostSubnet(h) != nil {
			klog.FromContext(ctx).Info("HostSubnet is invalid, and the bridge has no flows of a previous state; its node is unreachable", "hostSubnet", name,
				"action", "correct or delete the HostSubnet")
			continue
		}
		// Flows of an earlier version or of mode subnet do not show which peers are nodes.
		peer.IsNode = peer.FixedVNID == nil && (peer.IsNode || config.IsNode(o))
		r.claim(o, peer.VTEP)
		r.install(ctx, name, peer)
	}
	return nil
}

// Run reconciles HostSubnets until the context ends.
func (r *RemoteNodes) Run(ctx context.Context) { r.loop.Run(ctx, workers) }

func (r *RemoteNodes) reconcile(ctx context.Context, key string) error {
	if key == multicastKey {
		return r.setMulticast().Wait(ctx)
	}
	commit, err := r.set(ctx, key)
	if err != nil || commit == nil {
		return err
	}
	if err := commit.Wait(ctx); err != nil {
		return err
	}
	r.mu.Lock()
	vtep := r.nodes[key].VTEP
	r.mu.Unlock()
	r.vteps.Settle(ctx, key, vtep)
	return nil
}

// set compiles a HostSubnet, or deletes the flows of one that was deleted. It returns nil if nothing changes. An invalid HostSubnet retains its
// previous flows: an invalid edit must not disconnect a node. The controller reports it.
func (r *RemoteNodes) set(ctx context.Context, name string) (*flowstore.Commit, error) {
	o, err := r.lister.Get(name)
	if apierrors.IsNotFound(err) || err == nil && r.isIgnored(o) {
		r.unclaim(name)
		return r.remove(name), nil
	}
	if err != nil {
		return nil, fmt.Errorf("HostSubnet %s: %w", name, err)
	}
	peer, err := r.parse(o)
	if err != nil {
		if holder := r.holder(name); holder != name {
			klog.FromContext(ctx).Error(err, "HostSubnet is invalid, and its previous tunnel endpoint belongs to another HostSubnet; removed its flows",
				"hostSubnet", name, "holder", cmp.Or(holder, r.self), "action", "correct the HostSubnet")
			return r.remove(name), nil
		}
		klog.FromContext(ctx).Error(err, "HostSubnet is invalid; retained its previous state", "hostSubnet", name, "action", "correct the HostSubnet")
		return nil, nil // the next edit causes an event
	}
	r.claim(o, peer.VTEP)
	return r.install(ctx, name, peer), nil
}

// claim records the peer's tunnel endpoint, and queues the other HostSubnets that gain or lose theirs.
func (r *RemoteNodes) claim(o *networkv1.HostSubnet, vtep netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, name := range r.endpoints.set(o, vtep) {
		r.loop.Add(name)
	}
}

func (r *RemoteNodes) unclaim(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, other := range r.endpoints.delete(name) {
		r.loop.Add(other)
	}
}

func (r *RemoteNodes) holder(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.endpoints.holder(name)
}

// install installs the peer's flows, or removes them if its tunnel endpoint belongs to another HostSubnet: they would send packets for this peer's
// subnet to the other peer, and trust the other peer's packets as this one's.
func (r *RemoteNodes) install(ctx context.Context, name string, peer pipeline.Peer) *flowstore.Commit {
	if holder := r.holder(name); holder != name {
		klog.FromContext(ctx).Error(nil, "Tunnel endpoint belongs to another HostSubnet", "hostSubnet", name, "vtep", peer.VTEP, "holder", cmp.Or(holder, r.self),
			"action", "set a unique hostIP in each HostSubnet")
		return r.remove(name)
	}
	return r.setFlows(ctx, name, peer)
}

func (r *RemoteNodes) remove(name string) *flowstore.Commit {
	r.drop(name)
	return r.store.Delete(owner(name))
}

// isIgnored reports whether the HostSubnet is this node's, or its subnet is not allocated yet.
func (r *RemoteNodes) isIgnored(o *networkv1.HostSubnet) bool {
	return o.Name == r.self || config.IsProposed(o)
}

func owner(name string) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindHostSubnet, Key: name}
}

func (r *RemoteNodes) setFlows(ctx context.Context, name string, peer pipeline.Peer) *flowstore.Commit {
	r.vteps.Allow(ctx, name, peer.VTEP)
	known := inputs.RemoteNode{VTEP: peer.VTEP, IsNode: peer.IsNode}
	if o, err := r.lister.Get(name); err == nil {
		known.IsRetained = config.IsRetained(o)
	}
	if len(peer.Subnets) > 0 {
		known.Gateway = config.Gateway(peer.Subnets[0])
	}
	if peer.FixedVNID != nil {
		known.FixedVNID, known.HasFixedVNID = *peer.FixedVNID, true
	}
	r.record(name, known)
	return r.store.Set(owner(name), r.node.Peer(peer))
}

func (r *RemoteNodes) parse(o *networkv1.HostSubnet) (pipeline.Peer, error) {
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
	return peer, errors.Join(err, r.network.CheckHostSubnet(h))
}

func (r *RemoteNodes) record(name string, peer inputs.RemoteNode) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes[name] != peer {
		r.nodes[name] = peer
		r.notify(name, &peer)
	}
}

func (r *RemoteNodes) drop(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.nodes[name]; ok {
		delete(r.nodes, name)
		r.notify(name, nil)
	}
}

func (r *RemoteNodes) notify(name string, node *inputs.RemoteNode) {
	r.loop.AddAfter(multicastKey, multicastDelay)
	if r.follower != nil {
		r.follower(name, node)
	}
}

// setMulticast installs the list of nodes that get the multicast of VNIDs whose receivers are unknown. A machine with a fixed VNID gets none: it
// would deliver another VNID's multicast to its own pods.
func (r *RemoteNodes) setMulticast() *flowstore.Commit {
	r.mu.Lock()
	vteps := make([]netip.Addr, 0, len(r.nodes))
	for _, peer := range r.nodes {
		if !peer.HasFixedVNID {
			vteps = append(vteps, peer.VTEP)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(vteps, netip.Addr.Compare)
	return r.store.Set(pipeline.Owner{Kind: pipeline.KindMulticast, Key: "nodes"}, r.node.MulticastNodes(slices.Compact(vteps)))
}
