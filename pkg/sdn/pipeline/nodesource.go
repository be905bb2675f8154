package pipeline

import (
	"fmt"
	"net"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// A packet of a node itself has the bit sourceNode of reg4, and the node's other address in reg6. The sender sets them in table 0, by the
// source address, unless the packet has a DSCP of the host's firewall. In the tunnel the packet has config.NodeMAC as its Ethernet source, by
// which table 10 of the receiver sets both registers (docs/decisions/0006-node-as-source.md).

// marks reports whether this node marks its own packets to other nodes.
func (n Node) marks() bool { return n.evaluates() && len(n.Subnets) > 0 }

// itself compiles the packets from tun0 that are the node's own. Packets with a DSCP of the firewall match flows of a higher priority.
func (n Node) itself(s *State) {
	if !n.evaluates() {
		for _, gateway := range n.gateways() {
			// table=0,priority=400,ip,in_port=2,nw_src=10.128.0.1,actions=goto_table:30
			s.add(tableClassify, 400, ip(ovs.IPSource(gateway)).from(PortTun), ovs.GotoTable(tableRoute))
		}
		return
	}
	for _, gateway := range n.gateways() {
		// table=0,priority=400,ip,in_port=2,nw_src=10.128.0.1,actions=ct_clear,load:0x1->NXM_NX_REG4[10],load:0xac1f000b->NXM_NX_REG6[],goto_table:30
		s.add(tableClassify, 400, ip(ovs.IPSource(gateway)).from(PortTun), append(n.fromHost(isNode(n.VTEP)...), ovs.GotoTable(tableRoute))...)
	}
	if n.VTEP.Is4() && len(n.Subnets) > 0 {
		// table=0,priority=205,ip,in_port=2,nw_src=172.31.0.11,actions=ct_clear,load:0x1->NXM_NX_REG4[10],load:0xa800001->NXM_NX_REG6[],goto_table:30
		s.add(tableClassify, 205, ip(ovs.IPSource(single(n.VTEP))).from(PortTun),
			append(n.fromHost(isNode(config.Gateway(n.Subnets[0]))...), ovs.GotoTable(tableRoute))...)
	}
}

// mark compiles the mark in the node's own packets to other nodes. Packets to pods of this node have tun0's MAC.
func (n Node) mark(s *State) {
	if !n.marks() {
		return
	}
	for _, cluster := range n.ClusterNetworks {
		// table=30,priority=110,ip,reg4=0x400/0x400,in_port=2,nw_dst=10.128.0.0/14,actions=set_field:0e:58:0a:80:00:01->eth_src,goto_table:90
		s.add(tableRoute, 110, ip(ovs.RegBits(4, sourceNode, sourceNode), ovs.IPDestination(cluster)).from(PortTun),
			setSourceMAC(config.NodeMAC(config.Gateway(n.Subnets[0]))), ovs.GotoTable(tableRemote))
	}
}

// foreign compiles packets from the tunnel with a source outside of the cluster network, such as those of hosts that route through other
// nodes. They reach this node's pods, with vnidOutside whatever their VNI, and not this host.
func (n Node) foreign(s *State) {
	var enter []ovs.Action
	if n.evaluates() {
		enter = append(enter, loadVNID(vnidOutside, regSourceVNID))
	}
	enter = append(enter, goovs.Load("0x1", regSourceForeign), ovs.GotoTable(tableTunnelIngress))
	for _, gateway := range n.gateways() {
		// table=0,priority=195,ip,in_port=1,nw_dst=10.128.0.1,actions=drop
		s.add(tableClassify, 195, ip(ovs.IPDestination(gateway)).from(PortVXLAN), goovs.Drop())
	}
	for _, subnet := range n.Subnets {
		// table=0,priority=190,ip,in_port=1,nw_dst=10.128.0.0/23,actions=load:0x1->NXM_NX_REG0[],load:0x1->NXM_NX_REG4[11],goto_table:10
		s.add(tableClassify, 190, ip(ovs.IPDestination(subnet)).from(PortVXLAN), enter...)
	}
}

// fromPeer compiles the packets from a peer's tunnel. A source of the cluster network must lie in the peer's subnets, also that of ARP: the last
// flow drops and counts all other packets. A fixed VNID applies to packets from those subnets only.
func (n Node) fromPeer(s *State, p Peer) {
	enter := []ovs.Action{ovs.GotoTable(tableRoute)}
	if p.FixedVNID != nil {
		enter = []ovs.Action{loadVNID(*p.FixedVNID, regSourceVNID), ovs.GotoTable(tableRoute)}
	}
	for _, subnet := range p.Subnets {
		// table=10,priority=100,ip,tun_src=172.31.0.12,nw_src=10.129.0.0/23,actions=goto_table:30
		s.add(tableTunnelIngress, 100, ip(ovs.TunnelSource(p.VTEP), ovs.IPSource(subnet)), enter...)
		// table=10,priority=100,arp,tun_src=172.31.0.12,arp_spa=10.129.0.0/23,actions=goto_table:30
		s.add(tableTunnelIngress, 100, arp(ovs.TunnelSource(p.VTEP), ovs.ARPSourceIP(subnet)), enter...)
	}
	// table=10,priority=110,ip,reg4=0x800/0x800,tun_src=172.31.0.12,actions=goto_table:30
	s.add(tableTunnelIngress, 110, ip(ovs.TunnelSource(p.VTEP), ovs.RegBits(4, sourceForeign, sourceForeign)), ovs.GotoTable(tableRoute))
	// table=10,priority=50,tun_src=172.31.0.12,actions=drop
	s.add(tableTunnelIngress, 50, match{fields: []ovs.Match{ovs.TunnelSource(p.VTEP)}}, goovs.Drop())
	n.markedByPeer(s, p)
}

// markedByPeer compiles the packets of a peer that is a node which the node itself sends.
func (n Node) markedByPeer(s *State, p Peer) {
	if !n.evaluates() || !p.IsNode || p.FixedVNID != nil || !p.VTEP.Is4() || len(p.Subnets) == 0 {
		return
	}
	first := config.Gateway(p.Subnets[0])
	// The mark makes the matches of two nodes differ while both have the same IP, as when they swap theirs.
	source := func(a, other netip.Addr, actions ...ovs.Action) {
		m := ip(goovs.TunnelID(0), ovs.TunnelSource(p.VTEP), goovs.DataLinkSource(config.NodeMAC(first).String()), ovs.IPSource(single(a)))
		actions = append(actions, isNode(other)...)
		// table=10,priority=130,ip,tun_id=0,tun_src=172.31.0.12,dl_src=0e:58:0a:81:00:01,nw_src=10.129.0.1,
		//     actions=load:0x1->NXM_NX_REG4[10],load:0xac1f000c->NXM_NX_REG6[],set_field:0a:58:0a:81:00:01->eth_src,goto_table:30
		// table=10,priority=130,ip,tun_id=0,tun_src=172.31.0.12,dl_src=0e:58:0a:81:00:01,nw_src=172.31.0.12,
		//     actions=load:0x0->NXM_NX_REG0[],load:0x1->NXM_NX_REG4[10],load:0xa810001->NXM_NX_REG6[],set_field:0a:58:0a:81:00:01->eth_src,
		//     goto_table:30
		s.add(tableTunnelIngress, 130, m, append(actions, setSourceMAC(config.MAC(first)), ovs.GotoTable(tableRoute))...)
	}
	for _, subnet := range p.Subnets {
		source(config.Gateway(subnet), p.VTEP)
	}
	source(p.VTEP, first, loadVNID(config.GlobalVNID, regSourceVNID))
}

// isNode returns the actions that set sourceNode, and the node's other address if it is known.
func isNode(other netip.Addr) []ovs.Action {
	set := []ovs.Action{goovs.Load("0x1", regSourceNode)}
	if other.Is4() {
		set = append(set, goovs.Load(fmt.Sprintf("%#x", bitsOf(other)), regNodeAddress))
	}
	return set
}

func setSourceMAC(mac net.HardwareAddr) ovs.Action { return goovs.SetField(mac.String(), "eth_src") }
