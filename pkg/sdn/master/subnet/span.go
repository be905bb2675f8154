package subnet

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// span is one range of the cluster network, cut into subnets of its host length. A subnet's number is its bits
// between the range's mask and the hosts' bits; its place is where it comes in OpenShift's order.
//
// When hosts and subnets share an octet, subnets whose part of that octet is 0 come first, so that as long as possible
// two addresses of different nodes differ in a whole octet: 10.1.0.0/26, 10.1.1.0/26 … 10.1.255.0/26, and only
// then 10.1.0.64/26. A place is thus its number rotated: the shared octet's bits become the highest.
type span struct {
	config.ClusterNetwork
	line   line
	shared int    // bits of the number that lie in the octet shared with the hosts; 0: plain order
	next   uint64 // the place behind the last one given; 0: none was, or the range was full
}

func newSpan(n config.ClusterNetwork) *span {
	s := &span{ClusterNetwork: n, line: line{bits: n.SubnetBits() - n.Prefix.Bits()}}
	if inOctet := 8 - n.HostBits%8; inOctet < 8 && inOctet < s.line.bits {
		s.shared = inOctet
	}
	return s
}

// take returns the first free subnet behind the last one given. It does not cover it: that is hold's.
func (s *span) take() (netip.Prefix, bool) {
	place, ok := s.line.free(s.next % (1 << s.line.bits))
	if !ok {
		place, ok = s.line.free(0)
	}
	if !ok {
		s.next = 0
		return netip.Prefix{}, false
	}
	s.next = place + 1
	return s.subnet(place), true
}

// continueFrom goes on behind the last subnet that another span had given, if that is one of this span's too.
func (s *span) continueFrom(former *span) {
	if former.next == 0 || former.HostBits != s.HostBits {
		return
	}
	if last := former.subnet(former.next - 1); s.Prefix.Contains(last.Addr()) {
		s.next = s.place(s.number(last.Addr())) + 1
	}
}

// cover adds or takes away (delta 1 or -1) a block over every subnet that has addresses in common with p.
func (s *span) cover(p netip.Prefix, delta int) {
	if !p.Overlaps(s.Prefix) {
		return
	}
	// p fixes the upper bits of the number; all below are any.
	fixed := min(max(p.Bits()-s.Prefix.Bits(), 0), s.line.bits)
	number := s.number(p.Addr()) >> (s.line.bits - fixed) << (s.line.bits - fixed)
	if fixed == 0 {
		number = 0 // p is the whole range or more, and its address may lie outside
	}
	if s.shared == 0 {
		s.line.lay(number, s.line.bits-fixed, delta)
		return
	}
	// Rotated, the number's upper part comes below the shared one, so p is a block for every value of the shared
	// bits that it leaves open: 2^7 of them at most.
	upper := s.line.bits - s.shared
	open := min(s.line.bits-fixed, s.shared)
	size := max(upper-fixed, 0)
	for i := uint64(0); i < 1<<open; i++ {
		s.line.lay(s.place(number|i), size, delta)
	}
}

func (s *span) place(number uint64) uint64 {
	return number>>s.shared | number&(1<<s.shared-1)<<(s.line.bits-s.shared)
}

func (s *span) subnet(place uint64) netip.Prefix {
	upper := s.line.bits - s.shared
	number := place>>upper | place&(1<<upper-1)<<s.shared
	addr := s.Prefix.Addr().AsSlice()
	for i := range s.line.bits {
		bit := s.HostBits + i
		addr[len(addr)-1-bit/8] |= byte(number>>i&1) << (bit % 8)
	}
	a, _ := netip.AddrFromSlice(addr) // a slice of an address's length always is one
	return netip.PrefixFrom(a, s.SubnetBits())
}

func (s *span) number(a netip.Addr) uint64 {
	addr := a.AsSlice()
	var number uint64
	for i := range s.line.bits {
		bit := s.HostBits + i
		number |= uint64(addr[len(addr)-1-bit/8]>>(bit%8)&1) << i
	}
	return number
}
