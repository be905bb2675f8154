package hostnet

import (
	"fmt"
	"slices"
)

// toItselfProgram is a program of classic BPF that accepts packets whose source is their destination: no other match compares the two.
// As tcpdump -ddd prints it: the number of instructions, and of each the code, the jumps if true and if false, and the operand.
const toItselfProgram = "6," +
	"32 0 0 12," + // ld [12]: the source
	"7 0 0 0," + // tax
	"32 0 0 16," + // ld [16]: the destination
	"29 0 1 0," + // jeq x
	"6 0 0 65535," + // ret #65535
	"6 0 0 0" // ret #0

// hairpinChains mark packets that a proxy of the host sends back to their pod, before it masquerades them. They don't depend on the proxy's mark, which
// kube-proxy in mode nftables does not set. A kernel without the match has hairpinRules only.
func hairpinChains(c FirewallConfig, networks []string) []Chain {
	if !c.SourcesEvaluated || c.BalancesServices {
		return nil
	}
	var rules []Rule
	for _, n := range networks {
		match := []string{
			"-s", n, "-i", Tun0Name, "-o", Tun0Name, "-m", "conntrack", "--ctstate", "DNAT", "--ctdir", "ORIGINAL", "-m", "bpf", "--bytecode", toItselfProgram,
		}
		rules = append(rules, rule(match, "pod to itself", c.isHairpin()...))
	}
	return []Chain{{
		Table: tableMangle, Name: chainPrefix + "ITSELF", BuiltIn: "FORWARD",
		Comment:   "ovsdn: pods to themselves",
		Rules:     rules,
		Fallbacks: [][]Rule{nil},
	}}
}

// hairpinRules mark connections of pods to pods that kube-proxy masquerades: those of a pod to itself through its service, since tenantRules have cleared
// kube-proxy's mark of others. The first packet has that mark, except in mode nftables, later ones have a translated source.
func hairpinRules(c FirewallConfig, networks []string) []Rule {
	if c.BalancesServices {
		return nil
	}
	var rules []Rule
	for _, n := range networks {
		between := []string{"-s", n, "-i", Tun0Name, "-o", Tun0Name, "-m"}
		for _, match := range [][]string{{"mark", "--mark", kubeMark}, {"conntrack", "--ctstate", "SNAT", "--ctorigdst", c.ServiceNetwork.String(), "--ctdir", "ORIGINAL"}} {
			rules = append(rules, rule(slices.Concat(between, match), "pod to itself through a service", c.isHairpin()...))
		}
	}
	return rules
}

// isHairpin is the target that marks hairpins.
func (c FirewallConfig) isHairpin() []string {
	return []string{"DSCP", "--set-dscp", fmt.Sprintf("%#02x", c.HairpinDSCP)}
}
