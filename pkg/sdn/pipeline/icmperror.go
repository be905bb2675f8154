package pipeline

import (
	"fmt"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Conntrack relates an ICMP error to the connection of the packet that it quotes, whatever its source, and any pod can quote a packet. So a pod's error counts
// as a reply only if the connection was opened to that pod. Others are evaluated by policies, as ICMP packets without a connection
// (docs/decisions/0001-conntrack.md). OpenFlow can't compare two fields: table 84 compares them in registers, four bits at a time.

// The registers that table 84 compares.
const (
	regErrorPeer   = "NXM_NX_REG12" // address that the connection was opened to
	regErrorSource = "NXM_NX_REG13" // source of the ICMP error

	numberErrorPeer   = 12
	numberErrorSource = 13
)

// icmpErrors compiles the comparison, and the flows of tables 27 and 81 that need it.
func (n Node) icmpErrors(s *State) {
	lookUpError(s, tableEgressPolicy, sourceEvaluated)
	lookUpError(s, tableIngressPolicy, targetEvaluated)

	accept := goovs.Load("0x1", regErrorOfPeer)
	// Routers outside and nodes send errors about connections of others.
	// table=84,priority=300,icmp,reg0=0x1,actions=load:0x1->NXM_NX_REG4[17]
	s.add(tableICMPError, 300, icmp(ovs.Reg(0, uint32(vnidOutside))), accept)
	// table=84,priority=300,icmp,reg4=0x400/0x400,actions=load:0x1->NXM_NX_REG4[17]
	s.add(tableICMPError, 300, icmp(fromNode()), accept)
	// Zeros are shifted in: the addresses are equal if nothing else remains.
	// table=84,priority=200,icmp,reg12=0,reg13=0,actions=load:0x1->NXM_NX_REG4[17]
	s.add(tableICMPError, 200, icmp(ovs.Reg(numberErrorPeer, 0), ovs.Reg(numberErrorSource, 0)), accept)
	for digit := range uint32(16) {
		equal := icmp(ovs.RegBits(numberErrorPeer, digit, 0xf), ovs.RegBits(numberErrorSource, digit, 0xf))
		// table=84,priority=100,icmp,reg12=0xa/0xf,reg13=0xa/0xf,
		//     actions=move:NXM_NX_REG12[4..31]->NXM_NX_REG12[0..27],load:0->NXM_NX_REG12[28..31],
		//     move:NXM_NX_REG13[4..31]->NXM_NX_REG13[0..27],load:0->NXM_NX_REG13[28..31],resubmit(,84)
		s.add(tableICMPError, 100, equal, append(append(shiftDigit(regErrorPeer), shiftDigit(regErrorSource)...), goovs.Resubmit(0, tableICMPError))...)
	}
	// Without its state, the error is no reply.
	// table=84,priority=0,actions=ct_clear
	s.add(tableICMPError, 0, anything(), ovs.CTClear())
}

// lookUpError compiles that a table evaluates an ICMP error about an allowed connection after table 84 has compared its source.
func lookUpError(s *State, table int, evaluated uint32) {
	related := icmp(ovs.RegBits(4, evaluated, evaluated|errorOfPeer), goovs.ConnectionTrackingState("+trk", "+rel", "+rpl"))
	// table=27,priority=65001,ct_state=+rel+rpl+trk,icmp,reg4=0x1/0x20001,
	//     actions=move:NXM_NX_CT_NW_DST[]->NXM_NX_REG12[],move:NXM_OF_IP_SRC[]->NXM_NX_REG13[],resubmit(,84),resubmit(,27)
	// table=81,priority=65001,ct_state=+rel+rpl+trk,icmp,reg4=0x8/0x20008,
	//     actions=move:NXM_NX_CT_NW_DST[]->NXM_NX_REG12[],move:NXM_OF_IP_SRC[]->NXM_NX_REG13[],resubmit(,84),resubmit(,81)
	s.add(table, policyError, related, goovs.Move("NXM_NX_CT_NW_DST[]", regErrorPeer+"[]"), goovs.Move(addressSource+"[]", regErrorSource+"[]"),
		goovs.Resubmit(0, tableICMPError), goovs.Resubmit(0, table))
}

// shiftDigit returns the actions that shift a register right by four bits.
func shiftDigit(register string) []ovs.Action {
	return []ovs.Action{
		goovs.Move(fmt.Sprintf("%s[4..31]", register), fmt.Sprintf("%s[0..27]", register)),
		goovs.Load("0", fmt.Sprintf("%s[28..31]", register)),
	}
}
