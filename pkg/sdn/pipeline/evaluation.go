package pipeline

import (
	"fmt"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// sourceIsEvaluated matches packets from pods that policies select; targetIsEvaluated those to such pods.
func sourceIsEvaluated() ovs.Match { return ovs.RegBits(4, sourceEvaluated, sourceEvaluated) }
func targetIsEvaluated() ovs.Match { return ovs.RegBits(4, targetEvaluated, targetEvaluated) }

// isReply matches replies of connections that are committed in the zone of the last lookup.
func isReply() ovs.Match { return goovs.ConnectionTrackingState("+trk", "+rpl") }

// noZone returns the action after which no connection is committed for the packet.
func noZone() ovs.Action { return goovs.Load("0", regZone) }

// evaluation compiles the flows of policies that depend on no rule: tables 26 to 29, and 81 to 83.
func (n Node) evaluation(s *State) {
	if !n.evaluates() {
		n.skipEvaluation(s)
		return
	}
	n.trackEvaluated(s)
	n.stateless(s)
	n.icmpErrors(s)
	n.evaluateEgress(s)
	n.evaluateIngress(s)
	n.evaluateHairpins(s)
}

// skipEvaluation compiles the tables of policies for mode subnet, which has none.
func (n Node) skipEvaluation(s *State) {
	// table=27,priority=0,actions=goto_table:30
	s.add(tableEgressPolicy, 0, anything(), ovs.GotoTable(tableRoute))
	for _, unused := range []int{
		tableEgressTrack, tableEgressAllowed, tableEgressDenied, tableIngressPolicy, tableIngressAllowed, tableIngressDenied,
		tableICMPError,
	} {
		// table=26,priority=0,actions=drop
		s.add(unused, 0, anything(), goovs.Drop())
	}
}

// trackEvaluated compiles the lookup of connections in the zone of a pod that policies select: table 26, and the zone in which table 130 commits
// connections between pods of this node.
func (n Node) trackEvaluated(s *State) {
	lookup := goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=NXM_NX_REG3[0..15]", tableEgressPolicy))
	for _, subnet := range n.Subnets {
		// table=26,priority=110,ip,reg4=0x1/0x1,nw_dst=10.128.0.0/23,
		//     actions=move:NXM_OF_IP_DST[0..12]->NXM_NX_REG3[0..12],load:0x3->NXM_NX_REG3[13..31],ct(table=27,zone=NXM_NX_REG3[0..15])
		s.add(tableEgressTrack, 110, ip(sourceIsEvaluated(), ovs.IPDestination(subnet)), append(loadZone(zoneLocal, addressDestination), lookup)...)
		// table=82,priority=110,ip,reg4=0x8/0x8,nw_src=10.128.0.0/23,
		//     actions=move:NXM_OF_IP_SRC[0..12]->NXM_NX_REG3[0..12],load:0x3->NXM_NX_REG3[13..31],goto_table:130
		s.add(tableIngressAllowed, 110, ip(targetIsEvaluated(), ovs.IPSource(subnet)), append(loadZone(zoneLocal, addressSource), ovs.GotoTable(tableCommit))...)
	}
	// table=26,priority=100,ip,reg4=0x1/0x1,
	//     actions=move:NXM_OF_IP_SRC[0..12]->NXM_NX_REG3[0..12],load:0x4->NXM_NX_REG3[13..31],ct(table=27,zone=NXM_NX_REG3[0..15])
	s.add(tableEgressTrack, 100, ip(sourceIsEvaluated()), append(loadZone(zoneTarget, addressSource), lookup)...)
	// table=26,priority=0,actions=goto_table:27
	s.add(tableEgressTrack, 0, anything(), ovs.GotoTable(tableEgressPolicy))
}

// stateless compiles that rules evaluate both directions of SCTP.
func (n Node) stateless(s *State) {
	if !n.Userspace {
		return
	}
	sctp := func(evaluated ovs.Match) match {
		return match{protocol: ProtocolSCTP, fields: []ovs.Match{evaluated, goovs.ConnectionTrackingState("+trk")}}
	}
	// table=27,priority=65001,ct_state=+trk,sctp,reg4=0x1/0x1,actions=ct_clear,resubmit(,27)
	s.add(tableEgressPolicy, policyStateless, sctp(sourceIsEvaluated()), ovs.CTClear(), goovs.Resubmit(0, tableEgressPolicy))
	// table=81,priority=65001,ct_state=+trk,sctp,reg4=0x8/0x8,actions=ct_clear,resubmit(,81)
	s.add(tableIngressPolicy, policyStateless, sctp(targetIsEvaluated()), ovs.CTClear(), goovs.Resubmit(0, tableIngressPolicy))
}

// evaluateEgress compiles the verdicts of tables 27 to 29 that depend on no rule.
func (n Node) evaluateEgress(s *State) {
	// table=27,priority=65000,ct_state=+rpl+trk,ip,reg4=0x1/0x1,actions=load:0->NXM_NX_REG3[],goto_table:30
	s.add(tableEgressPolicy, policyReply, ip(sourceIsEvaluated(), isReply()), noZone(), ovs.GotoTable(tableRoute))
	// table=27,priority=26025,ip,reg4=0x2/0x2,actions=goto_table:29
	s.add(tableEgressPolicy, policyBase+PolicyIsolation, ip(ovs.RegBits(4, sourceIsolated, sourceIsolated)),
		n.FlowExport.sample(PointEgressIsolated, ovs.GotoTable(tableEgressDenied))...)
	// table=27,priority=0,actions=goto_table:28
	s.add(tableEgressPolicy, 0, anything(), ovs.GotoTable(tableEgressAllowed))

	// A packet of a server whose connection has no conntrack entry must not commit one that the server opened: replies of the client, which policies
	// may deny now, would pass. A packet from an ephemeral port is a client's, and its connection is committed again.
	answer := match{protocol: goovs.ProtocolTCPv4, fields: []ovs.Match{sourceIsEvaluated(), goovs.TransportSourceMaskedPort(0, FirstClientPort), goovs.TCPFlags("-syn")}}
	// table=28,priority=110,tcp,reg4=0x1/0x1,tp_src=0x0/0x8000,tcp_flags=-syn,
	//     actions=move:NXM_OF_IP_SRC[0..12]->NXM_NX_REG3[0..12],load:0x3->NXM_NX_REG3[13..31],load:0x1->NXM_NX_REG4[9],goto_table:30
	s.add(tableEgressAllowed, 110, answer, append(loadZone(zoneLocal, addressSource), goovs.Load("0x1", regMidstream), ovs.GotoTable(tableRoute))...)
	// table=28,priority=100,ip,reg4=0x1/0x1,actions=move:NXM_OF_IP_SRC[0..12]->NXM_NX_REG3[0..12],load:0x3->NXM_NX_REG3[13..31],goto_table:30
	s.add(tableEgressAllowed, 100, ip(sourceIsEvaluated()), append(loadZone(zoneLocal, addressSource), ovs.GotoTable(tableRoute))...)
	// table=28,priority=0,actions=goto_table:30
	s.add(tableEgressAllowed, 0, anything(), ovs.GotoTable(tableRoute))
	// table=29,priority=0,actions=drop
	s.add(tableEgressDenied, 0, anything(), goovs.Drop())
}

// evaluateIngress compiles the verdicts of tables 81 to 83 that depend on no rule.
func (n Node) evaluateIngress(s *State) {
	// table=81,priority=65000,ct_state=+rpl+trk,ip,actions=load:0->NXM_NX_REG3[],goto_table:130
	s.add(tableIngressPolicy, policyReply, ip(isReply()), noZone(), ovs.GotoTable(tableCommit))
	// table=81,priority=64000,ip,reg4=0x400/0x400,in_port=2,actions=goto_table:82
	s.add(tableIngressPolicy, policyOwnNode, ip(fromNode()).from(PortTun), ovs.GotoTable(tableIngressAllowed)) // kubelet's probes
	// A router's ICMP error to a server is no reply in conntrack: the router's address is part of no connection.
	// table=81,priority=64000,icmp,reg0=0x1,icmp_type=3,icmp_code=4,actions=load:0->NXM_NX_REG3[],goto_table:130
	s.add(tableIngressPolicy, policyOwnNode, tooLarge(), noZone(), ovs.GotoTable(tableCommit))
	// table=81,priority=26025,ip,reg4=0x10/0x10,actions=goto_table:83
	s.add(tableIngressPolicy, policyBase+PolicyIsolation, ip(ovs.RegBits(4, targetIsolated, targetIsolated)),
		n.FlowExport.sample(PointIngressIsolated, ovs.GotoTable(tableIngressDenied))...)
	// table=81,priority=0,actions=goto_table:82
	s.add(tableIngressPolicy, 0, anything(), ovs.GotoTable(tableIngressAllowed))

	// A packet of a remote server to a pod of this node commits no connection either, for the same reason as in evaluateEgress. The remote host may also
	// have clients with any source port: only packets to an ephemeral port are replies.
	answer := match{protocol: goovs.ProtocolTCPv4, fields: []ovs.Match{
		ovs.RegBits(4, targetEvaluated, targetEvaluated|midstream), goovs.TransportSourceMaskedPort(0, FirstClientPort),
		goovs.TransportDestinationMaskedPort(FirstClientPort, FirstClientPort), goovs.TCPFlags("-syn"),
	}}
	// table=82,priority=120,tcp,reg4=0x8/0x208,tp_src=0x0/0x8000,tp_dst=0x8000/0x8000,tcp_flags=-syn,actions=load:0x1->NXM_NX_REG4[9],resubmit(,82)
	s.add(tableIngressAllowed, 120, answer, goovs.Load("0x1", regMidstream), goovs.Resubmit(0, tableIngressAllowed))
	// table=82,priority=100,ip,reg4=0x8/0x8,actions=move:NXM_OF_IP_DST[0..12]->NXM_NX_REG3[0..12],load:0x4->NXM_NX_REG3[13..31],goto_table:130
	s.add(tableIngressAllowed, 100, ip(targetIsEvaluated()), append(loadZone(zoneTarget, addressDestination), ovs.GotoTable(tableCommit))...)
	// table=82,priority=0,actions=goto_table:130
	s.add(tableIngressAllowed, 0, anything(), ovs.GotoTable(tableCommit))
	// table=83,priority=0,actions=drop
	s.add(tableIngressDenied, 0, anything(), goovs.Drop())
}
