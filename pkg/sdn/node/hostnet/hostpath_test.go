package hostnet

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// pathOf returns what the host does with a packet, for comparison.
func pathOf(t *testing.T, f *iptablesFirewall, p HostPacket) HostPath {
	t.Helper()
	path, err := f.Path(t.Context(), p)
	must(t, err)
	return path
}

func podTo(destination string) HostPacket {
	return HostPacket{FromPods: true, Protocol: "tcp", Source: netip.MustParseAddr("10.128.0.2"), Destination: netip.MustParseAddr(destination), DestinationPort: 443}
}

// pathNode is a host with two interfaces and the rules of the configuration.
func pathNode(t *testing.T, c FirewallConfig, commands string) *iptablesFirewall {
	t.Helper()
	inNetNS(t)
	sh(t, `for i in eth0 eth1 tun0; do ip link add $i type veth peer name $i-peer; ip link set $i up; ip link set $i-peer up; done
		ip addr add 192.0.2.10/24 dev eth0; ip addr add 192.0.2.11/24 dev eth0
		ip addr add 198.51.100.10/24 dev eth1; ip addr add 198.51.101.10/24 dev eth1
		ip link set tun0 address 0a:58:0a:80:00:01
		ip route add default via 192.0.2.1`)
	syncTun0(t, node1())
	sh(t, commands)
	f := newFirewall(t, c)
	f.vteps.Allow(t.Context(), "other", netip.MustParseAddr("192.0.2.20"))
	syncFirewall(t, f)
	return f
}

func TestFirewall_Path_routes(t *testing.T) {
	f := pathNode(t, openShift(), `
		ip route add 203.0.113.0/28 via 198.51.100.1
		ip route add 203.0.113.16/28 via 198.51.101.1
		ip route add unreachable 203.0.113.32/28
		ip route add prohibit 203.0.113.48/28
		ip route add blackhole 203.0.113.64/28
		ip route add 203.0.113.80/28 dev tun0
		ip link add eth2 type veth peer name eth2-peer; ip addr add 198.18.0.10/24 dev eth2; ip link set eth2 up
		ip rule add from 10.128.0.7 to 203.0.113.1 prohibit`)
	addr := netip.MustParseAddr
	route := func(dev, via, network string) HostRoute {
		r := HostRoute{Kind: diagnostics.RouteForwarded, Interface: dev, Network: netip.MustParsePrefix(network)}
		if via != "" {
			r.Gateway = addr(via)
		}
		return r
	}
	down := route("eth2", "", "198.18.0.0/24")
	down.NoCarrier = true
	for destination, want := range map[string]HostPath{
		"192.0.2.10":   {Route: HostRoute{Kind: diagnostics.RouteLocal}, Source: addr("10.128.0.2"), By: "OVSDN-INPUT (from pods)"},
		"10.128.0.1":   {Route: HostRoute{Kind: diagnostics.RouteLocal}, Source: addr("10.128.0.2"), By: "OVSDN-INPUT (from pods)"},
		"192.0.2.20":   {Route: route("eth0", "", "192.0.2.0/24"), Source: addr("192.0.2.10"), Masqueraded: true, By: "OVSDN-FORWARD (from pods)"},
		"8.8.8.8":      {Route: route("eth0", "192.0.2.1", "0.0.0.0/0"), Source: addr("192.0.2.10"), Masqueraded: true, By: "OVSDN-FORWARD (from pods)"},
		"203.0.113.1":  {Route: route("eth1", "198.51.100.1", "203.0.113.0/28"), Source: addr("198.51.100.10"), Masqueraded: true, By: "OVSDN-FORWARD (from pods)"},
		"203.0.113.17": {Route: route("eth1", "198.51.101.1", "203.0.113.16/28"), Source: addr("198.51.101.10"), Masqueraded: true, By: "OVSDN-FORWARD (from pods)"},
		"203.0.113.33": {Route: HostRoute{Kind: diagnostics.RouteUnreachable}, Source: addr("10.128.0.2")},
		"203.0.113.49": {Route: HostRoute{Kind: diagnostics.RouteProhibited}, Source: addr("10.128.0.2")},
		"203.0.113.65": {Route: HostRoute{Kind: diagnostics.RouteBlackhole}, Source: addr("10.128.0.2")},
		"203.0.113.81": {Route: route("tun0", "", "203.0.113.80/28"), Source: addr("10.128.0.2")},
		"198.18.0.1":   {Route: down, Source: addr("198.18.0.10"), Masqueraded: true, By: "OVSDN-FORWARD (from pods)"},
	} {
		got := pathOf(t, f, podTo(destination))
		got.Route.Source = netip.Addr{}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(HostRoute{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
			t.Errorf("to %s (-want +got):\n%s", destination, diff)
		}
	}
	bySource := podTo("203.0.113.1")
	bySource.Source = addr("10.128.0.7")
	if got := pathOf(t, f, bySource).Route.Kind; got != diagnostics.RouteProhibited {
		t.Errorf("rule for the source: got route %s", got)
	}
	own := HostPacket{Protocol: "tcp", Destination: addr("203.0.113.1"), DestinationPort: 443}
	if got := pathOf(t, f, own); got.Route.Interface != "eth1" || got.Source != addr("198.51.100.10") || got.Masqueraded {
		t.Errorf("packet of the host: got %+v", got)
	}
	sh(t, "ip route del default")
	if got := pathOf(t, f, podTo("8.8.8.8")).Route.Kind; got != diagnostics.RouteMissing {
		t.Errorf("without a route: got %s", got)
	}
	sh(t, "sysctl -qw net.ipv4.conf.tun0.forwarding=0")
	if got := pathOf(t, f, podTo("203.0.113.1")).Route.Kind; got != diagnostics.RouteRefused {
		t.Errorf("tun0 does not forward: got route %s", got)
	}
}

func TestFirewall_Path_rules(t *testing.T) {
	const kube = "iptables -N KUBE-X; iptables -A INPUT -j KUBE-X; iptables -A INPUT -i eth0 -j DROP; iptables -A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT; "
	icmp, translated, gateway, vxlan, balanced := podTo("192.0.2.10"), podTo("192.0.2.10"), podTo("192.0.2.10"), podTo("8.8.8.8"), podTo("192.0.2.10")
	icmp.Protocol, translated.Translated = "icmp", true
	gateway.Source, gateway.Protocol = netip.MustParseAddr("10.128.2.1"), "icmp"
	vxlan.Protocol, vxlan.DestinationPort = "udp", 4789
	balanced.Source = balancedServices().ServiceNextHop
	egress := podTo("8.8.8.8")
	egress.Source = netip.MustParseAddr("192.0.2.99")
	restrictedBalanced := balancedServices()
	restrictedBalanced.HostAccess, restrictedBalanced.NodeNetworks = HostAccessReplies, accessible(HostAccessReplies).NodeNetworks
	for name, test := range map[string]struct {
		config   FirewallConfig
		commands string
		packet   HostPacket
		want     string
	}{
		"all":                   {config: accessible(HostAccessAll), packet: podTo("192.0.2.10"), want: "OVSDN-INPUT (from pods); from 10.128.0.2"},
		"replies":               {config: accessible(HostAccessReplies), packet: podTo("192.0.2.10"), want: "drops, OVSDN-INPUT-LAST (pods without access); from 10.128.0.2"},
		"replies, others":       {config: accessible(HostAccessReplies), commands: kube, packet: podTo("192.0.2.10"), want: "may drop, OVSDN-INPUT-LAST (pods without access); from 10.128.0.2; filter/INPUT KUBE-X"},
		"replies, a service":    {config: accessible(HostAccessReplies), packet: translated, want: "drops, OVSDN-INPUT-LAST (pods without access); from 10.128.0.2"},
		"services, a service":   {config: accessible(HostAccessServices), packet: translated, want: "OVSDN-INPUT (pods through services); from 10.128.0.2"},
		"services":              {config: accessible(HostAccessServices), packet: podTo("192.0.2.10"), want: "drops, OVSDN-INPUT-LAST (pods without access); from 10.128.0.2"},
		"ICMP":                  {config: accessible(HostAccessReplies), packet: icmp, want: "drops, OVSDN-INPUT-LAST (pods without access); from 10.128.0.2"},
		"ICMP of a node":        {config: accessible(HostAccessReplies), packet: gateway, want: "OVSDN-INPUT (ICMP of nodes); from 10.128.2.1"},
		"the node by a service": {config: restrictedBalanced, packet: balanced, want: "OVSDN-INPUT (the node through a service); from " + balanced.Source.String()},
		"VXLAN":                 {config: openShift(), packet: vxlan, want: "drops, OVSDN-GUARD (VXLAN made by a pod); from 10.128.0.2"},
		"masqueraded":           {config: sourcesEvaluated(), packet: podTo("8.8.8.8"), want: "OVSDN-FORWARD (from pods); masqueraded from 192.0.2.10"},
		"not masqueraded":       {config: notMasqueraded(openShift()), packet: podTo("8.8.8.8"), want: "OVSDN-FORWARD (from pods); from 10.128.0.2"},
		"node, not masqueraded": {config: notMasqueraded(openShift()), packet: podTo("192.0.2.20"), want: "OVSDN-FORWARD (from pods); masqueraded from 192.0.2.10"},
		"exception":             {config: excepting(openShift()), packet: podTo("203.0.113.7"), want: "OVSDN-FORWARD (from pods); from 10.128.0.2"},
		"no exception":          {config: excepting(openShift()), packet: podTo("203.0.113.8"), want: "OVSDN-FORWARD (from pods); masqueraded from 192.0.2.10"},
		"egress IP":             {config: sourcesEvaluated(), commands: "ip route add 192.0.2.99 dev tun0; ", packet: egress, want: "OVSDN-EGRESS (from egress IPs); from 192.0.2.99"},
		"others": {config: openShift(), packet: podTo("8.8.8.8"), want: "OVSDN-FORWARD (from pods); masqueraded from 192.0.2.10; may be translated; nftables table inet guard, nat/POSTROUTING KUBE-Y",
			commands: "iptables -t nat -N KUBE-Y; iptables -t nat -A POSTROUTING -j KUBE-Y; iptables -A FORWARD -j DROP; nft add table inet guard; nft add table ip6 guard; "},
	} {
		t.Run(name, func(t *testing.T) {
			f := pathNode(t, test.config, test.commands+"true")
			path := pathOf(t, f, test.packet)
			got := pathText(path)
			if got != test.want {
				t.Errorf("got %s\nwant %s", got, test.want)
			}
		})
	}
}

// pathText describes what decides on a packet, and its source.
func pathText(path HostPath) string {
	var text strings.Builder
	switch {
	case path.Drops && path.OthersFirst:
		text.WriteString("may drop, ")
	case path.Drops:
		text.WriteString("drops, ")
	}
	if path.ByOther {
		text.WriteString("of others: ")
	}
	text.WriteString(path.By + "; ")
	if path.Masqueraded {
		text.WriteString("masqueraded ")
	}
	text.WriteString("from " + path.Source.String())
	if path.MayTranslate {
		text.WriteString("; may be translated")
	}
	if len(path.Others) > 0 {
		text.WriteString("; " + strings.Join(path.Others, ", "))
	}
	return text.String()
}

// Rules of other programs, which the agent does not change, translate, drop and accept packets before and after its own.
func TestFirewall_Path_rulesOfOthers(t *testing.T) {
	const noAccess, last = "OVSDN-INPUT-LAST (pods without access)", "drops, OVSDN-INPUT-LAST (pods without access); from 10.128.0.2"
	translated := podTo("192.0.2.10")
	translated.Translated = true
	own := HostPacket{Protocol: "tcp", Destination: netip.MustParseAddr("8.8.8.8"), DestinationPort: 443}
	for name, test := range map[string]struct {
		commands string // after the agent's rules
		packet   HostPacket
		want     string
	}{
		"kube-proxy": {"iptables -t nat -N KUBE-S; iptables -t nat -A PREROUTING -j KUBE-S", podTo("192.0.2.10"),
			"may drop, " + noAccess + "; from 10.128.0.2; may be translated; nat/PREROUTING KUBE-S"},
		"kube-proxy in mode nftables": {"nft add table ip kube-proxy", podTo("192.0.2.10"), "may drop, " + noAccess + "; from 10.128.0.2; may be translated; nftables table ip kube-proxy"},
		"translated already":          {"iptables -t nat -A PREROUTING -j REDIRECT; nft add table ip kube-proxy", translated, last + "; nftables table ip kube-proxy"},
		"another port":                {"iptables -t nat -A PREROUTING -p tcp --dport 30000 -j REDIRECT", podTo("192.0.2.10"), last},
		"no translation":              {"iptables -t nat -A PREROUTING -j LOG; iptables -t nat -A PREROUTING -d 192.0.2.10 -j ACCEPT; iptables -t nat -A PREROUTING -j REDIRECT", podTo("192.0.2.10"), last},
		"a jump without a return": {"iptables -t nat -N X; iptables -t nat -A PREROUTING -g X", podTo("192.0.2.10"),
			"may drop, " + noAccess + "; from 10.128.0.2; may be translated; nat/PREROUTING X"},
		"a host's own packet": {"iptables -t nat -A PREROUTING -j REDIRECT; iptables -t nat -A OUTPUT -d 8.8.8.8 -o eth0 -j REDIRECT", own,
			"; from 192.0.2.10; may be translated; nat/OUTPUT REDIRECT"},

		"DROP first":              {"iptables -I INPUT -i tun0 -p tcp -j DROP", podTo("192.0.2.10"), "drops, of others: filter/INPUT DROP; from 10.128.0.2"},
		"REJECT first":            {"iptables -I FORWARD -d 8.0.0.0/8 -j REJECT", podTo("8.8.8.8"), "drops, of others: filter/FORWARD REJECT; from 10.128.0.2"},
		"perhaps DROP first":      {"iptables -I INPUT -m mark --mark 1 -j DROP", podTo("192.0.2.10"), last + "; filter/INPUT DROP"},
		"LOG and MARK first":      {"iptables -I INPUT -j LOG; iptables -t mangle -I INPUT -j MARK --set-mark 1", podTo("192.0.2.10"), last},
		"ACCEPT first":            {"iptables -I INPUT -i tun0 -j ACCEPT", podTo("192.0.2.10"), "; from 10.128.0.2"},
		"perhaps ACCEPT, DROP":    {"iptables -I INPUT -j DROP; iptables -I INPUT -m mark --mark 1 -j ACCEPT", podTo("192.0.2.10"), "may drop, of others: filter/INPUT DROP; from 10.128.0.2; filter/INPUT ACCEPT"},
		"policy":                  {"iptables -P OUTPUT DROP", own, "drops, of others: filter/OUTPUT policy DROP; from 192.0.2.10"},
		"policy, perhaps ACCEPT":  {"iptables -P OUTPUT DROP; iptables -A OUTPUT -m mark --mark 1 -j ACCEPT", own, "may drop, of others: filter/OUTPUT policy DROP; from 192.0.2.10; filter/OUTPUT ACCEPT"},
		"policy, after the agent": {"iptables -P FORWARD DROP", podTo("8.8.8.8"), "OVSDN-FORWARD (from pods); masqueraded from 192.0.2.10"},
	} {
		t.Run(name, func(t *testing.T) {
			f := pathNode(t, accessible(HostAccessReplies), "true")
			sh(t, test.commands)
			if got := pathText(pathOf(t, f, test.packet)); got != test.want {
				t.Errorf("got %s\nwant %s", got, test.want)
			}
		})
	}
}

// The kernel routes a packet of the host before rules translate it: without a route, they never get it. A packet from tun0 gets a route after them.
func TestFirewall_Path_rulesWithoutRoute(t *testing.T) {
	f := pathNode(t, openShift(), "ip route add blackhole 203.0.113.64/28; nft add table inet guard")
	destination := netip.MustParseAddr("203.0.113.65")
	for name, test := range map[string]struct {
		packet HostPacket
		want   string
	}{
		"the host": {HostPacket{Protocol: "tcp", Destination: destination, DestinationPort: 443}, "; from invalid IP"},
		"a pod":    {podTo(destination.String()), "; from 10.128.0.2; may be translated; nftables table inet guard"},
	} {
		path := pathOf(t, f, test.packet)
		if got := pathText(path); got != test.want || path.Route.Kind != diagnostics.RouteBlackhole {
			t.Errorf("%s: got route %s, %s\nwant %s", name, path.Route.Kind, got, test.want)
		}
	}
}

// The kernel refuses a packet of the host itself with a source that it does not have, by the errors for blackholes and missing routes.
func TestFirewall_Path_sourceOfHost(t *testing.T) {
	f := pathNode(t, openShift(), "ip route add blackhole 203.0.113.64/28")
	for destination, want := range map[string]diagnostics.RouteKind{"8.8.8.8": diagnostics.RouteRefused, "203.0.113.65": diagnostics.RouteBlackhole} {
		p := HostPacket{Protocol: "tcp", Source: netip.MustParseAddr("198.18.7.7"), Destination: netip.MustParseAddr(destination), DestinationPort: 443}
		if got := pathOf(t, f, p).Route.Kind; got != want {
			t.Errorf("to %s: got route %s, want %s", destination, got, want)
		}
	}
}

// Path changes no rule, and sends nothing: the host would resolve the gateway first.
func TestFirewall_Path_changesNothing(t *testing.T) {
	f := pathNode(t, sourcesEvaluated(), "true")
	state := func() string {
		return sh(t, "iptables-save; ip -4 neigh show dev eth0; ip route")
	}
	before := state()
	pathOf(t, f, podTo("8.8.8.8"))
	if diff := cmp.Diff(withoutComments(before), withoutComments(state())); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

// withoutComments returns the lines of iptables-save without its times.
func withoutComments(saved string) string {
	var lines []string
	for line := range strings.Lines(saved) {
		if !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

func TestHostPath_addOthers(t *testing.T) {
	var path HostPath
	for i := range 40 {
		path.addOthers(strings.Repeat("x", i+1), "x")
	}
	if got := len(path.Others); got != maxOthers+1 || path.Others[maxOthers] != "further ones" {
		t.Errorf("got %d names: %q", got, path.Others)
	}
}

func TestRulePacket_matches(t *testing.T) {
	p := rulePacket{in: Tun0Name, out: "eth0", source: netip.MustParseAddr("10.128.0.2"), destination: netip.MustParseAddr("192.0.2.20"), protocol: "tcp", port: 443, marked: mayMatch}
	for text, want := range map[string]matched{
		"-j X":                                           matches,
		"-s 10.128.0.0/14 -j X":                          matches,
		"! -s 10.128.0.0/14 -j X":                        matchesNot,
		"-s 10.128.0.1/255.252.1.255":                    matchesNot,
		"-s 10.128.0.2/255.252.1.255":                    matches,
		"-s x -j X":                                      matchesNot,
		"-i tun+ -o eth0 -j X":                           matches,
		"! -o tun0 -i eth0 -j X":                         matchesNot,
		"-p tcp -m tcp --dport 443":                      matches,
		"-p tcp -m tcp --dport 1:444":                    matches,
		"-p tcp -m tcp --dport 444:":                     matchesNot,
		"-p udp -m x --unknown 7":                        matchesNot,
		"-p tcp -m x --unknown 7":                        mayMatch,
		"-m x --unknown":                                 mayMatch,
		"-m mark --mark 0x1":                             mayMatch,
		"! -i lo -m mark ! --mark 1":                     mayMatch,
		"-m conntrack --ctstate ESTABLISHED,NEW":         matches,
		"-m conntrack --ctstate INVALID":                 matchesNot,
		"-m conntrack ! --ctstate INVALID":               matches,
		"-m set --match-set OTHER src":                   mayMatch,
		"-m comment --comment -x -m comment --comment !": matches,
		"-m socket -j X":                                 mayMatch, // it has no option
		"-m rpfilter --loose -j X":                       mayMatch,
		"-i lo -m socket -j X":                           matchesNot,
	} {
		if got := p.matches(strings.Fields(text)); got != want {
			t.Errorf("%s: got %d, want %d", text, got, want)
		}
	}
	p.protocol = "icmp"
	for text, want := range map[string]matched{
		"-p icmp -m icmp --icmp-type any":   matches,
		"-p icmp -m icmp --icmp-type 8":     matches,
		"-p icmp -m icmp --icmp-type 8/0":   matches,
		"-p icmp -m icmp --icmp-type 3/4":   matchesNot,
		"-p icmp -m icmp ! --icmp-type any": matchesNot,
		"-p tcp -m tcp":                     matchesNot,
	} {
		if got := p.matches(strings.Fields(text)); got != want {
			t.Errorf("ICMP, %s: got %d, want %d", text, got, want)
		}
	}
}
