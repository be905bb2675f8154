package master

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ovsdn/ovsdn/pkg/sdn/master/egressassignment"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/subnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// controllerMetrics are the metrics of the controller.
type controllerMetrics struct {
	registry   *prometheus.Registry
	reconciles reconcile.Observer
	term       atomic.Pointer[termState] // nil: another controller leads

	leader, subnetsFree, subnetsTotal, vnids, quarantined, egressIPs, failovers metrics.Family
}

// termState has the sources of the metrics of a leader.
type termState struct {
	subnets func() subnet.Usage
	vnids   func() (used, quarantined int)

	egressIPs func() egressassignment.Usage
	failovers func() uint64
}

func newControllerMetrics() *controllerMetrics {
	m := &controllerMetrics{
		registry:     metrics.NewRegistry(),
		leader:       metrics.Gauge("ovsdn_controller_leader", "1 if this controller leads."),
		subnetsFree:  metrics.Gauge("ovsdn_controller_subnets_free", "Subnets of the cluster network that no HostSubnet has. Only the leader reports it."),
		subnetsTotal: metrics.Gauge("ovsdn_controller_subnets_capacity", "Subnets of the cluster network. Only the leader reports it."),
		vnids:        metrics.Gauge("ovsdn_controller_vnids_used", "VNIDs that NetNamespaces have. Only the leader reports it."),
		quarantined:  metrics.Gauge("ovsdn_controller_vnids_quarantined", "VNIDs that were released in the last hour, and are not allocated again yet. Only the leader reports it."),
		egressIPs:    metrics.Gauge("ovsdn_controller_egress_ips", "Egress IPs by state. Only the leader reports it.", "state"),
		failovers:    metrics.Counter("ovsdn_controller_egress_failovers_total", "How many times a node that hosts or may host egress IPs was found unreachable. Only the leader reports it."),
	}
	m.reconciles = metrics.ObserveReconciliations(m.registry)
	m.registry.MustRegister(m)
	return m
}

// Describe implements prometheus.Collector.
func (m *controllerMetrics) Describe(to chan<- *prometheus.Desc) {
	metrics.Describe(to, m.leader, m.subnetsFree, m.subnetsTotal, m.vnids, m.quarantined, m.egressIPs, m.failovers)
}

// Collect implements prometheus.Collector.
func (m *controllerMetrics) Collect(to chan<- prometheus.Metric) {
	term := m.term.Load()
	metrics.SendBool(to, m.leader, term != nil)
	if term == nil {
		return
	}
	subnets := term.subnets()
	metrics.Send(to, m.subnetsFree, subnets.Free)
	metrics.Send(to, m.subnetsTotal, subnets.Total)
	used, quarantined := term.vnids()
	metrics.Send(to, m.vnids, used)
	metrics.Send(to, m.quarantined, quarantined)
	ips := term.egressIPs()
	for state, n := range map[string]int{"active": ips.Active, "unhosted": ips.Unhosted, "conflict": ips.Conflict, "unreachable": ips.Unreachable, "unused": ips.Unused} {
		metrics.Send(to, m.egressIPs, n, state)
	}
	metrics.Send(to, m.failovers, term.failovers())
}
