package pipeline

import (
	"fmt"
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// With Node.BalancesServices, table 60 sends connections to services to their endpoints (docs/decisions/0011-services.md). NAT has zones of its
// own, which grant no permission: policies and VNIDs evaluate the endpoint as the destination. Table 132 translates replies, after all verdicts.

// The first zones of NAT. The low zoneBits bits of a zone are those of the client's address, a pod of this node or tun0.
const (
	// The other source of clients that reach themselves through a service, of the node that reaches hosts, and, without client bits, of hosts outside.
	zoneHairpin = 0x2000
	// The endpoints of connections to services; without client bits, of connections from hosts outside.
	zoneNAT = 0x4000
)

// Sources of packets that a service sends back to their sender, which would drop its own address as the source. Link-local addresses are not
// routed (RFC 3927, section 2.7).
func hairpinPod() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 10}) }

// HairpinNode is the source of packets of the node itself that return to the host, and the next hop of its route to services.
func HairpinNode() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 11}) }

// HairpinOutside is the source of packets of hosts outside that return to the host: unlike HairpinNode's, the host's firewall does not accept them as the node's.
func HairpinOutside() netip.Addr { return netip.AddrFrom4([4]byte{169, 254, 0, 12}) }

// hairpins are the ranges of hairpinPod, HairpinNode and HairpinOutside.
func hairpins() []netip.Prefix {
	return []netip.Prefix{netip.PrefixFrom(hairpinPod(), 31), single(HairpinOutside())}
}

// The endpoint of a connection to a service, in registers.
const (
	regEndpointAddr = "NXM_NX_REG8[]" // IPv4 address of the selected endpoint; 0: none
	regEndpointPort = "NXM_NX_REG9[]" // port of the selected endpoint

	numberEndpointAddr = 8
	numberEndpointPort = 9
)

// loadNATZone returns the action that loads the zone in which a client's connections to services are translated.
func loadNATZone(client netip.Addr) ovs.Action {
	return goovs.Load(fmt.Sprintf("%#x", zoneNAT|lowBits(client)), regZone)
}

// lookupNAT returns the action that translates packets of known connections, and continues with a table.
func lookupNAT(zone uint16, table int) ovs.Action {
	return goovs.ConnectionTracking(fmt.Sprintf("nat,table=%d,zone=%d", table, zone))
}

// translateSource returns the action that commits the connection with another source: an address, with a range of ports if there is one.
func translateSource(source string, table int, zone uint16) ovs.Action {
	return goovs.ConnectionTracking(fmt.Sprintf("commit,nat(src=%s),table=%d,zone=%d", source, table, zone))
}

// setNodeSource returns the action that gives a packet of the node itself HairpinNode as its source.
func (n Node) setNodeSource(table int) ovs.Action {
	return translateSource(HairpinNode().String(), table, zoneHairpin|lowBits(config.Gateway(n.Subnets[0])))
}

// output returns the action that outputs an allowed packet to the port in reg2.
func (n Node) output() ovs.Action {
	if n.BalancesServices {
		return ovs.GotoTable(tableServiceReply)
	}
	return ovs.GotoTable(tableOutput)
}

// ownAddrs returns the addresses that the node's own packets may have as their source.
func (n Node) ownAddrs() []netip.Prefix {
	own := n.gateways()
	if n.VTEP.Is4() {
		own = append(own, single(n.VTEP))
	}
	return own
}

// ServesNodePorts reports whether pods of this node reach node ports at the address.
func (n Node) ServesNodePorts(addr netip.Addr) bool {
	if len(n.NodePortAddresses) > 0 && !slices.ContainsFunc(n.NodePortAddresses, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return false
	}
	return slices.Contains(n.ownAddrs(), single(addr))
}

// balance compiles the static part of services: the tables 60, 64 to 69, 71, 132 and 133.
func (n Node) balance(s *State) {
	if n.BalancesServices {
		n.fromNodeToServices(s)
		n.fromOutsideToServices(s)
		n.selectServices(s)
		n.lookUpServices(s)
		n.translated(s)
		n.restore(s)
		n.idledFrom(s, PortTun, idledHostRate, idledHostBurst)
	}
	for _, table := range []int{
		tableServiceAddress, tableOwnNodePort, tableAffinity, tableSelect, tableLearn, tableTranslate, tableTranslated, tableReject, tableIdled, tableServiceReply,
		tableOutsideReply,
	} {
		// table=64,priority=0,actions=drop
		s.add(table, 0, anything(), goovs.Drop())
	}
	// table=133,priority=0,actions=output:NXM_NX_REG2[]
	s.add(tableOutput, 0, anything(), goovs.OutputField(regOutput))
}

// fromNodeToServices compiles the node's own packets to services, and replies of hosts to HairpinNode. Packets with a DSCP of the host's firewall
// match flows of a higher priority.
func (n Node) fromNodeToServices(s *State) {
	zone := loadNATZone(config.Gateway(n.Subnets[0]))
	for _, source := range n.ownAddrs() {
		other := n.VTEP
		priority := 410
		if source == single(n.VTEP) {
			other, priority = config.Gateway(n.Subnets[0]), 206
		}
		// table=0,priority=410,ip,in_port=2,nw_src=10.128.0.1,nw_dst=172.30.0.0/16,
		//     actions=ct_clear,load:0x1->NXM_NX_REG4[10],load:0xac1f000b->NXM_NX_REG6[],load:0x4001->NXM_NX_REG3[],goto_table:60
		s.add(tableClassify, priority, ip(ovs.IPSource(source), ovs.IPDestination(n.ServiceNetwork)).from(PortTun),
			slices.Concat([]ovs.Action{ovs.CTClear()}, isNode(other), []ovs.Action{zone, ovs.GotoTable(tableService)})...)
	}
	// table=0,priority=510,ip,in_port=2,nw_dst=169.254.0.11,actions=ct_clear,set_field:0a:58:0a:80:00:01->eth_dst,ct(nat,table=30,zone=8193)
	s.add(tableClassify, 510, ip(ovs.IPDestination(single(HairpinNode()))).from(PortTun),
		ovs.CTClear(), n.toTun0MAC(), lookupNAT(zoneHairpin|lowBits(config.Gateway(n.Subnets[0])), tableRoute))
}

// selectServices compiles the tables 21 and 22, which select packets of pods to services. BalancedService adds addresses outside of the service network, and node
// ports. Other packets to this node, such as replies to the node itself, are not looked up in 60.
func (n Node) selectServices(s *State) {
	// table=21,priority=100,ip,nw_dst=172.30.0.0/16,actions=goto_table:60
	s.add(tableServiceAddress, 100, ip(ovs.IPDestination(n.ServiceNetwork)), ovs.GotoTable(tableService))
	for _, own := range n.ownAddrs() {
		if !n.ServesNodePorts(own.Addr()) {
			continue // as the address of another host: it may be an external IP
		}
		// table=21,priority=110,ip,nw_dst=10.128.0.1,actions=goto_table:22
		s.add(tableServiceAddress, 110, ip(ovs.IPDestination(own)), ovs.GotoTable(tableOwnNodePort))
	}
	// Later fragments have no port, so all are looked up: conntrack retains a fragment until it has all fragments of the packet.
	for _, fragment := range []goovs.IPFragFlag{goovs.IPFragFlagFirst, goovs.IPFragFlagLater} {
		// table=22,priority=110,ip,nw_frag=first,actions=load:0x1->NXM_NX_REG4[18],goto_table:60
		s.add(tableOwnNodePort, 110, ip(goovs.IPFrag(fragment)), loadToNodePort(), ovs.GotoTable(tableService))
	}
	for _, errorType := range icmpErrors() { // about a connection to a node port
		// table=22,priority=100,icmp,icmp_type=3,actions=load:0x1->NXM_NX_REG4[18],goto_table:60
		s.add(tableOwnNodePort, 100, icmp(goovs.ICMPType(errorType)), loadToNodePort(), ovs.GotoTable(tableService))
	}
	for _, table := range []int{tableServiceAddress, tableOwnNodePort} {
		// table=21,priority=10,ip,actions=load:0->NXM_NX_REG3[],goto_table:27
		s.add(table, 10, ip(), noZone(), n.fromPod())
	}
}

// icmpErrors are the types of ICMP errors about packets: destination unreachable, time exceeded and parameter problem (RFC 792).
func icmpErrors() []uint8 { return []uint8{icmpUnreachable, 11, 12} }

// loadToNodePort returns the action that marks a packet to a node port of this node.
func loadToNodePort() ovs.Action { return goovs.Load("0x1", regToNodePort) }

// lookUpServices compiles table 60 for packets that no service matches, and the start of the lookup.
func (n Node) lookUpServices(s *State) {
	// table=60,priority=230,ct_state=-trk,ip,actions=ct(nat,table=60,zone=NXM_NX_REG3[0..15])
	s.add(tableService, 230, ip(goovs.ConnectionTrackingState("-trk")),
		goovs.ConnectionTracking(fmt.Sprintf("nat,table=%d,zone=NXM_NX_REG3[0..15]", tableService)))
	// table=60,priority=50,ip,nw_dst=172.30.0.0/16,actions=drop
	s.add(tableService, 50, ip(ovs.IPDestination(n.ServiceNetwork)), goovs.Drop())
	// A connection that was rejected before.
	// table=60,priority=60,ip,nw_dst=172.30.0.0,actions=goto_table:69
	s.add(tableService, 60, ip(ovs.IPDestination(single(n.rejected()))), ovs.GotoTable(tableReject))
	// table=60,priority=10,ip,actions=goto_table:68
	s.add(tableService, 10, ip(), ovs.GotoTable(tableTranslated))
	// table=65,priority=10,ip,actions=goto_table:67
	s.add(tableSelect, 10, ip(), ovs.GotoTable(tableTranslate))

	// Replies of the client, and its ICMP errors about them, are translated with the connection: the kernel translates errors only if they commit.
	// table=60,priority=220,ct_state=+rel-rpl+trk,icmp,actions=ct(commit,nat,table=68,zone=NXM_NX_REG3[0..15])
	s.add(tableService, 220, icmp(goovs.ConnectionTrackingState("+trk", "+rel", "-rpl")),
		goovs.ConnectionTracking(fmt.Sprintf("commit,nat,table=%d,zone=NXM_NX_REG3[0..15]", tableTranslated)))

	// The host drops packets that return to it with its own address as their source, so it could not reject them.
	// table=69,priority=100,ip,in_port=2,
	//     actions=ct_clear,load:2->NXM_NX_REG2[],set_field:0a:58:0a:80:00:01->eth_dst,ct(commit,nat(src=169.254.0.11),table=133,zone=8193)
	s.add(tableReject, 100, ip().from(PortTun), ovs.CTClear(), loadPort(PortTun), n.toTun0MAC(), n.setNodeSource(tableOutput))
	// table=69,priority=50,ip,nw_dst=172.30.0.0/16,actions=ct_clear,output:2
	s.add(tableReject, 50, ip(ovs.IPDestination(n.ServiceNetwork)), ovs.CTClear(), goovs.Output(PortTun))
	// The host would route packets to other addresses. It rejects those to the service network; the ICMP error gets the address that the client has used.
	// table=69,priority=40,ip,reg4=0x100000/0x100000,actions=drop
	s.add(tableReject, rejectUntranslated, ip(ovs.RegBits(4, endpointSelected, endpointSelected)), goovs.Drop())
	// table=69,priority=10,ip,actions=load:0x1->NXM_NX_REG4[20],ct(commit,nat(dst=172.30.0.0),table=69,zone=NXM_NX_REG3[0..15])
	s.add(tableReject, 10, ip(), goovs.Load("0x1", regEndpointSelected),
		goovs.ConnectionTracking(fmt.Sprintf("commit,nat(dst=%s),table=%d,zone=NXM_NX_REG3[0..15]", n.rejected(), tableReject)))
}

// rejectUntranslated is the priority in table 69 of packets whose destination could not be translated to that of rejected.
const rejectUntranslated = 40

// rejected is the destination of packets of pods that the host rejects, although it would route their own destination. No service has it.
func (n Node) rejected() netip.Addr { return n.ServiceNetwork.Masked().Addr() }

func (n Node) toTun0MAC() ovs.Action {
	return goovs.SetField(config.MAC(config.Gateway(n.Subnets[0])).String(), "eth_dst")
}

// toPodMAC returns the actions that set the MAC of the pod at the packet's destination.
func toPodMAC() []ovs.Action {
	return []ovs.Action{goovs.Load("0xa58", "NXM_OF_ETH_DST[32..47]"), goovs.Move(addressDestination+"[]", "NXM_OF_ETH_DST[0..31]")}
}

// translatedTunnel is the priority in table 68 of packets to the port of VXLAN. Those that could not be translated have lower ones.
const translatedTunnel = 310

// translated compiles packets whose destination is an endpoint. MACs follow from addresses in the cluster network (config.MAC); other destinations
// are reached through the gateway, whose MAC the packet has.
func (n Node) translated(s *State) {
	// The zone is full.
	// table=68,priority=300,ip,nw_dst=172.30.0.0/16,actions=drop
	s.add(tableTranslated, 300, ip(ovs.IPDestination(n.ServiceNetwork)), goovs.Drop())
	// A connection that was rejected before the service got endpoints. The kernel translates its first packets only where they are committed.
	// table=68,priority=302,ip,nw_dst=172.30.0.0,actions=goto_table:69
	s.add(tableTranslated, 302, ip(ovs.IPDestination(single(n.rejected()))), ovs.GotoTable(tableReject))
	// table=68,priority=305,ct_state=-dnat,ip,reg4=0x100000/0x100000,actions=drop
	s.add(tableTranslated, 305, ip(ovs.RegBits(4, endpointSelected, endpointSelected), isNotTranslated()), goovs.Drop())
	// As in table 20: the host would masquerade it as this node's.
	// table=68,priority=310,udp,tp_dst=4789,actions=drop
	s.add(tableTranslated, translatedTunnel, udp(goovs.TransportDestinationPort(n.VXLANPort)), goovs.Drop())
	reset := []ovs.Action{ovs.CTClear(), noZone()}
	toPod := slices.Concat(reset, toPodMAC())
	for _, gateway := range n.gateways() {
		// table=68,priority=230,ip,in_port=2,nw_dst=10.128.0.1,
		//     actions=ct_clear,load:0->NXM_NX_REG3[],set_field:0a:58:0a:80:00:01->eth_dst,ct(commit,nat(src=169.254.0.11),table=30,zone=8193)
		s.add(tableTranslated, 230, ip(ovs.IPDestination(gateway)).from(PortTun), append(slices.Clone(reset), n.toTun0MAC(), n.setNodeSource(tableRoute))...)
	}
	for _, cluster := range n.ClusterNetworks {
		// table=68,priority=220,ip,in_port=2,nw_dst=10.128.0.0/14,
		//     actions=ct_clear,load:0->NXM_NX_REG3[],load:0xa58->NXM_OF_ETH_DST[32..47],move:NXM_OF_IP_DST[]->NXM_OF_ETH_DST[0..31],resubmit(,30)
		s.add(tableTranslated, 220, ip(ovs.IPDestination(cluster)).from(PortTun), append(slices.Clone(toPod), goovs.Resubmit(0, tableRoute))...)
		// table=68,priority=100,ip,nw_dst=10.128.0.0/14,
		//     actions=ct_clear,load:0->NXM_NX_REG3[],load:0xa58->NXM_OF_ETH_DST[32..47],move:NXM_OF_IP_DST[]->NXM_OF_ETH_DST[0..31],resubmit(,26)
		s.add(tableTranslated, 100, ip(ovs.IPDestination(cluster)), append(slices.Clone(toPod), goovs.Resubmit(0, n.egressTable()))...)
	}
	// table=68,priority=210,ip,in_port=2,
	//     actions=ct_clear,load:0->NXM_NX_REG3[],set_field:0a:58:0a:80:00:01->eth_dst,ct(commit,nat(src=169.254.0.11),table=30,zone=8193)
	s.add(tableTranslated, 210, ip().from(PortTun), append(slices.Clone(reset), n.toTun0MAC(), n.setNodeSource(tableRoute))...)
	// table=68,priority=10,ip,actions=ct_clear,load:0->NXM_NX_REG3[],resubmit(,26)
	s.add(tableTranslated, 10, ip(), append(slices.Clone(reset), goovs.Resubmit(0, n.egressTable()))...)
}

// restore compiles the output of packets: replies to the node itself get the service's address as their source. Open vSwitch outputs a packet to the
// port that it came from only with the action in_port.
func (n Node) restore(s *State) {
	zone := zoneNAT | lowBits(config.Gateway(n.Subnets[0]))
	for _, own := range n.ownAddrs() {
		// table=132,priority=100,ip,reg2=0x2,nw_dst=10.128.0.1,actions=ct(nat,table=133,zone=16385)
		s.add(tableServiceReply, 100, ip(ovs.Reg(2, PortTun), ovs.IPDestination(own)), lookupNAT(zone, tableOutput))
	}
	// table=132,priority=10,actions=goto_table:133
	s.add(tableServiceReply, 10, anything(), ovs.GotoTable(tableOutput))
	// table=133,priority=110,ip,reg4=0x8000/0x8000,actions=in_port
	s.add(tableOutput, 110, ip(isHairpin()), goovs.InPort())
	for _, gateway := range n.gateways() {
		// The host's rejection of the node's own packets would return with the node's own address as its source. An error of an endpoint has the service's address here.
		// table=133,priority=105,icmp,reg2=0x2,in_port=2,nw_src=10.128.0.1,actions=set_field:169.254.0.11->ip_src,in_port
		s.add(tableOutput, 105, icmp(ovs.Reg(2, PortTun), ovs.IPSource(gateway)).from(PortTun), goovs.SetField(HairpinNode().String(), "ip_src"), goovs.InPort())
	}
	// table=133,priority=100,ip,reg2=0x2,in_port=2,actions=in_port
	s.add(tableOutput, 100, ip(ovs.Reg(2, PortTun)).from(PortTun), goovs.InPort())
}

// balanceFor compiles what a pod needs to use services: the translation of replies, and of its connections to itself.
func (n Node) balanceFor(s *State, p Pod, asSource []ovs.Action) {
	if !n.BalancesServices {
		return
	}
	ownMAC, isSelf := goovs.SetField(p.MAC.String(), "eth_dst"), goovs.Load("0x1", regHairpin)
	for _, addr := range p.Addrs {
		own, zone := single(addr), zoneHairpin|lowBits(addr)
		// table=68,priority=250,ip,nw_src=10.128.0.5,nw_dst=10.128.0.5,
		//     actions=load:0x1->NXM_NX_REG4[15],load:0->NXM_NX_REG3[],set_field:0a:58:0a:80:00:05->eth_dst,
		//     ct(commit,nat(src=169.254.0.10),table=70,zone=8197)
		s.add(tableTranslated, 250, ip(ovs.IPSource(own), ovs.IPDestination(own)), isSelf, noZone(), ownMAC,
			translateSource(hairpinPod().String(), tableLocalPod, zone))
		reply := ip(goovs.DataLinkSource(p.MAC.String()), ovs.IPSource(own), ovs.IPDestination(single(hairpinPod()))).from(p.OFPort)
		// table=20,priority=115,ip,in_port=3,dl_src=0a:58:0a:80:00:05,nw_src=10.128.0.5,nw_dst=169.254.0.10,
		//     actions=load:0xabcdef->NXM_NX_REG0[],load:0x1->NXM_NX_REG4[15],set_field:0a:58:0a:80:00:05->eth_dst,ct(nat,table=70,zone=8197)
		s.add(tablePodIngress, 115, reply, p.limited(slices.Concat([]ovs.Action{loadVNID(p.VNID, regSourceVNID)}, asSource,
			[]ovs.Action{isSelf, ownMAC, lookupNAT(zone, tableLocalPod)}))...)
		// table=132,priority=100,ip,reg2=0x3,nw_dst=10.128.0.5,actions=ct(nat,table=133,zone=16389)
		s.add(tableServiceReply, 100, ip(ovs.Reg(2, uint32(p.OFPort)), ovs.IPDestination(own)), lookupNAT(zoneNAT|lowBits(addr), tableOutput)) //nolint:gosec // a port's number
	}
}
