package metrics

import "github.com/prometheus/client_golang/prometheus"

// Family is a metric whose values a Collector reads when it is asked for them.
type Family struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
}

// Gauge returns a family of gauges.
func Gauge(name, help string, labels ...string) Family {
	return Family{prometheus.NewDesc(name, help, labels, nil), prometheus.GaugeValue}
}

// Counter returns a family of counters, whose values may restart at zero.
func Counter(name, help string, labels ...string) Family {
	return Family{prometheus.NewDesc(name, help, labels, nil), prometheus.CounterValue}
}

// Send sends a value with those of the labels.
func Send[N int | uint64 | float64](to chan<- prometheus.Metric, f Family, value N, labels ...string) {
	to <- prometheus.MustNewConstMetric(f.desc, f.kind, float64(value), labels...)
}

// SendBool sends 1 for true, 0 for false.
func SendBool(to chan<- prometheus.Metric, f Family, value bool) {
	number := 0
	if value {
		number = 1
	}
	Send(to, f, number)
}

// Describe sends the descriptions of families.
func Describe(to chan<- *prometheus.Desc, families ...Family) {
	for _, f := range families {
		to <- f.desc
	}
}
