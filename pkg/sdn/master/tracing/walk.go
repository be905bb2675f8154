package tracing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// maxHops is the largest number of hops of one direction. A packet has at most three: the node of its source, that of the egress IP, that of its destination.
const maxHops = 8

const maxVNID = 1<<24 - 1

const (
	podPrefix  = string(diagnostics.KindPod) + "/"
	nodePrefix = string(diagnostics.KindNode) + "/"
)

// arrival is the end of a packet's way over bridges.
type arrival struct {
	hops    []diagnostics.Hop
	verdict diagnostics.Verdict // Delivered to a pod or a host, Dropped or Unknown
	reason  string              // if it is not delivered

	start  diagnostics.TracePacket // as it enters the first bridge
	node   Node                    // the last one
	to     string                  // pod/NAMESPACE/NAME, or host
	packet diagnostics.TracePacket // as it arrives
}

// walk follows the packet from bridge to bridge.
func (r *run) walk(ctx context.Context, node Node, packet diagnostics.TracePacket) (a arrival) {
	a.start = packet
	isShown := r.shown(ctx, packet.From) == packet.From
	for range maxHops {
		a.node, a.packet = node, packet
		hop, outputs := r.hop(ctx, node, packet)
		if !isShown { // the VNID is another tenant's
			hop.Packet.VNID = 0
			if len(outputs) > 0 {
				hop.Reason = "sent to " + described(r.shown(ctx, outputs[0].To))
			}
		}
		a.hops = append(a.hops, hop)
		a.verdict, a.reason = hop.Verdict, hop.Reason
		if hop.Verdict == diagnostics.VerdictDropped || hop.Verdict == diagnostics.VerdictUnknown {
			return a
		}
		out := outputs[0]
		a.to, a.packet = out.To, checked(out)
		next, ok := strings.CutPrefix(out.To, nodePrefix)
		if !ok {
			a.verdict = diagnostics.VerdictDelivered
			return a
		}
		var err error
		previous := node
		if node, err = r.Cluster.Node(next); err != nil {
			a.verdict, a.reason = diagnostics.VerdictUnknown, fmt.Sprintf("node %s sends it to node %s, which has no HostSubnet", previous.Name, printable(next))
			return a
		}
		packet = through(previous.Name, a.start, out)
	}
	a.verdict, a.reason = diagnostics.VerdictUnknown, fmt.Sprintf("nodes forward it more than %d times", maxHops)
	return a
}

// through returns the packet of a node's output to the tunnel as the bridge of the other node gets it. isValid accepts the output.
func through(node string, start diagnostics.TracePacket, out diagnostics.TraceOutput) diagnostics.TracePacket {
	p := checked(out)
	p.From, p.VNID, p.Conntrack, p.Origin = nodePrefix+node, out.VNID, start.Conntrack, start.Origin
	return p
}

// Through returns the packet of an output to the tunnel of the node that got the packet, as the bridge of the other node gets it. It returns false if the output can't
// be that of the packet.
func Through(node string, packet diagnostics.TracePacket, out diagnostics.TraceOutput) (diagnostics.TracePacket, bool) {
	if !isValid(out, packet) {
		return diagnostics.TracePacket{}, false
	}
	return through(node, packet, out), true
}

// hop asks the agent of one node. It returns outputs if the verdict is Delivered or Forwarded.
func (r *run) hop(ctx context.Context, node Node, packet diagnostics.TracePacket) (diagnostics.Hop, []diagnostics.TraceOutput) {
	hop := diagnostics.Hop{Node: node.Name, From: r.shown(ctx, packet.From), Packet: packet, Verdict: diagnostics.VerdictUnknown}
	hop.Packet.From = hop.From
	reason, silent := r.silent[node.Name]
	switch {
	case silent:
		hop.Reason = reason
		return hop, nil
	case node.NoAgent != "":
		hop.Reason = fmt.Sprintf("node %s: %s", node.Name, node.NoAgent)
		return hop, nil
	}
	answer, err := r.Agents.Trace(ctx, node, packet)
	if err != nil {
		hop.Reason = fmt.Sprintf("node %s: %s", node.Name, r.explain(ctx, node, packet, err))
		return hop, nil
	}
	if !isAnswerTo(packet, answer.Packet) {
		hop.Reason = fmt.Sprintf("the agent of node %s is older than the controller and can't evaluate it", node.Name)
		return hop, nil
	}
	r.redact(ctx, answer)
	hop.Steps = answer.Steps
	switch {
	case answer.Verdict == diagnostics.VerdictDropped:
		hop.Verdict, hop.Reason = diagnostics.VerdictDropped, r.reasonOf(ctx, answer)
		return hop, nil
	case answer.Verdict == diagnostics.VerdictUnknown:
		hop.Reason = fmt.Sprintf("node %s: %s", node.Name, r.reasonOf(ctx, answer))
		return hop, nil
	case len(answer.Outputs) > 1:
		hop.Reason = fmt.Sprintf("node %s: the bridge sends the packet to %d destinations", node.Name, len(answer.Outputs))
		return hop, nil
	case answer.Verdict != diagnostics.VerdictDelivered && answer.Verdict != diagnostics.VerdictForwarded, len(answer.Outputs) == 0, !isValid(answer.Outputs[0], packet):
		hop.Reason = fmt.Sprintf("node %s: invalid answer of the agent: its verdict and outputs can't be those of the packet", node.Name)
		return hop, nil
	}
	hop.Verdict = diagnostics.VerdictForwarded
	if strings.HasPrefix(answer.Outputs[0].To, podPrefix) {
		hop.Verdict = diagnostics.VerdictDelivered
	}
	hop.Reason = r.reasonOf(ctx, answer)
	return hop, answer.Outputs
}

// explain returns why an agent did not answer. What it reports about a pod that the user does not see is left out.
func (r *run) explain(ctx context.Context, node Node, packet diagnostics.TracePacket, err error) string {
	var known *AgentError
	if !errors.As(err, &known) {
		return err.Error()
	}
	if known.SkipNode {
		r.silent[node.Name] = fmt.Sprintf("node %s: %s", node.Name, known.Reason)
	} else if r.shown(ctx, packet.From) != packet.From || !r.seesNames(ctx, known.Reason) {
		return "the agent does not evaluate the packet"
	}
	return known.Reason
}

// isAnswerTo reports whether an agent evaluated the packet that was asked for, after its defaults. Agents ignore parameters that they do not know.
func isAnswerTo(asked, evaluated diagnostics.TracePacket) bool {
	if asked.Source == "" {
		asked.Source = evaluated.Source
	}
	if asked.SourcePort == 0 {
		asked.SourcePort = evaluated.SourcePort
	}
	if asked.Conntrack == "" {
		asked.Conntrack = diagnostics.ConntrackNew
	}
	return asked == evaluated
}

// checked returns the packet of an output that isValid accepts, with the fields that it checks only.
func checked(out diagnostics.TraceOutput) diagnostics.TracePacket {
	p := out.Packet
	return diagnostics.TracePacket{
		Protocol: p.Protocol, Source: p.Source, Destination: p.Destination, SourcePort: p.SourcePort, DestinationPort: p.DestinationPort, EgressIP: p.EgressIP,
	}
}

// isValid reports whether the agent's output can be that of the packet. Agents of other nodes get it.
func isValid(out diagnostics.TraceOutput, of diagnostics.TracePacket) bool {
	for _, text := range []string{out.Packet.Source, out.Packet.Destination} {
		if addr, err := netip.ParseAddr(text); err != nil || !addr.Is4() {
			return false
		}
	}
	if out.Packet.Protocol != of.Protocol || out.VNID > maxVNID {
		return false
	}
	if addr, err := netip.ParseAddr(out.Packet.EgressIP); out.Packet.EgressIP != "" && (err != nil || !addr.Is4()) {
		return false
	}
	if out.To == diagnostics.FromHost {
		return true
	}
	o, err := diagnostics.ParseObject(out.To)
	return err == nil && (o.Kind == diagnostics.KindPod || o.Kind == diagnostics.KindNode)
}
