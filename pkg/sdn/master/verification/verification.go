// Package verification compares the connections between pods that the objects of the cluster allow, by package oracle, with those that the flows of all nodes
// forward, by traces of their agents, and with real packets, by their probes (docs/decisions/0020-diagnostics.md). It does no I/O of its own.
package verification

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	firstGroup, maxGroup = 1000, 8000 // questions that are asked at the same time
	groupTime            = 8 * time.Second
	maxCandidates        = 500 // that are asked again, and a pair more
	maxReasons           = 16  // why questions have no answer

	// A node answers some 15 packets in a second if none of them arrives.
	firstSent, maxSent = 100, 100 // firstGroup and maxCandidates with packets
)

// sizes returns the least number of questions of a group, and the largest number of candidates.
func (r *run) sizes() (least, most int) {
	if r.request.Packets {
		return firstSent, maxSent
	}
	return firstGroup, maxCandidates
}

// Snapshot has the objects at one time. Its pods are those whose connections are verified: with an address in the pod network. They are sorted by namespace and
// name.
type Snapshot struct {
	oracle.Cluster
	Services []Service
}

// Service is a service with a selector.
type Service struct {
	Namespace string
	Selector  map[string]string
	Targets   []oracle.Port // of its endpoints, but named ones
}

// Agents are the agents of nodes.
type Agents interface {
	// Traces returns the results of the first packets, at least of one. Users may read the error.
	Traces(ctx context.Context, node tracing.Node, packets []diagnostics.TracePacket) ([]diagnostics.TraceResult, error)
	// Probes is Traces for packets that are sent from pods of the node.
	Probes(ctx context.Context, node tracing.Node, packets []diagnostics.TracePacket) ([]diagnostics.ProbeStatus, error)
}

// Request chooses the questions.
type Request struct {
	Namespace  string // of the pods; "" is all
	WithOthers bool   // also pairs with one pod of another namespace
	Sample     int    // questions that are drawn at random; 0: all
	Continue   string // of the previous answer
	Packets    bool   // packets are sent, too
}

// lateTime is how long agents may answer after the budget. What they do not answer is unknown, and does not end the verification of the others.
const lateTime = 10 * time.Second

// Verifier verifies connections.
type Verifier struct {
	Read   func(context.Context) (*Snapshot, error)
	Node   func(name string) (tracing.Node, error)
	Agents Agents

	Settle time.Duration // until a difference is asked again: agents may not have applied a change yet
	Budget time.Duration // after which no further questions are asked
}

// TooManyPairsError is the error of a request for too many pairs of pods.
type TooManyPairsError struct{ Pairs int }

// Error implements error.
func (e *TooManyPairsError) Error() string {
	return fmt.Sprintf("the pods have %d pairs, more than %d: use --namespace or --sample", e.Pairs, diagnostics.MaxVerifiedPairs)
}

// Difference is a confirmed difference with the result of the trace on the node that decided, and, if it is one by a packet, with what happened to that.
type Difference struct {
	diagnostics.Difference
	Result       diagnostics.TraceResult
	PacketReason string
}

// Result is the answer to a request. Its status has no differences.
type Result struct {
	Status      diagnostics.VerificationStatus
	Differences []Difference
}

// run is one request with one snapshot.
type run struct {
	*Verifier
	request  Request
	snapshot *Snapshot
	ports    *portsOf
	prints   map[string]string // of the objects of namespaces, by name
	silent   *silentNodes
}

func (v *Verifier) newRun(ctx context.Context, q Request) (*run, error) {
	s, err := v.Read(ctx)
	if err != nil {
		return nil, err
	}
	return &run{Verifier: v, request: q, snapshot: s, ports: newPortsOf(s), prints: map[string]string{}, silent: &silentNodes{}}, nil
}

// Verify answers a request. The error is a *TooManyPairsError, or that of Read or of the context.
func (v *Verifier) Verify(ctx context.Context, q Request) (*Result, error) {
	begin := time.Now()
	r, err := v.newRun(ctx, q)
	if err != nil {
		return nil, err
	}
	if pairs := r.pairs(); q.Sample == 0 && pairs > diagnostics.MaxVerifiedPairs {
		return nil, &TooManyPairsError{pairs}
	}
	result := &Result{Status: diagnostics.VerificationStatus{Pods: len(r.snapshot.Pods)}}
	asking, cancel := context.WithTimeout(ctx, r.Budget+lateTime)
	candidates := r.askAll(asking, begin, &result.Status)
	cancel()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(candidates) > 0 {
		if err := r.confirm(ctx, candidates, result); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(result.Differences, func(a, b Difference) int { return diagnostics.CompareDifferences(&a.Difference, &b.Difference) })
	result.Status.Duration = metav1.Duration{Duration: time.Since(begin).Round(time.Millisecond)}
	return result, nil
}

// askAll asks questions until none is left, or the time is over. It returns those whose answers differ.
func (r *run) askAll(ctx context.Context, begin time.Time, status *diagnostics.VerificationStatus) (candidates []question) {
	next := r.questions()
	drawn := len(next.sample)
	least, most := r.sizes()
	for size := least; ; {
		group := next.take(size)
		if len(group) == 0 {
			break
		}
		asked := time.Now()
		answers := r.ask(ctx, group)
		part := inTime(group, answers)
		for i, q := range group[:part] {
			a := answers[i]
			if a.verdict == diagnostics.VerdictUnknown {
				addUnknown(status, a.result.Reason)
			} else if r.differs(q, a) {
				candidates = append(candidates, q)
			}
			status.Questions++
			status.Sent += count(a.isSent)
			status.Unconfirmed += count(a.isUnconfirmed)
			if len(candidates) >= most && i+1 < part && !isSamePair(q, group[i+1]) {
				part = i + 1
				break
			}
		}
		if part < len(group) { // the next request asks the rest of the group again
			next.token = next.tokenOf(group[part-1])
			break
		}
		if ctx.Err() != nil || time.Since(begin) > r.Budget || len(candidates) >= most {
			break
		}
		rate := float64(len(group)) / max(time.Since(asked), time.Millisecond).Seconds()
		size = min(max(int(rate*groupTime.Seconds()), least), maxGroup)
	}
	status.Continue = next.token
	if drawn > 0 {
		status.Skipped = drawn - status.Questions
	}
	return candidates
}

// inTime returns the number of questions of the pairs before the first one that was not answered in time, or those of the first pair.
func inTime(group []question, answers []answer) int {
	late := slices.IndexFunc(answers, func(a answer) bool { return a.isLate })
	if late < 0 {
		return len(group)
	}
	for late > 0 && isSamePair(group[late-1], group[late]) {
		late--
	}
	if late > 0 {
		return late
	}
	for late < len(group) && isSamePair(group[0], group[late]) {
		late++
	}
	return late
}

func count(is bool) int {
	if is {
		return 1
	}
	return 0
}

func addUnknown(status *diagnostics.VerificationStatus, reason string) {
	status.Unknown++
	if len(status.Unanswered) < maxReasons && !slices.Contains(status.Unanswered, reason) {
		status.Unanswered = append(status.Unanswered, reason)
	}
}

// expected returns what the objects allow.
func (r *run) expected(q question) oracle.Verdict {
	from, to := r.snapshot.Pods[q.from], r.snapshot.Pods[q.to]
	return r.snapshot.Evaluate(oracle.Connection{From: endpoint(from), To: endpoint(to), Protocol: q.port.Protocol, Port: q.port.Number})
}

func endpoint(p *corev1.Pod) oracle.Endpoint { return oracle.Endpoint{Addr: addrOf(p), Pod: p} }

func expectedVerdict(v oracle.Verdict) diagnostics.Verdict {
	if v.Allowed {
		return diagnostics.VerdictDelivered
	}
	return diagnostics.VerdictDropped
}

// differs reports whether the answer is none that the objects allow.
func (r *run) differs(q question, a answer) bool { return a.verdict != expectedVerdict(r.expected(q)) }

// confirm asks the candidates again, with objects that are read again before and after. What changed is no difference.
func (r *run) confirm(ctx context.Context, candidates []question, result *Result) error {
	if !pause.For(ctx, r.Settle) {
		return ctx.Err()
	}
	again, err := r.newRun(ctx, r.request)
	if err != nil {
		return err
	}
	again.silent = r.silent
	var same []question
	for _, q := range candidates {
		if found, ok := again.unchanged(r, q); ok {
			same = append(same, found)
		} else {
			result.Status.Changed++
		}
	}
	answers := again.ask(ctx, same)
	after, err := r.newRun(ctx, r.request)
	if err != nil {
		return err
	}
	for i, q := range same {
		a := answers[i]
		_, ok := after.unchanged(again, q)
		switch {
		case a.verdict == diagnostics.VerdictUnknown:
			addUnknown(&result.Status, a.result.Reason)
		case !ok || !again.differs(q, a):
			result.Status.Changed++
		default:
			result.Differences = append(result.Differences, again.difference(q, a))
		}
	}
	return nil
}

func (r *run) difference(q question, a answer) Difference {
	want := r.expected(q)
	return Difference{Result: a.result, PacketReason: a.packet, Difference: diagnostics.Difference{
		Source: nameOf(r.snapshot.Pods[q.from]), Destination: nameOf(r.snapshot.Pods[q.to]), Protocol: string(q.port.Protocol), Port: q.port.Number,
		Expected: expectedVerdict(want), ExpectedReason: want.Why, Actual: a.verdict, ByPacket: a.byPacket, Node: a.node,
	}}
}

// nameOf returns the pod as in diagnostics.Object.
func nameOf(p *corev1.Pod) string {
	return diagnostics.Object{Kind: diagnostics.KindPod, Namespace: p.Namespace, Name: p.Name}.String()
}
