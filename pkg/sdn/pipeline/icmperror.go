package pipeline

import (
	"fmt"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Conntrack relates an ICMP error to the connection of the packet that it quotes, whatever its source, and any pod can quote a packet. So a pod's error counts
// as a reply only if the connection was opened to that pod. Others are evaluated by policies, as ICMP packets without a connection
// (docs/decisions/0001-conntrack.md). OpenFlow can't compare two fields: table 84 compares them by digits, in registers. It reads a digit only after the ones
// before were equal, so that errors about many connections have few megaflows.

// The registers of table 84.
const (
	regDigit   = "NXM_NX_REG12[]"     // number of the next digit of the addresses
	regPeer    = "NXM_NX_REG13[0..3]" // digit of the address that the connection was opened to
	regSender  = "NXM_NX_REG13[4..7]" // digit of the error's source
	regCompare = "NXM_NX_REG13[8]"    // the digits are to be compared
	regDigits  = "NXM_NX_REG13[]"     // the three above

	numberDigit  = 12
	numberDigits = 13
)

const (
	digitBits = 4 // of a hexadecimal digit
	digits    = 8 // of an IPv4 address
)

// isError matches ICMP errors about allowed connections.
func isError(fields ...ovs.Match) match {
	return icmp(append(fields, goovs.ConnectionTrackingState("+trk", "+rel", "+rpl"))...)
}

// icmpErrors compiles the comparison, and the flows of tables 27 and 81 that need it.
func (n Node) icmpErrors(s *State) {
	// Routers outside and nodes send errors about connections of others.
	// table=81,priority=65002,ct_state=+rel+rpl+trk,icmp,reg0=0x1,actions=load:0->NXM_NX_REG3[],goto_table:130
	s.add(tableIngressPolicy, policyRouter, isError(ovs.Reg(0, uint32(vnidOutside))), noZone(), ovs.GotoTable(tableCommit))
	// table=81,priority=65002,ct_state=+rel+rpl+trk,icmp,reg4=0x400/0x400,actions=load:0->NXM_NX_REG3[],goto_table:130
	s.add(tableIngressPolicy, policyRouter, isError(fromNode()), noZone(), ovs.GotoTable(tableCommit))

	compareError(s, tableEgressPolicy, sourceEvaluated)
	compareError(s, tableIngressPolicy, targetEvaluated)

	for digit := range digits {
		first, last := digit*digitBits, digit*digitBits+digitBits-1
		// table=84,priority=100,ct_state=+rel+rpl+trk,icmp,reg12=0x1,reg13=0,
		//     actions=move:NXM_NX_CT_NW_DST[4..7]->NXM_NX_REG13[0..3],move:NXM_OF_IP_SRC[4..7]->NXM_NX_REG13[4..7],
		//     load:0x1->NXM_NX_REG13[8],load:0x2->NXM_NX_REG12[],resubmit(,84)
		s.add(tableICMPError, 100, isError(ovs.Reg(numberDigit, uint32(digit)), ovs.Reg(numberDigits, 0)),
			goovs.Move(fmt.Sprintf("NXM_NX_CT_NW_DST[%d..%d]", first, last), regPeer), goovs.Move(fmt.Sprintf("%s[%d..%d]", addressSource, first, last), regSender),
			goovs.Load("0x1", regCompare), goovs.Load(fmt.Sprintf("%#x", digit+1), regDigit), goovs.Resubmit(0, tableICMPError))
	}
	for value := range uint32(1 << digitBits) {
		// table=84,priority=100,icmp,reg13=0x1aa,actions=load:0->NXM_NX_REG13[],resubmit(,84)
		s.add(tableICMPError, 100, icmp(ovs.Reg(numberDigits, 1<<(2*digitBits)|value<<digitBits|value)), goovs.Load("0", regDigits), goovs.Resubmit(0, tableICMPError))
	}
	// All are equal.
	// table=84,priority=100,icmp,reg12=0x8,reg13=0,actions=load:0x1->NXM_NX_REG4[17]
	s.add(tableICMPError, 100, icmp(ovs.Reg(numberDigit, digits), ovs.Reg(numberDigits, 0)), goovs.Load("0x1", regErrorOfPeer))
	// Without its state, the error is no reply.
	// table=84,priority=0,actions=ct_clear
	s.add(tableICMPError, 0, anything(), ovs.CTClear())
}

// compareError compiles that a table evaluates an ICMP error after table 84 has compared its source.
func compareError(s *State, table int, evaluated uint32) {
	// table=27,priority=65001,ct_state=+rel+rpl+trk,icmp,reg4=0x1/0x20001,actions=load:0->NXM_NX_REG12[],load:0->NXM_NX_REG13[],resubmit(,84),resubmit(,27)
	// table=81,priority=65001,ct_state=+rel+rpl+trk,icmp,reg4=0x8/0x20008,actions=load:0->NXM_NX_REG12[],load:0->NXM_NX_REG13[],resubmit(,84),resubmit(,81)
	s.add(table, policyError, isError(ovs.RegBits(4, evaluated, evaluated|errorOfPeer)),
		goovs.Load("0", regDigit), goovs.Load("0", regDigits), goovs.Resubmit(0, tableICMPError), goovs.Resubmit(0, table))
}
