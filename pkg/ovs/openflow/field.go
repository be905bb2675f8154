package openflow

import (
	"fmt"
)

// FieldID names a field of a packet or its metadata. Fields up to FieldMetadata are those that a Match is made of, in the
// order in which Open vSwitch writes them (nx_put_raw in its nx-match.c), prerequisites first; the others are views of
// them that only actions use.
type FieldID uint8

// The fields.
const (
	FieldConjID FieldID = iota
	FieldInPort
	FieldEthSrc
	FieldEthDst
	FieldEthType
	FieldVLANVID // with bit 12 (OFPVID_PRESENT) for "has a tag"
	FieldVLANPCP
	FieldIPSrc
	FieldIPDst
	FieldIPv6Src
	FieldIPv6Dst
	FieldIPFrag
	FieldIPDSCP
	FieldIPECN
	FieldIPTTL
	FieldIPv6Label
	FieldIPProto
	FieldTCPSrc
	FieldTCPDst
	FieldTCPFlags
	FieldUDPSrc
	FieldUDPDst
	FieldSCTPSrc
	FieldSCTPDst
	FieldICMPType
	FieldICMPCode
	FieldICMPv6Type
	FieldICMPv6Code
	FieldNDTarget
	FieldNDSLL
	FieldNDTLL
	FieldARPOp
	FieldARPSPA
	FieldARPTPA
	FieldARPSHA
	FieldARPTHA
	FieldTunID
	FieldTunSrc
	FieldTunDst
	FieldTunIPv6Src
	FieldTunIPv6Dst
	FieldTunFlags
	FieldReg0 // to reg15; Reg gives the others
	fieldReg1
	fieldReg2
	fieldReg3
	fieldReg4
	fieldReg5
	fieldReg6
	fieldReg7
	fieldReg8
	fieldReg9
	fieldReg10
	fieldReg11
	fieldReg12
	fieldReg13
	fieldReg14
	fieldReg15
	FieldPktMark
	FieldCTState
	FieldCTZone
	FieldCTMark
	FieldCTLabel
	FieldCTNwSrc
	FieldCTNwDst
	FieldCTIPv6Src
	FieldCTIPv6Dst
	FieldCTNwProto
	FieldCTTPSrc
	FieldCTTPDst
	FieldMetadata

	FieldInPort16 // in_port in 16 bits, as Nicira's actions have it
	FieldVLANTCI
	FieldIPTOS
	FieldXReg0 // 64 bits each: reg0 and reg1 …
	fieldXReg1
	fieldXReg2
	fieldXReg3
	fieldXReg4
	fieldXReg5
	fieldXReg6
	fieldXReg7
	FieldXXReg0 // 128 bits each: reg0 to reg3 …
	fieldXXReg1
	fieldXXReg2
	fieldXXReg3

	numFields
	numMatchFields = FieldMetadata + 1
)

// numRegs is how many 32-bit registers Open vSwitch has (FLOW_N_REGS).
const numRegs = 16

// Reg returns the field of register n, 0 to 15. Another n is a fault of the source that names it, and panics: registers that come from
// outside come as names or as OXM headers, and are looked up.
func Reg(n int) FieldID {
	if n < 0 || n >= numRegs {
		panic(fmt.Sprintf("openflow: Open vSwitch has no reg%d", n))
	}
	return FieldReg0 + FieldID(n)
}

func (id FieldID) String() string {
	if id >= numFields {
		return fmt.Sprintf("field(%d)", uint8(id))
	}
	return fieldTable[id].name
}

// Bits returns the field's width in bits.
func (id FieldID) Bits() int { return int(fieldTable[id].bits) }

// significant is how many bits of the value mean something.
func (id FieldID) significant() int {
	switch id {
	case FieldVLANVID:
		return 13 // OFPVID_PRESENT stands above the 12 of the ID
	case FieldCTState:
		return 8
	}
	return id.Bits()
}

// size is the width of the field's value on the wire in bytes.
func (id FieldID) size() int { return int(fieldTable[id].size) }

// mask is a mask that covers the whole value on the wire.
func (id FieldID) mask() Value { return ones(8 * int(fieldTable[id].size)) }

// A Field is a field with a value, and a mask of the bits that count.
type Field struct {
	ID    FieldID
	Value Value
	Mask  Value
}

// Exact makes a field whose value counts as a whole.
func Exact(id FieldID, v Value) Field {
	return Field{ID: id, Value: v, Mask: id.mask()}
}

// Num is Exact for a number of up to 64 bits.
func Num(id FieldID, n uint64) Field { return Exact(id, Value{Lo: n}) }

func (f Field) isExact() bool { return f.Mask == f.ID.mask() }

// normal returns the field with the bits cleared that do not count, and with the mask that Open vSwitch gives back: of the
// fields listed it forgets the mask's bits that mean nothing.
func (f Field) normal() Field {
	switch f.ID {
	case FieldCTState, FieldVLANVID, FieldTunFlags, FieldIPFrag, FieldIPv6Label:
		all := ones(f.ID.significant())
		if f.Mask = f.Mask.and(all); f.Mask == all {
			f.Mask = f.ID.mask()
		}
	}
	f.Value = f.Value.and(f.Mask)
	return f
}

func (f Field) check() error {
	switch {
	case f.ID >= numFields:
		return fmt.Errorf("field %d does not exist", uint8(f.ID))
	case f.Value.minus(f.ID.mask()) != Value{}:
		return fmt.Errorf("%s: the value does not fit into %d bytes", f.ID, f.ID.size())
	case f.Mask.minus(f.ID.mask()) != Value{}:
		return fmt.Errorf("%s: the mask does not fit into %d bytes", f.ID, f.ID.size())
	case !f.isExact() && !fieldTable[f.ID].maskable:
		return fmt.Errorf("%s takes no mask", f.ID)
	}
	return nil
}

// form is how a field's value is written in text (enum mf_string in Open vSwitch's meta-flow.h).
type form uint8

const (
	formDecimal form = iota
	formHex
	formEth
	formIPv4
	formIPv6
	formPort
	formFrag
	formCTState
	formTCPFlags
	formTunFlags
)

// prerequisite is what a match must say of the packet before the field means anything.
type prerequisite uint8

const (
	needsNothing prerequisite = iota
	needsVLAN
	needsIPv4
	needsIPv6
	needsIP // of either family
	needsARP
	needsTCP
	needsUDP
	needsSCTP
	needsICMP
	needsICMPv6
	needsND
	needsNDSolicit
	needsNDAdvert
	needsCT
)

func (p prerequisite) String() string {
	switch p {
	case needsVLAN:
		return "a VLAN tag (dl_vlan or vlan_tci=0x1000/0x1000)"
	case needsIPv4:
		return "ip"
	case needsIPv6:
		return "ipv6"
	case needsIP:
		return "ip or ipv6"
	case needsARP:
		return "arp"
	case needsTCP:
		return "tcp or tcp6"
	case needsUDP:
		return "udp or udp6"
	case needsSCTP:
		return "sctp or sctp6"
	case needsICMP:
		return "icmp"
	case needsICMPv6:
		return "icmp6"
	case needsND:
		return "icmp6 with icmp_type 135 or 136 and icmp_code 0"
	case needsNDSolicit:
		return "icmp6 with icmp_type 135 and icmp_code 0"
	case needsNDAdvert:
		return "icmp6 with icmp_type 136 and icmp_code 0"
	case needsCT:
		return "a ct_state that only tracked, valid packets have, such as +est or +trk-inv"
	}
	return "nothing"
}
