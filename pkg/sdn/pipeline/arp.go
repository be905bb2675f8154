package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// ARP requests are answered by the switch, since MACs follow from addresses (config.MAC): nothing that a pod sends as ARP reaches another pod, and
// what pods know of others comes from the switch (docs/decisions/0007-arp.md). Only machines that are no nodes still receive requests and answer them.
//
// Open vSwitch 3.1 rewrites ARP in ovs-vswitchd, which costs an upcall for each packet. A request therefore passes the meter of its port in a
// pass of its own through the datapath, before it is rewritten.

// Operations of ARP.
const (
	arpRequest = 1
	arpReply   = 2
)

const etherTypeARP = 0x0806

// Rates of ARP requests, in packets per second, and how many may come at once. A pod that begins to talk to many others asks for all of them at once.
const (
	podARPRate   = 100
	podARPBurst  = 1000
	hostARPRate  = 1000 // of tun0, and of the tunnel
	hostARPBurst = 2000
)

// regAnswer holds the last four bytes of the MAC that answers a request; regAsked is where the address that was asked for waits for its new place.
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

// enterARP compiles how requests of the host and of other nodes come in, and answers of machines: table 0. Nodes of the previous version, and
// machines, ask for pods of this node.
func (n Node) enterARP(s *State) {
	s.Meters = append(s.Meters, arpMeter(PortVXLAN, hostARPRate, hostARPBurst), arpMeter(PortTun, hostARPRate, hostARPBurst))
	vni := goovs.Move(tunID, regSourceVNID)
	for _, cluster := range n.ClusterNetworks {
		for _, subnet := range n.Subnets {
			to := []ovs.Match{ovs.ARPSourceIP(cluster), ovs.ARPTargetIP(subnet)}
			s.add(tableClassify, 200, requests(to...).from(PortVXLAN), limitARP(PortVXLAN, tableTunnelIngress, vni)...)
			s.add(tableClassify, 200, replies(to...).from(PortVXLAN), vni, ovs.GotoTable(tableTunnelIngress))
		}
		for _, gateway := range n.gateways() {
			s.add(tableClassify, 200, requests(ovs.ARPSourceIP(gateway), ovs.ARPTargetIP(cluster)).from(PortTun), limitARP(PortTun, tableRoute)...)
		}
	}
}

// routeARP compiles whom a request is for: table 30. The host's request for its own address is gratuitous.
func (n Node) routeARP(s *State) {
	for _, gateway := range n.gateways() {
		s.add(tableRoute, 310, requests(ovs.ARPTargetIP(gateway)).from(PortTun), goovs.Drop())
		s.add(tableRoute, 300, requests(ovs.ARPTargetIP(gateway)), answerAs(config.Gateway(n.Subnets[0]))...)
	}
	for _, subnet := range n.Subnets {
		s.add(tableRoute, 200, requests(ovs.ARPTargetIP(subnet)), ovs.GotoTable(tableARPLocal))
	}
	for _, cluster := range n.ClusterNetworks {
		s.add(tableRoute, 100, requests(ovs.ARPTargetIP(cluster)), ovs.GotoTable(tableARPRemote))
	}
}

// podARP compiles what a pod may ask for, who may ask for it, and answers of machines to it. A request for its own address is gratuitous.
func (n Node) podARP(s *State, p Pod) {
	s.Meters = append(s.Meters, arpMeter(p.OFPort, podARPRate, podARPBurst))
	for _, addr := range p.Addrs {
		target := ovs.ARPTargetIP(single(addr))
		s.add(tablePodIngress, 100, requests(
			goovs.DataLinkSource(p.MAC.String()), ovs.ARPSourceIP(single(addr)), goovs.ARPSourceHardwareAddress(p.MAC),
		).from(p.OFPort), limitARP(p.OFPort, tableRoute, loadVNID(p.VNID, regSourceVNID))...)
		s.add(tableARPLocal, 110, arp(target).from(p.OFPort), goovs.Drop())
		s.add(tableARPLocal, 100, requests(target), answer()...)
		if !n.tenants() || p.VNID.IsGlobal() {
			s.add(tableARPLocal, 100, replies(target), goovs.Output(p.OFPort))
			continue
		}
		s.add(tableARPLocal, 100, replies(ovs.Reg(0, uint32(config.GlobalVNID)), target), goovs.Output(p.OFPort))
		s.add(tableARPLocal, 100, replies(ovs.Reg(0, uint32(p.VNID)), target), goovs.Output(p.OFPort))
	}
}

// peerARP compiles requests for the addresses of a peer: table 50. Those of a node are answered here, whether a pod has them or not. A machine, whose
// MACs are its own, is asked by the tunnel, and its answers are let in.
func (n Node) peerARP(s *State, p Peer, tunnel []ovs.Action) {
	for i, subnet := range p.Subnets {
		if p.IsNode {
			s.add(tableARPRemote, 100, requests(ovs.ARPTargetIP(subnet)), answer()...)
			if i > 0 {
				s.add(tableARPRemote, 110, requests(ovs.ARPTargetIP(single(config.Gateway(subnet)))), answerAs(config.Gateway(p.Subnets[0]))...)
			}
			continue
		}
		for _, source := range n.sourcesFor(p) {
			s.add(tableARPRemote, 100, requests(append(source, ovs.ARPTargetIP(subnet))...), tunnel...)
		}
		s.add(tableRoute, 250, replies(ovs.ARPSourceIP(subnet)).from(PortVXLAN), ovs.GotoTable(tableARPLocal))
		for _, gateway := range n.gateways() {
			s.add(tableRoute, 300, replies(ovs.ARPSourceIP(subnet), ovs.ARPTargetIP(gateway)).from(PortVXLAN), goovs.Output(PortTun))
		}
	}
}

// answer has table 51 answer with the MAC of the address that is asked for, answerAs with that of another address: a further address of a tun0 has the
// MAC of the first.
func answer() []ovs.Action {
	return []ovs.Action{goovs.Move(arpTargetIP, regAnswer), ovs.GotoTable(tableARPAnswer)}
}

func answerAs(addr netip.Addr) []ovs.Action {
	mac := config.MAC(addr)
	return []ovs.Action{goovs.Load(fmt.Sprintf("%#x", binary.BigEndian.Uint32(mac[2:])), regAnswer), ovs.GotoTable(tableARPAnswer)}
}

// answerARP compiles the answer: table 51. It goes back to the port of the request, in the tunnel to the node of the request.
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
	s.add(tableARPAnswer, 200, requests().from(PortVXLAN), append([]ovs.Action{goovs.Move("NXM_NX_TUN_IPV4_SRC[]", "NXM_NX_TUN_IPV4_DST[]")}, rewrite...)...)
	s.add(tableARPAnswer, 100, requests(), rewrite...)
	s.add(tableARPAnswer, 0, anything(), goovs.Drop())
}
