package pipeline

import (
	"fmt"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Hosts outside reach services through any node (docs/decisions/0011-services.md). The node's host translates the destination to the cluster IP, and marks the
// packet with ForwardedDSCP; the switch sends it to an endpoint, and its reply back to the host. The opener has no address of this node, so all of them share a
// zone: that of the low bits 0, which the network address of a subnet has, and no pod.
const (
	zoneOutside    = zoneNAT     // which endpoint a connection from outside has
	zoneMasquerade = zoneHairpin // the source of connections from outside to pods of other nodes
)

// Ports that connections from outside get at tun0's address: below those that the node's own connections have by default (ip_local_port_range), so that the switch
// knows their replies by the first bit.
const (
	firstMasqueradePort = 1024
	lastMasqueradePort  = FirstClientPort - 1
)

// isFromOutside matches packets of hosts outside to services.
func isFromOutside() ovs.Match { return ovs.RegBits(4, fromOutside, fromOutside) }

// routeUnmasqueraded is the priority in table 30 of packets whose source could not be translated.
const routeUnmasqueraded = 430

// fromOutsideToServices compiles packets of hosts outside to services.
func (n Node) fromOutsideToServices(s *State) {
	loads := []ovs.Action{goovs.SetField("0", "nw_tos"), ovs.CTClear(), goovs.Load("0x1", regFromOutside)}
	switch {
	case n.tenants(): // the service's owner has opened it to all
		loads = append(loads, loadVNID(config.GlobalVNID, regSourceVNID))
	case n.evaluates():
		loads = append(loads, loadVNID(vnidOutside, regSourceVNID))
	}
	marked := []ovs.Match{ovs.IPDestination(n.ServiceNetwork), goovs.NetworkTOS(ForwardedDSCP << dscpShift)}
	// table=0,priority=520,ip,in_port=2,nw_dst=172.30.0.0/16,nw_tos=248,
	//     actions=set_field:0->nw_tos,ct_clear,load:0x1->NXM_NX_REG4[19],load:0x0->NXM_NX_REG0[],load:0x4000->NXM_NX_REG3[],goto_table:60
	s.add(tableClassify, 520, ip(marked...).from(PortTun), append(slices.Clone(loads), goovs.Load(fmt.Sprintf("%#x", zoneOutside), regZone), ovs.GotoTable(tableService))...)
	for _, own := range n.ownAddrs() { // masqueraded by the host, as for a container that is no pod: replies are looked up in the node's zone
		// table=0,priority=530,ip,in_port=2,nw_src=10.128.0.1,nw_dst=172.30.0.0/16,nw_tos=248,
		//     actions=set_field:0->nw_tos,ct_clear,load:0x1->NXM_NX_REG4[19],load:0x0->NXM_NX_REG0[],load:0x4001->NXM_NX_REG3[],goto_table:60
		s.add(tableClassify, 530, ip(append(slices.Clone(marked), ovs.IPSource(own))...).from(PortTun),
			append(slices.Clone(loads), loadNATZone(config.Gateway(n.Subnets[0])), ovs.GotoTable(tableService))...)
	}
	// The host translates to opened services only.
	// table=60,priority=102,ip,reg4=0x80000/0x80000,nw_dst=172.30.0.0/16,actions=drop
	s.add(tableService, serviceUnopened, ip(isFromOutside(), ovs.IPDestination(n.ServiceNetwork)), goovs.Drop())
	if len(n.Subnets) > 0 {
		n.masqueradeOutside(s)
		n.restoreMasqueraded(s)
	}
	n.restoreOutside(s)
}

// masqueradeOutside compiles packets of hosts outside to endpoints that are no pods of this node. They get another source, so that replies return through this node:
// to pods of other nodes tun0's address, to the host HairpinOutside. For the other node they are those of a node's client, not of the node itself, whose packets
// have config.NodeMAC.
func (n Node) masqueradeOutside(s *State) {
	toHost := []ovs.Action{ovs.CTClear(), noZone(), n.toTun0MAC(), translateSource(HairpinOutside().String(), tableRoute, zoneMasquerade)}
	for _, gateway := range n.gateways() {
		// table=68,priority=235,ip,reg4=0x80000/0x80000,in_port=2,nw_dst=10.128.0.1,
		//     actions=ct_clear,load:0->NXM_NX_REG3[],set_field:0a:58:0a:80:00:01->eth_dst,ct(commit,nat(src=169.254.0.12),table=30,zone=8192)
		s.add(tableTranslated, 235, ip(isFromOutside(), ovs.IPDestination(gateway)).from(PortTun), toHost...)
	}
	// table=68,priority=215,ip,reg4=0x80000/0x80000,in_port=2,
	//     actions=ct_clear,load:0->NXM_NX_REG3[],set_field:0a:58:0a:80:00:01->eth_dst,ct(commit,nat(src=169.254.0.12),table=30,zone=8192)
	s.add(tableTranslated, 215, ip(isFromOutside()).from(PortTun), toHost...)
	// The zone is full, or no port is free.
	// table=30,priority=430,ct_state=+trk-snat,ip,reg4=0x80000/0x80000,in_port=2,actions=drop
	s.add(tableRoute, routeUnmasqueraded, ip(isFromOutside(), goovs.ConnectionTrackingState("+trk", "-snat")).from(PortTun), goovs.Drop())
	reset := append([]ovs.Action{ovs.CTClear(), noZone()}, toPodMAC()...)
	// Routers' errors pass ingress policies with the VNID of packets from outside.
	isTooLarge := []ovs.Match{isFromOutside(), goovs.ICMPType(icmpUnreachable), goovs.ICMPCode(icmpTooLarge)}
	asOutside := append(slices.Clone(reset), loadVNID(vnidOutside, regSourceVNID))
	for _, subnet := range n.Subnets {
		if n.evaluates() {
			// table=68,priority=228,icmp,reg4=0x80000/0x80000,in_port=2,nw_dst=10.128.0.0/23,icmp_type=3,icmp_code=4,
			//     actions=ct_clear,load:0->NXM_NX_REG3[],load:0xa58->NXM_OF_ETH_DST[32..47],move:NXM_OF_IP_DST[]->NXM_OF_ETH_DST[0..31],load:0x1->NXM_NX_REG0[],
			//     resubmit(,30)
			s.add(tableTranslated, 228, icmp(append(slices.Clone(isTooLarge), ovs.IPDestination(subnet))...).from(PortTun), append(slices.Clone(asOutside), goovs.Resubmit(0, tableRoute))...)
		}
		// table=68,priority=226,ip,reg4=0x80000/0x80000,in_port=2,nw_dst=10.128.0.0/23,
		//     actions=ct_clear,load:0->NXM_NX_REG3[],load:0xa58->NXM_OF_ETH_DST[32..47],move:NXM_OF_IP_DST[]->NXM_OF_ETH_DST[0..31],resubmit(,30)
		s.add(tableTranslated, 226, ip(isFromOutside(), ovs.IPDestination(subnet)).from(PortTun), append(slices.Clone(reset), goovs.Resubmit(0, tableRoute))...)
	}
	if n.evaluates() {
		reset = append(reset, loadVNID(config.GlobalVNID, regSourceVNID))
	}
	first, last := n.masqueradePorts()
	masquerade := translateSource(fmt.Sprintf("%s:%d-%d", config.Gateway(n.Subnets[0]), first, last), tableRoute, zoneMasquerade)
	for _, cluster := range n.ClusterNetworks {
		if n.evaluates() {
			// table=68,priority=227,icmp,reg4=0x80000/0x80000,in_port=2,nw_dst=10.128.0.0/14,icmp_type=3,icmp_code=4,
			//     actions=ct_clear,load:0->NXM_NX_REG3[],load:0xa58->NXM_OF_ETH_DST[32..47],move:NXM_OF_IP_DST[]->NXM_OF_ETH_DST[0..31],load:0x1->NXM_NX_REG0[],
			//     ct(commit,nat(src=10.128.0.1:4790-32767),table=30,zone=8192)
			s.add(tableTranslated, 227, icmp(append(slices.Clone(isTooLarge), ovs.IPDestination(cluster))...).from(PortTun), append(slices.Clone(asOutside), masquerade)...)
		}
		// table=68,priority=225,ip,reg4=0x80000/0x80000,in_port=2,nw_dst=10.128.0.0/14,
		//     actions=ct_clear,load:0->NXM_NX_REG3[],load:0xa58->NXM_OF_ETH_DST[32..47],move:NXM_OF_IP_DST[]->NXM_OF_ETH_DST[0..31],
		//     ct(commit,nat(src=10.128.0.1:4790-32767),table=30,zone=8192)
		s.add(tableTranslated, 225, ip(isFromOutside(), ovs.IPDestination(cluster)).from(PortTun), append(slices.Clone(reset), masquerade)...)
	}
}

// masqueradePorts returns the first and the last source port of masqueraded connections: the larger range beside the tunnels' port, since table 20 drops UDP of pods to
// that port, replies included.
func (n Node) masqueradePorts() (first, last uint16) {
	first, last = firstMasqueradePort, lastMasqueradePort
	switch port := n.VXLANPort; {
	case port < first || port > last:
		return first, last
	case port-first > last-port:
		return first, port - 1
	default:
		return port + 1, last
	}
}

// restoreOutside compiles replies to hosts outside, which get the cluster IP as their source. The host restores the address to which the client connected.
func (n Node) restoreOutside(s *State) {
	fromHost := lookupNAT(zoneOutside, tableOutput)
	// An endpoint in the host network, or another host.
	// table=132,priority=90,ip,reg2=0x2,in_port=2,actions=ct(nat,table=133,zone=16384)
	s.add(tableServiceReply, 90, ip(ovs.Reg(2, PortTun)).from(PortTun), fromHost)
	for _, subnet := range n.Subnets { // whatever endpoints services have now: connections to removed ones continue
		// table=132,priority=90,ip,reg2=0x2,nw_src=10.128.0.0/23,actions=ct(nat,table=133,zone=16384)
		s.add(tableServiceReply, 90, ip(ovs.Reg(2, PortTun), ovs.IPSource(subnet)), fromHost)
	}
}

// restoreMasqueraded compiles replies to packets whose source masqueradeOutside has translated.
func (n Node) restoreMasqueraded(s *State) {
	gateway := config.Gateway(n.Subnets[0])
	restored := lookupNAT(zoneMasquerade, tableOutsideReply)
	toGateway := func(fields ...ovs.Match) []ovs.Match {
		return append([]ovs.Match{ovs.Reg(2, PortTun), ovs.IPDestination(single(gateway))}, fields...)
	}
	for _, protocol := range transportProtocols() {
		// table=132,priority=105,tcp,reg2=0x2,nw_dst=10.128.0.1,tp_dst=0x0/0x8000,actions=ct(nat,table=135,zone=8192)
		s.add(tableServiceReply, 105, match{protocol: protocol, fields: toGateway(goovs.TransportDestinationMaskedPort(0, FirstClientPort))}, restored)
	}
	for _, errorType := range icmpErrors() { // about packets of a host outside, or of the node
		// table=132,priority=105,icmp,reg2=0x2,nw_dst=10.128.0.1,icmp_type=3,actions=ct(nat,table=135,zone=8192)
		s.add(tableServiceReply, 105, icmp(toGateway(goovs.ICMPType(errorType))...), restored)
	}
	for _, fragment := range []goovs.IPFragFlag{goovs.IPFragFlagFirst, goovs.IPFragFlagLater} {
		// table=132,priority=106,ip,reg2=0x2,nw_dst=10.128.0.1,nw_frag=first,actions=ct(nat,table=135,zone=8192)
		s.add(tableServiceReply, 106, ip(toGateway(goovs.IPFrag(fragment))...), restored)
	}
	// The packet is one to the node itself.
	// table=135,priority=100,ip,nw_dst=10.128.0.1,actions=ct(nat,table=133,zone=16385)
	s.add(tableOutsideReply, 100, ip(ovs.IPDestination(single(gateway))), lookupNAT(zoneNAT|lowBits(gateway), tableOutput))
	// table=135,priority=10,ip,actions=ct(nat,table=133,zone=16384)
	s.add(tableOutsideReply, 10, ip(), lookupNAT(zoneOutside, tableOutput))
	// table=0,priority=510,ip,in_port=2,nw_dst=169.254.0.12,actions=ct_clear,set_field:0a:58:0a:80:00:01->eth_dst,ct(nat,table=30,zone=8192)
	s.add(tableClassify, 510, ip(ovs.IPDestination(single(HairpinOutside()))).from(PortTun),
		ovs.CTClear(), n.toTun0MAC(), lookupNAT(zoneMasquerade, tableRoute))
}

// repliesToOutside compiles, for mode multitenant, that replies of pods to hosts outside are not committed as connections that the pod opened: packets that the
// client opens would pass as replies. To nodes, whose port may be a node port of another VNID, table 61 passes them. Without policies of the pod, only the zone of
// connections from outside has its connections.
func (n Node) repliesToOutside(s *State) {
	if !n.BalancesServices {
		return
	}
	// table=61,priority=130,ct_state=+rpl+trk,ip,actions=goto_table:100
	s.add(tableNodePort, 130, ip(isReply()), ovs.GotoTable(tableEgressFirewall))
	n.trackReplies(s, tableNodePort, 120)
	toHost := []ovs.Action{loadPort(PortTun), ovs.GotoTable(tableCommit)}
	for _, subnet := range n.Subnets {
		// table=101,priority=330,ct_state=+rpl+trk,ip,reg11=0,nw_src=10.128.0.0/23,actions=load:2->NXM_NX_REG2[],goto_table:130
		s.add(tableEgressIP, egressNone+30, ip(isReply(), ovs.Reg(numberEgressIP, 0), ovs.IPSource(subnet)), toHost...)
	}
	n.trackReplies(s, tableEgressIP, egressNone+20)
}

// trackReplies compiles the lookup of packets of this node's pods in the zone of connections from outside, from which the table continues. ICMP errors are no
// replies here: conntrack does not compare their source, so one of any pod would be.
func (n Node) trackReplies(s *State, table, priority int) {
	for _, subnet := range n.Subnets {
		for _, protocol := range transportProtocols() {
			// table=101,priority=320,ct_state=-trk,tcp,nw_src=10.128.0.0/23,actions=ct(table=101,zone=16384)
			s.add(table, priority, match{protocol: protocol, fields: []ovs.Match{goovs.ConnectionTrackingState("-trk"), ovs.IPSource(subnet)}},
				goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=%d", table, zoneOutside)))
		}
	}
}

func transportProtocols() []goovs.Protocol {
	return []goovs.Protocol{goovs.ProtocolTCPv4, goovs.ProtocolUDPv4, ProtocolSCTP}
}

// IsFromOutside reports whether a connection in one of NATZones was opened by a host outside, without the node's own address as its source.
func IsFromOutside(c ovs.Connection) bool { return c.Zone == zoneOutside }

// IsOfHostsOutside reports whether the zone has the connections of all hosts outside, not those of one address.
func IsOfHostsOutside(zone uint16) bool { return zone == zoneOutside || zone == zoneMasquerade }
