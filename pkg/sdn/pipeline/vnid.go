package pipeline

import (
	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// vnidOutside is that of hosts outside, which may route cluster addresses through a node. It is one of those that no namespace can have:
// such hosts reach VNID 0, and answer those who ask them. Policies don't take them for the node, even where it masquerades them.
const vnidOutside config.VNID = 1

// ICMP's "fragmentation needed" (RFC 792, RFC 1191).
const (
	icmpUnreachable = 3
	icmpTooLarge    = 4
)

// RoutedDSCP is what the host's firewall writes into packets that it forwards into the pod network for others: their source may have
// become the node's own by masquerading, and must not count as that. From the pool for local use (RFC 2474, section 6).
const RoutedDSCP = 0x3f

// ForwardedDSCP is what the host's firewall writes into packets that it forwards from a node port to a pod: their source may have become
// the node's own, and VNIDs let them in as that (docs/decisions/0004), but no policy does.
const ForwardedDSCP = 0x3e

const dscpShift = 2 // in the TOS byte, above ECN

// tenants tells whether VNIDs decide who reaches whom.
func (n Node) tenants() bool { return n.Mode == config.ModeMultitenant }

// outsiders compiles what the host forwards for others and may have made its own.
func (n Node) outsiders(s *State) {
	if n.judges() {
		// A pod may write what it likes into packets that come back from the proxy: with its source, it stays that pod.
		routed := ip(goovs.NetworkTOS(RoutedDSCP << dscpShift)).from(PortTun)
		notNode := append([]ovs.Action{goovs.SetField("0", "nw_tos")}, n.fromOutside()...)
		s.add(tableClassify, 210, routed, notNode...)
		s.add(tableClassify, 210, ip(goovs.NetworkTOS(ForwardedDSCP<<dscpShift)).from(PortTun), notNode...)
		for _, gateway := range n.gateways() {
			s.add(tableClassify, 500, ip(ovs.IPSource(gateway), goovs.NetworkTOS(RoutedDSCP<<dscpShift)).from(PortTun), notNode...)
			s.add(tableClassify, 450, ip(ovs.IPSource(gateway), goovs.NetworkTOS(ForwardedDSCP<<dscpShift)).from(PortTun),
				n.fromHost(goovs.SetField("0", "nw_tos"), ovs.GotoTable(tableRoute))...)
		}
	}
}

// fromOutside goes on with a packet from tun0 that is not the node's own.
func (n Node) fromOutside() []ovs.Action {
	if n.judges() {
		return n.fromHost(loadVNID(vnidOutside, regSourceVNID), ovs.GotoTable(tableRoute))
	}
	return n.fromHost(ovs.GotoTable(tableRoute))
}

// isolate compiles the verdicts of table 80 that depend on no pod.
func (n Node) isolate(s *State) {
	toPort := n.toPod()
	if n.tenants() {
		s.add(tableIsolation, 200, match{fields: []ovs.Match{ovs.Reg(0, uint32(config.GlobalVNID))}}, toPort)
		s.add(tableIsolation, 200, match{fields: []ovs.Match{ovs.Reg(1, uint32(config.GlobalVNID))}}, toPort)
		s.add(tableIsolation, 200, ip(ovs.Reg(0, uint32(vnidOutside)), goovs.ConnectionTrackingState("+trk", "+rpl")), toPort)
		// A router says that a packet was too large. Whose connection that was about can't be looked up by the router's address.
		s.add(tableIsolation, 190, tooLarge(), toPort)
	} else {
		// A node always reaches its own pods: kubelet's probes.
		for _, gateway := range n.gateways() {
			s.add(tableIsolation, 300, ip(ovs.IPSource(gateway)), toPort)
		}
		s.add(tableIsolation, 200, anything(), toPort)
	}
	s.add(tableIsolation, 0, anything(), goovs.Drop())
}

// tooLarge is what a router outside says to who sent a packet that does not fit.
func tooLarge() match {
	return match{protocol: goovs.ProtocolICMPv4, fields: []ovs.Match{
		ovs.Reg(0, uint32(vnidOutside)), goovs.ICMPType(icmpUnreachable), goovs.ICMPCode(icmpTooLarge)}}
}

// IsShared tells whether other owners may want the same flow.
func IsShared(f *ovs.Flow) bool { return f.Table == tableIsolation }

// among compiles that those of a VNID reach each other. Every pod of the VNID asks for it, and the store keeps one such flow.
func (n Node) among(s *State, vnid config.VNID) {
	if n.tenants() && !vnid.IsGlobal() {
		s.add(tableIsolation, 100, match{fields: []ovs.Match{ovs.Reg(0, uint32(vnid)), ovs.Reg(1, uint32(vnid))}}, n.toPod())
	}
}
