package diagnosticsserver

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

const (
	maxTraces    = 4 // at the same time: each takes vswitchd a moment
	traceTimeout = 5 * time.Second

	// vswitchd traces a packet in its main thread, which also handles flows and ports.
	tracesPerSecond, traceBurst = 100, 300
)

// startTrace returns the function that ends the answer to a request for a trace. If maxTraces others are being answered, it refuses the request, and returns nil.
func (h *Handler) startTrace(w http.ResponseWriter) (release func()) {
	select {
	case h.tracing <- struct{}{}:
		return func() { <-h.tracing }
	default:
		refuse(w, failf(http.StatusTooManyRequests, "the agent of node %s answers %d other requests for traces; retry", h.options.NodeName, maxTraces))
		return nil
	}
}

// serveTrace answers maxTraces requests at the same time.
func (h *Handler) serveTrace(w http.ResponseWriter, r *http.Request) {
	release := h.startTrace(w)
	if release == nil {
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), traceTimeout)
	defer cancel()
	answer, err := h.trace(ctx, r)
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, answer)
}

func (h *Handler) trace(ctx context.Context, r *http.Request) (*diagnostics.NodeTrace, error) {
	request, err := parseTrace(r.URL.RawQuery)
	if err != nil {
		return nil, err
	}
	n, err := h.ready()
	if err != nil {
		return nil, err
	}
	pods := n.Pods()
	packet, err := n.tracePacket(h.options.NodeName, request, pods)
	if err != nil {
		return nil, err
	}
	t := &tracer{
		Network: n, node: h.options.NodeName, request: request, pods: pods, names: newNames(n, pods), tables: h.tables, parser: h.parser, limiter: h.limiter, hash: 1,
	}
	answer := &diagnostics.NodeTrace{TypeMeta: h.typeMeta("NodeTrace"), ObjectMeta: metav1.ObjectMeta{Name: h.options.NodeName}, Packet: request.packet}
	return answer, t.run(ctx, packet, answer)
}

// tracer traces a packet through the bridge, and explains what happens to it.
type tracer struct {
	*Network
	node    string
	request *traceRequest
	pods    []sandbox.Pod
	names   *names
	tables  map[int]string
	parser  *ovs.TraceParser
	limiter *rate.Limiter

	hash   uint32 // of the last trace
	search *endpointSearch

	trace *ovs.Trace
	steps [][]diagnostics.TraceStep // of each pass
	// unselected reports that the switch selects another endpoint than the request's.
	unselected bool
}

// run traces the packet. The agent may write flows between the trace and the snapshot: it repeats the trace, and reports a flow as unexpected only if two traces
// found it.
func (t *tracer) run(ctx context.Context, packet ovs.TracePacket, answer *diagnostics.NodeTrace) error {
	var previous map[ovs.Key]bool
	for i := 1; ; i++ {
		snapshot := t.Store.Snapshot()
		unreadable, err := t.selectEndpoint(ctx, packet, snapshot)
		if err != nil {
			return err
		}
		if unreadable != nil {
			answer.Verdict, answer.Reason = diagnostics.VerdictUnknown, fmt.Sprintf("the agent of node %s can't read the trace: %v", t.node, unreadable)
			return nil
		}
		unexpected, err := t.explain(ctx, snapshot)
		if err != nil {
			return failf(http.StatusServiceUnavailable, "find the owners of flows on node %s: %w", t.node, err)
		}
		isCurrent := t.Store.IsCurrent(snapshot)
		if !isCurrent && i == maxComparisons {
			t.confirm(previous)
		}
		if isCurrent || len(unexpected) == 0 || i == maxComparisons {
			t.conclude(answer)
			return nil
		}
		previous = unexpected
	}
}

// maxSteps bounds an answer. A packet to a service has more of them if many of its endpoints are outside of the pod network.
const maxSteps = 256

// allSteps returns the steps of all passes. If there are too many, it leaves out some in the middle, and returns their number.
func (t *tracer) allSteps() (steps []diagnostics.TraceStep, omitted int) {
	steps = slices.Concat(t.steps...)
	if omitted = len(steps) - maxSteps; omitted <= 0 {
		return steps, 0
	}
	return slices.Delete(steps, maxSteps/2, maxSteps/2+omitted), omitted
}
