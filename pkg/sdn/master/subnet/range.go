package subnet

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// subnetRange allocates the subnets of one range of the cluster network, in the order of OpenShift SDN. The number of a subnet is the bits
// of its address between the masks of the range and of the subnet. Its index is its position in the allocation order.
//
// If the number ends within an octet, subnets in which that part of the octet is 0 come first, so that nodes differ in a whole octet
// for as long as possible: 10.1.0.0/26, 10.1.1.0/26 … 10.1.255.0/26, then 10.1.0.64/26. The index is thus the number rotated: the bits in
// the shared octet become the highest.
type subnetRange struct {
	config.ClusterNetwork
	used       bitmap // by index
	sharedBits int    // bits of the number in the octet shared with the host bits; 0: the index is the number
	next       uint64 // the index after the last allocated subnet; 0: none is, or the range was full
}

func newRange(n config.ClusterNetwork) *subnetRange {
	r := &subnetRange{ClusterNetwork: n, used: bitmap{bits: n.SubnetBits() - n.Prefix.Bits()}}
	if inOctet := 8 - n.HostBits%8; inOctet < 8 && inOctet < r.used.bits {
		r.sharedBits = inOctet
	}
	return r
}

// nextFree returns the first free subnet after the last allocated one, and wraps around at the end. It does not mark the subnet.
func (r *subnetRange) nextFree() (netip.Prefix, bool) {
	index, ok := r.used.nextFree(r.next % (1 << r.used.bits))
	if !ok {
		index, ok = r.used.nextFree(0)
	}
	if !ok {
		r.next = 0
		return netip.Prefix{}, false
	}
	r.next = index + 1
	return r.subnet(index), true
}

// continueAfter continues the allocation order after the last subnet of a previous range, if this range has that subnet too.
func (r *subnetRange) continueAfter(previous *subnetRange) {
	if previous.next == 0 || previous.HostBits != r.HostBits {
		return
	}
	if last := previous.subnet(previous.next - 1); r.Prefix.Contains(last.Addr()) {
		r.next = r.index(r.number(last.Addr())) + 1
	}
}

// mark adds or removes (delta 1 or -1) a block of every subnet that overlaps p.
func (r *subnetRange) mark(p netip.Prefix, delta int) {
	if !p.Overlaps(r.Prefix) {
		return
	}
	// p determines the upper bits of the number.
	fixed := min(max(p.Bits()-r.Prefix.Bits(), 0), r.used.bits)
	number := r.number(p.Addr()) >> (r.used.bits - fixed) << (r.used.bits - fixed)
	if fixed == 0 {
		number = 0 // p contains the range, and its address may be outside of the range
	}
	if r.sharedBits == 0 {
		r.used.mark(number, r.used.bits-fixed, delta)
		return
	}
	// In the index, the upper bits of the number come below the shared bits, so p is a block for each value of the shared bits that
	// it does not determine: at most 2^7 blocks.
	upperBits := r.used.bits - r.sharedBits
	open := min(r.used.bits-fixed, r.sharedBits)
	size := max(upperBits-fixed, 0)
	for i := uint64(0); i < 1<<open; i++ {
		r.used.mark(r.index(number|i), size, delta)
	}
}

func (r *subnetRange) index(number uint64) uint64 {
	return number>>r.sharedBits | number&(1<<r.sharedBits-1)<<(r.used.bits-r.sharedBits)
}

func (r *subnetRange) subnet(index uint64) netip.Prefix {
	upperBits := r.used.bits - r.sharedBits
	number := index>>upperBits | index&(1<<upperBits-1)<<r.sharedBits
	addr := r.Prefix.Addr().AsSlice()
	for i := range r.used.bits {
		bit := r.HostBits + i
		addr[len(addr)-1-bit/8] |= byte(number>>i&1) << (bit % 8)
	}
	a, _ := netip.AddrFromSlice(addr) // ok: the slice has the length of an address
	return netip.PrefixFrom(a, r.SubnetBits())
}

func (r *subnetRange) number(a netip.Addr) uint64 {
	addr := a.AsSlice()
	var number uint64
	for i := range r.used.bits {
		bit := r.HostBits + i
		number |= uint64(addr[len(addr)-1-bit/8]>>(bit%8)&1) << i
	}
	return number
}
