package diagnosticsserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	batchTimeout = 10 * time.Second
	maxBatchBody = 512 << 10 // bytes; a packet has some 250
	// tracesPerCall is the number of packets of a batch that vswitchd traces without other work in between: the way to it and back takes longer than a trace.
	tracesPerCall = 8
	// batchPause is how long vswitchd is not asked again, in times of the traces: batches take at most a fifth of its thread that also handles flows and ports, and
	// traces of users wait for tracesPerCall traces at most. A vswitchd that was stuck for a moment does not stop them for longer than maxPause.
	batchPause = 4
	maxPause   = time.Second
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
	var batch diagnostics.PacketBatch
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBatchBody)).Decode(&batch)
	_, tooLarge := errors.AsType[*http.MaxBytesError](err)
	switch {
	case tooLarge:
		return nil, failf(http.StatusRequestEntityTooLarge, "the body has more than %d bytes", maxBatchBody)
	case err != nil:
		return nil, failf(http.StatusBadRequest, "the body is no PacketBatch: %w", err)
	case len(batch.Packets) == 0 || len(batch.Packets) > diagnostics.MaxBatchPackets:
		return nil, failf(http.StatusBadRequest, "the body has %d packets, but must have 1 to %d", len(batch.Packets), diagnostics.MaxBatchPackets)
	}
	return batch.Packets, nil
}

func (h *Handler) traces(ctx context.Context, packets []diagnostics.TracePacket) (*diagnostics.NodeTraces, error) {
	n, err := h.ready()
	if err != nil {
		return nil, err
	}
	b := h.newBatch(n, packets)
	before := n.Store.Snapshot()
	timed, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	for group := b.next(); len(group) > 0 && timed.Err() == nil; group = b.next() {
		h.nextTraces = b.trace(timed, group, h.nextTraces)
	}
	if at := slices.IndexFunc(b.packets, (*batchPacket).isPending); at >= 0 {
		b.packets = b.packets[:at] // the client asks again for the others
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
	network *Network
	packets []*batchPacket
	known   map[string][]*ovs.Trace // by batchPacket.similar
	paths   map[pathKey]int         // the numbers of known traces
}

// pathKey is of packets to one destination that may have one path.
type pathKey struct {
	similar string
	dest    netip.Addr
}

// batchPacket is a packet with its trace, or the reason why there is none. It is pending as long as it has neither.
type batchPacket struct {
	tracer
	packet diagnostics.TracePacket
	traced ovs.TracePacket
	reason string

	similar string // the same for packets that may differ in their addresses and destination ports only
}

func (p *batchPacket) isPending() bool { return p.trace == nil && p.reason == "" }

func (h *Handler) newBatch(n *Network, packets []diagnostics.TracePacket) *traceBatch {
	b := &traceBatch{network: n, known: map[string][]*ovs.Trace{}, paths: map[pathKey]int{}}
	pods := n.Pods()
	names := newNames(n, pods)
	for _, packet := range packets {
		p := &batchPacket{packet: packet, tracer: tracer{Network: n, node: h.options.NodeName, pods: pods, names: names, tables: h.tables, parser: h.parser}}
		b.packets = append(b.packets, p)
		var err error
		if packet.Endpoint != "" {
			err = errors.New("traces of a batch select no endpoint")
		} else if p.request, err = parsePacket(packet.Query()); err == nil {
			p.traced, err = n.tracePacket(p.node, p.request, pods)
		}
		if err != nil {
			p.reason = err.Error()
		}
		other := p.traced
		other.EthSource, other.EthDest, other.Source, other.Dest, other.DestPort = nil, nil, netip.Addr{}, netip.Addr{}, 0
		p.similar = fmt.Sprint(other)
	}
	return b
}

// next returns the pending packets to trace next. Packets that take the path of one that was traced have its trace. So of those that may have one path, it
// returns one for a new destination, and for a known destination as many as it has paths: there, ports or sources are distinguished.
func (b *traceBatch) next() (group []*batchPacket) {
	chosen := map[pathKey]int{} // with an invalid address: new destinations
	for _, p := range b.packets {
		if !p.isPending() {
			continue
		}
		if p.trace = b.knownTrace(p); p.trace != nil {
			continue
		}
		key, limit := pathKey{p.similar, p.traced.Dest}, b.paths[pathKey{p.similar, p.traced.Dest}]
		if limit == 0 {
			key, limit = pathKey{similar: p.similar}, 1
		}
		if chosen[key] == limit {
			continue
		}
		chosen[key]++
		if group = append(group, p); len(group) == tracesPerCall {
			break
		}
	}
	return group
}

// knownTrace returns the trace of a packet by that of another one; nil: none is known.
func (b *traceBatch) knownTrace(p *batchPacket) *ovs.Trace {
	for _, known := range b.known[p.similar] {
		if trace, ok := known.For(p.traced); ok {
			return trace
		}
	}
	return nil
}

// trace traces packets, not before a time, and returns the time for the next ones. They remain pending if the context ends. Reports are read, and answers written, while
// vswitchd has its pause.
func (b *traceBatch) trace(ctx context.Context, group []*batchPacket, begin time.Time) (next time.Time) {
	if !pause.For(ctx, time.Until(begin)) {
		return begin
	}
	packets := make([]ovs.TracePacket, len(group))
	for i, p := range group {
		packets[i] = p.traced
	}
	begin = time.Now()
	reports, err := b.network.Switch.Traces(ctx, packets)
	next = time.Now().Add(min(batchPause*time.Since(begin), maxPause))
	if ctx.Err() != nil {
		return next
	}
	if err != nil && len(group) > 1 { // perhaps the report of one of them can't be read
		for i := range group {
			next = b.trace(ctx, group[i:i+1], next)
		}
		return next
	}
	for i, p := range group {
		if err == nil {
			p.read(reports[i])
		} else {
			p.read(ovs.TraceReport{Err: err})
		}
		if p.trace != nil {
			b.known[p.similar] = append(b.known[p.similar], p.trace)
			b.paths[pathKey{p.similar, p.traced.Dest}]++
		}
	}
	return next
}

func (p *batchPacket) read(report ovs.TraceReport) {
	if report.Err != nil {
		p.reason = fmt.Sprintf("trace the packet on node %s: %v", p.node, report.Err)
		return
	}
	var err error
	if p.trace, err = p.parser.Parse(report.Text); err != nil {
		p.reason = fmt.Sprintf("the agent of node %s can't read the trace: %v", p.node, err)
	}
}

// desired returns the flows of all traces that the agent installed: before the first trace, or in the meantime.
func (b *traceBatch) desired(ctx context.Context, before *flowstore.Snapshot) (map[ovs.Key]*flowstore.DesiredFlow, error) {
	cookies := map[ovs.Key]uint64{}
	for _, p := range b.packets {
		if p.trace != nil {
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

func (p *batchPacket) result(desired map[ovs.Key]*flowstore.DesiredFlow) diagnostics.TraceResult {
	if p.trace == nil {
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
