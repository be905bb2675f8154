package tracing

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// finish sets the verdict of a path by the arrival of its packet, and traces the reply of a packet that is delivered. pod is the destination, "" if it is not
// a pod or not known.
func (r *run) finish(ctx context.Context, path *diagnostics.TracePath, a arrival, pod string) {
	path.Hops = append(path.Hops, a.hops...)
	defer func() { path.NotEvaluated = append(path.NotEvaluated, underlays(path.Hops)...) }()
	path.Verdict = a.verdict
	switch {
	case a.verdict == diagnostics.VerdictDropped:
		path.Reason = fmt.Sprintf("on node %s: %s", a.node.Name, a.reason)
		return
	case a.verdict == diagnostics.VerdictUnknown:
		path.Reason = a.reason
		return
	case a.to == diagnostics.FromHost:
		if !r.atHost(ctx, path, a, hostEntry{from: diagnostics.FromTun0}) {
			return
		}
	case pod != "" && a.to != pod:
		path.Verdict = diagnostics.VerdictUnknown
		path.Reason = fmt.Sprintf("node %s delivers it to %s and not to %s; the API server reports the same address for both", a.node.Name, r.shown(ctx, a.to), pod)
		return
	default:
		path.Reason = fmt.Sprintf("delivered to %s on node %s", r.shown(ctx, a.to), a.node.Name)
	}
	if by := allowing(path.Hops); by != "" {
		path.Reason += "; allowed by " + by
	}
	r.reply(ctx, path, a)
}

// atHost sets the verdict of a packet that leaves the pod network to the host of a node. It reports whether it is delivered.
func (r *run) atHost(ctx context.Context, path *diagnostics.TracePath, a arrival, entry hostEntry) bool {
	destination, err := netip.ParseAddr(a.packet.Destination)
	if err != nil || r.isInPodNetwork(destination) && destination != a.node.gateway() {
		path.Verdict = diagnostics.VerdictUnknown
		path.Reason = fmt.Sprintf("node %s sends it to its host, which is not the destination", a.node.Name)
		return false
	}
	answer, problem := r.host(ctx, a, entry)
	if answer != nil {
		return r.routed(ctx, path, a, destination, answer)
	}
	if problem != "" {
		if !r.SeesHosts(ctx) { // it can have lines of iptables
			problem = "the agent did not report it"
		}
		path.NotEvaluated = append(path.NotEvaluated, fmt.Sprintf("the route of the host of node %s: %s", a.node.Name, problem))
	}
	r.withoutRoute(path, a, destination)
	return true
}

// withoutRoute sets the verdict of a packet at a host whose agent did not report what the host does with it.
func (r *run) withoutRoute(path *diagnostics.TracePath, a arrival, destination netip.Addr) {
	other, isNode := r.Cluster.NodeAt(destination)
	path.Verdict = diagnostics.VerdictDelivered
	switch {
	case destination == a.node.HostIP, destination == a.node.gateway():
		path.Reason = fmt.Sprintf("delivered to the host of node %s", a.node.Name)
		path.NotEvaluated = append(path.NotEvaluated, fmt.Sprintf("host-access and the firewall of node %s", a.node.Name))
	case isNode && destination == other.HostIP:
		path.Reason = fmt.Sprintf("delivered to node %s by the host of node %s, with the source %s", other.Name, a.node.Name, r.nodeSource(a))
		path.NotEvaluated = append(path.NotEvaluated, fmt.Sprintf("the firewalls of the nodes %s and %s", a.node.Name, other.Name))
	default:
		path.Reason = fmt.Sprintf("delivered out of the cluster by the host of node %s, with the source %s", a.node.Name, r.outsideSourceOf(a, destination))
		path.NotEvaluated = append(path.NotEvaluated, fmt.Sprintf("the routes and the firewall of node %s, and the network behind it", a.node.Name))
	}
}

// nodeSource returns the source of a packet from one node to another.
func (r *run) nodeSource(a arrival) string {
	if !r.isPodAddress(a.packet.Source) {
		return a.packet.Source
	}
	return a.node.HostIP.String() + " of the node"
}

// outsideSourceOf returns the source with which a packet leaves the cluster (docs/masquerade.md).
func (r *run) outsideSourceOf(a arrival, destination netip.Addr) string {
	if a.packet.Source != a.hops[0].Packet.Source {
		return a.packet.Source + ", an egress IP"
	}
	if !r.isPodAddress(a.packet.Source) {
		return a.packet.Source
	}
	for _, p := range r.network.NonMasqueradeCIDRs {
		if p.Contains(destination) {
			return a.packet.Source + ", which is not masqueraded (" + config.NonMasqueradeCIDRsAnnotation + ")"
		}
	}
	return fmt.Sprintf("%s of the node, or %s if its agent runs with --ip-masq=false", a.node.HostIP, a.packet.Source)
}

func (r *run) isPodAddress(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && r.isInPodNetwork(addr)
}

// reply traces the reply to a packet that was delivered.
func (r *run) reply(ctx context.Context, path *diagnostics.TracePath, a arrival) {
	first, last := a.start, a.packet
	if first.Source != last.Source { // an egress IP, or a hairpin
		path.NotEvaluated = append(path.NotEvaluated, "replies to "+last.Source)
		return
	}
	b := r.walk(ctx, a.node, diagnostics.TracePacket{
		From: a.to, Protocol: last.Protocol, Source: last.Destination, Destination: last.Source, SourcePort: last.DestinationPort, DestinationPort: last.SourcePort,
		Conntrack: diagnostics.ConntrackReply,
	})
	path.Hops = append(path.Hops, b.hops...)
	switch b.verdict {
	case diagnostics.VerdictDropped:
		path.Verdict = diagnostics.VerdictDropped
		path.Reason += fmt.Sprintf("; replies are dropped on node %s: %s", b.node.Name, b.reason)
	case diagnostics.VerdictUnknown:
		path.Verdict = diagnostics.VerdictUnknown
		path.Reason += "; the path of replies is not known: " + b.reason
	default:
		if fault := r.misdelivered(ctx, a, b); fault != "" {
			path.Verdict = diagnostics.VerdictUnknown
			path.Reason += "; " + fault
		}
	}
}

// misdelivered returns how the arrival b of the reply to a differs from the begin of a, "" if it does not.
func (r *run) misdelivered(ctx context.Context, a, b arrival) string {
	first := a.hops[0]
	packet := a.start
	isSource := b.to == packet.From
	if packet.From == diagnostics.FromHost && r.source.pod != "" {
		isSource = isSource || b.to == r.source.pod // conntrack, which a trace does not know, returns it to the host's proxy (docs/decisions/0002-external-proxy-answers.md)
	}
	switch {
	case !isSource || b.node.Name != first.Node:
		return fmt.Sprintf("replies arrive at %s on node %s, from where the packet did not come", described(r.shown(ctx, b.to)), b.node.Name)
	case b.packet.Destination != packet.Source:
		return fmt.Sprintf("replies arrive with the destination %s instead of %s", b.packet.Destination, packet.Source)
	case b.packet.Source != a.packet.Destination && b.packet.Source != packet.Destination: // the second one if the switch translates it
		return fmt.Sprintf("replies arrive with the source %s instead of %s", b.packet.Source, a.packet.Destination)
	}
	return ""
}

// underlays returns the underlays that the hops pass, which are not evaluated.
func underlays(hops []diagnostics.Hop) (texts []string) {
	for _, hop := range hops {
		from, ok := strings.CutPrefix(hop.From, nodePrefix)
		if !ok {
			continue
		}
		text := fmt.Sprintf("the underlay between nodes %s and %s", min(from, hop.Node), max(from, hop.Node))
		if !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return texts
}
