package ovs

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
)

// IPSource matches packets from the IPv4 or IPv6 prefix.
func IPSource(p netip.Prefix) Match { return prefixMatch{ipSource, p} }

// IPDestination matches packets to the IPv4 or IPv6 prefix.
func IPDestination(p netip.Prefix) Match { return prefixMatch{ipDestination, p} }

// ARPSourceIP matches ARP packets whose sender protocol address is in the IPv4 prefix.
func ARPSourceIP(p netip.Prefix) Match { return prefixMatch{arpSourceIP, p} }

// ARPTargetIP matches ARP packets whose target protocol address is in the IPv4 prefix.
func ARPTargetIP(p netip.Prefix) Match { return prefixMatch{arpTargetIP, p} }

// TunnelSource matches packets that arrived through a tunnel from the given address.
func TunnelSource(a netip.Addr) Match {
	if !a.IsValid() {
		return prefixMatch{field: tunnelSource} // MarshalText returns the error
	}
	return prefixMatch{tunnelSource, netip.PrefixFrom(a, a.BitLen())}
}

// prefixMatch matches an address field by prefix. It is small, because policies need tens of thousands.
type prefixMatch struct {
	field  prefixField
	prefix netip.Prefix
}

type prefixField uint8

const (
	ipSource prefixField = iota
	ipDestination
	arpSourceIP
	arpTargetIP
	tunnelSource
)

// names returns the name of the exported function and those of the field, "" if the field does not exist for the family.
func (f prefixField) names() (function, v4, v6 string) {
	switch f {
	case ipSource:
		return "IPSource", "nw_src", "ipv6_src"
	case ipDestination:
		return "IPDestination", "nw_dst", "ipv6_dst"
	case arpSourceIP:
		return "ARPSourceIP", "arp_spa", ""
	case arpTargetIP:
		return "ARPTargetIP", "arp_tpa", ""
	default:
		return "TunnelSource", "tun_src", "tun_ipv6_src"
	}
}

func (m prefixMatch) MarshalText() ([]byte, error) {
	p := m.prefix
	function, field, v6 := m.field.names()
	if !p.IsValid() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
		return nil, fmt.Errorf("%s: %v is not a valid IP prefix", function, p)
	}
	if !p.Addr().Is4() {
		field = v6
	}
	if field == "" {
		return nil, fmt.Errorf("%s: %v is not an IPv4 prefix", function, p)
	}
	b := append(append(make([]byte, 0, 32), field...), '=')
	if p.IsSingleIP() {
		return p.Addr().AppendTo(b), nil
	}
	return p.Masked().AppendTo(b), nil
}

func (m prefixMatch) GoString() string {
	if m.field == tunnelSource {
		return fmt.Sprintf("ovs.TunnelSource(netip.MustParseAddr(%q))", m.prefix.Addr())
	}
	function, _, _ := m.field.names()
	return fmt.Sprintf("ovs.%s(netip.MustParsePrefix(%q))", function, m.prefix)
}

// Reg matches register n, 0 to 15, exactly.
func Reg(n int, value uint32) Match {
	return RegBits(n, value, math.MaxUint32)
}

// RegBits matches the bits of register n that are in the mask.
func RegBits(n int, value, mask uint32) Match {
	return regMatch{n: n, value: value, mask: mask}
}

type regMatch struct {
	n           int
	value, mask uint32
}

func (m regMatch) MarshalText() ([]byte, error) {
	if m.n < 0 || m.n > maxReg {
		return nil, fmt.Errorf("reg%d: Open vSwitch has registers 0 to %d", m.n, maxReg)
	}
	if m.value&^m.mask != 0 {
		return nil, fmt.Errorf("reg%d=%#x/%#x: the value has bits outside the mask", m.n, m.value, m.mask)
	}
	b := append(make([]byte, 0, 32), "reg"...)
	b = append(strconv.AppendInt(b, int64(m.n), 10), "=0x"...)
	b = strconv.AppendUint(b, uint64(m.value), 16)
	if m.mask != math.MaxUint32 {
		b = strconv.AppendUint(append(b, "/0x"...), uint64(m.mask), 16)
	}
	return b, nil
}

func (m regMatch) GoString() string {
	if m.mask != math.MaxUint32 {
		return fmt.Sprintf("ovs.RegBits(%d, %#x, %#x)", m.n, m.value, m.mask)
	}
	return fmt.Sprintf("ovs.Reg(%d, %#x)", m.n, m.value)
}
