package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// The switch answers ARP requests, since MACs follow from addresses (config.MAC): no ARP packet of a pod reaches another pod
// (docs/decisions/0007-arp.md). Only machines that are not nodes receive requests and reply themselves.
//
// Open vSwitch 3.1 rewrites ARP in ovs-vswitchd, which costs an upcall for each packet. A request therefore passes the meter of its port in a
// pass of its own through the datapath, before it is rewritten.

// Operations of ARP.
const (
	arpRequest = 1
	arpReply   = 2
)

const etherTypeARP = 0x0806

// Rates of ARP requests, in packets per second, and bursts, in packets. A pod that connects to many others resolves all of them at once.
const (
	podARPRate   = 100
	podARPBurst  = 1000
	hostARPRate  = 1000 // of tun0, and of the tunnel
	hostARPBurst = 2000
)

// regAnswer is the last four bytes of the MAC in the reply, regAsked the requested address while a request becomes a reply.
const (
	regAnswer = regDestVNID
	regAsked  = regOutput

	arpSenderMAC = "NXM_NX_ARP_SHA"
	arpTargetMAC = "NXM_NX_ARP_THA"
	arpSenderIP  = "NXM_OF_ARP_SPA[]"
	arpTargetIP  = "NXM_OF_ARP_TPA[]"
)

func requests(fields ...ovs.Match) match {
	return arp(append(fields, goovs.ARPOperation(arpRequest))...)
}
func replies(fields ...ovs.Match) match { return arp(append(fields, goovs.ARPOperation(arpReply))...) }

// arpMeter is the meter of the ARP requests that come in at a port. Its number is the port's.
func arpMeter(port, rate, burst int) ovs.Meter {
	return ovs.Meter{ID: uint32(port), Unit: ovs.Packets, Rate: uint32(rate), Burst: uint32(burst)} //nolint:gosec // of 16 bits, and constants
}

// limitARP returns the actions that pass an ARP request from a port through its meter, and then to a table.
func limitARP(port, table int, before ...ovs.Action) []ovs.Action {
	actions := append([]ovs.Action{ovs.ThroughMeter(uint32(port))}, before...) //nolint:gosec // of 16 bits
	return append(append(actions, ovs.Recirculate(etherTypeARP)...), goovs.Resubmit(0, table))
}

// enterARP compiles the entry of ARP: requests of the host and of other nodes, and replies of machines. Nodes of the previous version, and
// machines, send requests for pods of this node.
func (n Node) enterARP(s *State) {
	// meter=1,pktps,burst,band=type=drop,rate=1000,burst_size=2000
	// meter=2,pktps,burst,band=type=drop,rate=1000,burst_size=2000
	s.Meters = append(s.Meters, arpMeter(PortVXLAN, hostARPRate, hostARPBurst), arpMeter(PortTun, hostARPRate, hostARPBurst))
	vni := goovs.Move(tunID, regSourceVNID)
	for _, cluster := range n.ClusterNetworks {
		for _, subnet := range n.Subnets {
			to := []ovs.Match{ovs.ARPSourceIP(cluster), ovs.ARPTargetIP(subnet)}
			// table=0,priority=200,arp,in_port=1,arp_spa=10.128.0.0/14,arp_tpa=10.128.0.0/23,arp_op=1,
			//     actions=meter:1,move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],push_mpls:0x8847,pop_mpls:0x0806,resubmit(,10)
			s.add(tableClassify, 200, requests(to...).from(PortVXLAN), limitARP(PortVXLAN, tableTunnelIngress, vni)...)
			// table=0,priority=200,arp,in_port=1,arp_spa=10.128.0.0/14,arp_tpa=10.128.0.0/23,arp_op=2,
			//     actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:10
			s.add(tableClassify, 200, replies(to...).from(PortVXLAN), vni, ovs.GotoTable(tableTunnelIngress))
		}
		for _, gateway := range n.gateways() {
			// table=0,priority=200,arp,in_port=2,arp_spa=10.128.0.1,arp_tpa=10.128.0.0/14,arp_op=1,
			//     actions=meter:2,push_mpls:0x8847,pop_mpls:0x0806,resubmit(,30)
			s.add(tableClassify, 200, requests(ovs.ARPSourceIP(gateway), ovs.ARPTargetIP(cluster)).from(PortTun), limitARP(PortTun, tableRoute)...)
		}
	}
}

// routeARP compiles the route of requests by the requested address. The host's request for its own address is gratuitous.
func (n Node) routeARP(s *State) {
	for _, gateway := range n.gateways() {
		// table=30,priority=310,arp,in_port=2,arp_tpa=10.128.0.1,arp_op=1,actions=drop
		s.add(tableRoute, 310, requests(ovs.ARPTargetIP(gateway)).from(PortTun), goovs.Drop())
		// table=30,priority=300,arp,arp_tpa=10.128.0.1,arp_op=1,actions=load:0xa800001->NXM_NX_REG1[],goto_table:51
		s.add(tableRoute, 300, requests(ovs.ARPTargetIP(gateway)), answerAs(config.Gateway(n.Subnets[0]))...)
	}
	for _, subnet := range n.Subnets {
		// table=30,priority=200,arp,arp_tpa=10.128.0.0/23,arp_op=1,actions=goto_table:40
		s.add(tableRoute, 200, requests(ovs.ARPTargetIP(subnet)), ovs.GotoTable(tableARPLocal))
	}
	for _, cluster := range n.ClusterNetworks {
		// table=30,priority=100,arp,arp_tpa=10.128.0.0/14,arp_op=1,actions=goto_table:50
		s.add(tableRoute, 100, requests(ovs.ARPTargetIP(cluster)), ovs.GotoTable(tableARPRemote))
	}
}

// podARP compiles a pod's requests, requests for the pod's addresses, and replies of machines to the pod. A request for its own address is gratuitous.
func (n Node) podARP(s *State, p Pod) {
	// meter=3,pktps,burst,band=type=drop,rate=100,burst_size=1000
	s.Meters = append(s.Meters, arpMeter(p.OFPort, podARPRate, podARPBurst))
	for _, addr := range p.Addrs {
		target := ovs.ARPTargetIP(single(addr))
		// table=20,priority=100,arp,in_port=3,dl_src=0a:58:0a:80:00:05,arp_spa=10.128.0.5,arp_op=1,arp_sha=0a:58:0a:80:00:05,
		//     actions=meter:3,load:0x0->NXM_NX_REG0[],push_mpls:0x8847,pop_mpls:0x0806,resubmit(,30)
		s.add(tablePodIngress, 100, requests(
			goovs.DataLinkSource(p.MAC.String()), ovs.ARPSourceIP(single(addr)), goovs.ARPSourceHardwareAddress(p.MAC),
		).from(p.OFPort), limitARP(p.OFPort, tableRoute, loadVNID(p.VNID, regSourceVNID))...)
		// table=40,priority=110,arp,in_port=3,arp_tpa=10.128.0.5,actions=drop
		s.add(tableARPLocal, 110, arp(target).from(p.OFPort), goovs.Drop())
		// table=40,priority=100,arp,arp_tpa=10.128.0.5,arp_op=1,actions=move:NXM_OF_ARP_TPA[]->NXM_NX_REG1[],goto_table:51
		s.add(tableARPLocal, 100, requests(target), answer()...)
		if !n.tenants() || p.VNID.IsGlobal() {
			// table=40,priority=100,arp,arp_tpa=10.128.0.5,arp_op=2,actions=output:3
			s.add(tableARPLocal, 100, replies(target), goovs.Output(p.OFPort))
			continue
		}
		// table=40,priority=100,arp,reg0=0,arp_tpa=10.128.0.5,arp_op=2,actions=output:3
		s.add(tableARPLocal, 100, replies(ovs.Reg(0, uint32(config.GlobalVNID)), target), goovs.Output(p.OFPort))
		// table=40,priority=100,arp,reg0=0xabcdef,arp_tpa=10.128.0.5,arp_op=2,actions=output:3
		s.add(tableARPLocal, 100, replies(ovs.Reg(0, uint32(p.VNID)), target), goovs.Output(p.OFPort))
	}
}

// peerARP compiles requests for the addresses of a peer. This node replies for all addresses of a node, assigned or not. Requests for a machine,
// whose MACs do not follow from its addresses, go through the tunnel, and its replies pass.
func (n Node) peerARP(s *State, p Peer, tunnel []ovs.Action) {
	for i, subnet := range p.Subnets {
		if p.IsNode {
			// table=50,priority=100,arp,arp_tpa=10.129.0.0/23,arp_op=1,actions=move:NXM_OF_ARP_TPA[]->NXM_NX_REG1[],goto_table:51
			s.add(tableARPRemote, 100, requests(ovs.ARPTargetIP(subnet)), answer()...)
			if i > 0 {
				// table=50,priority=110,arp,arp_tpa=10.200.2.1,arp_op=1,actions=load:0xa810001->NXM_NX_REG1[],goto_table:51
				s.add(tableARPRemote, 110, requests(ovs.ARPTargetIP(single(config.Gateway(subnet)))), answerAs(config.Gateway(p.Subnets[0]))...)
			}
			continue
		}
		for _, source := range n.sourcesFor(p) {
			// table=50,priority=100,arp,arp_tpa=10.131.0.0/23,arp_op=1,
			//     actions=load:0xabcdef->NXM_NX_TUN_ID[0..31],set_field:172.31.0.99->tun_dst,output:1
			s.add(tableARPRemote, 100, requests(append(source, ovs.ARPTargetIP(subnet))...), tunnel...)
		}
		// table=30,priority=250,arp,in_port=1,arp_spa=10.131.0.0/23,arp_op=2,actions=goto_table:40
		s.add(tableRoute, 250, replies(ovs.ARPSourceIP(subnet)).from(PortVXLAN), ovs.GotoTable(tableARPLocal))
		for _, gateway := range n.gateways() {
			// table=30,priority=300,arp,in_port=1,arp_spa=10.131.0.0/23,arp_tpa=10.128.0.1,arp_op=2,actions=output:2
			s.add(tableRoute, 300, replies(ovs.ARPSourceIP(subnet), ovs.ARPTargetIP(gateway)).from(PortVXLAN), goovs.Output(PortTun))
		}
	}
}

// answer returns the actions that reply with the MAC of the requested address, answerAs with that of another address: the second address of a tun0
// has the MAC of the first.
func answer() []ovs.Action {
	return []ovs.Action{goovs.Move(arpTargetIP, regAnswer), ovs.GotoTable(tableARPAnswer)}
}

func answerAs(addr netip.Addr) []ovs.Action {
	mac := config.MAC(addr)
	return []ovs.Action{goovs.Load(fmt.Sprintf("%#x", binary.BigEndian.Uint32(mac[2:])), regAnswer), ovs.GotoTable(tableARPAnswer)}
}

// answerARP compiles the reply, which is output to the port of the request; in the tunnel, to the node of the request.
func (n Node) answerARP(s *State) {
	rewrite := []ovs.Action{
		goovs.Move(arpTargetIP, regAsked),
		goovs.Move(arpSenderIP, arpTargetIP),
		goovs.Move(regAsked, arpSenderIP),
		goovs.Move("NXM_OF_ETH_SRC[]", "NXM_OF_ETH_DST[]"),
		goovs.Move(arpSenderMAC+"[]", arpTargetMAC+"[]"),
		goovs.Move(regAnswer, arpSenderMAC+"[0..31]"),
		goovs.Load("0xa58", arpSenderMAC+"[32..47]"),
		goovs.Move(arpSenderMAC+"[]", "NXM_OF_ETH_SRC[]"),
		goovs.Load(fmt.Sprintf("%#x", arpReply), "NXM_OF_ARP_OP[]"),
		goovs.InPort(),
	}
	// table=51,priority=200,arp,in_port=1,arp_op=1,
	//     actions=move:NXM_NX_TUN_IPV4_SRC[]->NXM_NX_TUN_IPV4_DST[],move:NXM_OF_ARP_TPA[]->NXM_NX_REG2[],move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],
	//     move:NXM_NX_REG2[]->NXM_OF_ARP_SPA[],move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],
	//     move:NXM_NX_REG1[]->NXM_NX_ARP_SHA[0..31],load:0xa58->NXM_NX_ARP_SHA[32..47],move:NXM_NX_ARP_SHA[]->NXM_OF_ETH_SRC[],
	//     load:0x2->NXM_OF_ARP_OP[],in_port
	s.add(tableARPAnswer, 200, requests().from(PortVXLAN), append([]ovs.Action{goovs.Move("NXM_NX_TUN_IPV4_SRC[]", "NXM_NX_TUN_IPV4_DST[]")}, rewrite...)...)
	// table=51,priority=100,arp,arp_op=1,
	//     actions=move:NXM_OF_ARP_TPA[]->NXM_NX_REG2[],move:NXM_OF_ARP_SPA[]->NXM_OF_ARP_TPA[],move:NXM_NX_REG2[]->NXM_OF_ARP_SPA[],
	//     move:NXM_OF_ETH_SRC[]->NXM_OF_ETH_DST[],move:NXM_NX_ARP_SHA[]->NXM_NX_ARP_THA[],move:NXM_NX_REG1[]->NXM_NX_ARP_SHA[0..31],
	//     load:0xa58->NXM_NX_ARP_SHA[32..47],move:NXM_NX_ARP_SHA[]->NXM_OF_ETH_SRC[],load:0x2->NXM_OF_ARP_OP[],in_port
	s.add(tableARPAnswer, 100, requests(), rewrite...)
	// table=51,priority=0,actions=drop
	s.add(tableARPAnswer, 0, anything(), goovs.Drop())
}
