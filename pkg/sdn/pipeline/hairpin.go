package pipeline

import (
	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// A service may send a pod's packet back to the pod, a hairpin. The packet has another source by then: hairpinPod (balance.go), or tun0's address, with
// HairpinDSCP, if the host's proxy has masqueraded it. Table 80 gives it the pod's address as the source, and tables 25 to 28 and 81 to 82 evaluate it as a
// packet of the pod to itself: by ClusterNetworkPolicies. NetworkPolicies allow it. Table 82 restores its source (docs/decisions/0013-hairpins.md).

// isHairpin matches packets that a service sends back to the pod that sent them.
func isHairpin() ovs.Match { return ovs.RegBits(4, hairpin, hairpin) }

// fromProxy compiles hairpins of the host's proxy.
func (n Node) fromProxy(s *State) {
	if !n.evaluates() || n.BalancesServices {
		return
	}
	for _, gateway := range n.gateways() {
		// table=0,priority=440,ip,in_port=2,nw_src=10.128.0.1,nw_tos=244,actions=set_field:0->nw_tos,ct_clear,load:0x1->NXM_NX_REG4[15],goto_table:30
		s.add(tableClassify, 440, ip(ovs.IPSource(gateway), goovs.NetworkTOS(HairpinDSCP<<dscpShift)).from(PortTun),
			append([]ovs.Action{goovs.SetField("0", "nw_tos")}, n.fromHost(goovs.Load("0x1", regHairpin), ovs.GotoTable(tableRoute))...)...)
	}
}

// toItself compiles hairpins in table 80, past the isolation of VNIDs.
func (n Node) toItself(s *State) {
	isRequest := ip(isHairpin())
	if n.BalancesServices {
		// Replies, and in mode subnet all hairpins.
		// table=80,priority=400,ip,reg4=0x8000/0x8000,actions=load:0->NXM_NX_REG3[],goto_table:130
		s.add(tableIsolation, 400, ip(isHairpin()), noZone(), n.send())
		isRequest = ip(isHairpin(), ovs.IPSource(single(hairpinPod())))
	}
	if !n.evaluates() {
		return
	}
	// No lookup: each packet is evaluated.
	// table=80,priority=410,ip,reg4=0x8000/0x8000,
	//     actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG7[],move:NXM_OF_IP_DST[]->NXM_OF_IP_SRC[],ct_clear,resubmit(,25)
	// table=80,priority=410,ip,reg4=0x8000/0x8000,nw_src=169.254.0.10,
	//     actions=move:NXM_OF_IP_SRC[]->NXM_NX_REG7[],move:NXM_OF_IP_DST[]->NXM_OF_IP_SRC[],ct_clear,resubmit(,25)
	s.add(tableIsolation, 410, isRequest, goovs.Move(addressSource+"[]", regOriginal), goovs.Move(addressDestination+"[]", addressSource+"[]"),
		ovs.CTClear(), goovs.Resubmit(0, tableServiceReturn))
}

// evaluateHairpins compiles the verdicts for hairpins.
func (n Node) evaluateHairpins(s *State) {
	// table=26,priority=200,ip,reg4=0x8000/0x8000,actions=goto_table:27
	s.add(tableEgressTrack, 200, ip(isHairpin()), ovs.GotoTable(tableEgressPolicy))
	// Above the isolation, and on the lowest level of NetworkPolicies: their rules only allow.
	// table=27,priority=26026,ip,reg4=0x8002/0x8002,actions=goto_table:28
	s.add(tableEgressPolicy, policyBase+PolicyIsolation+1, ip(ovs.RegBits(4, hairpin|sourceIsolated, hairpin|sourceIsolated)), ovs.GotoTable(tableEgressAllowed))
	// table=28,priority=200,ip,reg4=0x8000/0x8000,actions=goto_table:81
	s.add(tableEgressAllowed, 200, ip(isHairpin()), ovs.GotoTable(tableIngressPolicy))
	// table=81,priority=26026,ip,reg4=0x8010/0x8010,actions=goto_table:82
	s.add(tableIngressPolicy, policyBase+PolicyIsolation+1, ip(ovs.RegBits(4, hairpin|targetIsolated, hairpin|targetIsolated)), ovs.GotoTable(tableIngressAllowed))

	restore := []ovs.Action{goovs.Move(regOriginal, addressSource+"[]"), noZone()}
	if n.BalancesServices {
		// The bit remains, by which table 133 outputs the packet.
		// table=82,priority=200,ip,reg4=0x8000/0x8000,actions=move:NXM_NX_REG7[]->NXM_OF_IP_SRC[],load:0->NXM_NX_REG3[],goto_table:130
		s.add(tableIngressAllowed, 200, ip(isHairpin()), append(restore, ovs.GotoTable(tableCommit))...)
		return
	}
	// Committed as the node's own, so that replies pass.
	// table=82,priority=200,ip,reg4=0x8000/0x8000,
	//     actions=move:NXM_NX_REG7[]->NXM_OF_IP_SRC[],load:0->NXM_NX_REG3[],load:0x0->NXM_NX_REG4[15],resubmit(,82)
	s.add(tableIngressAllowed, 200, ip(isHairpin()), append(restore, goovs.Load("0x0", regHairpin), goovs.Resubmit(0, tableIngressAllowed))...)
}
