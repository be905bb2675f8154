package pipeline

import (
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Peer is another node or an external machine: its tunnel endpoint and the subnets of its pods.
type Peer struct {
	VTEP      netip.Addr
	Subnets   []netip.Prefix
	FixedVNID *config.VNID // the VNID of an external machine, whatever VNI its packets have; nil: the VNI is the VNID
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
			// table=90,priority=100,ip,nw_dst=10.129.0.0/23,
			//     actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:172.31.0.12->tun_dst,load:1->NXM_NX_REG2[],goto_table:130
			s.add(tableRemote, 100, ip(append(source, ovs.IPDestination(subnet))...), append([]ovs.Action{tag}, n.sendToNode(p.VTEP)...)...)
		}
		if n.marks() && !p.IsNode {
			// A machine may learn MACs from the packets that it receives, and resolves the gateway to tun0's MAC.
			// table=90,priority=110,ip,reg4=0x400/0x400,nw_dst=10.131.0.0/23,
			//     actions=set_field:0a:58:0a:80:00:01->eth_src,load:0xabcdef->NXM_NX_TUN_ID[0..31],set_field:172.31.0.99->tun_dst,
			//     load:1->NXM_NX_REG2[],goto_table:130
			s.add(tableRemote, 110, ip(ovs.RegBits(4, sourceNode, sourceNode), ovs.IPDestination(subnet)),
				slices.Concat([]ovs.Action{setSourceMAC(config.MAC(config.Gateway(n.Subnets[0]))), tag}, n.sendToNode(p.VTEP))...)
		}
	}
	n.frontendsOf(&s, p)
	n.egressIPsOf(&s, p)
	if n.tenants() {
		// table=30,priority=100,ip,nw_dst=172.31.0.99,actions=goto_table:61
		s.add(tableRoute, 100, ip(ovs.IPDestination(single(p.VTEP))), ovs.GotoTable(tableNodePort))
	}
	return s
}

// sourcesFor returns the matches of packets that may be sent to the peer. A node evaluates VNIDs itself. Packets to a machine with a fixed VNID all
// have that VNI, so that this node evaluates their VNIDs.
func (n Node) sourcesFor(p Peer) [][]ovs.Match {
	if !n.tenants() || p.FixedVNID == nil || p.FixedVNID.IsGlobal() {
		return [][]ovs.Match{nil}
	}
	return [][]ovs.Match{
		{ovs.Reg(0, uint32(config.GlobalVNID))},
		{ovs.Reg(0, uint32(*p.FixedVNID))},
	}
}
