package pipeline

import (
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Peer is another node: where its tunnel ends and which pods are behind it.
type Peer struct {
	VTEP      netip.Addr
	Subnets   []netip.Prefix
	FixedVNID *config.VNID // a machine that is no node, and knows no VNID but this one; nil: it tags what it sends
	IsNode    bool         // a node of the cluster, which marks its own packets; never with FixedVNID
}

// Peer compiles a remote node's HostSubnet.
func (n Node) Peer(p Peer) State {
	var s State
	tag := goovs.Move(regSourceVNID, tunID)
	if p.FixedVNID != nil {
		tag = loadVNID(*p.FixedVNID, tunID)
	}
	n.fromPeer(&s, p)
	n.peerARP(&s, p, append([]ovs.Action{tag}, toNode(p.VTEP)...))
	for _, subnet := range p.Subnets {
		for _, source := range n.sourcesFor(p) {
			s.add(tableRemote, 100, ip(append(source, ovs.IPDestination(subnet))...), append([]ovs.Action{tag}, n.sendToNode(p.VTEP)...)...)
		}
		if n.marks() && !p.IsNode {
			// A machine may learn MACs from the packets that it receives, and resolves the gateway to tun0's MAC.
			s.add(tableRemote, 110, ip(ovs.RegBits(4, sourceNode, sourceNode), ovs.IPDestination(subnet)),
				slices.Concat([]ovs.Action{setSourceMAC(config.MAC(config.Gateway(n.Subnets[0]))), tag}, n.sendToNode(p.VTEP))...)
		}
	}
	n.frontendsOf(&s, p)
	if n.tenants() {
		s.add(tableRoute, 100, ip(ovs.IPDestination(single(p.VTEP))), ovs.GotoTable(tableNodePort))
	}
	return s
}

// sourcesFor returns who may send to the peer. A node judges for itself; a machine with a fixed VNID gets that tag whoever sends, so
// that this node must judge.
func (n Node) sourcesFor(p Peer) [][]ovs.Match {
	if !n.tenants() || p.FixedVNID == nil || p.FixedVNID.IsGlobal() {
		return [][]ovs.Match{nil}
	}
	return [][]ovs.Match{
		{ovs.Reg(0, uint32(config.GlobalVNID))},
		{ovs.Reg(0, uint32(*p.FixedVNID))},
	}
}
