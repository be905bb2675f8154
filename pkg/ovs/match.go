package ovs

import (
	"fmt"
	"math"
	"net/netip"
)

// IPSource matches packets from the prefix, which may be of either family.
func IPSource(p netip.Prefix) Match {
	return prefixMatch{fn: "IPSource", v4: "nw_src", v6: "ipv6_src", prefix: p}
}

// IPDestination matches packets to the prefix, which may be of either family.
func IPDestination(p netip.Prefix) Match {
	return prefixMatch{fn: "IPDestination", v4: "nw_dst", v6: "ipv6_dst", prefix: p}
}

// ARPSourceIP matches ARP packets whose sender protocol address lies in the IPv4 prefix.
func ARPSourceIP(p netip.Prefix) Match {
	return prefixMatch{fn: "ARPSourceIP", v4: "arp_spa", prefix: p}
}

// ARPTargetIP matches ARP packets whose target protocol address lies in the IPv4 prefix.
func ARPTargetIP(p netip.Prefix) Match {
	return prefixMatch{fn: "ARPTargetIP", v4: "arp_tpa", prefix: p}
}

// TunnelSource matches packets that came out of a tunnel from the given address.
func TunnelSource(a netip.Addr) Match {
	m := prefixMatch{fn: "TunnelSource", v4: "tun_src", v6: "tun_ipv6_src"}
	if a.IsValid() { // else MarshalText says so
		m.prefix = netip.PrefixFrom(a, a.BitLen())
	}
	return m
}

// prefixMatch is a match of an address field by prefix. A field without a name in the prefix's family is an error.
type prefixMatch struct {
	fn     string // the function that made it
	v4, v6 string // the field's names
	prefix netip.Prefix
}

func (m prefixMatch) MarshalText() ([]byte, error) {
	p := m.prefix
	if !p.IsValid() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
		return nil, fmt.Errorf("%s: %v is not a valid IP prefix", m.fn, p)
	}
	field := m.v6
	if p.Addr().Is4() {
		field = m.v4
	}
	if field == "" {
		return nil, fmt.Errorf("%s: %v is not an IPv4 prefix", m.fn, p)
	}
	if p.IsSingleIP() {
		return fmt.Appendf(nil, "%s=%s", field, p.Addr()), nil
	}
	return fmt.Appendf(nil, "%s=%s", field, p.Masked()), nil
}

func (m prefixMatch) GoString() string {
	if m.fn == "TunnelSource" {
		return fmt.Sprintf("ovs.TunnelSource(netip.MustParseAddr(%q))", m.prefix.Addr())
	}
	return fmt.Sprintf("ovs.%s(netip.MustParsePrefix(%q))", m.fn, m.prefix)
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
