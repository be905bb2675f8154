package openflow

import (
	"fmt"
)

// FieldID identifies a field of a packet or its metadata. Fields up to FieldMetadata make up a Match, in the order in which Open
// vSwitch writes them (nx_put_raw in its nx-match.c): prerequisites precede the fields that need them. The other IDs are
// alternative views of these fields that only actions use.
type FieldID uint8

// Field IDs.
const (
	FieldConjID FieldID = iota
	FieldInPort
	FieldEthSrc
	FieldEthDst
	FieldEthType
	FieldVLANVID // bit 12 (OFPVID_PRESENT) is set if the packet has a tag
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
	FieldReg0 // to reg15, see Reg
)

// Fields after the registers.
const (
	FieldPktMark = FieldReg0 + numRegs + iota
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

	FieldInPort16 // in_port in 16 bits, for Nicira actions
	FieldVLANTCI
	FieldIPTOS
	FieldXReg0 // to xreg7, 64 bits each: reg0 and reg1 …
)

// FieldXXReg0 is the first of four registers of 128 bits: reg0 to reg3 …
const (
	FieldXXReg0 = FieldXReg0 + numRegs/2

	numFields      = FieldXXReg0 + numRegs/4
	numMatchFields = FieldMetadata + 1
)

// numRegs is the number of 32-bit registers of Open vSwitch (FLOW_N_REGS).
const numRegs = 16

// Reg returns the field of register n, 0 to 15. It panics for any other n: register numbers are constants in this program, and
// registers in input are looked up by name or OXM header.
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

// significant returns the number of bits of the value that have a meaning.
func (id FieldID) significant() int {
	switch id {
	case FieldVLANVID:
		return 13 // OFPVID_PRESENT is the bit above the 12 of the VLAN ID
	case FieldCTState:
		return 8
	}
	return id.Bits()
}

// size returns the length of the field's value on the wire in bytes.
func (id FieldID) size() int { return int(fieldTable[id].size) }

// mask returns the mask of all bits on the wire.
func (id FieldID) mask() Value { return fieldMasks[id] }

// fieldMasks are the masks of all bits of the fields.
var fieldMasks = newFieldMasks() //nolint:gochecknoglobals // immutable; every parsed or decoded field needs it

func newFieldMasks() (masks [numFields]Value) {
	for id := range masks {
		masks[id] = ones(8 * int(fieldTable[id].size))
	}
	return masks
}

// Field is a field with a value and the mask of the bits that are compared or set.
type Field struct {
	ID    FieldID
	Value Value
	Mask  Value
}

// Exact returns a field with a mask of all bits.
func Exact(id FieldID, v Value) Field {
	return Field{ID: id, Value: v, Mask: id.mask()}
}

// Num returns a field with a value of up to 64 bits and a mask of all bits.
func Num(id FieldID, n uint64) Field { return Exact(id, Value{Lo: n}) }

func (f Field) isExact() bool { return f.Mask == f.ID.mask() }

// normal clears the bits of the value that are not in the mask, and returns the mask in the form in which Open vSwitch returns it:
// for the fields below, mask bits without a meaning are removed.
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

// form is the syntax of a field's value in text (enum mf_string in Open vSwitch's meta-flow.h).
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

// prerequisite is a condition on the match without which a field is invalid.
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
