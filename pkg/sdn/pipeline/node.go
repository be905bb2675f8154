package pipeline

import (
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Node is the configuration that all flows of a node depend on.
type Node struct {
	Mode            config.Mode
	ClusterNetworks []netip.Prefix
	ServiceNetwork  netip.Prefix
	Subnets         []netip.Prefix // this node's own
	VTEP            netip.Addr     // this node's own IP, where its tunnels end; invalid: only tun0's addresses are the node's
	VXLANPort       uint16

	// BalancesServices is for --service-proxy=ovs: this node sends connections to services to their endpoints. Otherwise the host's proxy does.
	BalancesServices bool

	// HoldsIdled is for --unidle: the agent gets packets to idled services. It requires BalancesServices.
	HoldsIdled bool

	// NodePortAddresses are ranges of addresses of this node: node ports answer only there, with BalancesServices; empty: at all of its addresses.
	NodePortAddresses []netip.Prefix

	// Userspace is for Open vSwitch's userspace datapath:
	//   - Its conntrack ignores the ports of SCTP: one association would pass the replies of all others between the same two pods. Rules evaluate both directions.
	//   - Its conntrack passes fragments on unchanged: rules with ports allow the later fragments, which have no ports, by their addresses.
	//   - Open vSwitch 3.1.0 may change the wrong one of two megaflows that overlap (flow_put_on_pmd in dpif-netdev.c): the groups of services all have the
	//     same number of slots, so that their megaflows have equal masks. Other flows have no such protection.
	Userspace bool

	// FlowExport is the zero value unless the node exports flows by IPFIX.
	FlowExport FlowExport
}

func (n Node) gateways() []netip.Prefix { return gatewaysOf(n.Subnets) }

func gatewaysOf(subnets []netip.Prefix) []netip.Prefix {
	var g []netip.Prefix
	for _, s := range subnets {
		g = append(g, single(config.Gateway(s)))
	}
	return g
}

// multicastRange is RFC 5771's 224.0.0.0/4.
func multicastRange() netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{224}), 4)
}

// Static compiles the flows that depend on no other object, including the version note.
func (n Node) Static() (State, error) {
	var s State
	n.classify(&s)
	n.route(&s)
	n.deliver(&s)
	note, err := versionNote(n.Mode, s.Flows)
	if err != nil {
		return State{}, err
	}
	// table=253,priority=32768,actions=note:00.4d.18.67.a9.69
	s.add(tableVersion, defaultPriority, anything(), ovs.Note(note))
	return s, nil
}

// classify compiles the entry of packets: tables 0 to 25, and the evaluation of policies.
func (n Node) classify(s *State) {
	// A first fragment without the whole header of its protocol has no ports in any table, but has them in the host, which reassembles fragments
	// (RFC 1858). The first fragment of UDP always has them.
	for _, protocol := range []goovs.Protocol{goovs.ProtocolTCPv4, ProtocolSCTP} {
		// table=0,priority=600,tcp,nw_frag=first,tp_src=0,tp_dst=0,actions=drop
		s.add(tableClassify, 600, match{protocol: protocol, fields: []ovs.Match{
			goovs.IPFrag(goovs.IPFragFlagFirst), goovs.TransportSourcePort(0), goovs.TransportDestinationPort(0),
		}}, goovs.Drop())
	}
	n.enterARP(s)
	for _, cluster := range n.ClusterNetworks {
		// table=0,priority=200,ip,in_port=1,nw_src=10.128.0.0/14,actions=move:NXM_NX_TUN_ID[0..31]->NXM_NX_REG0[],goto_table:10
		s.add(tableClassify, 200, ip(ovs.IPSource(cluster)).from(PortVXLAN), goovs.Move(tunID, regSourceVNID), ovs.GotoTable(tableTunnelIngress))
	}
	n.foreign(s)
	// table=0,priority=150,in_port=1,actions=drop
	s.add(tableClassify, 150, anything().from(PortVXLAN), goovs.Drop())

	n.outsiders(s)
	n.fromProxy(s)
	n.itself(s)
	for _, subnet := range n.Subnets {
		for _, cluster := range n.ClusterNetworks {
			// table=0,priority=300,ip,in_port=2,nw_src=10.128.0.0/23,nw_dst=10.128.0.0/14,actions=ct_clear,goto_table:25
			s.add(tableClassify, 300, ip(ovs.IPSource(subnet), ovs.IPDestination(cluster)).from(PortTun), n.fromHost(ovs.GotoTable(tableServiceReturn))...)
		}
	}
	// table=0,priority=250,ip,in_port=2,nw_dst=224.0.0.0/4,actions=drop
	s.add(tableClassify, 250, ip(ovs.IPDestination(multicastRange())).from(PortTun), goovs.Drop())
	// table=0,priority=200,ip,in_port=2,actions=ct_clear,load:0x1->NXM_NX_REG0[],goto_table:30
	s.add(tableClassify, 200, ip().from(PortTun), n.fromOutside()...)
	// table=0,priority=150,in_port=2,actions=drop
	s.add(tableClassify, 150, anything().from(PortTun), goovs.Drop())

	// table=0,priority=100,arp,actions=goto_table:20
	s.add(tableClassify, 100, arp(), ovs.GotoTable(tablePodIngress))
	// table=0,priority=100,ip,actions=goto_table:20
	s.add(tableClassify, 100, ip(), ovs.GotoTable(tablePodIngress))
	// table=0,priority=0,actions=drop
	s.add(tableClassify, 0, anything(), goovs.Drop())

	// table=10,priority=0,actions=drop
	s.add(tableTunnelIngress, 0, anything(), goovs.Drop())

	// The host would masquerade VXLAN packets of a pod as this node, which peers trust. Fragments have no port here: the host's firewall
	// reassembles and drops them (hostnet, OVSDN-GUARD).
	// table=20,priority=200,udp,tp_dst=4789,actions=drop
	s.add(tablePodIngress, 200, udp(goovs.TransportDestinationPort(n.VXLANPort)), goovs.Drop())
	// table=20,priority=0,actions=drop
	s.add(tablePodIngress, 0, anything(), goovs.Drop())

	// table=25,priority=0,actions=drop
	s.add(tableServiceReturn, 0, anything(), goovs.Drop())
	n.evaluation(s)
}

// route compiles the routes of packets by destination: table 30.
func (n Node) route(s *State) {
	n.routeARP(s)
	for _, gateway := range n.gateways() {
		// table=30,priority=300,ip,nw_dst=10.128.0.1,actions=output:2
		// table=30,priority=300,ip,nw_dst=10.128.0.1,actions=load:2->NXM_NX_REG2[],goto_table:132
		s.add(tableRoute, 300, ip(ovs.IPDestination(gateway)), n.toHost()...)
	}
	for _, subnet := range n.Subnets {
		// table=30,priority=200,ip,nw_dst=10.128.0.0/23,actions=goto_table:70
		s.add(tableRoute, 200, ip(ovs.IPDestination(subnet)), ovs.GotoTable(tableLocalPod))
	}
	for _, cluster := range n.ClusterNetworks {
		// table=30,priority=100,ip,nw_dst=10.128.0.0/14,actions=goto_table:90
		s.add(tableRoute, 100, ip(ovs.IPDestination(cluster)), ovs.GotoTable(tableRemote))
	}
	n.mark(s)
	n.routeServices(s)
	// table=30,priority=50,ip,in_port=1,nw_dst=224.0.0.0/4,actions=goto_table:120
	s.add(tableRoute, 50, ip(ovs.IPDestination(multicastRange())).from(PortVXLAN), ovs.GotoTable(tableMulticastPods))
	// table=30,priority=25,ip,nw_dst=224.0.0.0/4,actions=goto_table:110
	s.add(tableRoute, 25, ip(ovs.IPDestination(multicastRange())), ovs.GotoTable(tableMulticastEgress))
	// table=30,priority=1,ip,actions=goto_table:100
	s.add(tableRoute, 1, ip(), ovs.GotoTable(tableEgressFirewall))
	// table=30,priority=0,actions=drop
	s.add(tableRoute, 0, anything(), goovs.Drop())
}

// deliver compiles the output of packets: tables 40 to 131, without those of policies.
func (n Node) deliver(s *State) {
	// table=40,priority=0,actions=drop
	s.add(tableARPLocal, 0, anything(), goovs.Drop())
	// table=50,priority=0,actions=drop
	s.add(tableARPRemote, 0, anything(), goovs.Drop())
	n.answerARP(s)

	n.toProxy(s)
	n.balance(s)
	// table=60,priority=0,actions=drop
	s.add(tableService, 0, anything(), goovs.Drop())

	// table=61,priority=200,reg0=0,actions=goto_table:100
	s.add(tableNodePort, 200, match{fields: []ovs.Match{ovs.Reg(0, uint32(config.GlobalVNID))}}, ovs.GotoTable(tableEgressFirewall))
	// table=61,priority=0,actions=goto_table:100
	s.add(tableNodePort, 0, anything(), ovs.GotoTable(tableEgressFirewall))

	n.evaluateEndpoints(s)

	// table=70,priority=0,actions=drop
	s.add(tableLocalPod, 0, anything(), goovs.Drop())

	n.isolate(s)

	// table=90,priority=0,actions=drop
	s.add(tableRemote, 0, anything(), goovs.Drop())

	n.filterEgress(s)
	n.toOutside(s)

	// table=110,priority=0,actions=drop
	s.add(tableMulticastEgress, 0, anything(), goovs.Drop())
	// table=111,priority=0,actions=drop
	s.add(tableMulticastNodes, 0, anything(), goovs.Drop())
	// table=120,priority=0,actions=drop
	s.add(tableMulticastPods, 0, anything(), goovs.Drop())

	n.commit(s)
}
