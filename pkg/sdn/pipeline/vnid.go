package pipeline

import (
	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// vnidOutside is that of hosts that route cluster addresses through a node. It is one of those that no namespace can have: such
// hosts reach VNID 0 alone.
const vnidOutside config.VNID = 1

// RoutedDSCP is what the host's firewall writes into packets that it forwards into the pod network for others: their source may have
// become the node's own by masquerading, and must not count as that. From the pool for local use (RFC 2474, section 6).
const RoutedDSCP = 0x3f

const dscpShift = 2 // in the TOS byte, above ECN

// tenants tells whether VNIDs decide who reaches whom.
func (n Node) tenants() bool { return n.Mode == config.ModeMultitenant }

// outsiders compiles what the host forwards for others, in mode multitenant.
func (n Node) outsiders(s *State) {
	if !n.tenants() {
		return
	}
	// Before the node's own address: kube-proxy may have put that into them.
	s.add(tableClassify, 500, ip(goovs.NetworkTOS(RoutedDSCP<<dscpShift)).from(PortTun),
		append([]ovs.Action{loadVNID(vnidOutside, regSourceVNID), goovs.SetField("0", "nw_tos")}, n.fromHost(tableRoute)...)...)
}

// isolate compiles the verdicts of table 80 that depend on no pod.
func (n Node) isolate(s *State) {
	toPort := n.send()
	if n.tenants() {
		s.add(tableIsolation, 200, match{fields: []ovs.Match{ovs.Reg(0, uint32(config.GlobalVNID))}}, toPort)
		s.add(tableIsolation, 200, match{fields: []ovs.Match{ovs.Reg(1, uint32(config.GlobalVNID))}}, toPort)
	} else {
		// A node always reaches its own pods: kubelet's probes.
		for _, gateway := range n.gateways() {
			s.add(tableIsolation, 300, ip(ovs.IPSource(gateway)), toPort)
		}
		s.add(tableIsolation, 200, anything(), toPort)
	}
	s.add(tableIsolation, 0, anything(), goovs.Drop())
}

// among compiles that those of a VNID reach each other. Every pod of the VNID asks for it, and the store keeps one such flow.
func (n Node) among(s *State, vnid config.VNID) {
	if n.tenants() && !vnid.IsGlobal() {
		s.add(tableIsolation, 100, match{fields: []ovs.Match{ovs.Reg(0, uint32(vnid)), ovs.Reg(1, uint32(vnid))}}, n.send())
	}
}
