package openflow

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// appendFieldValue appends the value, and the mask if it is not exact, as Open vSwitch's mf_format does for set_field and learn.
func appendFieldValue(b []byte, f Field) []byte {
	switch fieldTable[f.ID].form {
	case formEth:
		return appendEth(b, f)
	case formIPv4:
		return appendIPv4(b, f)
	case formIPv6:
		return appendIPv6(b, f)
	case formPort:
		return appendPort(b, fieldPort(f))
	case formFrag:
		return appendFrag(b, f)
	case formCTState, formTCPFlags, formTunFlags:
		return appendFlags(b, f)
	case formHex:
		b = appendHex(b, f.Value)
	default:
		b = strconv.AppendUint(b, f.Value.Lo, 10)
	}
	if !f.isExact() {
		b = appendHex(append(b, '/'), f.Mask)
	}
	return b
}

// fieldPort returns the port number in a field that is either view of in_port.
func fieldPort(f Field) Port {
	if f.ID == FieldInPort16 {
		return port16(uint16(f.Value.Lo))
	}
	return Port(f.Value.Lo)
}

func appendEth(b []byte, f Field) []byte {
	b = appendMAC(b, f.Value.Lo)
	if !f.isExact() {
		b = appendMAC(append(b, '/'), f.Mask.Lo)
	}
	return b
}

func appendMAC(b []byte, mac uint64) []byte {
	for shift := 40; shift >= 0; shift -= 8 {
		b = appendPaddedHex(b, mac>>shift&0xff, 2)
		if shift > 0 {
			b = append(b, ':')
		}
	}
	return b
}

func addr4(v Value) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], uint32(v.Lo))
	return netip.AddrFrom4(a)
}

func addr6(v Value) netip.Addr {
	var a [16]byte
	binary.BigEndian.PutUint64(a[:], v.Hi)
	binary.BigEndian.PutUint64(a[8:], v.Lo)
	return netip.AddrFrom16(a)
}

func appendIPv4(b []byte, f Field) []byte {
	b = addr4(f.Value).AppendTo(b)
	if f.isExact() {
		return b
	}
	b = append(b, '/')
	if n, ok := f.Mask.prefixLen(32); ok {
		return strconv.AppendInt(b, int64(n), 10)
	}
	return addr4(f.Mask).AppendTo(b)
}

func appendIPv6(b []byte, f Field) []byte {
	b = addr6(f.Value).AppendTo(b)
	if f.isExact() {
		return b
	}
	b = append(b, '/')
	if n, ok := f.Mask.prefixLen(128); ok {
		return strconv.AppendInt(b, int64(n), 10)
	}
	return addr6(f.Mask).AppendTo(b)
}

// Bits of ip_frag (NX_IP_FRAG_*).
const (
	fragAny   = 1
	fragLater = 2
)

func appendFrag(b []byte, f Field) []byte {
	for _, name := range []string{"no", "first", "later", "yes", "not_later"} {
		if g, _ := parseFrag(name); g.Value == f.Value && g.Mask == f.Mask {
			return append(b, name...)
		}
	}
	b = appendHex(b, f.Value)
	return appendHex(append(b, '/'), f.Mask)
}

func parseFrag(s string) (Field, error) {
	switch s {
	case "no":
		return Num(FieldIPFrag, 0), nil
	case "first":
		return Num(FieldIPFrag, fragAny), nil
	case "later":
		return Num(FieldIPFrag, fragAny|fragLater), nil
	case "yes":
		return Field{ID: FieldIPFrag, Value: Value{Lo: fragAny}, Mask: Value{Lo: fragAny}}, nil
	case "not_later":
		return Field{ID: FieldIPFrag, Mask: Value{Lo: fragLater}}, nil
	}
	return parseNumber(FieldIPFrag, s)
}

// flagNames returns the names of a field's bits, lowest bit first.
func flagNames(f form) []string {
	switch f {
	case formCTState:
		return []string{"new", "est", "rel", "rpl", "inv", "trk", "snat", "dnat"}
	case formTCPFlags:
		return []string{"fin", "syn", "rst", "psh", "ack", "urg", "ece", "cwr", "ns", "[200]", "[400]", "[800]"}
	}
	return []string{"oam"}
}

// appendFlags appends +set-unset, or set|set if the mask has all of the field's bits, as format_flags_masked does.
func appendFlags(b []byte, f Field) []byte {
	names := flagNames(fieldTable[f.ID].form)
	all := uint64(1)<<len(names) - 1
	mask := f.Mask.Lo & all
	if mask == all && len(names) > 1 {
		if f.Value.Lo == 0 {
			return append(b, '0')
		}
		for set := f.Value.Lo & all; set != 0; {
			b = append(b, names[bits.TrailingZeros64(set)]...)
			if set &= set - 1; set != 0 {
				b = append(b, '|')
			}
		}
		return b
	}
	for ; mask != 0; mask &= mask - 1 {
		bit := bits.TrailingZeros64(mask)
		sign := byte('-')
		if f.Value.Lo>>bit&1 != 0 {
			sign = '+'
		}
		b = append(append(b, sign), names[bit]...)
	}
	return b
}

func parseFlags(id FieldID, s string) (Field, error) {
	names := flagNames(fieldTable[id].form)
	bit := func(name string) (Value, error) {
		for i, n := range names {
			if n == name {
				return Value{Lo: 1 << i}, nil
			}
		}
		return Value{}, fmt.Errorf("%q is not one of %s", name, strings.Join(names, ", "))
	}
	switch {
	case s == "":
		return Field{}, errors.New("write flags as +set-unset")
	case s[0] >= '0' && s[0] <= '9':
		return parseNumber(id, s)
	case s[0] != '+' && s[0] != '-':
		f := Exact(id, Value{})
		for name := range strings.SplitSeq(s, "|") {
			v, err := bit(name)
			if err != nil {
				return f, err
			}
			f.Value = f.Value.or(v)
		}
		return f, nil
	}
	f := Field{ID: id}
	for s != "" {
		sign := s[0]
		end := strings.IndexAny(s[1:], "+-") + 1
		if end == 0 {
			end = len(s)
		}
		v, err := bit(s[1:end])
		switch {
		case err != nil:
			return f, err
		case !f.Mask.and(v).isZero() && f.Value.and(v).isZero() == (sign == '+'):
			return f, fmt.Errorf("%s is both set and unset", s[1:end])
		}
		f.Mask = f.Mask.or(v)
		if sign == '+' {
			f.Value = f.Value.or(v)
		}
		s = s[end:]
	}
	return f, nil
}

// parseFieldValue parses a value with an optional mask.
func parseFieldValue(id FieldID, s string) (Field, error) {
	var f Field
	var err error
	switch fieldTable[id].form {
	case formEth:
		f, err = parseEth(id, s)
	case formIPv4:
		f, err = parseIP(id, s, 32)
	case formIPv6:
		f, err = parseIP(id, s, 128)
	case formPort:
		f, err = parsePortField(id, s)
	case formFrag:
		f, err = parseFrag(s)
	case formCTState, formTCPFlags, formTunFlags:
		f, err = parseFlags(id, s)
	default:
		f, err = parseNumber(id, s)
	}
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return f, fmt.Errorf("%s=%s: %w", id, s, err)
	}
	return f, nil
}

func parseNumber(id FieldID, s string) (Field, error) {
	value, mask, masked := strings.Cut(s, "/")
	v, err := parseValue(value, id.significant())
	if err != nil || !masked {
		return Exact(id, v), err
	}
	m, err := parseValue(mask, 8*id.size())
	return Field{ID: id, Value: v, Mask: m}, err
}

func parseEth(id FieldID, s string) (Field, error) {
	value, mask, masked := strings.Cut(s, "/")
	v, err := parseMAC(value)
	if err != nil || !masked {
		return Exact(id, v), err
	}
	m, err := parseMAC(mask)
	return Field{ID: id, Value: v, Mask: m}, err
}

func parseMAC(s string) (Value, error) {
	mac, err := net.ParseMAC(s)
	if err != nil {
		return Value{}, err
	}
	if len(mac) != 6 {
		return Value{}, fmt.Errorf("%q is not an Ethernet address", s)
	}
	return valueOf(mac), nil
}

func parseIP(id FieldID, s string, width int) (Field, error) {
	value, mask, masked := strings.Cut(s, "/")
	v, err := parseAddr(value, width)
	if err != nil || !masked {
		return Exact(id, v), err
	}
	if n, err := strconv.ParseUint(mask, 10, 8); err == nil && int(n) <= width {
		return Field{ID: id, Value: v, Mask: ones(int(n)).shl(uint(width - int(n)))}, nil
	}
	m, err := parseAddr(mask, width)
	return Field{ID: id, Value: v, Mask: m}, err
}

func parseAddr(s string, width int) (Value, error) {
	a, err := netip.ParseAddr(s)
	switch {
	case err != nil:
		return Value{}, err
	case a.BitLen() != width || a.Zone() != "":
		return Value{}, fmt.Errorf("%s has the wrong address family or an IPv6 zone", a)
	case width == 32:
		b := a.As4()
		return valueOf(b[:]), nil
	}
	b := a.As16()
	return valueOf(b[:]), nil
}

func parsePortField(id FieldID, s string) (Field, error) {
	p, err := ParsePort(s)
	if err != nil {
		return Field{}, err
	}
	if id == FieldInPort16 {
		return Num(id, uint64(uint16(p))), nil
	}
	return Num(id, uint64(p)), nil
}
