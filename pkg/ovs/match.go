package ovs

import (
	"fmt"
	"math"
	"net/netip"
)

// IPSource matches packets from the prefix, which may be of either family.
func IPSource(p netip.Prefix) Match { return prefixMatch{ipSource, p} }

// IPDestination matches packets to the prefix, which may be of either family.
func IPDestination(p netip.Prefix) Match { return prefixMatch{ipDestination, p} }

// ARPSourceIP matches ARP packets whose sender protocol address lies in the IPv4 prefix.
func ARPSourceIP(p netip.Prefix) Match { return prefixMatch{arpSourceIP, p} }

// ARPTargetIP matches ARP packets whose target protocol address lies in the IPv4 prefix.
func ARPTargetIP(p netip.Prefix) Match { return prefixMatch{arpTargetIP, p} }

// TunnelSource matches packets that came out of a tunnel from the given address.
func TunnelSource(a netip.Addr) Match {
	if !a.IsValid() {
		return prefixMatch{field: tunnelSource} // MarshalText says so
	}
	return prefixMatch{tunnelSource, netip.PrefixFrom(a, a.BitLen())}
}

// prefixMatch is a match of an address field by prefix. There are tens of thousands of them in the flows of policies, so it is small.
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

// names returns the function that makes such matches, and the field's names; "" where it has none in that family.
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
	if p.IsSingleIP() {
		return fmt.Appendf(nil, "%s=%s", field, p.Addr()), nil
	}
	return fmt.Appendf(nil, "%s=%s", field, p.Masked()), nil
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

// RegBits matches those bits of register n that the mask has.
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
	switch {
	case m.value&^m.mask != 0:
		return nil, fmt.Errorf("reg%d=%#x/%#x: the value has bits that the mask has not", m.n, m.value, m.mask)
	case m.mask != math.MaxUint32:
		return fmt.Appendf(nil, "reg%d=%#x/%#x", m.n, m.value, m.mask), nil
	}
	return fmt.Appendf(nil, "reg%d=%#x", m.n, m.value), nil
}

func (m regMatch) GoString() string {
	if m.mask != math.MaxUint32 {
		return fmt.Sprintf("ovs.RegBits(%d, %#x, %#x)", m.n, m.value, m.mask)
	}
	return fmt.Sprintf("ovs.Reg(%d, %#x)", m.n, m.value)
}
