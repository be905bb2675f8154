// Package agentmetrics has the metrics of the agent for Prometheus. They are read from memory: the sampler reads the switch in the background, so that scrapes
// cause no requests to it.
package agentmetrics

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/idling"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/ipam"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pinger"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Metrics are the metrics of the agent. No label has the name of a pod or a namespace, of which a cluster has 150,000, and few have that of a node.
type Metrics struct {
	registry   *prometheus.Registry
	cni        *prometheus.HistogramVec
	flows      flowDurations
	peers      peerProbes
	reconciles reconcile.Observer
	samples    sampleTotals            // of all set-ups
	network    atomic.Pointer[Network] // nil while the node's network is not set up
	ready      func() error
}

// Network has the sources of the metrics of one set-up of the node's network.
type Network struct {
	Flows   func() flowstore.Statistics
	Pods    func() int
	Addrs   func() ipam.Usage
	Denied  func() (ingress, egress uint64) // nil in mode subnet
	Sampler *Sampler

	BeyondBudget func() (namespaces, flows int) // of egress firewalls; may be nil

	EgressIPs func() (hosted, notPlaced int) // nil in mode subnet

	Idled func() idling.Statistics // nil unless the node holds packets to idled services

	Worst func(most int) []pinger.PathStats // paths to other nodes, the worst first
}

// New returns metrics of a node without a network. ready is the check of /readyz.
func New(ready func() error) *Metrics {
	m := &Metrics{registry: metrics.NewRegistry(), cni: newCNIDuration(), flows: newFlowDurations(), peers: newPeerProbes(), ready: ready}
	m.reconciles = metrics.ObserveReconciliations(m.registry)
	m.registry.MustRegister(m.cni, m.flows.commits, m.flows.writes, m.peers.rtt, m.peers.probes, newNodeCollector(m))
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

// SetNetwork sets the sources of the metrics of the network that was set up; nil while there is none.
func (m *Metrics) SetNetwork(n *Network) { m.network.Store(n) }

// Registry returns the registry with all metrics.
func (m *Metrics) Registry() *prometheus.Registry { return m.registry }

// FlowObserver measures a flow store.
func (m *Metrics) FlowObserver() flowstore.Observer { return m.flows }

// ReconcileObserver measures loops.
func (m *Metrics) ReconcileObserver() reconcile.Observer { return m.reconciles }

// ObserveCNI returns the handler, and measures its requests, with the time that they wait for the network to become ready.
func (m *Metrics) ObserveCNI(h cniserver.Handler) cniserver.Handler {
	return observedHandler{h, m.cni}
}

// NewSampler returns a sampler for a set-up of the node's network. Only one of them may run at a time.
func (m *Metrics) NewSampler(source Statistics, host HostDrops, node pipeline.Node, nodeName string) *Sampler {
	return newSampler(source, host, node, nodeName, &m.samples)
}
