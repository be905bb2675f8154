package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// The packets of a namespace with an egress IP leave the cluster from the node that hosts the IP, with it as their source. The flows of a pod load its
// egress IP into reg11. Table 101 of the pod's node sends the packet to the hosting node, with the egress IP's MAC as its Ethernet destination, by which
// table 101 of that node loads reg11. Table 133 translates the source, and table 134 outputs only packets that have it. Replies pass table 102
// (docs/decisions/0019-egress-ips.md).

// EgressIP is an address that packets of namespaces to outside have as their source, and the node that hosts it.
type EgressIP struct {
	IP   netip.Addr
	VTEP netip.Addr // of the node that hosts it; invalid: this node hosts it
}

// Priorities in table 101.
const (
	egressEndpoint = 400 // outside endpoints of services, in place of the packet's destination
	egressMachine  = 360 // packets of machines that are no nodes
	egressRemote   = 350 // packets of other nodes' pods, by the egress IP
	egressTunnel   = 340 // all other packets from the tunnel
	egressNone     = 300 // packets without an egress IP
	egressAsNode   = 200 // packets to nodes, and replies: the host routes them as those without an egress IP
	egressLocal    = 100 // packets of pods of this node, by the egress IP
)

// The low egressIPBits bits of the zone of connections with an egress IP as their source are those of the egress IP.
const (
	zoneEgressIP = 0x1000 // first zone of connections that leave this node with an egress IP as their source

	egressIPBits = 12 // low bits of an egress IP in a zone
)

// UnusableEgressIP is the content of reg11 for pods of a namespace whose egress IP no node hosts, or whose address no egress IP may have: table 101 drops their packets.
const UnusableEgressIP = 0xffffffff

// mayBeEgressIP reports whether the address is one that flows translate sources to.
func (n Node) mayBeEgressIP(addr netip.Addr) bool { return n.mayHave(addr) && addr != n.VTEP }

// loadEgressIP returns the actions by which a pod's packets to outside have its egress IP.
func (n Node) loadEgressIP(p Pod) []ovs.Action {
	if !n.evaluates() || !p.EgressIP.IsValid() {
		return nil
	}
	value := uint32(UnusableEgressIP)
	if n.mayBeEgressIP(p.EgressIP) {
		value = bitsOf(p.EgressIP)
	}
	return []ovs.Action{goovs.Load(fmt.Sprintf("%#x", value), regEgressIP)}
}

// bitsOf returns an IPv4 address as a register has it.
func bitsOf(addr netip.Addr) uint32 {
	a := addr.As4()
	return binary.BigEndian.Uint32(a[:])
}

// hasEgressIP matches packets that leave with the egress IP in reg11 as their source.
func hasEgressIP() ovs.Match { return ovs.RegBits(4, egressIPSource, egressIPSource) }

// toOutside compiles packets to outside that depend on no egress IP: they go to the host, which routes them.
func (n Node) toOutside(s *State) {
	if !n.evaluates() {
		// table=101,priority=0,actions=output:2
		// table=101,priority=0,actions=load:2->NXM_NX_REG2[],goto_table:132
		s.add(tableEgressIP, 0, anything(), n.toHost()...)
		n.dropEgressIPs(s)
		return
	}
	// table=101,priority=340,ip,in_port=1,actions=drop
	s.add(tableEgressIP, egressTunnel, ip().from(PortVXLAN), goovs.Drop())
	none, toHost := ovs.Reg(numberEgressIP, 0), []ovs.Action{loadPort(PortTun), ovs.GotoTable(tableCommit)}
	// table=101,priority=300,ip,reg11=0,actions=load:2->NXM_NX_REG2[],goto_table:130
	s.add(tableEgressIP, egressNone, ip(none), toHost...)
	if n.tenants() {
		n.repliesToOutside(s)
		for _, subnet := range n.Subnets {
			// table=101,priority=310,ip,reg11=0,nw_src=10.128.0.0/23,
			//     actions=move:NXM_OF_IP_SRC[0..12]->NXM_NX_REG3[0..12],load:0x3->NXM_NX_REG3[13..31],load:2->NXM_NX_REG2[],goto_table:130
			s.add(tableEgressIP, egressNone+10, ip(none, ovs.IPSource(subnet)), n.asNode()...)
		}
	}
	// Not committed: as packets of the client, replies would hide the client's packets from the zone that identifies replies.
	// table=101,priority=200,ct_state=+rpl+trk,ip,actions=load:2->NXM_NX_REG2[],goto_table:130
	s.add(tableEgressIP, egressAsNode, ip(isReply()), toHost...)
	n.asNodeTo(s, n.VTEP)
	// No node hosts the egress IP.
	// table=101,priority=0,actions=drop
	s.add(tableEgressIP, 0, anything(), goovs.Drop())

	n.egressIPReplies(s)
	// table=133,priority=190,ip,reg4=0x10000/0x10000,actions=drop
	s.add(tableOutput, 190, ip(hasEgressIP()), goovs.Drop())
	n.dropEgressIPs(s)
}

// egressIPReplies compiles that replies of hosts outside, and of this host, reach the pods. Pods' replies come back through the host's NAT, which restores the
// address that was asked: only an ICMP error about another pod's connection has a pod's source.
func (n Node) egressIPReplies(s *State) {
	pass := slices.Concat([]ovs.Action{ovs.CTClear(), loadVNID(vnidOutside, regSourceVNID)}, toPodMAC(), []ovs.Action{goovs.Resubmit(0, tableRoute)})
	for _, gateway := range n.gateways() {
		// table=102,priority=300,ct_state=+rpl+trk,ip,nw_src=10.128.0.1,
		//     actions=ct_clear,load:0x1->NXM_NX_REG0[],load:0xa58->NXM_OF_ETH_DST[32..47],move:NXM_OF_IP_DST[]->NXM_OF_ETH_DST[0..31],resubmit(,30)
		s.add(tableEgressIPReply, 300, ip(isReply(), ovs.IPSource(gateway)), pass...)
	}
	for _, cluster := range n.ClusterNetworks {
		// table=102,priority=200,ip,nw_src=10.128.0.0/14,actions=drop
		s.add(tableEgressIPReply, 200, ip(ovs.IPSource(cluster)), goovs.Drop())
	}
	// table=102,priority=100,ct_state=+rpl+trk,ip,
	//     actions=ct_clear,load:0x1->NXM_NX_REG0[],load:0xa58->NXM_OF_ETH_DST[32..47],move:NXM_OF_IP_DST[]->NXM_OF_ETH_DST[0..31],resubmit(,30)
	s.add(tableEgressIPReply, 100, ip(isReply()), pass...)
}

// dropEgressIPs compiles that packets with egress IPs pass by their flows only.
func (n Node) dropEgressIPs(s *State) {
	// table=102,priority=0,actions=drop
	s.add(tableEgressIPReply, 0, anything(), goovs.Drop())
	// table=134,priority=0,actions=drop
	s.add(tableEgressIPOutput, 0, anything(), goovs.Drop())
}

// asNode returns the actions for a packet of a pod of this node that goes to the host with the pod's source. In mode multitenant it is committed, since no
// VNID of a host outside would allow the replies.
func (n Node) asNode() []ovs.Action {
	toHost := []ovs.Action{loadPort(PortTun), ovs.GotoTable(tableCommit)}
	if n.tenants() {
		return append(loadZone(zoneLocal, addressSource), toHost...)
	}
	return toHost
}

// asNodeTo compiles packets to a node: the API server and kubelets are reached without a node that hosts the egress IP.
func (n Node) asNodeTo(s *State, node netip.Addr) {
	if node.Is4() {
		// table=101,priority=200,ip,nw_dst=172.31.0.11,actions=load:2->NXM_NX_REG2[],goto_table:130
		// table=101,priority=200,ip,nw_dst=172.31.0.12,actions=load:2->NXM_NX_REG2[],goto_table:130
		s.add(tableEgressIP, egressAsNode, ip(ovs.IPDestination(single(node))), n.asNode()...)
	}
}

// egressIPsOf compiles packets to a peer itself, and denies egress IPs to machines that are no nodes.
func (n Node) egressIPsOf(s *State, p Peer) {
	switch {
	case !n.evaluates() || !p.VTEP.Is4():
	case p.IsNode:
		n.asNodeTo(s, p.VTEP)
	default:
		// table=101,priority=360,ip,tun_src=172.31.0.99,in_port=1,actions=drop
		s.add(tableEgressIP, egressMachine, ip(ovs.TunnelSource(p.VTEP)).from(PortVXLAN), goovs.Drop())
	}
}

// EgressIP compiles the packets of this node's pods with the egress IP. If this node hosts it, it also compiles those of other nodes' pods, the translation
// of their source, and the replies.
func (n Node) EgressIP(e EgressIP) State {
	var s State
	if !n.evaluates() || !n.mayBeEgressIP(e.IP) || e.VTEP.IsValid() && !e.VTEP.Is4() {
		return s
	}
	has, mac := ovs.Reg(numberEgressIP, bitsOf(e.IP)), config.MAC(e.IP).String()
	if e.VTEP.IsValid() {
		// table=101,priority=100,ip,reg11=0xc6336407,
		//     actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:0a:58:c6:33:64:07->eth_dst,set_field:172.31.0.12->tun_dst,
		//     load:1->NXM_NX_REG2[],goto_table:130
		s.add(tableEgressIP, egressLocal, ip(has), slices.Concat(
			[]ovs.Action{goovs.Move(regSourceVNID, tunID), goovs.SetField(mac, "eth_dst")}, n.sendToNode(e.VTEP))...)
		return s
	}
	leave := []ovs.Action{goovs.Load("0x1", regEgressIPSource), loadPort(PortTun), ovs.GotoTable(tableCommit)}
	// table=101,priority=100,ip,reg11=0xc6336407,actions=load:0x1->NXM_NX_REG4[16],load:2->NXM_NX_REG2[],goto_table:130
	s.add(tableEgressIP, egressLocal, ip(has), leave...)
	// table=101,priority=350,ip,in_port=1,dl_dst=0a:58:c6:33:64:07,
	//     actions=load:0xc6336407->NXM_NX_REG11[],load:0x1->NXM_NX_REG4[16],load:2->NXM_NX_REG2[],goto_table:130
	s.add(tableEgressIP, egressRemote, ip(goovs.DataLinkDestination(mac)).from(PortVXLAN),
		append([]ovs.Action{goovs.Load(fmt.Sprintf("%#x", bitsOf(e.IP)), regEgressIP)}, leave...)...)
	n.translateEgressIP(&s, e.IP, has)
	return s
}

// translateEgressIP compiles the translation on the node that hosts the egress IP.
func (n Node) translateEgressIP(s *State, egressIP netip.Addr, has ovs.Match) {
	zone := zoneEgressIP | bitsOf(egressIP)&(1<<egressIPBits-1)
	// table=133,priority=200,ip,reg4=0x10000/0x10000,reg11=0xc6336407,actions=ct(commit,nat(src=198.51.100.7),table=134,zone=5127)
	s.add(tableOutput, 200, ip(hasEgressIP(), has), goovs.ConnectionTracking(fmt.Sprintf("commit,nat(src=%s),table=%d,zone=%d", egressIP, tableEgressIPOutput, zone)))
	// A packet may have another source: its own, if the translation failed, or another egress IP with the same zone, which its namespace had before.
	// table=134,priority=100,ip,reg11=0xc6336407,nw_src=198.51.100.7,actions=set_field:0a:58:0a:80:00:01->eth_dst,output:2
	s.add(tableEgressIPOutput, 100, ip(has, ovs.IPSource(single(egressIP))), n.toTun0MAC(), goovs.Output(PortTun))
	// The DSCP may be one of the host's firewall.
	// table=0,priority=550,ip,in_port=2,nw_dst=198.51.100.7,actions=set_field:0->nw_tos,ct_clear,ct(nat,table=102,zone=5127)
	s.add(tableClassify, 550, ip(ovs.IPDestination(single(egressIP))).from(PortTun),
		goovs.SetField("0", "nw_tos"), ovs.CTClear(), lookupNAT(uint16(zone), tableEgressIPReply)) //nolint:gosec // of 13 bits
}
