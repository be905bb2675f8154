package verification

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// send sends a packet for each question that the flows answer as the objects do, and replaces the answers that packets contradict.
func (r *run) send(ctx context.Context, questions []question, answers []answer) {
	byNode := map[string][]asked{}
	for i, q := range questions {
		if isSent := q.port.Protocol == corev1.ProtocolTCP || q.port.Protocol == corev1.ProtocolUDP; !isSent || r.differs(q, answers[i]) {
			continue
		}
		node, packet := r.packetOf(q)
		byNode[node] = append(byNode[node], asked{i, packet})
	}
	for node, o := range round(ctx, r, probes, byNode, r.Agents.Probes) {
		for i, a := range byNode[node] {
			if status, err := o.at(i); err != nil {
				answers[a.question] = r.unanswered(ctx, probes, node, err)
			} else {
				answers[a.question] = answers[a.question].withPacket(node, questions[a.question].port.Protocol, status)
			}
		}
	}
}

// withPacket returns the answer, replaced by the packet's result if that contradicts it, or Unknown if the packet has no result. UDP without an answer contradicts
// nothing: a server that does not answer can't be distinguished from a dropped packet.
func (a answer) withPacket(node string, protocol corev1.Protocol, packet diagnostics.ProbeStatus) answer {
	verdict := diagnostics.VerdictDropped
	a.isSent = true
	switch packet.Verdict {
	case diagnostics.VerdictAnswered, diagnostics.VerdictRefused:
		if packet.Reached {
			verdict = diagnostics.VerdictDelivered
		}
	case diagnostics.VerdictNoAnswer:
		if protocol == corev1.ProtocolUDP {
			a.isUnconfirmed = a.verdict == diagnostics.VerdictDelivered
			return a
		}
	case diagnostics.VerdictUnknown:
		return unknown(node, packet.Reason)
	default:
		return unknown(node, fmt.Sprintf("node %s: invalid answer of the agent", node))
	}
	if verdict == a.verdict {
		return a
	}
	a.verdict, a.node, a.byPacket, a.packet = verdict, node, true, packet.Reason
	return a
}
