package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Values of the label result.
const (
	resultSuccess = "success"
	resultError   = "error"
)

// Result returns the value of the label result.
func Result(err error) string {
	if err != nil {
		return resultError
	}
	return resultSuccess
}

// Buckets returns the buckets of histograms in seconds: n of them from the first, each four times as long as the previous.
func Buckets(first time.Duration, n int) []float64 {
	return prometheus.ExponentialBuckets(first.Seconds(), 4, n)
}

// reconciliations are the metrics of loops and runners.
type reconciliations struct {
	duration *prometheus.HistogramVec
	latency  *prometheus.HistogramVec
}

// ObserveReconciliations registers the metrics of loops and runners, and returns the observer for their context.
func ObserveReconciliations(r prometheus.Registerer) reconcile.Observer {
	o := reconciliations{
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ovsdn_reconcile_duration_seconds", Help: "Duration of one reconciliation, by loop and result. In the agent it includes the wait for the flows.",
			Buckets: Buckets(time.Millisecond, 9),
		}, []string{"loop", "result"}),
		latency: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "ovsdn_reconcile_latency_seconds",
			Help:    "Time from the event of an object in the watch to its successful reconciliation, with retries, by loop. In the agent the flows are then installed.",
			Buckets: Buckets(time.Millisecond, 9),
		}, []string{"loop"}),
	}
	r.MustRegister(o.duration, o.latency)
	return o
}

// Reconciled implements reconcile.Observer.
func (o reconciliations) Reconciled(loop string, duration time.Duration, err error) {
	o.duration.WithLabelValues(loop, Result(err)).Observe(duration.Seconds())
}

// Settled implements reconcile.Observer.
func (o reconciliations) Settled(loop string, since time.Duration) {
	o.latency.WithLabelValues(loop).Observe(since.Seconds())
}
