package policy

import (
	"fmt"
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
)

// blocks are the fewest prefixes that hold the addresses of the block and none of its exceptions: at most one for each bit
// by which an exception is longer.
func blocks(b *networkingv1.IPBlock) ([]netip.Prefix, error) {
	cidr, err := netip.ParsePrefix(b.CIDR)
	if err != nil {
		return nil, fmt.Errorf("ipBlock %q: %w", b.CIDR, err)
	}
	out := []netip.Prefix{cidr.Masked()}
	for _, text := range b.Except {
		except, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("exception %q of ipBlock %q: %w", text, b.CIDR, err)
		}
		var left []netip.Prefix
		for _, p := range out {
			left = append(left, without(p, except.Masked())...)
		}
		out = left
	}
	return out, nil
}

// without is p with the addresses of except taken out.
func without(p, except netip.Prefix) []netip.Prefix {
	switch {
	case !p.Overlaps(except):
		return []netip.Prefix{p}
	case except.Bits() <= p.Bits():
		return nil
	}
	low, high := halves(p)
	return append(without(low, except), without(high, except)...)
}

// halves splits a prefix that is no single address.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bytes := p.Addr().AsSlice()
	bytes[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	upper, _ := netip.AddrFromSlice(bytes) // as long as it was
	return netip.PrefixFrom(p.Addr(), p.Bits()+1), netip.PrefixFrom(upper, p.Bits()+1)
}
