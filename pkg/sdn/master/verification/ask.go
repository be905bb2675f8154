package verification

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
)

// What nodes are asked for.
const (
	traces = "traces"
	probes = "probes"
)

// maxNodes is the number of nodes that are asked at the same time.
const maxNodes = 32

// answer is what the flows, or a real packet if byPacket, do with a connection: Delivered to its destination, Dropped, Forwarded elsewhere, or Unknown.
type answer struct {
	verdict  diagnostics.Verdict
	node     string // that decided
	byPacket bool
	result   diagnostics.TraceResult

	packet string // what happened to a real packet, if byPacket
	isLate bool   // the time was over before the agent was asked, or answered

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
	chunk := diagnostics.MaxBatchPackets
	if len(questions) > firstGroup { // as many as are answered in time, by the rate of the previous ones
		chunk = together
	}
	arrange(first, chunk, func(a, b asked) int {
		there := func(a asked) string { return r.snapshot.Pods[questions[a.question].to].Spec.NodeName }
		return cmp.Or(cmp.Compare(a.packet.From, b.packet.From), cmp.Compare(there(a), there(b)), cmp.Compare(a.packet.Destination, b.packet.Destination))
	})
	outcomes := round(ctx, r, traces, first, r.Agents.Traces)
	second := map[string][]asked{}
	for node, all := range first {
		for i, a := range all {
			result, err := outcomes[node].at(i)
			if err != nil {
				answers[a.question] = r.unanswered(ctx, traces, node, err)
				continue
			}
			q := questions[a.question]
			there := r.snapshot.Pods[q.to].Spec.NodeName
			if next, ok := throughTunnel(node, there, r.snapshot.Pods[q.from].Status.PodIP, a.packet, result); ok {
				second[there] = append(second[there], asked{a.question, next})
			} else {
				answers[a.question] = r.end(q, node, result)
			}
		}
	}
	arrange(second, chunk, func(a, b asked) int {
		return cmp.Or(cmp.Compare(a.packet.Destination, b.packet.Destination), cmp.Compare(a.packet.VNID, b.packet.VNID),
			cmp.Compare(a.packet.From, b.packet.From), cmp.Compare(a.packet.Source, b.packet.Source))
	})
	outcomes = round(ctx, r, traces, second, r.Agents.Traces)
	for node, all := range second {
		for i, a := range all {
			if result, err := outcomes[node].at(i); err != nil {
				answers[a.question] = r.unanswered(ctx, traces, node, err)
			} else {
				answers[a.question] = r.end(questions[a.question], node, result)
			}
		}
	}
	return answers
}

// together is the number of a node's packets that are put in an order by which those that may take one path follow each other: an agent traces few of these. If the time
// ends, it is the number of those that have to be asked again.
const together = 4 * diagnostics.MaxBatchPackets

// arrange sorts each chunk of a node's packets. The chunks are in the order of the questions.
func arrange(byNode map[string][]asked, chunk int, compare func(a, b asked) int) {
	for _, all := range byNode {
		slices.SortFunc(all, func(a, b asked) int { return cmp.Compare(a.question, b.question) })
		for some := range slices.Chunk(all, chunk) {
			slices.SortStableFunc(some, compare)
		}
	}
}

// unanswered returns the answer to a question that the agent did not answer.
func (r *run) unanswered(ctx context.Context, what, node string, err error) answer {
	a := unknown(node, fmt.Sprintf("node %s: %v", node, err))
	if a.isLate = ctx.Err() != nil && r.silent.get(what, node) == nil; a.isLate {
		a.result.Reason = fmt.Sprintf("node %s: not answered in the time of a request; use --sample", node)
	}
	return a
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

// outcome is the results of the first packets on a node, and why there are no others.
type outcome[T any] struct {
	results []T
	err     error
}

func (o outcome[T]) at(packet int) (result T, err error) {
	if packet < len(o.results) {
		return o.results[packet], nil
	}
	return result, o.err
}

// round asks nodes in parallel for what they do with packets: traces or probes.
func round[T any](ctx context.Context, r *run, what string, byNode map[string][]asked, ask askFunc[T]) map[string]outcome[T] {
	outcomes := make(map[string]outcome[T], len(byNode))
	var mu sync.Mutex
	var running sync.WaitGroup
	free := make(chan struct{}, maxNodes)
	for node, all := range byNode {
		free <- struct{}{}
		running.Go(func() {
			defer func() { <-free }()
			own := inBatches(ctx, r, what, node, all, ask)
			mu.Lock()
			defer mu.Unlock()
			outcomes[node] = own
		})
	}
	running.Wait()
	return outcomes
}

type askFunc[T any] func(context.Context, tracing.Node, []diagnostics.TracePacket) ([]T, error)

// inBatches asks one node in batches. A node that did not answer is not asked again.
func inBatches[T any](ctx context.Context, r *run, what, name string, all []asked, ask askFunc[T]) (o outcome[T]) {
	packets := make([]diagnostics.TracePacket, len(all))
	for i := range all {
		packets[i] = all[i].packet
	}
	var node tracing.Node
	if o.err = r.silent.get(what, name); o.err == nil {
		node, o.err = r.Node(name)
	}
	if o.err == nil && node.NoAgent != "" {
		o.err = &tracing.AgentError{Reason: node.NoAgent}
	}
	for o.err == nil && len(o.results) < len(packets) {
		rest := packets[len(o.results):]
		some, err := ask(ctx, node, rest[:min(len(rest), diagnostics.MaxBatchPackets)])
		if o.err = err; err == nil {
			o.results = append(o.results, some[:min(len(some), len(rest))]...)
		} else if ctx.Err() == nil {
			r.silent.add(what, name, err)
		}
	}
	return o
}

// silentNodes are the nodes that did not answer, by what they were asked for, with the error. It is safe for concurrent use.
type silentNodes struct {
	mu     sync.Mutex
	errors map[[2]string]error
}

func (s *silentNodes) get(what, node string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errors[[2]string{what, node}]
}

func (s *silentNodes) add(what, node string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.errors == nil {
		s.errors = map[[2]string]error{}
	}
	s.errors[[2]string{what, node}] = err
}
