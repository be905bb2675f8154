package pipeline

import (
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Node is what every compiled object of one node depends on.
type Node struct {
	Mode            config.Mode
	ClusterNetworks []netip.Prefix
	ServiceNetwork  netip.Prefix
	Subnets         []netip.Prefix // this node's own
	VTEP            netip.Addr     // this node's own IP, where its tunnels end; invalid: only tun0's addresses are the node's
	VXLANPort       uint16

	// StatelessSCTP is for the userspace datapath, whose tracker sees no ports of SCTP: one association would let all others between the
	// same two pods answer. So rules judge both directions.
	StatelessSCTP bool

	// LaterFragments is for the userspace datapath, whose tracker hands on the fragments that it was given: rules with ports allow the later
	// ones, which have none, by their addresses.
	LaterFragments bool
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

// Static compiles the flows that depend on no other object, the version note among them.
func (n Node) Static() (State, error) {
	var s State
	n.classify(&s)
	n.route(&s)
	n.deliver(&s)
	note, err := versionNote(n.Mode, s.Flows)
	if err != nil {
		return State{}, err
	}
	s.add(tableVersion, defaultPriority, anything(), ovs.Note(note))
	return s, nil
}

// classify compiles how packets come in: tables 0 to 27.
func (n Node) classify(s *State) {
	// A first fragment without the whole header of its protocol has no ports for any table, and the host, which puts fragments together, would find them
	// (RFC 1858). That of UDP has them always.
	for _, protocol := range []goovs.Protocol{goovs.ProtocolTCPv4, ProtocolSCTP} {
		s.add(tableClassify, 600, match{protocol: protocol, fields: []ovs.Match{
			goovs.IPFrag(goovs.IPFragFlagFirst), goovs.TransportSourcePort(0), goovs.TransportDestinationPort(0),
		}}, goovs.Drop())
	}
	n.enterARP(s)
	for _, cluster := range n.ClusterNetworks {
		s.add(tableClassify, 200, ip(ovs.IPSource(cluster)).from(PortVXLAN), goovs.Move(tunID, regSourceVNID), ovs.GotoTable(tableTunnelIngress))
	}
	n.foreign(s)
	s.add(tableClassify, 150, anything().from(PortVXLAN), goovs.Drop())

	n.outsiders(s)
	n.itself(s)
	for _, subnet := range n.Subnets {
		for _, cluster := range n.ClusterNetworks {
			s.add(tableClassify, 300, ip(ovs.IPSource(subnet), ovs.IPDestination(cluster)).from(PortTun), n.fromHost(ovs.GotoTable(tableServiceReturn))...)
		}
	}
	s.add(tableClassify, 250, ip(ovs.IPDestination(multicastRange())).from(PortTun), goovs.Drop())
	s.add(tableClassify, 200, ip().from(PortTun), n.fromOutside()...)
	s.add(tableClassify, 150, anything().from(PortTun), goovs.Drop())

	s.add(tableClassify, 100, arp(), ovs.GotoTable(tablePodIngress))
	s.add(tableClassify, 100, ip(), ovs.GotoTable(tablePodIngress))
	s.add(tableClassify, 0, anything(), goovs.Drop())

	s.add(tableTunnelIngress, 0, anything(), goovs.Drop())

	// A pod's own VXLAN would leave masqueraded as this node, which peers trust. Fragments have no port here: the host's
	// firewall, which puts them together, drops those (hostnet, OVSDN-GUARD).
	s.add(tablePodIngress, 200, udp(goovs.TransportDestinationPort(n.VXLANPort)), goovs.Drop())
	s.add(tablePodIngress, 0, anything(), goovs.Drop())

	s.add(tableServiceReturn, 0, anything(), goovs.Drop())
	n.judge(s)
}

// route compiles where packets go: table 30.
func (n Node) route(s *State) {
	n.routeARP(s)
	for _, gateway := range n.gateways() {
		s.add(tableRoute, 300, ip(ovs.IPDestination(gateway)), goovs.Output(PortTun))
	}
	for _, subnet := range n.Subnets {
		s.add(tableRoute, 200, ip(ovs.IPDestination(subnet)), ovs.GotoTable(tableLocalPod))
	}
	for _, cluster := range n.ClusterNetworks {
		s.add(tableRoute, 100, ip(ovs.IPDestination(cluster)), ovs.GotoTable(tableRemote))
	}
	n.mark(s)
	s.add(tableRoute, 100, ip(ovs.IPDestination(n.ServiceNetwork)), ovs.GotoTable(tableService))
	s.add(tableRoute, 50, ip(ovs.IPDestination(multicastRange())).from(PortVXLAN), ovs.GotoTable(tableMulticastPods))
	s.add(tableRoute, 25, ip(ovs.IPDestination(multicastRange())), ovs.GotoTable(tableMulticastEgress))
	s.add(tableRoute, 1, ip(), ovs.GotoTable(tableEgressFirewall))
	s.add(tableRoute, 0, anything(), goovs.Drop())
}

// deliver compiles how packets leave: tables 40 to 120.
func (n Node) deliver(s *State) {
	s.add(tableARPLocal, 0, anything(), goovs.Drop())
	s.add(tableARPRemote, 0, anything(), goovs.Drop())
	n.answerARP(s)

	// VNID 0 reaches every service; the host's proxy takes it from there. Pods with policies reach those that are known.
	if n.judges() {
		s.add(tableService, 230, ip(ovs.Reg(0, 0), ovs.RegBits(4, 0, sourceJudged)), goovs.Output(PortTun))
	} else {
		s.add(tableService, 200, ip(ovs.Reg(0, 0)), goovs.Output(PortTun))
	}
	s.add(tableService, 0, anything(), goovs.Drop())

	s.add(tableNodePort, 200, match{fields: []ovs.Match{ovs.Reg(0, uint32(config.GlobalVNID))}}, ovs.GotoTable(tableEgressFirewall))
	s.add(tableNodePort, 0, anything(), ovs.GotoTable(tableEgressFirewall))

	n.probes(s)

	s.add(tableLocalPod, 0, anything(), goovs.Drop())

	n.isolate(s)

	s.add(tableRemote, 0, anything(), goovs.Drop())

	s.add(tableEgressFirewall, 0, anything(), ovs.GotoTable(tableEgressIP))
	n.toOutside(s)

	s.add(tableMulticastEgress, 0, anything(), goovs.Drop())
	s.add(tableMulticastNodes, 0, anything(), goovs.Drop())
	s.add(tableMulticastPods, 0, anything(), goovs.Drop())

	n.commit(s)
}
