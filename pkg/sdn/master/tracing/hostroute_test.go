package tracing

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// answeredHost is an agent's answer about the host, with the change.
func answeredHost(change func(*diagnostics.NodeHost)) func(*diagnostics.NodeHost) error {
	return func(h *diagnostics.NodeHost) error {
		change(h)
		return nil
	}
}

func kindOfRoute(kind diagnostics.RouteKind) func(*diagnostics.NodeHost) error {
	return answeredHost(func(h *diagnostics.NodeHost) { h.Route = diagnostics.HostRoute{Kind: kind} })
}

func TestTrace_hostRoute(t *testing.T) {
	const out = "delivered out of the cluster by the host of node node1, "
	unchanged := answeredHost(func(*diagnostics.NodeHost) {})
	others := answeredHost(func(h *diagnostics.NodeHost) { h.Others = []string{"filter/INPUT KUBE-X", "nftables table inet y"} })
	guess := out + "with the source 192.0.2.1 of the node, or 10.128.0.5 if its agent runs with --ip-masq=false"
	const guessed = "the routes and the firewall of node node1, and the network behind it"
	for name, tc := range map[string]struct {
		to     string // "": 203.0.113.5
		answer func(*diagnostics.NodeHost) error
		change func(*fakeCluster)
		want   diagnostics.Verdict
		reason string
		not    []string
	}{
		"default route": {answer: unchanged, want: diagnostics.VerdictDelivered, reason: out + "by eth0 via 192.0.2.254 (default route), with the source 192.0.2.1 of the node", not: []string{"the network behind node node1"}},
		"stale route": {answer: answeredHost(func(h *diagnostics.NodeHost) {
			h.Route, h.Source = diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "eth1", Gateway: "198.51.100.1", Network: "203.0.113.0/24"}, "198.51.100.10"
		}), want: diagnostics.VerdictDelivered, reason: out + "by eth1 via 198.51.100.1 (route to 203.0.113.0/24), with the source 198.51.100.10 of the node", not: []string{"the network behind node node1"}},
		"on-link": {answer: answeredHost(func(h *diagnostics.NodeHost) { h.Route.Gateway, h.Route.Network = "", "" }), want: diagnostics.VerdictDelivered,
			reason: out + "by eth0, with the source 192.0.2.1 of the node", not: []string{"the network behind node node1"}},
		"rules of others": {answer: others, want: diagnostics.VerdictDelivered, reason: out + "by eth0 via 192.0.2.254 (default route), with the source 192.0.2.1 of the node",
			not: []string{"rules of the host of node node1: filter/INPUT KUBE-X, nftables table inet y", "the network behind node node1"}},
		"not masqueraded": {answer: answeredHost(func(h *diagnostics.NodeHost) { h.Source, h.Masqueraded = "10.128.0.5", false }), want: diagnostics.VerdictDelivered,
			reason: out + "by eth0 via 192.0.2.254 (default route), with the source 10.128.0.5, which is not masqueraded", not: []string{"the network behind node node1"}},
		"not masqueraded, by the network": {answer: answeredHost(func(h *diagnostics.NodeHost) { h.Source, h.Masqueraded = "10.128.0.5", false }),
			change: func(c *fakeCluster) {
				c.network.NonMasqueradeCIDRs = append(c.network.NonMasqueradeCIDRs, netip.MustParsePrefix("203.0.113.0/24"))
			},
			want: diagnostics.VerdictDelivered, reason: out + "by eth0 via 192.0.2.254 (default route), with the source 10.128.0.5, which is not masqueraded (ovsdn.io/non-masquerade-cidrs)", not: []string{"the network behind node node1"}},
		"an exception that the node can't apply": {answer: unchanged,
			change: func(c *fakeCluster) {
				c.network.NonMasqueradeCIDRs = append(c.network.NonMasqueradeCIDRs, netip.MustParsePrefix("203.0.113.0/24"))
			},
			want: diagnostics.VerdictDelivered, reason: out + "by eth0 via 192.0.2.254 (default route), with the source 192.0.2.1 of the node", not: []string{"the network behind node node1"}},
		"masqueraded, of an unknown address": {answer: answeredHost(func(h *diagnostics.NodeHost) { h.Source = "" }), want: diagnostics.VerdictDelivered,
			reason: out + "by eth0 via 192.0.2.254 (default route), with the source an address of the node", not: []string{"the network behind node node1"}},
		"egress IP": {answer: answeredHost(func(h *diagnostics.NodeHost) { h.Source, h.Masqueraded = "192.0.2.99", false }),
			change: func(c *fakeCluster) {
				c.answers["node1>203.0.113.5"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].Packet.Source = "192.0.2.99"; return nil }
			},
			want: diagnostics.VerdictDelivered, reason: out + "by eth0 via 192.0.2.254 (default route), with the source 192.0.2.99, an egress IP", not: []string{"the network behind node node1", "replies to 192.0.2.99"}},
		"no route":    {answer: kindOfRoute(diagnostics.RouteMissing), want: diagnostics.VerdictDropped, reason: "on node node1: the host has no route to 203.0.113.5"},
		"unreachable": {answer: kindOfRoute(diagnostics.RouteUnreachable), want: diagnostics.VerdictDropped, reason: "on node node1: the host has a route of type unreachable to 203.0.113.5"},
		"blackhole":   {answer: kindOfRoute(diagnostics.RouteBlackhole), want: diagnostics.VerdictDropped, reason: "on node node1: the host has a route of type blackhole to 203.0.113.5"},
		"prohibited":  {answer: kindOfRoute(diagnostics.RouteProhibited), want: diagnostics.VerdictDropped, reason: "on node node1: the host has a route or rule of type prohibit to 203.0.113.5"},
		"refused": {answer: kindOfRoute(diagnostics.RouteRefused), want: diagnostics.VerdictDropped,
			reason: "on node node1: the host has a route to 203.0.113.5, but not for a packet from tun0 with this source: check `ip rule`, and the sysctls forwarding and rp_filter"},
		"back to tun0": {answer: answeredHost(func(h *diagnostics.NodeHost) {
			h.Route = diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "tun0", Network: "203.0.113.0/28"}
		}), want: diagnostics.VerdictUnknown, reason: "node node1: the host sends it by tun0 (route to 203.0.113.0/28), back to the pod network: if the address is no egress IP of the node, correct the route"},
		"without a carrier": {answer: answeredHost(func(h *diagnostics.NodeHost) { h.Route.NoCarrier = true }), want: diagnostics.VerdictDropped,
			reason: "on node node1: the host sends it by eth0 via 192.0.2.254 (default route), and the interface has no carrier"},
		"dropped by a rule": {answer: answeredHost(func(h *diagnostics.NodeHost) { h.Drops, h.Rule = true, "OVSDN-GUARD (VXLAN made by a pod)" }), want: diagnostics.VerdictDropped,
			reason: "on node node1: chain OVSDN-GUARD (VXLAN made by a pod) of the agent drops it"},
		"an address of the node": {answer: kindOfRoute(diagnostics.RouteLocal), want: diagnostics.VerdictDelivered, reason: "delivered to the host of node node1, which has the address 203.0.113.5"},

		"own node": {to: "node/node1", answer: unchanged, want: diagnostics.VerdictDelivered, reason: "delivered to the host of node node1, accepted by chain OVSDN-INPUT (from pods)"},
		"own node, no access": {to: "node/node1", answer: answeredHost(func(h *diagnostics.NodeHost) { h.Drops, h.Rule = true, "OVSDN-INPUT-LAST (pods without access)" }),
			want: diagnostics.VerdictDropped, reason: "on node node1: chain OVSDN-INPUT-LAST (pods without access) of the agent drops it"},
		"own node, no access of ours": {to: "node/node1", answer: answeredHost(func(h *diagnostics.NodeHost) {
			h.Drops, h.Rule, h.OthersFirst, h.Others = true, "OVSDN-INPUT-LAST (pods without access)", true, []string{"filter/INPUT X"}
		}), want: diagnostics.VerdictUnknown, reason: "node node1: chain OVSDN-INPUT-LAST (pods without access) of the agent drops it, unless a rule of another program before it accepts or translates it: check the rules that are not evaluated", not: []string{"rules of the host of node node1: filter/INPUT X"}},
		"own node, perhaps translated": {to: "node/node1", answer: answeredHost(func(h *diagnostics.NodeHost) {
			h.Drops, h.Rule, h.OthersFirst, h.MayTranslate, h.Others = true, "OVSDN-INPUT-LAST (pods without access)", true, true, []string{"nat/PREROUTING X"}
		}), want: diagnostics.VerdictUnknown, reason: "node node1: chain OVSDN-INPUT-LAST (pods without access) of the agent drops it, unless a rule of another program before it accepts or translates it: check the rules that are not evaluated", not: []string{"rules of the host of node node1: nat/PREROUTING X", "the route after a translation of the destination by these rules"}},
		"dropped by a rule of others": {to: "node/node1", answer: answeredHost(func(h *diagnostics.NodeHost) { h.Drops, h.Rule, h.RuleOfOthers = true, "filter/INPUT DROP", true }),
			want: diagnostics.VerdictDropped, reason: "on node node1: a rule of another program drops it, filter/INPUT DROP"},
		"own node without its address": {to: "node/node1", answer: answeredHost(func(h *diagnostics.NodeHost) {
			h.Route = diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "eth0", Network: "192.0.2.0/24"}
		}), want: diagnostics.VerdictUnknown, reason: "the host of node node1 does not have the address 192.0.2.1, and sends it by eth0 (route to 192.0.2.0/24)"},
		"another node": {to: "node/node2", answer: unchanged, want: diagnostics.VerdictDelivered,
			reason: "delivered to node node2 by the host of node node1, by eth0 via 192.0.2.254 (default route), with the source 192.0.2.1 of the node", not: []string{"the firewall of node node2"}},
		"the address of another node": {to: "node/node2", answer: kindOfRoute(diagnostics.RouteLocal), want: diagnostics.VerdictUnknown, reason: "the host of node node1 has the address of node node2"},

		"an agent of an earlier version": {want: diagnostics.VerdictDelivered, reason: guess, not: []string{guessed}},
		"busy":                           {answer: func(*diagnostics.NodeHost) error { return &AgentError{Reason: "timeout", SkipNode: true} }, want: diagnostics.VerdictDelivered, reason: guess, not: []string{"the route of the host of node node1: timeout", guessed}},
		"without iptables":               {answer: func(*diagnostics.NodeHost) error { return &AgentError{Reason: "no iptables"} }, want: diagnostics.VerdictDelivered, reason: guess, not: []string{"the route of the host of node node1: no iptables", guessed}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			if tc.change != nil {
				tc.change(c)
			}
			spec := diagnostics.TraceSpec{Source: "pod/a/web", Destination: tc.to, Port: 80}
			destination := map[string]string{"": "203.0.113.5", "node/node1": "192.0.2.1", "node/node2": "192.0.2.2"}[tc.to]
			if tc.to == "" {
				spec.Destination = destination
			}
			c.hosts = map[string]func(*diagnostics.NodeHost) error{"node1>" + destination: tc.answer}
			status := c.trace(t, spec, "a")
			if status.Verdict != tc.want || status.Reason != tc.reason {
				t.Errorf("got %s: %s\nwant %s: %s", status.Verdict, status.Reason, tc.want, tc.reason)
			}
			if diff := cmp.Diff(tc.not, status.Paths[0].NotEvaluated); diff != "" {
				t.Errorf("not evaluated (-want +got):\n%s", diff)
			}
			isReplyTraced := strings.Contains(strings.Join(c.asked, "\n"), "reply")
			if want := tc.want == diagnostics.VerdictDelivered && name != "egress IP"; isReplyTraced != want {
				t.Errorf("the reply is traced: %v, want %v", isReplyTraced, want)
			}
		})
	}
}

// Users without the right of operators learn what happens to the packet, but not the routes of the host and the names of other programs' rules.
func TestTrace_hidesHosts(t *testing.T) {
	const rules, network = "rules of other programs on the host of node node1", "the network behind node node1"
	secret := func(change func(*diagnostics.NodeHost)) func(*diagnostics.NodeHost) error {
		return answeredHost(func(h *diagnostics.NodeHost) {
			h.Others, h.MayTranslate = []string{"filter/FORWARD secret", "nftables table inet secret"}, true
			if h.Route.Kind == diagnostics.RouteForwarded {
				h.Route = diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "secret", Gateway: "198.51.100.1", Network: "0.0.0.0/0"}
			}
			change(h)
		})
	}
	for name, tc := range map[string]struct {
		destination string
		change      func(*diagnostics.NodeHost)
		want        diagnostics.Verdict
		reason      string
		not         []string
	}{
		"outside": {"203.0.113.5", func(*diagnostics.NodeHost) {}, diagnostics.VerdictDelivered, "delivered out of the cluster by the host of node node1, with the source 192.0.2.1 of the node", []string{rules, network}},
		"a node":  {"192.0.2.2", func(*diagnostics.NodeHost) {}, diagnostics.VerdictDelivered, "delivered to node node2 by the host of node node1, with the source 192.0.2.1 of the node", []string{rules, "the firewall of node node2"}},
		"nothing that is not evaluated": {"203.0.113.5", func(h *diagnostics.NodeHost) { h.Others, h.MayTranslate = nil, false }, diagnostics.VerdictDelivered,
			"delivered out of the cluster by the host of node node1, with the source 192.0.2.1 of the node", []string{network}},
		"an egress IP, or a wrong route": {"203.0.113.5", func(h *diagnostics.NodeHost) { h.Route.Interface = diagnostics.FromTun0 }, diagnostics.VerdictUnknown,
			"node node1: the host sends it back to the pod network", []string{rules}},
		"no carrier, perhaps translated": {"203.0.113.5", func(h *diagnostics.NodeHost) { h.Route.NoCarrier = true }, diagnostics.VerdictUnknown,
			"node node1: the host sends it out of an interface, and the interface has no carrier, unless a rule of another program translates its destination: check the rules that are not evaluated", []string{rules}},
		"no carrier": {"203.0.113.5", func(h *diagnostics.NodeHost) { h.Route.NoCarrier, h.MayTranslate = true, false }, diagnostics.VerdictDropped,
			"on node node1: the host sends it out of an interface, and the interface has no carrier", []string{rules}},
		"a rule of others": {"203.0.113.5", func(h *diagnostics.NodeHost) { h.Drops, h.RuleOfOthers, h.Rule = true, true, "filter/FORWARD secret" }, diagnostics.VerdictDropped,
			"on node node1: a rule of another program drops it", []string{rules}},
		"perhaps a rule of others": {"203.0.113.5", func(h *diagnostics.NodeHost) {
			h.Drops, h.RuleOfOthers, h.OthersFirst, h.Rule = true, true, true, "filter/FORWARD secret"
		}, diagnostics.VerdictUnknown, "node node1: a rule of another program drops it, unless a rule of another program before it accepts or translates it: check the rules that are not evaluated", []string{rules}},
		"an address that the node lacks": {"192.0.2.1", func(h *diagnostics.NodeHost) {
			h.Route = diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "secret"}
		}, diagnostics.VerdictUnknown, "the host of node node1 does not have the address 192.0.2.1, and sends it elsewhere", []string{rules}},
	} {
		c := newCluster()
		c.hidesHosts, c.hosts = true, map[string]func(*diagnostics.NodeHost) error{"node1>" + tc.destination: secret(tc.change)}
		status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: tc.destination, Port: 80}, "a")
		if status.Verdict != tc.want || status.Reason != tc.reason {
			t.Errorf("%s: got %s: %s\nwant %s: %s", name, status.Verdict, status.Reason, tc.want, tc.reason)
		}
		if diff := cmp.Diff(tc.not, status.Paths[0].NotEvaluated); diff != "" {
			t.Errorf("%s: not evaluated (-want +got):\n%s", name, diff)
		}
	}
}

// The reasons of agents can have the text of iptables and of the kernel: chains, interfaces and rules of other programs.
func TestTrace_hidesErrorsOfHosts(t *testing.T) {
	const guessed = "the routes and the firewall of node node1, and the network behind it"
	for name, answer := range map[string]func(*diagnostics.NodeHost) error{
		"the host": func(*diagnostics.NodeHost) error {
			return &AgentError{Reason: "list iptables chain INPUT: -A INPUT -i secret -j SECRET"}
		},
		"no answer": func(*diagnostics.NodeHost) error {
			return &AgentError{Reason: "dial tcp 198.51.100.1: secret", SkipNode: true}
		},
		"invalid answer": answeredHost(func(h *diagnostics.NodeHost) { h.Route.Kind = "secret" }),
	} {
		c := newCluster()
		c.hidesHosts, c.hosts = true, map[string]func(*diagnostics.NodeHost) error{"node1>203.0.113.5": answer}
		status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "203.0.113.5", Port: 80}, "a")
		if status.Verdict != diagnostics.VerdictDelivered {
			t.Errorf("%s: got %s: %s", name, status.Verdict, status.Reason)
		}
		if diff := cmp.Diff([]string{"the route of the host of node node1: the agent did not report it", guessed}, status.Paths[0].NotEvaluated); diff != "" {
			t.Errorf("%s: not evaluated (-want +got):\n%s", name, diff)
		}
	}
}

// The kernel routes a packet from tun0 after its translation, and a packet of the host before: only that one has certainly no other route.
func TestTrace_routeBeforeTranslation(t *testing.T) {
	routes := map[string]diagnostics.HostRoute{"no carrier": {Kind: diagnostics.RouteForwarded, Interface: "eth0", NoCarrier: true}}
	for _, kind := range []diagnostics.RouteKind{
		diagnostics.RouteMissing, diagnostics.RouteUnreachable, diagnostics.RouteProhibited, diagnostics.RouteBlackhole, diagnostics.RouteRefused,
	} {
		routes[string(kind)] = diagnostics.HostRoute{Kind: kind}
	}
	for name, route := range routes {
		for source, destination := range map[string]string{"pod/a/web": "203.0.113.5", "node/node1": "service/a/api"} {
			want := diagnostics.VerdictUnknown
			if source == "node/node1" {
				want = diagnostics.VerdictDropped
			}
			c := newCluster()
			c.addService("a/api", "172.30.0.9", "203.0.113.5")
			c.hosts = map[string]func(*diagnostics.NodeHost) error{"node1>203.0.113.5": answeredHost(func(h *diagnostics.NodeHost) { h.Route, h.MayTranslate = route, true })}
			status := c.trace(t, diagnostics.TraceSpec{Source: source, Destination: destination, Port: 80}, "a")
			const unless = ", unless a rule of another program translates its destination: check the rules that are not evaluated"
			if got := status.Paths[0]; got.Verdict != want || strings.HasSuffix(got.Reason, unless) != (want == diagnostics.VerdictUnknown) {
				t.Errorf("%s from %s: got %s: %s, want %s", name, source, got.Verdict, got.Reason, want)
			}
		}
	}
}

// A packet of the host itself does not come from tun0.
func TestTrace_refusedSourceOfHost(t *testing.T) {
	c := newCluster()
	c.addService("a/api", "172.30.0.9", "203.0.113.5")
	c.hosts = map[string]func(*diagnostics.NodeHost) error{"node1>203.0.113.5": kindOfRoute(diagnostics.RouteRefused)}
	status := c.trace(t, diagnostics.TraceSpec{Source: "node/node1", Destination: "service/a/api", Port: 80}, "a")
	const want = "the host has a route to 203.0.113.5, but not for a packet with the source 10.128.0.1: check `ip rule`, and whether the host has that address"
	if status.Verdict != diagnostics.VerdictDropped || !strings.Contains(status.Reason, want) || strings.Contains(status.Reason, "tun0") {
		t.Errorf("got %s: %s, want %s", status.Verdict, status.Reason, want)
	}
}

// What an agent of a compromised node answers is not shown as a route unless it can be one.
func TestTrace_invalidHostRoute(t *testing.T) {
	for name, change := range map[string]func(*diagnostics.NodeHost){
		"another packet":                     func(h *diagnostics.NodeHost) { h.Packet.Destination = "203.0.113.6" },
		"an unknown kind":                    func(h *diagnostics.NodeHost) { h.Route.Kind = "secret" },
		"no kind":                            func(h *diagnostics.NodeHost) { h.Route.Kind = "" },
		"no interface":                       func(h *diagnostics.NodeHost) { h.Route.Interface = "" },
		"a long interface":                   func(h *diagnostics.NodeHost) { h.Route.Interface = "secret0123456789" },
		"an escape":                          func(h *diagnostics.NodeHost) { h.Route.Interface = "secret\x1b[2J" },
		"a sentence":                         func(h *diagnostics.NodeHost) { h.Route.Interface = "secret of b" },
		"a gateway":                          func(h *diagnostics.NodeHost) { h.Route.Gateway = "secret" },
		"a source":                           func(h *diagnostics.NodeHost) { h.Source = "secret" },
		"a network":                          func(h *diagnostics.NodeHost) { h.Route.Network = "secret" },
		"an escape in a zone of the source":  func(h *diagnostics.NodeHost) { h.Source = "fe80::1%secret\x1b[2J" },
		"an IPv6 source":                     func(h *diagnostics.NodeHost) { h.Source = "2001:db8::5ec" },
		"an escape in a zone of the gateway": func(h *diagnostics.NodeHost) { h.Route.Gateway = "fe80::1%secret\x1b[2J" },
		"a zone of the gateway":              func(h *diagnostics.NodeHost) { h.Route.Gateway = "fe80::1%secret" },
		"another form of the gateway":        func(h *diagnostics.NodeHost) { h.Route.Gateway = "FE80:0::1" },
		"a direction of text":                func(h *diagnostics.NodeHost) { h.Route.Interface = "secret\u202e" },
		"another alphabet":                   func(h *diagnostics.NodeHost) { h.Route.Interface = "secret\u0435" },
		"bits after the network":             func(h *diagnostics.NodeHost) { h.Route.Network = "203.0.113.9/24" },
		"the interface of no forwarded packet": func(h *diagnostics.NodeHost) {
			h.Route = diagnostics.HostRoute{Kind: diagnostics.RouteMissing, Interface: "secret\x1b[2J"}
		},
		"a foreign network": func(h *diagnostics.NodeHost) { h.Route.Network = "198.51.100.0/24" },
	} {
		c := newCluster()
		c.hosts = map[string]func(*diagnostics.NodeHost) error{"node1>203.0.113.5": answeredHost(change)}
		status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "203.0.113.5", Port: 80}, "a")
		not := strings.Join(status.Paths[0].NotEvaluated, "\n")
		if all := status.Reason + not; strings.Contains(all, "secret") || strings.Contains(all, "198.51.100") || strings.Contains(all, "2001:db8") || !strings.Contains(not, "the route of the host of node node1: invalid answer of the agent") {
			t.Errorf("%s: got %s\n%s", name, status.Reason, not)
		}
	}
}

// Packets to endpoints outside of the pod network pass the host of the source, after its service proxy. That of a source outside is not known.
func TestTrace_hostRouteOfService(t *testing.T) {
	for source, want := range map[string]string{
		"pod/a/web":   "node1 tun0 10.128.0.5>203.0.113.5:8080 TCP true\nnode1 tun0 10.128.0.5>203.0.113.6:8080 TCP true",
		"node/node1":  "node1 host 10.128.0.1>203.0.113.5:8080 TCP true\nnode1 host 10.128.0.1>203.0.113.6:8080 TCP true",
		"203.0.113.9": "",
	} {
		c := newCluster()
		c.addService("a/api", "172.30.0.9", "203.0.113.5", "203.0.113.6").Spec.ExternalIPs = []string{"198.51.100.7"}
		c.hosts = map[string]func(*diagnostics.NodeHost) error{"node1>203.0.113.5": kindOfRoute(diagnostics.RouteMissing), "node1>203.0.113.6": answeredHost(func(*diagnostics.NodeHost) {})}
		status := c.trace(t, diagnostics.TraceSpec{Source: source, Destination: "service/a/api", Port: 80}, "a")
		if got := strings.Join(c.askedHosts, "\n"); got != want {
			t.Errorf("from %s: requests about hosts: got\n%s\nwant\n%s", source, got, want)
		}
		const reason = "service/a/api: 1 of 2 endpoints get the packet; 203.0.113.5:8080: on node node1: the host has no route to 203.0.113.5"
		if want != "" && (status.Verdict != diagnostics.VerdictDropped || status.Reason != reason) {
			t.Errorf("from %s: got %s: %s", source, status.Verdict, status.Reason)
		}
	}
}

// An agent that does not know the request, or does not answer it, is asked once in a trace.
func TestTrace_asksForHostRouteOnce(t *testing.T) {
	for _, fault := range []*AgentError{{Reason: "upgrade the agent", SkipNode: true, Unsupported: true}, {Reason: "timeout", SkipNode: true}} {
		c := newCluster()
		c.addService("a/api", "172.30.0.9", "203.0.113.5", "203.0.113.6")
		fail := func(*diagnostics.NodeHost) error { return fault }
		c.hosts = map[string]func(*diagnostics.NodeHost) error{"node1>203.0.113.5": fail, "node1>203.0.113.6": fail}
		status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api", Port: 80}, "a")
		if len(c.askedHosts) != 1 || status.Verdict != diagnostics.VerdictDelivered {
			t.Errorf("%s: got requests %q and %s: %s", fault.Reason, c.askedHosts, status.Verdict, status.Reason)
		}
		for _, path := range status.Paths {
			if got := strings.Contains(strings.Join(path.NotEvaluated, "\n"), fault.Reason); got == fault.Unsupported {
				t.Errorf("%s: not evaluated: got %q", fault.Reason, path.NotEvaluated)
			}
		}
	}
}

// A valid answer of an agent, which is hostile input, has only text that a terminal prints unchanged.
func FuzzIsValidRoute(f *testing.F) {
	f.Add("192.0.2.1", "fe80::1", "eth0", "203.0.113.0/24")
	f.Add("fe80::1%\x1b[2J", "fe80::1%\x1b[2J", "\u202e", "203.0.113.0/24")
	f.Fuzz(func(t *testing.T, source, gateway, name, network string) {
		h := &diagnostics.NodeHost{
			Packet: diagnostics.HostPacket{Destination: "203.0.113.5"}, Source: source,
			Route: diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: name, Gateway: gateway, Network: network},
		}
		if !isValidRoute(h) {
			return
		}
		for _, text := range []string{source, gateway, name, network} {
			if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) || len(text) > 48 {
				t.Errorf("got %q, which is not printable", text)
			}
		}
	})
}
