package config

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Annotations of Pods that limit their bandwidth, by the conventions of Kubernetes (k8s.io/kubernetes/pkg/util/bandwidth).
const (
	IngressBandwidthAnnotation = "kubernetes.io/ingress-bandwidth" // bits per second to the pod, as a quantity from 1k to 1P, such as 10M
	EgressBandwidthAnnotation  = "kubernetes.io/egress-bandwidth"  // bits per second from the pod, as a quantity from 1k to 1P, such as 10M
)

// Bandwidth limits the traffic of a pod, in bits per second. 0: unlimited.
type Bandwidth struct {
	Ingress uint64 // to the pod
	Egress  uint64 // from the pod
}

// The lowest and the highest limit, in bits per second.
const (
	minBandwidth = 1e3
	maxBandwidth = 1e15
)

// MaxBandwidthQuantity is the length of the longest valid value of an annotation of bandwidth, and maxExponent that of an exponent with its sign. Tenants write them: to
// parse a quantity takes a time that grows with its length, and exponentially with that of its exponent.
const (
	MaxBandwidthQuantity = 32
	maxExponent          = 3
)

// ParseBandwidth parses a limit of bandwidth in the annotations of a Pod. It returns 0 without the annotation.
func ParseBandwidth(annotations map[string]string, key string) (uint64, error) {
	value, ok := annotations[key]
	if !ok {
		return 0, nil
	}
	invalid := func(reason string) error {
		return fmt.Errorf("annotation %s=%s: %s; write bits per second from 1k to 1P, such as 10M", key, Shorten(value), reason)
	}
	if len(value) > MaxBandwidthQuantity {
		return 0, invalid(fmt.Sprintf("longer than %d bytes", MaxBandwidthQuantity))
	}
	if i := strings.LastIndexAny(value, "eE"); i >= 0 && len(value)-i-1 > maxExponent {
		return 0, invalid("not a quantity")
	}
	quantity, err := resource.ParseQuantity(value)
	if err != nil {
		return 0, invalid("not a quantity")
	}
	switch {
	case quantity.CmpInt64(minBandwidth) < 0:
		return 0, invalid("less than 1k")
	case quantity.CmpInt64(maxBandwidth) > 0:
		return 0, invalid("more than 1P")
	}
	return uint64(quantity.Value()), nil //nolint:gosec // from minBandwidth to maxBandwidth
}
