package diagnosticsserver

import (
	"context"
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// serveTraffic answers with the counters of the pods' ports.
func (h *Handler) serveTraffic(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	pods, err := h.traffic(ctx)
	if err != nil {
		refuse(w, err)
		return
	}
	send(w, diagnostics.NodeTraffic{TypeMeta: h.typeMeta("NodeTraffic"), ObjectMeta: metav1.ObjectMeta{Name: h.options.NodeName}, Pods: pods})
}

// traffic reads the switch for one request at a time: vswitchd reads the counters of each port from its device.
func (h *Handler) traffic(ctx context.Context) ([]diagnostics.PodTraffic, error) {
	n, err := h.ready()
	if err != nil {
		return nil, err
	}
	if !h.sampling.CompareAndSwap(false, true) {
		return nil, failf(http.StatusTooManyRequests, "the agent of node %s answers another request for traffic; retry", h.options.NodeName)
	}
	defer h.sampling.Store(false)
	ports, err := n.Switch.PortStats(ctx)
	if err != nil {
		return nil, failf(http.StatusServiceUnavailable, "read the counters of the bridge's ports: %w", err)
	}
	return trafficOf(n.Pods(), ports), nil
}

// trafficOf returns the counters of the pods. It leaves out pods whose name is not known, and those whose port the switch does not have or can't read: a zero
// would be followed by a rate of all its traffic.
func trafficOf(pods []sandbox.Pod, ports []openflow.PortStats) []diagnostics.PodTraffic {
	byNumber := make(map[int]*openflow.PortStats, len(ports))
	for i := range ports {
		byNumber[int(ports[i].Port)] = &ports[i]
	}
	all := make([]diagnostics.PodTraffic, 0, len(pods))
	for _, p := range pods {
		s := byNumber[p.OFPort]
		if s == nil || p.Name == "" || slices.Contains([]uint64{s.SentBytes, s.SentPackets, s.ReceivedBytes, s.ReceivedPackets}, openflow.NoCounter) {
			continue
		}
		all = append(all, diagnostics.PodTraffic{
			Namespace: p.Namespace, Name: p.Name, OFPort: p.OFPort, Age: metav1.Duration{Duration: s.Age()},
			In:  diagnostics.Traffic{Bytes: s.SentBytes, Packets: s.SentPackets, Dropped: orZero(s.SentDropped)},
			Out: diagnostics.Traffic{Bytes: s.ReceivedBytes, Packets: s.ReceivedPackets, Dropped: orZero(s.ReceivedDropped)},
		})
	}
	return all
}

// orZero returns 0 for a counter that the port does not have.
func orZero(counter uint64) uint64 {
	if counter == openflow.NoCounter {
		return 0
	}
	return counter
}
