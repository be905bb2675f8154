package verification

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
)

// maxNodes is the number of nodes that are asked at the same time.
const maxNodes = 32

// answer is what the flows, or a real packet if byPacket, do with a connection: Delivered to its destination, Dropped, Forwarded elsewhere, or Unknown.
type answer struct {
	verdict  diagnostics.Verdict
	node     string // that decided
	byPacket bool
	result   diagnostics.TraceResult

	isSent, isUnconfirmed bool // as of VerificationStatus
}

// asked is a packet on a node.
type asked struct {
	question int
	packet   diagnostics.TracePacket
}

// ask returns the answers to the questions: what the flows do, and if wanted what happens to real packets where that is what the objects allow.
func (r *run) ask(ctx context.Context, questions []question) []answer {
	answers := r.trace(ctx, questions)
	if r.request.Packets {
		r.send(ctx, questions, answers)
	}
	return answers
}

// packetOf returns the packet of a question as its source sends it, and the source's node.
func (r *run) packetOf(q question) (node string, packet diagnostics.TracePacket) {
	from, to := r.snapshot.Pods[q.from], r.snapshot.Pods[q.to]
	return from.Spec.NodeName, diagnostics.TracePacket{
		From: nameOf(from), Protocol: string(q.port.Protocol), Destination: to.Status.PodIP, DestinationPort: uint16(q.port.Number), //nolint:gosec // a port
	}
}

// trace asks all nodes of sources in parallel, and then those to which the packets go through the tunnel.
func (r *run) trace(ctx context.Context, questions []question) []answer {
	answers := make([]answer, len(questions))
	first := map[string][]asked{}
	for i, q := range questions {
		node, packet := r.packetOf(q)
		first[node] = append(first[node], asked{i, packet})
	}
	results := round(ctx, first, r.traceAt)
	second := map[string][]asked{}
	for node, all := range first {
		for i, a := range all {
			q, result := questions[a.question], results[node][i]
			there := r.snapshot.Pods[q.to].Spec.NodeName
			if next, ok := throughTunnel(node, there, r.snapshot.Pods[q.from].Status.PodIP, a.packet, result); ok {
				second[there] = append(second[there], asked{a.question, next})
			} else {
				answers[a.question] = r.end(q, node, result)
			}
		}
	}
	results = round(ctx, second, r.traceAt)
	for node, all := range second {
		for i, a := range all {
			answers[a.question] = r.end(questions[a.question], node, results[node][i])
		}
	}
	return answers
}

// throughTunnel returns the packet as the node of the destination gets it, if the first node sends it there only, with the address of its source.
func throughTunnel(node, there, source string, packet diagnostics.TracePacket, result diagnostics.TraceResult) (diagnostics.TracePacket, bool) {
	want := diagnostics.Object{Kind: diagnostics.KindNode, Name: there}.String()
	if result.Verdict != diagnostics.VerdictForwarded || len(result.Outputs) != 1 || result.Outputs[0].To != want || node == there {
		return diagnostics.TracePacket{}, false
	}
	next, ok := tracing.Through(node, packet, result.Outputs[0])
	// An agent decides neither about another connection nor for another pod.
	ok = ok && next.Protocol == packet.Protocol && next.Destination == packet.Destination && next.DestinationPort == packet.DestinationPort && next.Source == source
	return next, ok
}

// end returns the answer that a node's result is.
func (r *run) end(q question, node string, result diagnostics.TraceResult) answer {
	a := answer{verdict: result.Verdict, node: node, result: result}
	switch result.Verdict {
	case diagnostics.VerdictDropped, diagnostics.VerdictUnknown:
		return a
	case diagnostics.VerdictDelivered, diagnostics.VerdictForwarded:
	default:
		return unknown(node, fmt.Sprintf("node %s: invalid answer of the agent", node))
	}
	if to := r.snapshot.Pods[q.to]; len(result.Outputs) == 1 && result.Outputs[0].To == nameOf(to) && to.Spec.NodeName == node {
		a.verdict = diagnostics.VerdictDelivered
		return a
	}
	var to []string
	for _, out := range result.Outputs {
		to = append(to, out.To)
	}
	a.verdict, a.result.Reason = diagnostics.VerdictForwarded, fmt.Sprintf("the bridge sends it to %s: %s", strings.Join(to, ", "), result.Reason)
	return a
}

func unknown(node, reason string) answer {
	return answer{verdict: diagnostics.VerdictUnknown, node: node, result: diagnostics.TraceResult{Verdict: diagnostics.VerdictUnknown, Reason: reason}}
}

// round asks nodes in parallel. It returns a result for each packet.
func round[T any](ctx context.Context, byNode map[string][]asked, ask func(ctx context.Context, node string, all []asked) []T) map[string][]T {
	results := make(map[string][]T, len(byNode))
	var mu sync.Mutex
	var running sync.WaitGroup
	free := make(chan struct{}, maxNodes)
	for node, all := range byNode {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			own := ask(ctx, node, all)
			mu.Lock()
			defer mu.Unlock()
			results[node] = own
		})
	}
	running.Wait()
	return results
}

// traceAt returns a result for each packet; Unknown for those that the agent did not answer.
func (r *run) traceAt(ctx context.Context, name string, all []asked) []diagnostics.TraceResult {
	results, err := inBatches(ctx, r, name, all, r.Agents.Traces)
	for len(results) < len(all) {
		results = append(results, unknown(name, fmt.Sprintf("node %s: %v", name, err)).result)
	}
	return results
}

// inBatches asks one node in batches. The error is why there are fewer results than packets.
func inBatches[T any](ctx context.Context, r *run, name string, all []asked, ask func(context.Context, tracing.Node, []diagnostics.TracePacket) ([]T, error)) (results []T, err error) {
	packets := make([]diagnostics.TracePacket, len(all))
	for i := range all {
		packets[i] = all[i].packet
	}
	node, err := r.Node(name)
	if err == nil && node.NoAgent != "" {
		err = &tracing.AgentError{Reason: node.NoAgent}
	}
	for err == nil && len(results) < len(packets) {
		rest := packets[len(results):]
		var some []T
		if some, err = ask(ctx, node, rest[:min(len(rest), diagnostics.MaxBatchPackets)]); err == nil {
			results = append(results, some[:min(len(some), len(rest))]...)
		}
	}
	return results, err
}
