package openflow

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Flags of struct nx_action_nat, and the bits that mark which of its optional fields are present, in the order of the fields.
const (
	natSource      = 1
	natDestination = 2
	natPersistent  = 4
	natHash        = 8
	natRandom      = 16

	natIPv4Min = 1
	natIPv4Max = 2
	natIPv6Min = 4
	natIPv6Max = 8
	natPortMin = 16
	natPortMax = 32

	natLen = 16 // without the optional fields
)

// NATSide is the address that NAT translates.
type NATSide uint8

// The sides.
const (
	NATKnown NATSide = iota // the translation of the established connection
	NATSource
	NATDestination
)

// NAT is an action inside CT that translates the addresses of a connection (NXAST_NAT).
type NAT struct {
	Side             NATSide
	Min, Max         netip.Addr // range of addresses; Max invalid: only Min; Min invalid: any address
	PortMin, PortMax uint16     // with Min: range of ports; PortMax 0: only PortMin; PortMin 0: any port
	Persistent       bool
	Hash, Random     bool // how ports are selected
}

// Kind implements Action.
func (NAT) Kind() Kind { return KindNAT }

func (a NAT) flags() uint16 {
	flags := [...]uint16{NATKnown: 0, NATSource: natSource, NATDestination: natDestination}[a.Side]
	for _, f := range []struct {
		set bool
		bit uint16
	}{{a.Persistent, natPersistent}, {a.Hash, natHash}, {a.Random, natRandom}} {
		if f.set {
			flags |= f.bit
		}
	}
	return flags
}

func (a NAT) check() error {
	family := func(x netip.Addr) bool { return x.Is4() == a.Min.Is4() && x.Zone() == "" && !x.Is4In6() }
	switch {
	case a.Side > NATDestination:
		return fmt.Errorf("invalid NAT side %d", a.Side)
	case a.Side == NATKnown && a != NAT{}:
		return fmt.Errorf("addresses and flags need src or dst")
	case a.Hash && a.Random:
		return fmt.Errorf("hash and random exclude each other")
	case a.Min.IsValid() && (!family(a.Min) || a.Min.IsUnspecified()):
		return fmt.Errorf("%s is not a valid address for NAT", a.Min)
	case a.Max.IsValid() && (!a.Min.IsValid() || !family(a.Max) || a.Max.Less(a.Min)):
		return fmt.Errorf("%s-%s is not a range of addresses", a.Min, a.Max)
	case a.PortMin != 0 && !a.Min.IsValid():
		return fmt.Errorf("ports need an address")
	case a.PortMax != 0 && (a.PortMin == 0 || a.PortMax < a.PortMin):
		return fmt.Errorf("%d-%d is not a range of ports", a.PortMin, a.PortMax)
	}
	return nil
}

func (a NAT) appendWire(b []byte) ([]byte, error) {
	if err := a.check(); err != nil {
		return b, err
	}
	start := len(b)
	b = zeros(appendNicira(b, nxNAT, 0), 2)
	b = put16(b, a.flags())
	minBit, maxBit := uint16(natIPv4Min), uint16(natIPv4Max)
	if a.Min.Is6() {
		minBit, maxBit = natIPv6Min, natIPv6Max
	}
	var present uint16
	for _, p := range []struct {
		there bool
		bit   uint16
	}{{a.Min.IsValid(), minBit}, {a.Max.IsValid(), maxBit}, {a.PortMin != 0, natPortMin}, {a.PortMax != 0, natPortMax}} {
		if p.there {
			present |= p.bit
		}
	}
	b = put16(b, present)
	b = append(b, a.Min.AsSlice()...)
	b = append(b, a.Max.AsSlice()...)
	for _, port := range []uint16{a.PortMin, a.PortMax} {
		if port != 0 {
			b = put16(b, port)
		}
	}
	return endAction(b, start)
}

func decodeNAT(b []byte) (Action, bool) {
	if len(b) < natLen || !allZero(b[10:12]) {
		return nil, false
	}
	flags, present := u16(b[12:]), u16(b[14:])
	a := NAT{Persistent: flags&natPersistent != 0, Hash: flags&natHash != 0, Random: flags&natRandom != 0}
	switch flags & (natSource | natDestination) {
	case natSource:
		a.Side = NATSource
	case natDestination:
		a.Side = NATDestination
	case natSource | natDestination:
		return nil, false
	}
	if flags&^(natSource|natDestination|natPersistent|natHash|natRandom) != 0 || present >= 2*natPortMax {
		return nil, false
	}
	rest := b[natLen:]
	next := func(bit uint16, n int) []byte {
		if present&bit == 0 || len(rest) < n {
			return nil
		}
		part := rest[:n]
		rest = rest[n:]
		present &^= bit
		return part
	}
	for _, part := range []struct {
		to   *netip.Addr
		bit  uint16
		size int
	}{{&a.Min, natIPv4Min, 4}, {&a.Max, natIPv4Max, 4}, {&a.Min, natIPv6Min, 16}, {&a.Max, natIPv6Max, 16}} {
		if addr, ok := netip.AddrFromSlice(next(part.bit, part.size)); ok {
			*part.to = addr
		}
	}
	if p := next(natPortMin, 2); p != nil {
		a.PortMin = u16(p)
	}
	if p := next(natPortMax, 2); p != nil {
		a.PortMax = u16(p)
	}
	// Bytes left over, or a zero that would not be encoded, fail the comparison below.
	var buf [64]byte
	again, err := a.appendWire(buf[:0])
	return a, err == nil && string(again) == string(b)
}

func (a NAT) appendText(b []byte) []byte {
	b = append(b, "nat"...)
	switch a.Side {
	case NATSource:
		b = append(b, "(src"...)
	case NATDestination:
		b = append(b, "(dst"...)
	default:
		return b
	}
	if a.Min.IsValid() {
		b = a.appendNATAddr(append(b, '='), a.Min)
		if a.Max.IsValid() && a.Max != a.Min {
			b = a.appendNATAddr(append(b, '-'), a.Max)
		}
		if a.PortMin != 0 {
			b = strconv.AppendUint(append(b, ':'), uint64(a.PortMin), 10)
			if a.PortMax != 0 && a.PortMax != a.PortMin {
				b = strconv.AppendUint(append(b, '-'), uint64(a.PortMax), 10)
			}
		}
	}
	for _, f := range []struct {
		set  bool
		name string
	}{{a.Persistent, ",persistent"}, {a.Hash, ",hash"}, {a.Random, ",random"}} {
		if f.set {
			b = append(b, f.name...)
		}
	}
	return append(b, ')')
}

// appendNATAddr appends the address, an IPv6 address in brackets if a port follows.
func (a NAT) appendNATAddr(b []byte, addr netip.Addr) []byte {
	if addr.Is6() && a.PortMin != 0 {
		return append(addr.AppendTo(append(b, '[')), ']')
	}
	return addr.AppendTo(b)
}

// parseNAT parses nat and nat(…).
func parseNAT(w word) (Action, error) {
	var a NAT
	err := eachWord(w.value, func(w word) error {
		switch w.key {
		case "src", "dst":
			if a.Side != NATKnown {
				return fmt.Errorf("src and dst exclude each other")
			}
			a.Side = NATSource
			if w.key == "dst" {
				a.Side = NATDestination
			}
			return a.parseRange(w.value)
		case "persistent":
			a.Persistent = true
		case "hash":
			a.Hash = true
		case "random":
			a.Random = true
		default:
			return fmt.Errorf("%q is not an argument of nat", w.key)
		}
		return w.plain()
	})
	if err == nil {
		err = a.check()
	}
	if err != nil {
		return nil, fmt.Errorf("nat(%s): %w", excerpt(w.value), err)
	}
	return a, nil
}

// parseRange parses ADDR[-ADDR][:PORT[-PORT]]; IPv6 addresses may be in brackets.
func (a *NAT) parseRange(s string) error {
	if s == "" {
		return nil
	}
	var err error
	if a.Min, s, err = cutAddr(s); err != nil {
		return err
	}
	if rest, ok := strings.CutPrefix(s, "-"); ok {
		if a.Max, s, err = cutAddr(rest); err != nil {
			return err
		}
	}
	if s == "" {
		return nil
	}
	ports, ok := strings.CutPrefix(s, ":")
	if !ok {
		return fmt.Errorf("%q is not a range of ports", s)
	}
	first, last, isRange := strings.Cut(ports, "-")
	n, err := parseUint(first, 16)
	if err != nil {
		return err
	}
	a.PortMin = uint16(n)
	if isRange {
		if n, err = parseUint(last, 16); err != nil {
			return err
		}
		a.PortMax = uint16(n)
	}
	if a.PortMin == 0 || isRange && a.PortMax == 0 {
		return fmt.Errorf("%q: 0 is not a port", ports)
	}
	return nil
}

// cutAddr cuts the address at the beginning of s.
func cutAddr(s string) (addr netip.Addr, rest string, err error) {
	if inner, ok := strings.CutPrefix(s, "["); ok {
		text, rest, ok := strings.Cut(inner, "]")
		if !ok {
			return addr, "", fmt.Errorf("%q: a closing bracket is missing", s)
		}
		addr, err = netip.ParseAddr(text)
		return addr, rest, err
	}
	end := strings.IndexByte(s, '-')
	if end < 0 {
		end = len(s)
	}
	if colon := strings.IndexByte(s[:end], ':'); colon >= 0 && strings.Contains(s[:colon], ".") {
		end = colon // an IPv4 address with a port
	}
	addr, err = netip.ParseAddr(s[:end])
	return addr, s[end:], err
}
