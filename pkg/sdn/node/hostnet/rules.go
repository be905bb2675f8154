package hostnet

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// FirewallConfig is what the rules depend on.
type FirewallConfig struct {
	ClusterNetworks []netip.Prefix // only IPv4 ones get rules
	VXLANPort       uint16         // in UDP

	// MasqueradeServices hides pods behind this node when kube-proxy sends them to a pod. The endpoint then answers to
	// this node, where the connection is known; else it would answer to the client directly, from an
	// address that the client never spoke to. For modes that do not evaluate a packet's source.
	MasqueradeServices bool

	// SourcesJudged is for the modes that evaluate sources. Packets that the node forwards for others are marked by RoutedDSCP, since masquerading
	// may give them the node's own source; packets of pods to pods through the node retain the pod's source.
	SourcesJudged  bool
	ServiceNetwork netip.Prefix // required with SourcesJudged
	RoutedDSCP     uint8        // with SourcesJudged

	// ForwardedDSCP is in packets to this node's own address that are forwarded to a pod, as kube-proxy does for node ports: it
	// masquerades these, too. It is also in the replies that a pod receives through a node port.
	ForwardedDSCP uint8 // with SourcesJudged

	// PodConnections returns how many entries of the host's conntrack table one pod may take, 0 for any number. nil: any number.
	PodConnections func() (int, error)

	// PodDevices is the pattern of iptables for the names of the host's ends of pods' veth pairs, on a node with Open vSwitch's userspace datapath; "": none.
	PodDevices string

	HostAccess   HostAccess              // "": HostAccessAll
	NodeNetworks []config.ClusterNetwork // in which the first address of each subnet is a node's
}

// The prefixes of chains' names: ours, and those of kube-proxy and kubelet.
const (
	chainPrefix     = "OVSDN-"
	kubeChainPrefix = "KUBE-"
)

// kubeMark is on packets that kube-proxy is going to masquerade: bit 14, its default (--iptables-masquerade-bit).
const kubeMark = "0x4000/0x4000"

// Rules returns the rules that the node needs.
//
// The guard is in table mangle, which forwarded packets pass before table filter: nothing that others accept there,
// such as kube-proxy's established connections, bypasses it.
func Rules(c FirewallConfig) Ruleset {
	networks := make([]string, 0, len(c.ClusterNetworks))
	for _, n := range c.ClusterNetworks {
		if n.Addr().Is4() {
			networks = append(networks, n.String())
		}
	}
	vxlan := []string{"-p", "udp", "-m", "udp", "--dport", strconv.Itoa(int(c.VXLANPort))}
	return append(Ruleset{
		{
			Table: tableMangle, Name: chainPrefix + "GUARD", BuiltIn: "FORWARD",
			Comment: "ovsdn: what must not be forwarded",
			Rules:   slices.Concat(tenantRules(c, networks), guardRules(networks, vxlan)),
		},
		{
			Table: tableMangle, Name: chainPrefix + "GUARD-INPUT", BuiltIn: "INPUT",
			Comment: "ovsdn: what must not reach the VTEP",
			Rules:   guardInputRules(vxlan),
		},
		unknownVTEPs(vxlan),
		podLimit(),
		{
			Table: tableNAT, Name: chainPrefix + "MASQUERADE", BuiltIn: "POSTROUTING",
			Comment: "ovsdn: pods outside the cluster network",
			Rules:   masqueradeRules(networks, c.MasqueradeServices),
		},
		{
			Table: tableFilter, Name: chainPrefix + "INPUT", BuiltIn: "INPUT",
			Comment: "ovsdn: to this node",
			Rules:   append([]Rule{rule(vxlan, "VXLAN from nodes", "ACCEPT")}, c.HostAccess.accept(c.NodeNetworks)...),
		},
		{
			Table: tableFilter, Name: chainPrefix + "INPUT-LAST", BuiltIn: "INPUT", Last: true,
			Comment: "ovsdn: to this node, after its own rules",
			Rules:   c.HostAccess.drop(),
		},
		{
			Table: tableFilter, Name: chainPrefix + "FORWARD", BuiltIn: "FORWARD",
			Comment: "ovsdn: from and to pods",
			Rules:   forwardRules(c, networks),
		},
		{
			Table: tableMangle, Name: chainPrefix + "ROUTED", BuiltIn: "PREROUTING",
			Comment: "ovsdn: routed by this node for others",
			Rules:   append(podDeviceRules(c.PodDevices), routedRules(c, networks)...),
		},
	}, notrackChains(vxlan)...)
}

// routedRules mark what came to this node with an address of the pods or of a service, before that or the source is changed. In another mode
// the chain is there too, and empty: so a change of the mode empties it.
func routedRules(c FirewallConfig, networks []string) []Rule {
	if !c.SourcesJudged {
		return nil
	}
	var rules []Rule
	for _, n := range append(slices.Clone(networks), c.ServiceNetwork.String()) {
		rules = append(rules, rule([]string{"-d", n, "!", "-i", Tun0Name}, "routed for others",
			"DSCP", "--set-dscp", fmt.Sprintf("%#02x", c.RoutedDSCP)))
	}
	return rules
}

// tenantRules retain the source of pods that reach pods through a node port or an address of a load balancer: kube-proxy would masquerade
// them. It still does so for a pod that a service leads to itself, which must not see its own address; that is a connection to the
// service's own address.
func tenantRules(c FirewallConfig, networks []string) []Rule {
	if !c.SourcesJudged {
		return nil
	}
	var rules []Rule
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n, "!", "-i", Tun0Name, "-o", Tun0Name}, "pod address from elsewhere", "DROP"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n, "-i", Tun0Name, "-o", Tun0Name, "-m", "conntrack", "!", "--ctorigdst", c.ServiceNetwork.String()},
			"pod to pod through a node port", "MARK", "--set-xmark", "0x0/0x4000"))
	}
	forwarded := []string{"DSCP", "--set-dscp", fmt.Sprintf("%#02x", c.ForwardedDSCP)}
	nodePort := []string{"-o", Tun0Name, "-m", "conntrack", "--ctstate", "DNAT", "!", "--ctorigdst", c.ServiceNetwork.String()}
	return append(rules,
		rule(append([]string{"!", "-i", Tun0Name}, nodePort...), "from outside through a node port", forwarded...),
		// The reply has the node's own address as its source.
		rule(slices.Concat([]string{"-i", Tun0Name}, nodePort, []string{"--ctdir", "REPLY"}), "reply of a pod through a node port", forwarded...))
}

// masqueradeRules leave what kube-proxy marked to kube-proxy, which also clears its mark. In iptables mode its chain
// comes before ours anyway; in nftables mode it is another hook of the same priority, and which of the two is first
// depends on which was made first.
func masqueradeRules(networks []string, services bool) []Rule {
	rules := []Rule{rule([]string{"-m", "mark", "--mark", kubeMark}, "masqueraded by kube-proxy", "RETURN")}
	if services {
		for _, n := range networks {
			rules = append(rules, rule([]string{"-s", n, "-o", Tun0Name, "-m", "conntrack", "--ctstate", "DNAT"}, "pod to pod through a service", "MASQUERADE"))
		}
	}
	const comment = "pod to the world"
	if len(networks) == 1 {
		return append(rules, rule([]string{"-s", networks[0], "!", "-d", networks[0]}, comment, "MASQUERADE"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-d", n}, "to a pod", "RETURN"))
	}
	for _, n := range networks {
		rules = append(rules, rule([]string{"-s", n}, comment, "MASQUERADE"))
	}
	return rules
}

// forwardRules let pods' packets through. What still has an address of a service behind kube-proxy's rules is for no service: the host would ask
// tun0 for the MAC of each such address, and a pod that tries all of them would fill the machine's neighbour table.
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
