package pipeline

import (
	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// vnidOutside is the VNID of hosts outside, which may route cluster addresses through a node. It is one of those that no namespace can have: such
// hosts reach VNID 0, and their replies reach all. Policies do not classify them as the node, even if the node masquerades their packets.
const vnidOutside config.VNID = 1

// ICMP's "fragmentation needed" (RFC 792, RFC 1191).
const (
	icmpUnreachable = 3
	icmpTooLarge    = 4
)

// RoutedDSCP is the DSCP that the host's firewall sets in packets that it forwards into the pod network for other hosts: masquerading may have
// changed their source to the node's own address. It is of the pool for local use (RFC 2474, section 6).
const RoutedDSCP = 0x3f

// ForwardedDSCP is the DSCP that the host's firewall sets in packets that it forwards from a node port to a pod: masquerading may have changed their
// source to the node's own address. VNIDs allow them as the node's (docs/decisions/0004), policies do not.
const ForwardedDSCP = 0x3e

// HairpinDSCP is the DSCP that the host's firewall sets in packets of a pod that the host's proxy sends back to the pod: masquerading changes their source to
// the node's own address. ClusterNetworkPolicies evaluate them as packets of the pod (docs/decisions/0013).
const HairpinDSCP = 0x3d

const dscpShift = 2 // in the TOS byte, above ECN

// tenants reports whether namespaces have VNIDs that isolate them.
func (n Node) tenants() bool { return n.Mode == config.ModeMultitenant }

// outsiders compiles packets that the host forwards for others, and may have masqueraded.
func (n Node) outsiders(s *State) {
	if n.evaluates() {
		// A pod may set any DSCP. Its packets that return from the proxy have its source, and match a flow of higher priority.
		routed := ip(goovs.NetworkTOS(RoutedDSCP << dscpShift)).from(PortTun)
		notNode := append([]ovs.Action{goovs.SetField("0", "nw_tos")}, n.fromOutside()...)
		// table=0,priority=210,ip,in_port=2,nw_tos=252,actions=set_field:0->nw_tos,ct_clear,load:0x1->NXM_NX_REG0[],goto_table:30
		s.add(tableClassify, 210, routed, notNode...)
		// table=0,priority=210,ip,in_port=2,nw_tos=248,actions=set_field:0->nw_tos,ct_clear,load:0x1->NXM_NX_REG0[],goto_table:30
		s.add(tableClassify, 210, ip(goovs.NetworkTOS(ForwardedDSCP<<dscpShift)).from(PortTun), notNode...)
		for _, gateway := range n.gateways() {
			// table=0,priority=500,ip,in_port=2,nw_src=10.128.0.1,nw_tos=252,
			//     actions=set_field:0->nw_tos,ct_clear,load:0x1->NXM_NX_REG0[],goto_table:30
			s.add(tableClassify, 500, ip(ovs.IPSource(gateway), goovs.NetworkTOS(RoutedDSCP<<dscpShift)).from(PortTun), notNode...)
			// table=0,priority=450,ip,in_port=2,nw_src=10.128.0.1,nw_tos=248,actions=ct_clear,set_field:0->nw_tos,goto_table:30
			s.add(tableClassify, 450, ip(ovs.IPSource(gateway), goovs.NetworkTOS(ForwardedDSCP<<dscpShift)).from(PortTun),
				n.fromHost(goovs.SetField("0", "nw_tos"), ovs.GotoTable(tableRoute))...)
		}
	}
}

// fromOutside returns the actions for a packet from tun0 that is not the node's own.
func (n Node) fromOutside() []ovs.Action {
	if n.evaluates() {
		return n.fromHost(loadVNID(vnidOutside, regSourceVNID), ovs.GotoTable(tableRoute))
	}
	return n.fromHost(ovs.GotoTable(tableRoute))
}

// isolate compiles the verdicts of table 80 that depend on no pod.
func (n Node) isolate(s *State) {
	toPort := n.toPod()
	n.toItself(s)
	if n.tenants() {
		// table=80,priority=200,reg0=0,actions=goto_table:81
		s.add(tableIsolation, 200, match{fields: []ovs.Match{ovs.Reg(0, uint32(config.GlobalVNID))}}, toPort)
		// table=80,priority=200,reg1=0,actions=goto_table:81
		s.add(tableIsolation, 200, match{fields: []ovs.Match{ovs.Reg(1, uint32(config.GlobalVNID))}}, toPort)
		// table=80,priority=200,ct_state=+rpl+trk,ip,reg0=0x1,actions=goto_table:81
		s.add(tableIsolation, 200, ip(ovs.Reg(0, uint32(vnidOutside)), isReply()), toPort)
		// The connection that a router's ICMP error is about can't be looked up by the router's address.
		// table=80,priority=190,icmp,reg0=0x1,icmp_type=3,icmp_code=4,actions=goto_table:81
		s.add(tableIsolation, 190, tooLarge(), toPort)
	} else {
		// A node always reaches its own pods: kubelet's probes.
		for _, gateway := range n.gateways() {
			// table=80,priority=300,ip,nw_src=10.128.0.1,actions=goto_table:81
			s.add(tableIsolation, 300, ip(ovs.IPSource(gateway)), toPort)
		}
		// table=80,priority=200,actions=goto_table:81
		s.add(tableIsolation, 200, anything(), toPort)
	}
	// table=80,priority=0,actions=drop
	// table=80,priority=0,actions=sample(probability=163,collector_set_id=4739,obs_domain_id=2887712779,obs_point_id=1)
	s.add(tableIsolation, 0, anything(), n.FlowExport.drop(PointIsolation)...)
}

// tooLarge matches "fragmentation needed" from a router outside to the sender of a packet that is larger than the path MTU.
func tooLarge() match {
	return icmp(ovs.Reg(0, uint32(vnidOutside)), goovs.ICMPType(icmpUnreachable), goovs.ICMPCode(icmpTooLarge))
}

// IsShared reports whether several owners may have the same flow.
func IsShared(f *ovs.Flow) bool { return f.Table == tableIsolation }

// withinVNID compiles that pods of a VNID reach each other. All pods of the VNID have this flow, which the store installs once.
func (n Node) withinVNID(s *State, vnid config.VNID) {
	if n.tenants() && !vnid.IsGlobal() {
		// table=80,priority=100,reg0=0xabcdef,reg1=0xabcdef,actions=goto_table:81
		s.add(tableIsolation, 100, match{fields: []ovs.Match{ovs.Reg(0, uint32(vnid)), ovs.Reg(1, uint32(vnid))}}, n.toPod())
	}
}
