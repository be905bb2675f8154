// Package metrics serves metrics and profiles by HTTPS, to clients that the API server authenticates and authorizes.
package metrics

import (
	"runtime"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/ovsdn/ovsdn/pkg/version"
)

// NewRegistry returns a registry with the metrics of the process.
func NewRegistry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "ovsdn_build_info", Help: "Version of the program. The value is 1.",
		ConstLabels: prometheus.Labels{"version": version.Get().String(), "goversion": runtime.Version()},
	})
	build.Set(1)
	r.MustRegister(build, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}
