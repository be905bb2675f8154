package diagnosticsserver

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"golang.org/x/time/rate"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Each trace takes vswitchd's main thread a moment.
func TestTrace_boundsSearchOfEndpoint(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, true)
	traces := 0
	n.network.Switch = &fakeSwitch{trace: func(ctx context.Context, p ovs.TracePacket) (string, error) {
		traces++
		return n.bridge.Trace(ctx, p)
	}}
	for _, tc := range []struct {
		destination, endpoint string
		verdict               diagnostics.Verdict
		most                  int
	}{
		{"172.30.0.10", "10.128.0.3:8080", delivered, 2},
		{"172.30.0.10", "10.129.0.7:8080", forwarded, 2},
		{"172.30.0.10", "10.129.0.8:8080", unknown, 1},            // of no service
		{"172.30.0.10", "10.129.0.6:8080", unknown, 1},            // of another service
		{"172.30.0.10", "10.129.0.5:8080", unknown, 2 + minKnown}, // of another port of the service
		{"172.30.0.14", "10.129.0.5:8080", unknown, maxHashes},
		{"172.30.0.14", manyEndpoints()[0].String(), forwarded, maxHashes},
		{"172.30.0.14", manyEndpoints()[255].String(), forwarded, maxHashes},
	} {
		traces = 0
		got := n.traced(t, fmt.Sprintf("from=pod/default/db destination=%s protocol=TCP destinationPort=80 endpoint=%s", tc.destination, tc.endpoint))
		if got.Verdict != tc.verdict || traces > tc.most {
			t.Errorf("endpoint %s of %s: got %s after %d traces, want %s after at most %d: %s", tc.endpoint, tc.destination, got.Verdict, traces, tc.verdict, tc.most, got.Reason)
		}
	}
}

// A search finds each endpoint of a service, however many it has.
func TestTrace_findsEachEndpoint(t *testing.T) {
	for endpoints := 1; endpoints <= maxHashes; endpoints++ {
		all := manyEndpoints()[:endpoints]
		for _, last := range []int{0, endpoints / 2, endpoints - 1} {
			selected := slices.Concat(all[last:], all[:last]) // successive hash values select all endpoints before one again
			s := newEndpointSearch(true)
			i := 0
			for s.next(selected[i%endpoints]) {
				i++
			}
			if len(s.seen) != endpoints {
				t.Fatalf("%d endpoints: got %d after %d hash values", endpoints, len(s.seen), i+1)
			}
		}
	}
}

// A write of the agent repeats the trace, but not the search.
func TestTrace_searchesOnce(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, true)
	for _, table := range []int{pipeline.LocalPodTable, pipeline.RemoteTable} {
		n.sw.OFCtl(t, "add-flow", ovstest.Bridge, fmt.Sprintf("table=%d,priority=9999,ip,actions=drop", table))
	}
	traces := 0
	n.network.Switch = &fakeSwitch{trace: func(ctx context.Context, p ovs.TracePacket) (string, error) {
		traces++
		ip := netip.AddrFrom4([4]byte{198, 51, 100, byte(100 + traces)})
		write := flowstore.Change{Owner: pipeline.Owner{Kind: pipeline.KindEgressIP, Key: ip.String()}, State: n.network.Node.EgressIP(pipeline.EgressIP{IP: ip})}
		if err := flowstore.WaitAll(ctx, n.store.Update(flowstore.Update{Changes: []flowstore.Change{write}})); err != nil {
			t.Error(err)
		}
		return n.bridge.Trace(ctx, p)
	}}
	n.traced(t, "from=pod/default/db destination=172.30.0.10 protocol=TCP destinationPort=80 endpoint=10.129.0.5:8080")
	if want := 2 + minKnown + maxComparisons - 1; traces != want {
		t.Errorf("got %d traces, want %d", traces, want)
	}
}

func TestTrace_limitsRate(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	n.limiter = rate.NewLimiter(0, 1)
	n.traced(t, traceParameters)
	w := n.do(t.Context(), http.MethodGet, request(traceParameters))
	if w.Code != http.StatusTooManyRequests || w.Header().Get("Retry-After") != retryAfter || !strings.Contains(w.Body.String(), "node node1 traces 100 packets each second; retry") {
		t.Errorf("got %d: %s, header %v", w.Code, w.Body, w.Header())
	}
}
