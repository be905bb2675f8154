package config

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
)

// NonMasqueradeCIDRsAnnotation of the ClusterNetwork lists networks outside of it, such as "10.0.0.0/8,192.168.0.0/16", to which packets of pods retain the pod's
// address (docs/masquerade.md). OpenShift has no field for it.
const NonMasqueradeCIDRsAnnotation = "ovsdn.io/non-masquerade-cidrs"

// maxNonMasqueradeCIDRs bounds the rules that each new connection of a pod is compared with.
const maxNonMasqueradeCIDRs = 64

// nonMasqueradeCIDRs parses NonMasqueradeCIDRsAnnotation. Networks that others contain are omitted.
func nonMasqueradeCIDRs(o *networkv1.ClusterNetwork, f *faults) []netip.Prefix {
	const field = "annotation " + NonMasqueradeCIDRsAnnotation
	value := strings.TrimSpace(o.Annotations[NonMasqueradeCIDRsAnnotation])
	if value == "" {
		return nil
	}
	if count := strings.Count(value, ",") + 1; count > maxNonMasqueradeCIDRs {
		f.addf(field, "%d networks are too many: write at most %d, such as larger ones", count, maxNonMasqueradeCIDRs)
		return nil
	}
	var all []netip.Prefix
	var errs []error
	for s := range strings.SplitSeq(value, ",") {
		p, err := parseNonMasquerade(strings.TrimSpace(s))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all = append(all, p)
	}
	f.some(field, errs)
	slices.SortFunc(all, func(a, b netip.Prefix) int {
		return cmp.Or(cmp.Compare(a.Bits(), b.Bits()), a.Addr().Compare(b.Addr()))
	})
	var disjoint []netip.Prefix
	for _, p := range all {
		if !slices.ContainsFunc(disjoint, p.Overlaps) {
			disjoint = append(disjoint, p)
		}
	}
	slices.SortFunc(disjoint, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	return disjoint
}

func parseNonMasquerade(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil || !p.Addr().Is4():
		return p, fmt.Errorf("%q is not an IPv4 network: write ADDRESS/BITS, such as 10.0.0.0/8, separated by commas", Shorten(s))
	case p != p.Masked():
		return p, fmt.Errorf("%s has bits set behind its mask: write %s", p, p.Masked())
	case p.Bits() > 0 && p.Addr().IsUnspecified():
		return p, fmt.Errorf("%s is no network of hosts: write 0.0.0.0/0 for all destinations", p)
	}
	return p, nil
}

// joinPrefixes formats prefixes.
func joinPrefixes(all []netip.Prefix, separator string) string {
	texts := make([]string, len(all))
	for i, p := range all {
		texts[i] = p.String()
	}
	return strings.Join(texts, separator)
}
