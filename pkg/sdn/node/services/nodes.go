package services

import (
	"context"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// maxNodeAddresses limits the addresses of one Node, which its kubelet writes to the Node's status.
const maxNodeAddresses = 32

// nodeAddresses compiles the addresses of all Nodes, on which proxies serve node ports.
type nodeAddresses struct {
	node  pipeline.Node
	self  string
	nodes cache.Store // of Nodes
	store *flowstore.Store
	loop  *reconcile.Loop
}

func newNodeAddresses(node pipeline.Node, self string, informer cache.SharedIndexInformer, st *flowstore.Store) (*nodeAddresses, error) {
	n := &nodeAddresses{node: node, self: self, nodes: informer.GetStore(), store: st}
	n.loop = reconcile.New("node addresses", n.reconcile)
	same := func(previous, current any) bool { return slices.Equal(addressesOf(previous), addressesOf(current)) }
	if err := n.loop.WatchUnless(informer, same); err != nil {
		return nil, err
	}
	return n, nil
}

// prime stores the flows of all Nodes without waiting for the switch.
func (n *nodeAddresses) prime() {
	for _, name := range n.nodes.ListKeys() {
		n.set(name)
	}
}

func (n *nodeAddresses) reconcile(ctx context.Context, name string) error {
	return n.set(name).Wait(ctx)
}

// set compiles a Node, which may have been deleted.
func (n *nodeAddresses) set(name string) *flowstore.Commit {
	obj, _, _ := n.nodes.GetByKey(name) // it never fails
	return n.store.Set(pipeline.Owner{Kind: pipeline.KindNodeAddresses, Key: name}, n.node.NodeAddresses(name == n.self, addressesOf(obj)))
}

// addressesOf returns the first addresses in a Node's status, sorted.
func addressesOf(obj any) []netip.Addr {
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	var addrs []netip.Addr
	for _, a := range node.Status.Addresses {
		if addr, err := netip.ParseAddr(a.Address); err == nil && len(addrs) < maxNodeAddresses { // else it is a host name
			addrs = append(addrs, addr.Unmap())
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	return slices.Compact(addrs)
}
