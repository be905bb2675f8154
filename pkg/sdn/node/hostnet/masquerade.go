package hostnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
)

// randomly is the option of target MASQUERADE that selects source ports at random. Without it, connections that are opened at the same time can get the same port,
// and the packets of one of them are dropped.
const randomly = "--random-fully"

// masqueradeOptions are the parts of the chain's rules that kernels or iptables may lack.
type masqueradeOptions struct {
	random bool // source ports are selected at random
	sets   bool // packets to nodes are recognized
}

// masqueradeChain masquerades the node's own pods outside the cluster network. A pod of another node was masqueraded by its node, or must not be.
//
// Its fallbacks are in the order in which they are tried: one that the kernel accepts comes before those of which it accepts only the first rules, so that a Sync
// without changes makes none. Without sets all destinations are masqueraded: pods could not reach nodes otherwise. So they are where no previous agent had
// exceptions, until all nodes are in the set.
func (c FirewallConfig) masqueradeChain(networks []string) Chain {
	rules := func(random, sets bool) []Rule { return c.masqueradeRules(networks, masqueradeOptions{random, sets}) }
	chain := Chain{
		Table: tableNAT, Name: chainPrefix + "MASQUERADE", BuiltIn: "POSTROUTING",
		Comment:   "ovsdn: pods outside the cluster network",
		Rules:     rules(true, true),
		Fallbacks: [][]Rule{rules(false, true)},
	}
	if c.excepts() {
		chain.Fallbacks = [][]Rule{rules(true, false), rules(false, true), rules(false, false)}
		chain.Starting = [][]Rule{rules(true, false), rules(false, false)}
		chain.Reduced = &Optional{Feature: FeatureNotMasqueraded, Modules: "ip_set, ip_set_hash_ip and xt_set", Set: vtepSet}
	}
	return chain
}

// SetNonMasqueradeCIDRs implements Firewall.
func (f *iptablesFirewall) SetNonMasqueradeCIDRs(ctx context.Context, networks []netip.Prefix) (changes []string, err error) {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	chain := f.setExceptions(networks)
	if changes, err = f.syncChain(ctx, chain); err != nil {
		return changes, fmt.Errorf("set up iptables chain %s of table %s: %w", chain.Name, chain.Table, err)
	}
	if !f.config.excepts() {
		f.setInstalled(chain)
	}
	return changes, nil
}

// excepts reports whether packets to some destinations outside the cluster network retain the pod's address.
func (c FirewallConfig) excepts() bool { return !c.IPMasq || len(c.NonMasqueradeCIDRs) > 0 }

// masqueradeRules skip packets with kube-proxy's mark, which kube-proxy masquerades and clears. In iptables mode its chain
// comes first anyway; in nftables mode it is another hook of the same priority, and the order depends on which was
// created first.
func (c FirewallConfig) masqueradeRules(networks []string, has masqueradeOptions) []Rule {
	target := []string{"MASQUERADE"}
	if has.random {
		target = append(target, randomly)
	}
	rules := append(c.masqueradeBalanced(target), rule([]string{"-m", "mark", "--mark", kubeMark}, "masqueraded by kube-proxy", "RETURN"))
	if c.MasqueradeServices {
		for _, n := range networks {
			rules = append(rules, rule([]string{"-s", n, "-o", Tun0Name, "-m", "conntrack", "--ctstate", "DNAT"}, "pod to pod through a service", target...))
		}
	}
	if own := ipv4(c.Subnets); len(own) == 1 { // no HostSubnet has more
		rules = append(rules, rule([]string{"!", "-s", own[0]}, "not from a pod of this node", "RETURN"))
	}
	const comment = "pod to the world"
	if len(networks) == 1 && !c.excepts() {
		return append(rules, rule([]string{"-s", networks[0], "!", "-d", networks[0]}, comment, target...))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-d", n}, "to a pod", "RETURN"))
	}
	if c.excepts() && has.sets {
		rules = append(rules, c.exceptions(networks, target)...)
	}
	if !c.IPMasq && has.sets {
		return rules
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n}, comment, target...))
	}
	return rules
}

// exceptions masquerade packets to other nodes, and return those that retain the pod's address. A node that gets a pod's address replies through the tunnel,
// which this host's conntrack does not see; it and kube-proxy would drop the pod's next packets as invalid.
func (c FirewallConfig) exceptions(networks, target []string) (rules []Rule) {
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n, "-m", "set", "--match-set", vtepSet, "dst"}, "pod to another node", target...))
	}
	if !c.IPMasq {
		return rules
	}
	for _, d := range ipv4(c.NonMasqueradeCIDRs) {
		match := []string{"-d", d}
		if d == everywhere { // iptables does not print it
			match = nil
		}
		rules = append(rules, rule(match, "not masqueraded", "RETURN"))
	}
	return rules
}

// everywhere is the network of all IPv4 addresses.
const everywhere = "0.0.0.0/0"

// ipv4 returns the IPv4 networks as iptables prints them.
func ipv4(all []netip.Prefix) (networks []string) {
	for _, n := range all {
		if n.Addr().Is4() {
			networks = append(networks, n.Masked().String())
		}
	}
	return slices.Clip(networks) // callers append
}
