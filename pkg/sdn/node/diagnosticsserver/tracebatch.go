package diagnosticsserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	batchTimeout = 10 * time.Second
	maxBatchBody = 512 << 10 // bytes; a packet has some 250
	// batchPause is the pause after each trace of a batch, in times of the trace: batches take at most a fifth of the thread of vswitchd that also handles flows
	// and ports, and traces of users wait for one trace at most.
	batchPause = 4
)

// serveTraces answers one request at a time. It does not count as one for a single trace.
func (h *Handler) serveTraces(w http.ResponseWriter, r *http.Request) {
	packets, err := readBatch(w, r)
	if err != nil {
		refuse(w, err)
		return
	}
	if !h.batching.CompareAndSwap(false, true) {
		refuse(w, failf(http.StatusTooManyRequests, "the agent of node %s answers another request for many traces; retry", h.options.NodeName))
		return
	}
	defer h.batching.Store(false)
	answer, err := h.traces(r.Context(), packets)
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, answer)
}

func readBatch(w http.ResponseWriter, r *http.Request) ([]diagnostics.TracePacket, error) {
	var batch diagnostics.TraceBatch
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBatchBody)).Decode(&batch)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge:
		return nil, failf(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxBatchBody)
	case err != nil:
		return nil, failf(http.StatusBadRequest, "the body is no TraceBatch: %w", err)
	case len(batch.Packets) == 0 || len(batch.Packets) > diagnostics.MaxTraceBatch:
		return nil, failf(http.StatusBadRequest, "the body has %d packets, but must have 1 to %d", len(batch.Packets), diagnostics.MaxTraceBatch)
	}
	return batch.Packets, nil
}

func (h *Handler) traces(ctx context.Context, packets []diagnostics.TracePacket) (*diagnostics.NodeTraces, error) {
	n, err := h.ready()
	if err != nil {
		return nil, err
	}
	pods := n.Pods()
	b := &traceBatch{Handler: h, network: n, pods: pods, names: newNames(n, pods), known: map[diagnostics.TracePacket][]*ovs.Trace{}}
	before := n.Store.Snapshot()
	timed, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	for _, packet := range packets {
		if err := b.add(timed, packet); err != nil {
			break // the client asks again for the others
		}
	}
	if len(b.packets) == 0 {
		return nil, failf(http.StatusServiceUnavailable, "vswitchd of node %s traced no packet in %v", h.options.NodeName, batchTimeout)
	}
	desired, err := b.desired(ctx, before)
	if err != nil {
		return nil, failf(http.StatusServiceUnavailable, "find the owners of flows on node %s: %w", h.options.NodeName, err)
	}
	answer := &diagnostics.NodeTraces{TypeMeta: h.typeMeta("NodeTraces"), ObjectMeta: metav1.ObjectMeta{Name: h.options.NodeName}}
	for _, p := range b.packets {
		answer.Results = append(answer.Results, p.result(desired))
	}
	return answer, nil
}

// traceBatch has the traces of a request.
type traceBatch struct {
	*Handler
	network *Network
	pods    []sandbox.Pod
	names   *names
	packets []batchPacket
	known   map[diagnostics.TracePacket][]*ovs.Trace // by packet without its destination port
}

// batchPacket is the trace of a packet, or why there is none.
type batchPacket struct {
	*tracer
	reason string
}

// add traces a packet and waits, for four times as long as it took. A packet that takes the path of one before, but for its destination port, is not traced. The
// error is that of the context.
func (b *traceBatch) add(ctx context.Context, p diagnostics.TracePacket) error {
	t := &tracer{Network: b.network, node: b.options.NodeName, pods: b.pods, names: b.names, tables: b.tables, parser: b.parser}
	unknown := func(err error) error {
		b.packets = append(b.packets, batchPacket{reason: err.Error()})
		return nil
	}
	var err error
	if p.Endpoint != "" {
		return unknown(errors.New("traces of a batch select no endpoint"))
	}
	if t.request, err = parsePacket(p.Query()); err != nil {
		return unknown(err)
	}
	packet, err := b.network.tracePacket(t.node, t.request, b.pods)
	if err != nil {
		return unknown(err)
	}
	if t.trace = b.equal(p); t.trace != nil {
		b.packets = append(b.packets, batchPacket{tracer: t})
		return ctx.Err()
	}
	begin := time.Now()
	report, err := b.network.Switch.Trace(ctx, packet)
	took := time.Since(begin)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	defer pause.For(ctx, batchPause*took)
	if err != nil {
		return unknown(fmt.Errorf("trace the packet on node %s: %w", t.node, err))
	}
	if t.trace, err = b.parser.Parse(report); err != nil {
		return unknown(fmt.Errorf("the agent of node %s can't read the trace: %w", t.node, err))
	}
	b.packets = append(b.packets, batchPacket{tracer: t})
	key := withoutPort(p)
	b.known[key] = append(b.known[key], t.trace)
	return nil
}

// equal returns the trace of a packet by that of another one; nil: none is known.
func (b *traceBatch) equal(p diagnostics.TracePacket) *ovs.Trace {
	for _, known := range b.known[withoutPort(p)] {
		if trace, ok := known.WithDestPort(p.DestinationPort); ok {
			return trace
		}
	}
	return nil
}

func withoutPort(p diagnostics.TracePacket) diagnostics.TracePacket {
	p.DestinationPort = 0
	return p
}

// desired returns the flows of all traces that the agent installed: before the first trace, or in the meantime.
func (b *traceBatch) desired(ctx context.Context, before *flowstore.Snapshot) (map[ovs.Key]*flowstore.DesiredFlow, error) {
	cookies := map[ovs.Key]uint64{}
	for _, p := range b.packets {
		if p.tracer != nil {
			addCookies(cookies, p.trace)
		}
	}
	snapshots := []*flowstore.Snapshot{before}
	if !b.network.Store.IsCurrent(before) {
		snapshots = append(snapshots, b.network.Store.Snapshot())
	}
	all := map[ovs.Key]*flowstore.DesiredFlow{}
	for _, snapshot := range snapshots {
		flows, err := snapshot.FlowsAt(ctx, cookies)
		if err != nil {
			return nil, err
		}
		for key, f := range byKey(flows) {
			if known := all[key]; known == nil || known.Cookie != cookies[key] {
				all[key] = f
			}
		}
	}
	return all, nil
}

func (p batchPacket) result(desired map[ovs.Key]*flowstore.DesiredFlow) diagnostics.TraceResult {
	if p.tracer == nil {
		return diagnostics.TraceResult{Verdict: diagnostics.VerdictUnknown, Reason: p.reason}
	}
	p.explainBy(desired)
	var o diagnostics.NodeTrace
	p.decide(&o)
	return diagnostics.TraceResult{Verdict: o.Verdict, Reason: o.Reason, Objects: o.Objects, Outputs: o.Outputs, Flow: p.deciding(o.Verdict)}
}

// deciding returns the flow that decided, as TraceResult.Flow.
func (t *tracer) deciding(verdict diagnostics.Verdict) *diagnostics.TraceStep {
	steps, _ := t.allSteps()
	last := len(steps) - 1
	if last < 0 {
		return nil
	}
	for i := range steps {
		if steps[i].Unexpected {
			return &steps[i]
		}
	}
	if verdict == diagnostics.VerdictDropped {
		return &steps[last]
	}
	for _, decides := range []func(*diagnostics.TraceStep) bool{isOfDenied, isOfPolicy} {
		for i := last; i >= 0; i-- {
			if decides(&steps[i]) {
				return &steps[i]
			}
		}
	}
	return &steps[last]
}

// isOfDenied reports whether the flow is one of those that drop what no policy allows.
func isOfDenied(s *diagnostics.TraceStep) bool {
	return s.Table == pipeline.EgressDeniedTable || s.Table == pipeline.IngressDeniedTable
}

// isOfPolicy reports whether the flow is made of a policy.
func isOfPolicy(s *diagnostics.TraceStep) bool {
	return slices.ContainsFunc(s.Objects, func(o diagnostics.TraceObject) bool {
		kind, _, _ := strings.Cut(o.Object, "/")
		return kind == string(diagnostics.KindNetworkPolicy) || kind == string(diagnostics.KindClusterNetworkPolicy)
	})
}
