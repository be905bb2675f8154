package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// FirewallConfig is the configuration of the rules.
type FirewallConfig struct {
	ClusterNetworks []netip.Prefix // IPv6 networks are ignored
	Subnets         []netip.Prefix // of this node's pods; IPv6 subnets are ignored
	VXLANPort       uint16         // UDP

	// IPMasq masquerades packets of this node's pods to other hosts, except those to NonMasqueradeCIDRs. Packets to other nodes are always masqueraded, and
	// so are those that the other fields name.
	IPMasq             bool
	NonMasqueradeCIDRs []netip.Prefix // IPv6 networks are ignored

	// MasqueradeServices masquerades connections of pods to pods through a service. The endpoint then replies to this node, which
	// translates the reply; otherwise it would reply to the client directly, from another address than the service's. It is for modes that do
	// not evaluate a packet's source.
	MasqueradeServices bool

	// SourcesEvaluated is for the modes that evaluate sources. Packets that the node forwards from other hosts are marked with RoutedDSCP, since masquerading
	// may replace their source by the node's own; packets of pods to pods through the node retain the pod's source.
	SourcesEvaluated bool
	ServiceNetwork   netip.Prefix // required with SourcesEvaluated
	RoutedDSCP       uint8        // with SourcesEvaluated

	// ForwardedDSCP marks packets to this node's own address that are forwarded to a pod, such as by kube-proxy for node ports, which
	// masquerades them, too. It also marks the replies that a pod receives through a node port.
	ForwardedDSCP uint8 // with SourcesEvaluated

	// HairpinDSCP marks packets of a pod that kube-proxy sends back to the pod through its service, and masquerades.
	HairpinDSCP uint8 // with SourcesEvaluated, without BalancesServices

	// Restored is called by Run with the chains, as TABLE/CHAIN, that another program had changed, once they are restored; nil: nothing. It must not block.
	Restored func(chains []string)

	// PodConnections returns the limit of one pod in the host's conntrack table; 0, or nil: no limit.
	PodConnections func() (int, error)

	// PodDevices is the iptables interface pattern of host veths, for Open vSwitch's userspace datapath; "": none.
	PodDevices string

	// BalancesServices is for --service-proxy=ovs (balanced.go). It requires ServiceNetwork, and ServiceNextHop, an IPv4 address that Tun0Config has, too: the
	// switch gives it to packets of the node itself that a service sends to an address of a host, this one or another.
	// To packets of hosts outside it gives ServiceOutside.
	BalancesServices               bool
	ServiceNextHop, ServiceOutside netip.Addr

	// HostPorts returns the pods' ports to which host ports lead (hostports.go); nil: none.
	HostPorts func() []HostPort

	// MasqueradeHostPorts masquerades connections of other hosts to pods through host ports.
	MasqueradeHostPorts bool

	Program      FirewallProgram         // "": FirewallAuto
	HostAccess   HostAccess              // "": HostAccessAll
	NodeNetworks []config.ClusterNetwork // the first address of each subnet is a node's
}

// The prefixes of chain names: the agent's, and those of kube-proxy and kubelet.
const (
	chainPrefix     = "OVSDN-"
	kubeChainPrefix = "KUBE-"
)

// kubeMark is the mark of packets that kube-proxy masquerades: bit 14, its default (--iptables-masquerade-bit).
const kubeMark = "0x4000/0x4000"

// Rules returns the rules of the node.
//
// The guard chains are in table mangle, which forwarded packets pass before table filter: rules there that accept packets,
// such as kube-proxy's for established connections, do not bypass them.
func Rules(c FirewallConfig) Ruleset {
	networks := ipv4(c.ClusterNetworks)
	vxlan := []string{"-p", "udp", "-m", "udp", "--dport", strconv.Itoa(int(c.VXLANPort))}
	forwardGuard := slices.Concat(tenantRules(c, networks), c.forwardBalancedGuard(vxlan))
	return append(Ruleset{
		{
			Table: tableMangle, Name: chainPrefix + "GUARD", BuiltIn: "FORWARD",
			Comment:   "ovsdn: what must not be forwarded",
			Rules:     slices.Concat(forwardGuard, guardRules(networks, vxlan, unrelatedICMP())),
			Fallbacks: [][]Rule{slices.Concat(forwardGuard, guardRules(networks, vxlan, unrelatedICMPOrReply()))},
		},
		{
			Table: tableMangle, Name: chainPrefix + "GUARD-INPUT", BuiltIn: "INPUT",
			Comment:   "ovsdn: what must not reach the VTEP",
			Rules:     guardInputRules(vxlan, unrelatedICMP()),
			Fallbacks: [][]Rule{guardInputRules(vxlan, unrelatedICMPOrReply())},
		},
		unknownVTEPs(vxlan),
		podLimit(c.unlimited()),
		c.masqueradeChain(networks),
		{
			Table: tableFilter, Name: chainPrefix + "INPUT", BuiltIn: "INPUT",
			Comment: "ovsdn: to this node",
			Rules:   slices.Concat([]Rule{rule(vxlan, "VXLAN from nodes", "ACCEPT")}, c.returnOutside(), c.HostAccess.accept(c.NodeNetworks), c.acceptBalanced()),
		},
		{
			Table: tableFilter, Name: chainPrefix + "INPUT-LAST", BuiltIn: "INPUT", Last: true,
			Comment: "ovsdn: to this node, after its own rules",
			Rules:   c.dropPods(),
		},
		{
			Table: tableFilter, Name: chainPrefix + "FORWARD", BuiltIn: "FORWARD",
			Comment:   "ovsdn: from and to pods",
			Rules:     slices.Concat(c.rejectServices(rejects()), c.forwardOutside(), forwardRules(c, networks), c.forwardBalanced()),
			Fallbacks: [][]Rule{slices.Concat(c.rejectServices([]string{"DROP"}), c.forwardOutside(), forwardRules(c, networks), c.forwardBalanced())},
		},
		{
			Table: tableMangle, Name: chainPrefix + "ROUTED", BuiltIn: "PREROUTING",
			Comment: "ovsdn: routed by this node for others",
			Rules:   slices.Concat(podDeviceRules(c.PodDevices), loopbackRules(), routedRules(c, networks)),
		},
	}, slices.Concat(hairpinChains(c, networks), hostPortChains(c, networks), notrackChains(vxlan), egressChains())...)
}

// routedRules mark packets from other hosts to an address of a pod or service, before NAT. In other modes the chain exists and is empty.
func routedRules(c FirewallConfig, networks []string) []Rule {
	if !c.SourcesEvaluated {
		return nil
	}
	var rules []Rule
	for _, n := range append(slices.Clone(networks), c.ServiceNetwork.String()) {
		rules = append(rules, rule([]string{"-d", n, "!", "-i", Tun0Name}, "routed for others",
			"DSCP", "--set-dscp", fmt.Sprintf("%#02x", c.RoutedDSCP)))
	}
	return rules
}

// tenantRules retain the source of connections of pods to pods through a node port or a load balancer's address, which kube-proxy would masquerade.
// kube-proxy still masquerades a connection of a pod to itself through the service's own address: the pod must not receive packets from its own
// address.
func tenantRules(c FirewallConfig, networks []string) []Rule {
	if !c.SourcesEvaluated {
		return nil
	}
	rules := []Rule{masqueradedError()}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n, "!", "-i", Tun0Name, "-o", Tun0Name}, "pod address from elsewhere", "DROP"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n, "-i", Tun0Name, "-o", Tun0Name, "-m", "conntrack", "!", "--ctorigdst", c.ServiceNetwork.String()},
			"pod to pod through a node port", "MARK", "--set-xmark", "0x0/0x4000"))
	}
	rules = append(rules, hairpinRules(c, networks)...)
	forwarded := []string{"DSCP", "--set-dscp", fmt.Sprintf("%#02x", c.ForwardedDSCP)}
	nodePort := []string{"-o", Tun0Name, "-m", "conntrack", "--ctstate", "DNAT", "!", "--ctorigdst", c.ServiceNetwork.String()}
	return append(rules,
		rule(append([]string{"!", "-i", Tun0Name}, nodePort...), "from outside through a node port", forwarded...),
		rule(slices.Concat([]string{"-i", Tun0Name}, nodePort, []string{"--ctdir", "ORIGINAL"}, c.notFromPods(networks)), "egress IP through a node port", forwarded...),
		// The reply has the node's own address as its source.
		rule(slices.Concat([]string{"-i", Tun0Name}, nodePort, []string{"--ctdir", "REPLY"}), "reply of a pod through a node port", forwarded...))
}

// notFromPods matches the sources of packets from tun0 that are egress IPs: pods retain theirs, and the others are those of the node itself and of hosts outside.
// Several matches, since a rule can exclude one source only.
func (c FirewallConfig) notFromPods(networks []string) (match []string) {
	if c.BalancesServices {
		networks = append(slices.Clone(networks), c.ServiceNextHop.String(), c.ServiceOutside.String())
	}
	for _, n := range networks {
		match = append(match, "-m", "conntrack", "!", "--ctorigsrc", n)
	}
	return match
}

// forwardRules accept packets of pods. The host would send an ARP request for each address of a service that is not translated, and fill its neighbour table.
// Those of pods do not come here (rejectServices).
func forwardRules(c FirewallConfig, networks []string) []Rule {
	var rules []Rule
	if c.ServiceNetwork.IsValid() && c.ServiceNetwork.Addr().Is4() {
		rules = append(rules, rule([]string{"-d", c.ServiceNetwork.String(), "-o", Tun0Name}, "to no service", "DROP"))
	}
	for _, n := range networks {
		rules = append(rules,
			rule([]string{"-s", n}, "from pods", "ACCEPT"),
			rule([]string{"-d", n}, "to pods", "ACCEPT"))
	}
	return rules
}

func rule(match []string, comment string, target ...string) Rule {
	return slices.Concat(match, []string{"-m", "comment", "--comment", comment, "-j"}, target)
}
