package hostnet

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
)

// HostPort is a port of a pod to which a port of the node leads. Another program has the rules that translate the destination (package hostports).
type HostPort struct {
	Addr           netip.Addr // IPv4
	Protocol       string     // tcp, udp or sctp
	HostPort, Port uint16
}

// hostPortChains are the chains whose rules depend on the pods with host ports. Agents without them remove them.
func hostPortChains(c FirewallConfig, networks []string) []Chain {
	if c.HostPorts == nil {
		return nil
	}
	var chains []Chain
	if c.SourcesEvaluated && !c.BalancesServices {
		chains = append(chains, Chain{
			Table: tableMangle, Name: chainPrefix + "HAIRPIN", BuiltIn: "FORWARD",
			Comment: "ovsdn: pods to themselves through a host port",
			Pods:    func() []Rule { return hostPortHairpins(c.HostPorts(), c.HairpinDSCP) },
		})
	}
	if c.MasqueradeHostPorts {
		chains = append(chains, Chain{
			Table: tableNAT, Name: chainPrefix + "HOSTPORTS", BuiltIn: "POSTROUTING",
			Comment: "ovsdn: other hosts through host ports",
			Pods:    func() []Rule { return masqueradedHostPorts(c.HostPorts(), networks) },
		})
	}
	return chains
}

// hostPortHairpins mark packets of a pod that a host port sends back to it, before portmap masquerades them to the node's address.
func hostPortHairpins(ports []HostPort, dscp uint8) []Rule {
	if len(ports) == 0 {
		return nil
	}
	// The chain is for each packet, not for each connection as those of table nat: only packets between pods pass the rules of all pods.
	rules := []Rule{rule([]string{"!", "-i", Tun0Name}, "not from a pod", "RETURN"), rule([]string{"!", "-o", Tun0Name}, "not to a pod", "RETURN")}
	for _, p := range ports {
		pod := p.Addr.String() + "/32"
		r := rule([]string{"-s", pod, "-d", pod, "-i", Tun0Name, "-o", Tun0Name, "-m", "conntrack", "--ctstate", "DNAT", "--ctdir", "ORIGINAL"},
			"pod to itself through a host port", "DSCP", "--set-dscp", fmt.Sprintf("%#02x", dscp))
		if !containsRule(rules, r) {
			rules = append(rules, r)
		}
	}
	return rules
}

// masqueradedHostPorts masquerade packets of other hosts, which have no VNID, to the node's address, as kube-proxy does for node ports. Packets of pods
// retain their source.
func masqueradedHostPorts(ports []HostPort, networks []string) []Rule {
	if len(ports) == 0 {
		return nil
	}
	var rules []Rule
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n}, "pod to pod", "RETURN"))
	}
	for _, p := range ports {
		match := []string{
			"-d", p.Addr.String() + "/32", "-o", Tun0Name, "-p", p.Protocol, "-m", "conntrack", "--ctstate", "DNAT", "--ctorigdstport", strconv.Itoa(int(p.HostPort)),
			"-m", p.Protocol, "--dport", strconv.Itoa(int(p.Port)),
		}
		if r := rule(match, "from outside through a host port", "MASQUERADE"); !containsRule(rules, r) {
			rules = append(rules, r)
		}
	}
	return rules
}

// loopbackRules drop packets from the bridge to 127.0.0.0/8, which the host would deliver to its own programs where route_localnet is set: host ports, and
// kube-proxy, set it. Replies to packets from 127.0.0.1 have tun0's address here.
func loopbackRules() []Rule {
	return []Rule{rule([]string{"-d", "127.0.0.0/8", "-i", Tun0Name}, "to the loopback of the node", "DROP")}
}

// SyncHostPorts implements Firewall.
func (f *iptablesFirewall) SyncHostPorts(ctx context.Context) error {
	f.syncing.Lock()
	defer f.syncing.Unlock()
	for _, c := range f.rules {
		if c.Pods == nil {
			continue
		}
		if _, err := f.syncChain(ctx, c); err != nil {
			return fmt.Errorf("set up iptables chain %s of table %s: %w", c.Name, c.Table, err)
		}
	}
	return nil
}

// withPods returns the chain with its rules about pods.
func (c Chain) withPods() Chain {
	if c.Pods != nil {
		c.Rules = slices.Concat(c.Rules, c.Pods())
	}
	return c
}
