package openflow

import (
	"fmt"
)

// EtherTypes, IP protocol numbers and ICMPv6 types.
const (
	ethIPv4  = 0x0800
	ethARP   = 0x0806
	ethRARP  = 0x8035
	ethIPv6  = 0x86dd
	ethVLAN  = 0x8100
	ipICMP   = 1
	ipTCP    = 6
	ipUDP    = 17
	ipICMPv6 = 58
	ipSCTP   = 132

	icmpv6Solicit = 135
	icmpv6Advert  = 136
)

// Bits of ct_state. Each bit in ctStateValid implies a valid, tracked packet, and so do ctStateTracked set and ctStateInvalid unset
// together (is_ct_valid in Open vSwitch's flow.h).
const (
	ctStateValid   = 0x01 | 0x02 | 0x04 | 0x08 | 0x40 | 0x80 // new est rel rpl snat dnat
	ctStateInvalid = 0x10
	ctStateTracked = 0x20
)

func (s *fieldSet) checkPrerequisites() error {
	for id := s.next(0); id != noField; id = s.next(id + 1) {
		if needs := fieldTable[id].needs; !s.satisfies(needs) {
			return fmt.Errorf("%s needs %s in the match", id, needs)
		}
	}
	return nil
}

// checkStrict rejects what is a mistake in a flow to be added: a mask of an address that is not a prefix, the comparison of all flags, a
// reserved port, and unknown(…).
func (s *fieldSet) checkStrict() error {
	for id := s.next(0); id != noField; id = s.next(id + 1) {
		f := s.at(id)
		switch form := fieldTable[id].form; form {
		case formIPv4, formIPv6:
			if _, ok := f.Mask.prefixLen(id.Bits()); !ok {
				return fmt.Errorf("%s: the mask is not a prefix", id)
			}
		case formCTState, formTCPFlags:
			if f.isExact() {
				return fmt.Errorf("%s: all flags are compared; write those that matter as +set-unset", id)
			}
		case formPort:
			if p := Port(f.Value.Lo); p >= maxPort16 && p != PortLocal {
				return fmt.Errorf("in_port: %s is not LOCAL or the number of a port", p)
			}
		}
	}
	if len(s.unknown) > 0 {
		return fmt.Errorf("unknown field %x", s.unknown)
	}
	return nil
}

func (s *fieldSet) satisfies(p prerequisite) bool {
	if p == needsNothing {
		return true
	}
	eth, _ := s.exact(FieldEthType)
	proto, hasProto := s.exact(FieldIPProto)
	isIP := eth == ethIPv4 || eth == ethIPv6
	header := s.get(FieldIPFrag).Value.Lo&fragLater == 0 // later fragments carry no transport header
	transport := func(number uint64) bool { return isIP && header && hasProto && proto == number }
	discovery := func(types ...uint64) bool {
		typ, _ := s.exact(FieldICMPv6Type)
		code, ok := s.exact(FieldICMPv6Code)
		for _, t := range types {
			if typ == t && ok && code == 0 {
				return true
			}
		}
		return false
	}
	switch p {
	case needsVLAN:
		vid := s.get(FieldVLANVID)
		return s.has(FieldVLANVID) && vid.Value.Lo&vid.Mask.Lo&vlanPresent != 0
	case needsIPv4:
		return eth == ethIPv4
	case needsIPv6:
		return eth == ethIPv6
	case needsIP:
		return isIP
	case needsARP:
		return eth == ethARP || eth == ethRARP
	case needsTCP:
		return transport(ipTCP)
	case needsUDP:
		return transport(ipUDP)
	case needsSCTP:
		return transport(ipSCTP)
	case needsICMP:
		return eth == ethIPv4 && transport(ipICMP)
	case needsICMPv6:
		return eth == ethIPv6 && transport(ipICMPv6)
	case needsND:
		return discovery(icmpv6Solicit, icmpv6Advert)
	case needsNDSolicit:
		return discovery(icmpv6Solicit)
	case needsNDAdvert:
		return discovery(icmpv6Advert)
	case needsCT:
		state := s.get(FieldCTState)
		set, unset := state.Value.Lo&state.Mask.Lo, state.Mask.Lo&^state.Value.Lo
		return set&ctStateValid != 0 || set&ctStateTracked != 0 && unset&ctStateInvalid != 0
	}
	return true
}
