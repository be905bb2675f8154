package tracing

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// maxInterfaceName is the largest length of an interface's name, IFNAMSIZ of the kernel without its end.
const maxInterfaceName = 15

// hostEntry is how a packet gets to a host that routes it.
type hostEntry struct {
	from       string // as HostPacket.From; "": from outside
	translated bool
}

// host asks the agent what the host of its node does with the packet. It returns nil if the agent does not report it, and why; "" for an agent of an earlier
// version. An agent that did not answer in time is not asked again for another endpoint, but for the reply: the switch does not wait for iptables.
func (r *run) host(ctx context.Context, a arrival, entry hostEntry) (answer *diagnostics.NodeHost, problem string) {
	node := a.node
	if _, silent := r.silent[node.Name]; silent || entry.from == "" || node.NoAgent != "" {
		return nil, ""
	}
	if problem, ok := r.withoutHost[node.Name]; ok {
		return nil, problem
	}
	packet := diagnostics.HostPacket{
		From: entry.from, Translated: entry.translated, Protocol: a.packet.Protocol,
		Source: a.packet.Source, Destination: a.packet.Destination, DestinationPort: a.packet.DestinationPort,
	}
	answer, err := r.Agents.Host(ctx, node, packet)
	known := (*AgentError)(nil)
	switch isKnown := errors.As(err, &known); {
	case isKnown && known.Unsupported:
		r.withoutHost[node.Name] = ""
		return nil, ""
	case isKnown && known.SkipNode:
		r.withoutHost[node.Name] = known.Reason
		return nil, known.Reason
	case err != nil:
		return nil, r.explain(ctx, node, a.start, err)
	case answer.Packet != packet || !isValidRoute(answer):
		return nil, "invalid answer of the agent: its route can't be that of the packet"
	}
	return answer, ""
}

// isValidRoute reports whether an agent's answer can be printed as the route to its destination: addresses are those that netip prints, so that no zone has other text.
func isValidRoute(h *diagnostics.NodeHost) bool {
	kinds := []diagnostics.RouteKind{
		diagnostics.RouteLocal, diagnostics.RouteForwarded, diagnostics.RouteMissing, diagnostics.RouteUnreachable, diagnostics.RouteProhibited,
		diagnostics.RouteBlackhole, diagnostics.RouteRefused,
	}
	source, err := netip.ParseAddr(h.Source)
	if h.Source != "" && (err != nil || !source.Is4() || source.String() != h.Source) {
		return false
	}
	gateway, err := netip.ParseAddr(h.Route.Gateway) // of IPv6 also: "via inet6"
	if h.Route.Gateway != "" && (err != nil || gateway.Zone() != "" || gateway.String() != h.Route.Gateway) {
		return false
	}
	network, err := netip.ParsePrefix(h.Route.Network)
	destination, _ := netip.ParseAddr(h.Packet.Destination) // the zero Addr is in no network
	if h.Route.Network != "" && (err != nil || network.Masked().String() != h.Route.Network || !network.Contains(destination)) {
		return false
	}
	name := h.Route.Interface
	isName := len(name) <= maxInterfaceName && !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' })
	return slices.Contains(kinds, h.Route.Kind) && isName && (name != "" || h.Route.Kind != diagnostics.RouteForwarded)
}

// routed sets the verdict of a packet by the answer of the agent. It reports whether it is delivered.
func (r *run) routed(ctx context.Context, path *diagnostics.TracePath, a arrival, destination netip.Addr, h *diagnostics.NodeHost) bool {
	name, sees := a.node.Name, r.SeesHosts(ctx)
	path.NotEvaluated = append(path.NotEvaluated, othersText(name, h, sees)...)
	decide := func(v diagnostics.Verdict, format string, args ...any) bool {
		path.Verdict, path.Reason = v, fmt.Sprintf(format, args...)
		return v == diagnostics.VerdictDelivered
	}
	switch reason := routeDrop(h, destination, sees); {
	case reason != "" && h.MayTranslate && h.Packet.From == diagnostics.FromTun0: // the kernel routes it after PREROUTING
		return decide(diagnostics.VerdictUnknown, "node %s: %s, unless a rule of another program translates its destination: check the rules that are not evaluated",
			name, reason)
	case reason != "":
		return decide(diagnostics.VerdictDropped, "on node %s: %s", name, reason)
	case h.Drops && !h.OthersFirst && h.Route.Interface != diagnostics.FromTun0:
		return decide(diagnostics.VerdictDropped, "on node %s: %s", name, ruleText(h, sees))
	}
	isForwarded, by := h.Route.Kind == diagnostics.RouteForwarded, routeText(h.Route, sees)
	other, isNode := r.Cluster.NodeAt(destination)
	isOther := isNode && destination == other.HostIP && other.Name != name
	isOwn := destination == a.node.HostIP || destination == a.node.gateway()
	switch {
	case isForwarded && h.Route.Interface == diagnostics.FromTun0 && sees:
		return decide(diagnostics.VerdictUnknown, "node %s: the host sends it%s, back to the pod network: if the address is no egress IP of the node, correct the route",
			name, by)
	case isForwarded && h.Route.Interface == diagnostics.FromTun0:
		return decide(diagnostics.VerdictUnknown, "node %s: the host sends it back to the pod network", name)
	case h.Drops:
		return decide(diagnostics.VerdictUnknown, "node %s: %s, unless a rule of another program before it accepts or translates it: check the rules that are not evaluated",
			name, ruleText(h, sees))
	case !isForwarded && isOther:
		return decide(diagnostics.VerdictUnknown, "the host of node %s has the address of node %s", name, other.Name)
	case !isForwarded:
		text := "delivered to the host of node " + name
		if !isOwn {
			text += ", which has the address " + destination.String()
		}
		if h.Rule != "" {
			text += ", accepted by chain " + h.Rule
		}
		return decide(diagnostics.VerdictDelivered, "%s", text)
	case isOwn:
		return decide(diagnostics.VerdictUnknown, "the host of node %s does not have the address %s, and sends it%s", name, destination, cmp.Or(by, " elsewhere"))
	case isOther:
		path.NotEvaluated = append(path.NotEvaluated, "the firewall of node "+other.Name)
		return decide(diagnostics.VerdictDelivered, "delivered to node %s by the host of node %s%s, with the source %s",
			other.Name, name, after(by), r.sourceBehind(a, destination, h))
	}
	path.NotEvaluated = append(path.NotEvaluated, "the network behind node "+name)
	return decide(diagnostics.VerdictDelivered, "delivered out of the cluster by the host of node %s%s, with the source %s",
		name, after(by), r.sourceBehind(a, destination, h))
}

// othersText returns what the rules that are not evaluated are, for a user who sees them or not.
func othersText(node string, h *diagnostics.NodeHost, sees bool) (texts []string) {
	if !sees {
		if len(h.Others) > 0 || h.MayTranslate {
			texts = append(texts, "rules of other programs on the host of node "+node)
		}
		return texts
	}
	if len(h.Others) > 0 {
		texts = append(texts, fmt.Sprintf("rules of the host of node %s: %s", node, strings.Join(h.Others, ", ")))
	}
	if h.MayTranslate {
		texts = append(texts, "the route after a translation of the destination by these rules")
	}
	return texts
}

// ruleText returns the rule that drops the packet for a sentence.
func ruleText(h *diagnostics.NodeHost, sees bool) string {
	switch {
	case !h.RuleOfOthers:
		return fmt.Sprintf("chain %s of the agent drops it", h.Rule)
	case sees:
		return fmt.Sprintf("a rule of another program drops it, %s", h.Rule)
	}
	return "a rule of another program drops it"
}

// routeDrop returns why a host drops packets with the route, "" if it does not.
func routeDrop(h *diagnostics.NodeHost, destination netip.Addr, sees bool) string {
	switch kind := h.Route.Kind; kind {
	case diagnostics.RouteMissing:
		return fmt.Sprintf("the host has no route to %s", destination)
	case diagnostics.RouteUnreachable, diagnostics.RouteBlackhole:
		return fmt.Sprintf("the host has a route of type %s to %s", kind, destination)
	case diagnostics.RouteProhibited:
		return fmt.Sprintf("the host has a route or rule of type prohibit to %s", destination)
	case diagnostics.RouteRefused:
		if h.Packet.From != diagnostics.FromTun0 {
			return fmt.Sprintf("the host has a route to %s, but not for a packet with the source %s: check `ip rule`, and whether the host has that address",
				destination, h.Packet.Source)
		}
		return fmt.Sprintf("the host has a route to %s, but not for a packet from %s with this source: check `ip rule`, and the sysctls forwarding and rp_filter",
			destination, diagnostics.FromTun0)
	case diagnostics.RouteForwarded:
		if h.Route.NoCarrier && h.Route.Interface != diagnostics.FromTun0 {
			return fmt.Sprintf("the host sends it%s, and the interface has no carrier", cmp.Or(routeText(h.Route, sees), " out of an interface"))
		}
	}
	return ""
}

// after separates a route from what precedes it.
func after(route string) string {
	if route == "" {
		return ""
	}
	return "," + route
}

// routeText returns the route for a sentence; "" for a user who does not see it.
func routeText(route diagnostics.HostRoute, sees bool) string {
	if !sees {
		return ""
	}
	text := " by " + route.Interface
	if route.Gateway != "" {
		text += " via " + route.Gateway
	}
	if route.Network == "" {
		return text
	}
	if network, err := netip.ParsePrefix(route.Network); err == nil && network.Bits() == 0 {
		return text + " (default route)"
	}
	return text + " (route to " + route.Network + ")"
}

// sourceBehind returns the source with which a packet leaves the host.
func (r *run) sourceBehind(a arrival, destination netip.Addr, h *diagnostics.NodeHost) string {
	switch {
	case h.Source == "":
		return "an address of the node"
	case h.Masqueraded, h.Source == a.node.HostIP.String():
		return h.Source + " of the node"
	case h.Source != a.hops[0].Packet.Source:
		return h.Source + ", an egress IP"
	case !r.isPodAddress(h.Source):
		return h.Source
	}
	for _, p := range r.network.NonMasqueradeCIDRs {
		if p.Contains(destination) {
			return h.Source + ", which is not masqueraded (" + config.NonMasqueradeCIDRsAnnotation + ")"
		}
	}
	return h.Source + ", which is not masqueraded"
}
