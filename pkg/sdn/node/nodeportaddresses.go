package node

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
)

// nodePortPrimary is the value of --nodeport-addresses for the node's own IP.
const nodePortPrimary = "primary"

// nodePortRanges returns the ranges of addresses at which node ports answer, as kube-proxy's flag of this name has them: masked and disjoint; empty: all addresses.
func (c Config) nodePortRanges(primary netip.Addr) ([]netip.Prefix, error) {
	if slices.Equal(c.NodePortAddresses, []string{nodePortPrimary}) {
		return []netip.Prefix{netip.PrefixFrom(primary, primary.BitLen())}, nil
	}
	var errs []error
	ranges := make([]netip.Prefix, 0, len(c.NodePortAddresses))
	for _, value := range c.NodePortAddresses {
		p, err := parseNodePortRange(value)
		if err != nil {
			errs = append(errs, fmt.Errorf("--nodeport-addresses: %q %w", value, err))
		}
		ranges = append(ranges, p)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	slices.SortFunc(ranges, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	var disjoint []netip.Prefix
	for _, p := range ranges {
		if p.Bits() == 0 {
			return nil, nil
		}
		if !slices.ContainsFunc(disjoint, p.Overlaps) {
			disjoint = append(disjoint, p)
		}
	}
	return disjoint, nil
}

func (c Config) validateNodePorts() error {
	_, err := c.nodePortRanges(netip.IPv4Unspecified()) // any address in place of the HostSubnet's
	return err
}

// parseNodePortRange returns an error that follows the value.
func parseNodePortRange(value string) (netip.Prefix, error) {
	const loopbackBits = 8 // of 127.0.0.0/8
	p, err := netip.ParsePrefix(value)
	switch {
	case value == nodePortPrimary:
		return p, errors.New("excludes CIDRs: write primary or CIDRs")
	case err != nil:
		return p, errors.New("is not a CIDR: write ADDRESS/BITS, such as 192.0.2.0/24, or primary only")
	case !p.Addr().Is4():
		return p, errors.New("is not of IPv4, and services have IPv4 addresses only: remove it")
	case p.Addr().IsLoopback() && p.Bits() >= loopbackBits:
		return p, errors.New("has no addresses at which node ports answer: remove it")
	}
	return p.Masked(), nil
}
