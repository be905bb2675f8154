package diagnosticsserver

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

const (
	// batchProbes is the number of probes of a batch at the same time. Each is a socket, and waits.
	batchProbes = 32
	// batchProbesPerSecond limits those that are answered at once: each costs vswitchd some packets, and conntrack an entry for minutes.
	batchProbesPerSecond = 200
	// batchProbeTimeout is how long a probe of a batch waits for an answer: less than DefaultProbeSeconds, since the destinations are pods. The kernel repeats a SYN
	// after one second.
	batchProbeTimeout = 2 * time.Second
)

// serveProbes answers one request at a time. It does not count as one for a single probe.
func (h *Handler) serveProbes(w http.ResponseWriter, r *http.Request) {
	packets, err := readBatch(w, r)
	if err != nil {
		refuse(w, err)
		return
	}
	if !h.sending.CompareAndSwap(false, true) {
		refuse(w, failf(http.StatusTooManyRequests, "the agent of node %s answers another request for many probes; retry", h.options.NodeName))
		return
	}
	defer h.sending.Store(false)
	n, err := h.ready()
	if err != nil {
		refuse(w, err)
		return
	}
	results := h.probeAll(r.Context(), n, packets)
	if len(results) == 0 {
		refuse(w, failf(http.StatusServiceUnavailable, "node %s completed no probe in %v", h.options.NodeName, batchTimeout))
		return
	}
	send(w, &diagnostics.NodeProbes{TypeMeta: h.typeMeta("NodeProbes"), ObjectMeta: metav1.ObjectMeta{Name: h.options.NodeName}, Results: results})
}

// probeAll sends the packets, and returns the results of those before the first one without a result when batchTimeout ends. The client sends the others again, also
// those that were already sent.
func (h *Handler) probeAll(ctx context.Context, n *Network, packets []diagnostics.TracePacket) []diagnostics.ProbeStatus {
	ctx, cancel := context.WithTimeout(ctx, batchTimeout)
	defer cancel()
	pods := n.Pods()
	results := make([]diagnostics.ProbeStatus, len(packets)) // without a verdict: none yet
	free := make(chan struct{}, batchProbes)
	var running sync.WaitGroup
	for i := range packets {
		if h.sendLimiter.Wait(ctx) != nil {
			break
		}
		select {
		case free <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-free }()
			status := h.probeOne(ctx, n, pods, packets[i])
			if ctx.Err() == nil {
				results[i] = status
			}
		})
	}
	running.Wait()
	if at := slices.IndexFunc(results, func(s diagnostics.ProbeStatus) bool { return s.Verdict == "" }); at >= 0 {
		results = results[:at]
	}
	return results
}

func (h *Handler) probeOne(ctx context.Context, n *Network, pods []sandbox.Pod, packet diagnostics.TracePacket) diagnostics.ProbeStatus {
	r, _, err := parseProbe(packet.Query().Encode())
	if err != nil {
		return diagnostics.ProbeStatus{Verdict: diagnostics.VerdictUnknown, Reason: err.Error()}
	}
	status, err := h.probeFrom(ctx, n, pods, r, batchProbeTimeout)
	if err != nil {
		return diagnostics.ProbeStatus{Verdict: diagnostics.VerdictUnknown, Reason: err.Error()}
	}
	return status
}
