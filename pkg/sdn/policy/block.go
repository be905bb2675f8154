package policy

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
)

// blocks returns the fewest prefixes that hold the addresses of the block and none of its exceptions, in order: at most one for each bit
// by which an exception is longer than the block. It costs O(n log n) for n exceptions.
func blocks(b *networkingv1.IPBlock) ([]netip.Prefix, error) {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil, fmt.Errorf("ipBlock %q: %w", b.CIDR, err)
	}
	cidr = cidr.Masked()
	except := make([]netip.Prefix, 0, len(b.Except))
	for _, text := range b.Except {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("exception %q of ipBlock %q: %w", text, b.CIDR, err)
		}
		if p.Overlaps(cidr) {
			except = append(except, p.Masked())
		}
	}
	slices.SortFunc(except, comparePrefixes)
	return without(nil, cidr, except), nil
}

// without appends the fewest prefixes that hold the addresses of p and none of the exceptions, which are sorted and overlap with p.
func without(out []netip.Prefix, p netip.Prefix, except []netip.Prefix) []netip.Prefix {
	if len(except) == 0 {
		return append(out, p)
	}
	if except[0].Bits() <= p.Bits() { // the first exception is the largest of those that begin where p begins
		return out
	}
	low, high := halves(p)
	place, _ := slices.BinarySearchFunc(except, high.Addr(), func(x netip.Prefix, addr netip.Addr) int { return x.Addr().Compare(addr) })
	return without(without(out, low, except[:place]), high, except[place:])
}

// halves splits a prefix that is no single address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes) // of valid length
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(upper, p.Bits()+1)
}

// comparePrefixes orders masked prefixes by address, and a prefix before those that it contains: the prefixes within a half of a block are
// consecutive.
func comparePrefixes(x, y netip.Prefix) int {
	return cmp.Or(x.Addr().Compare(y.Addr()), cmp.Compare(x.Bits(), y.Bits()))
}

// disjoint returns the prefixes in order, without those that another one contains.
func disjoint(list []netip.Prefix) []netip.Prefix {
	sorted := slices.Clone(list)
	slices.SortFunc(sorted, comparePrefixes)
	out := sorted[:0]
	for _, p := range sorted {
		if last := len(out) - 1; last < 0 || !out[last].Overlaps(p) {
			out = append(out, p)
		}
	}
	return out
}

// contains reports whether one of the prefixes, which are sorted and disjoint, contains the address.
func contains(sorted []netip.Prefix, addr netip.Addr) bool {
	place, found := slices.BinarySearchFunc(sorted, addr, func(p netip.Prefix, addr netip.Addr) int { return p.Addr().Compare(addr) })
	return found || place > 0 && sorted[place-1].Contains(addr)
}
