package node

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// agentMetrics are the metrics of the agent. No label has the name of a pod, a namespace or a node, of which a cluster has 150,000.
type agentMetrics struct {
	registry   *prometheus.Registry
	cni        *prometheus.HistogramVec
	flows      flowDurations
	reconciles reconcile.Observer
	samples    sampleTotals                 // of all set-ups
	network    atomic.Pointer[networkState] // nil while the node's network is not set up
	ready      func() error
}

// networkState has the sources of the metrics of one set-up of the node's network.
type networkState struct {
	flows   func() flowstore.Statistics
	pods    func() int
	addrs   func() ipam.Usage
	denied  func() (ingress, egress uint64) // nil in mode subnet
	sampler *sampler
}

func newAgentMetrics(ready func() error) *agentMetrics {
	m := &agentMetrics{registry: metrics.NewRegistry(), cni: newCNIDuration(), flows: newFlowDurations(), ready: ready}
	m.reconciles = metrics.ObserveReconciliations(m.registry)
	m.registry.MustRegister(m.cni, m.flows.commits, m.flows.writes, newNodeCollector(m))
	return m
}

// flowDurations observes the flow store.
type flowDurations struct {
	commits *prometheus.HistogramVec // by result
	writes  *prometheus.HistogramVec // by kind and result
}

func newFlowDurations() flowDurations {
	return flowDurations{
		commits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ovsdn_flow_commit_duration_seconds", Help: "Time from the change of an owner's flows to their installation or rejection, by result.",
			Buckets: metrics.Buckets(250*time.Microsecond, 9),
		}, []string{"result"}),
		writes: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ovsdn_flow_write_duration_seconds", Help: "Duration of a write to the switch, by kind (changes: one bundle; all, audit: a comparison of all flows) and result.",
			Buckets: metrics.Buckets(250*time.Microsecond, 9),
		}, []string{"kind", "result"}),
	}
}

// Committed implements flowstore.Observer.
func (d flowDurations) Committed(duration time.Duration, err error) {
	d.commits.WithLabelValues(metrics.Result(err)).Observe(duration.Seconds())
}

// Written implements flowstore.Observer.
func (d flowDurations) Written(w flowstore.Write, duration time.Duration, err error) {
	d.writes.WithLabelValues(string(w), metrics.Result(err)).Observe(duration.Seconds())
}

// setNetwork sets the sources of the metrics of the network that was set up.
func (m *agentMetrics) setNetwork(n *nodeNetwork, s *sampler) {
	state := &networkState{flows: n.store.Statistics, pods: func() int { return len(n.pods.Pods()) }, addrs: n.ipam.Usage, sampler: s}
	if n.policies != nil {
		state.denied = n.policies.ReportedPackets
	}
	m.network.Store(state)
}
