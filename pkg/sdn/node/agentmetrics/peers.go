package agentmetrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/pinger"
)

// WorstPeers is the number of paths to other nodes that have metrics of their own: a cluster has 5,000 nodes.
const WorstPeers = 20

// peerProbes observes the probes of all other nodes.
type peerProbes struct {
	rtt    *prometheus.HistogramVec // by path
	probes *prometheus.CounterVec   // by path and result
}

func newPeerProbes() peerProbes {
	return peerProbes{
		rtt: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ovsdn_peer_rtt_seconds", Help: "Round-trip time of ICMP probes to all other nodes, by path: overlay, overlay-mtu (packets as large as the MTU of tun0), or underlay.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2},
		}, []string{"path"}),
		probes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "ovsdn_peer_probes_total", Help: "ICMP probes of all other nodes, by path and result: answered or lost.",
		}, []string{"path", "result"}),
	}
}

// ObservePeer observes a probe of another node.
func (m *Metrics) ObservePeer(path pinger.Path, rtt time.Duration, answered bool) {
	if !answered {
		m.peers.probes.WithLabelValues(string(path), "lost").Inc()
		return
	}
	m.peers.probes.WithLabelValues(string(path), "answered").Inc()
	m.peers.rtt.WithLabelValues(string(path)).Observe(rtt.Seconds())
}
