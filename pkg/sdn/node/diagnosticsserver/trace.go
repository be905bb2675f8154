package diagnosticsserver

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	maxTraces    = 4 // at the same time: each takes vswitchd a moment
	traceTimeout = 5 * time.Second

	// maxHashes is the number of hash values with which a trace looks for the bucket of an endpoint. No group uses more.
	maxHashes = 256
)

// serveTrace answers maxTraces requests at the same time.
func (h *Handler) serveTrace(w http.ResponseWriter, r *http.Request) {
	select {
	case h.tracing <- struct{}{}:
		defer func() { <-h.tracing }()
	default:
		w.Header().Set("Retry-After", retryAfter)
		refuse(w, failf(http.StatusTooManyRequests, "the agent of node %s answers %d other requests for traces; retry", h.options.NodeName, maxTraces))
		return
	}
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
	t := &tracer{Network: n, node: h.options.NodeName, request: request, pods: pods, names: newNames(n, pods), tables: pipeline.TableNames()}
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

	trace *ovs.Trace
	steps [][]diagnostics.TraceStep // of each pass
	// unselected reports that the switch selects another endpoint than the request's.
	unselected bool
}

// run traces the packet. A write of the agent in the meantime may cause unexpected flows: it traces again, and in the end those are unexpected that were it twice.
func (t *tracer) run(ctx context.Context, packet ovs.TracePacket, answer *diagnostics.NodeTrace) error {
	var previous map[ovs.Key]bool
	for i := 1; ; i++ {
		snapshot := t.Store.Snapshot()
		hashes, err := t.hashes(ctx, snapshot)
		if err != nil {
			return failf(http.StatusServiceUnavailable, "find the endpoint on node %s: %w", t.node, err)
		}
		unreadable, err := t.selectEndpoint(ctx, packet, hashes)
		if err != nil {
			return failf(http.StatusServiceUnavailable, "trace the packet on node %s: %w", t.node, err)
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

// hashes returns the number of hash values by which the switch may select the wanted endpoint: 1 if none is wanted, or no service has it.
func (t *tracer) hashes(ctx context.Context, snapshot *flowstore.Snapshot) (uint32, error) {
	protocol := map[uint8]goovs.Protocol{
		ovs.ProtocolNumberTCP: goovs.ProtocolTCPv4, ovs.ProtocolNumberUDP: goovs.ProtocolUDPv4, ovs.ProtocolNumberSCTP: pipeline.ProtocolSCTP,
	}[t.request.protocol]
	if !t.request.endpoint.IsValid() || !t.Node.BalancesServices {
		return 1, nil
	}
	key, err := pipeline.EndpointKey(protocol, t.request.endpoint)
	if err != nil {
		return 1, err
	}
	flows, err := snapshot.FlowsAt(ctx, map[ovs.Key]uint64{key: 0})
	if err != nil || len(flows) == 0 {
		return 1, err
	}
	return maxHashes, nil
}

// selectEndpoint traces the packet until the switch selects the wanted endpoint, if there is one. unreadable is an error in the report.
func (t *tracer) selectEndpoint(ctx context.Context, packet ovs.TracePacket, hashes uint32) (unreadable, err error) {
	for packet.Hash = 1; ; packet.Hash++ {
		report, err := t.Switch.Trace(ctx, packet)
		if err != nil {
			return nil, err
		}
		if t.trace, unreadable = ovs.ParseTrace(report, numbers(t.tables)); unreadable != nil {
			return unreadable, nil
		}
		endpoint, byGroup := endpointOf(t.trace)
		t.unselected = t.request.endpoint.IsValid() && endpoint.IsValid() && endpoint != t.request.endpoint
		if !t.unselected || !byGroup || packet.Hash == hashes {
			return nil, nil
		}
	}
}

// endpointOf returns the endpoint of a service that the switch selects; the zero value if it selects none. byGroup reports whether other hash values may select
// another one.
func endpointOf(trace *ovs.Trace) (endpoint netip.AddrPort, byGroup bool) {
	for i := range trace.Passes {
		for _, f := range trace.Passes[i].Flows {
			for _, a := range f.Actions {
				byGroup = byGroup || strings.HasPrefix(a.Text, "group:")
				if _, to, found := strings.Cut(a.Text, "nat(dst="); found && f.Key.Table == pipeline.TranslateTable {
					to, _, _ = strings.Cut(to, ")")
					endpoint, _ = netip.ParseAddrPort(to)
				}
			}
		}
	}
	return endpoint, byGroup
}

// numbers returns the numbers of tables by name.
func numbers(names map[int]string) map[string]int {
	byName := make(map[string]int, len(names))
	for n, name := range names {
		byName[name] = n
	}
	return byName
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
