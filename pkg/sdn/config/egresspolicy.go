package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Budgets of the EgressNetworkPolicies of a namespace.
const (
	// MaxEgressRules is the number of rules of all policies of a namespace. Each node with pods of the namespace has a flow for each rule.
	MaxEgressRules = 2_000

	// MaxEgressNames is the number of different DNS names of a namespace. Each node with pods of the namespace resolves each.
	MaxEgressNames = 100
)

// EgressRule is one rule of an EgressNetworkPolicy: To or Name is set.
type EgressRule struct {
	To   netip.Prefix
	Name string // a DNS name in lower case, without the trailing dot
	Deny bool
}

// EgressPolicy is a valid EgressNetworkPolicy.
type EgressPolicy struct {
	Rules []EgressRule

	// Everywhere has the places of the rules whose cidrSelector is 0.0.0.0/32, which means 0.0.0.0/0.
	Everywhere []int
}

// ParseEgressNetworkPolicy reads an EgressNetworkPolicy. The error joins all faults: a policy is valid as a whole, since a rule decides only what the rules before
// it do not.
func ParseEgressNetworkPolicy(o *networkv1.EgressNetworkPolicy) (*EgressPolicy, error) {
	var f faults
	p := &EgressPolicy{Rules: make([]EgressRule, 0, min(len(o.Spec.Egress), MaxEgressRules))}
	for i, r := range o.Spec.Egress {
		if i == MaxEgressRules {
			f.addf("egress", "has more than %d rules, the budget of a namespace: use fewer, wider ranges", MaxEgressRules) // a cached policy has a part of them
			break
		}
		field := fmt.Sprintf("egress[%d]", i)
		rule, err := parseEgressPeer(r.To)
		if err != nil {
			f.add(field+".to", err)
		}
		switch r.Type {
		case networkv1.EgressNetworkPolicyRuleAllow:
		case networkv1.EgressNetworkPolicyRuleDeny:
			rule.Deny = true
		default:
			f.addf(field+".type", "is %q: write Allow or Deny", Shorten(string(r.Type)))
		}
		if err == nil && isEverywhere(r.To.CIDRSelector) {
			p.Everywhere = append(p.Everywhere, i)
		}
		p.Rules = append(p.Rules, rule)
	}
	if err := f.join(); err != nil {
		return nil, err
	}
	return p, nil
}

// isEverywhere reports whether a cidrSelector is the one that OpenShift SDN read as all addresses.
func isEverywhere(cidr string) bool { return cidr == "0.0.0.0/32" }

func parseEgressPeer(peer networkv1.EgressNetworkPolicyPeer) (EgressRule, error) {
	switch {
	case peer.CIDRSelector != "" && peer.DNSName != "":
		return EgressRule{}, errors.New("has cidrSelector and dnsName: write two rules")
	case peer.DNSName != "":
		name, err := ParseEgressName(peer.DNSName)
		return EgressRule{Name: name}, err
	case peer.CIDRSelector == "":
		return EgressRule{}, errors.New("is empty: write cidrSelector or dnsName")
	case isEverywhere(peer.CIDRSelector):
		return EgressRule{To: netip.PrefixFrom(netip.IPv4Unspecified(), 0)}, nil
	}
	to, err := netip.ParsePrefix(peer.CIDRSelector)
	switch {
	case err != nil:
		return EgressRule{}, fmt.Errorf("cidrSelector %q is no range of addresses: write one such as 192.0.2.0/24, without leading zeros", Shorten(peer.CIDRSelector))
	case !to.Addr().Is4():
		return EgressRule{}, fmt.Errorf("cidrSelector %q is not IPv4: pods have no other addresses; remove the rule", Shorten(peer.CIDRSelector))
	}
	return EgressRule{To: to.Masked()}, nil
}

// ParseEgressName returns a DNS name in lower case, without the trailing dot. Wildcards are invalid: DNS can't list the names that match one.
func ParseEgressName(s string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(s, "."))
	switch {
	case strings.Contains(name, "*"):
		return "", fmt.Errorf("dnsName %q has a wildcard, whose addresses DNS can't list: write a rule for each name, or cidrSelector", Shorten(s))
	case len(validation.IsDNS1123Subdomain(name)) > 0 || slices.ContainsFunc(strings.Split(name, "."), func(label string) bool { return len(label) > validation.DNS1123LabelMaxLength }):
		return "", fmt.Errorf("dnsName %q is no name that DNS can have: write one such as www.example.com", Shorten(s))
	}
	if _, err := netip.ParseAddr(name); err == nil {
		return "", fmt.Errorf("dnsName %q is an address: write cidrSelector: %s/32", Shorten(s), name)
	}
	return name, nil
}

// MergeEgressNetworkPolicies returns the rules of all EgressNetworkPolicies of a namespace: those of the policy whose name sorts first come first. The error names
// the policies with faults; then no rule is valid, since an invalid one may have decided before those after it.
func MergeEgressNetworkPolicies(objects []*networkv1.EgressNetworkPolicy) ([]EgressRule, error) {
	objects = slices.SortedFunc(slices.Values(objects), func(a, b *networkv1.EgressNetworkPolicy) int { return cmp.Compare(a.Name, b.Name) })
	var rules []EgressRule
	var f faults
	for _, o := range objects {
		p, err := ParseEgressNetworkPolicy(o)
		if err != nil {
			f.add("EgressNetworkPolicy "+o.Name, err)
			continue
		}
		rules = append(rules, p.Rules...)
	}
	if len(rules) > MaxEgressRules {
		f.addf("EgressNetworkPolicies", "have more than %d rules, the budget of a namespace: use fewer, wider ranges", MaxEgressRules)
	}
	if names := EgressNames(rules); len(names) > MaxEgressNames {
		f.addf("EgressNetworkPolicies", "have %d DNS names, but a namespace may have %d: use cidrSelector", len(names), MaxEgressNames)
	}
	if err := f.join(); err != nil {
		return nil, err
	}
	return rules, nil
}

// maxEgressPeer is more than a valid cidrSelector or dnsName has, in bytes.
const maxEgressPeer = 256

// CompactEgressNetworkPolicy returns the policy without what no rule depends on, for a cache of those of all namespaces. What exceeds a limit is cut to a
// length at which it still does.
func CompactEgressNetworkPolicy(o *networkv1.EgressNetworkPolicy) *networkv1.EgressNetworkPolicy {
	out := &networkv1.EgressNetworkPolicy{}
	out.Namespace, out.Name, out.UID, out.ResourceVersion, out.Generation = o.Namespace, o.Name, o.UID, o.ResourceVersion, o.Generation
	out.Spec.Egress = make([]networkv1.EgressNetworkPolicyRule, min(len(o.Spec.Egress), MaxEgressRules+1))
	for i := range out.Spec.Egress {
		r := o.Spec.Egress[i]
		for _, s := range []*string{(*string)(&r.Type), &r.To.CIDRSelector, &r.To.DNSName} {
			if len(*s) > maxEgressPeer {
				*s = strings.Clone((*s)[:maxEgressPeer])
			}
		}
		out.Spec.Egress[i] = r
	}
	return out
}

// EgressNames returns the DNS names of the rules, sorted, each once.
func EgressNames(rules []EgressRule) []string {
	var names []string
	for _, r := range rules {
		if r.Name != "" {
			names = append(names, r.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}
