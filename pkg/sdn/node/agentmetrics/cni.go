package agentmetrics

import (
	"context"
	"errors"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
)

// resultRetry is the result of requests that the runtime repeats (ErrTryAgainLater).
const resultRetry = "retry"

// observedHandler measures the requests of the CNI plugin, with the time that they wait for the network to become ready.
type observedHandler struct {
	cniserver.Handler
	duration *prometheus.HistogramVec // by verb and result
}

func newCNIDuration() *prometheus.HistogramVec {
	return prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "ovsdn_cni_request_duration_seconds", Help: "Duration of CNI requests, by verb and result: success, error, or retry, which the runtime repeats.",
		Buckets: metrics.Buckets(4*time.Millisecond, 8),
	}, []string{"verb", "result"})
}

func (h observedHandler) observe(verb string, start time.Time, err error) {
	result := metrics.Result(err)
	if e, ok := errors.AsType[*types.Error](err); ok && e.Code == types.ErrTryAgainLater {
		result = resultRetry
	}
	h.duration.WithLabelValues(verb, result).Observe(time.Since(start).Seconds())
}

// Add implements cniserver.Handler.
func (h observedHandler) Add(ctx context.Context, req *cniserver.Request) (*current.Result, error) {
	start := time.Now()
	result, err := h.Handler.Add(ctx, req)
	h.observe("ADD", start, err)
	return result, err
}

// Del implements cniserver.Handler.
func (h observedHandler) Del(ctx context.Context, req *cniserver.Request) error {
	start := time.Now()
	err := h.Handler.Del(ctx, req)
	h.observe("DEL", start, err)
	return err
}

// Check implements cniserver.Handler.
func (h observedHandler) Check(ctx context.Context, req *cniserver.Request) error {
	start := time.Now()
	err := h.Handler.Check(ctx, req)
	h.observe("CHECK", start, err)
	return err
}

// GC implements cniserver.Handler.
func (h observedHandler) GC(ctx context.Context, req *cniserver.Request) error {
	start := time.Now()
	err := h.Handler.GC(ctx, req)
	h.observe("GC", start, err)
	return err
}

// Status implements cniserver.Handler.
func (h observedHandler) Status(ctx context.Context) error {
	start := time.Now()
	err := h.Handler.Status(ctx)
	h.observe("STATUS", start, err)
	return err
}
