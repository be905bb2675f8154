package testcluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

// Service is a port of a service with endpoints that are no pods.
type Service struct {
	Addr      netip.Addr
	Namespace string
	Protocol  corev1.Protocol
	Port      int32
	Endpoints []Target
}

// Target is an endpoint of a service and its port.
type Target struct {
	oracle.Endpoint
	Port int32
}

// EvaluateService reports whether a pod may send to a service with an unknown endpoint. The specification of NetworkPolicy leaves open
// whether a service's address is rewritten before or after policies apply; here it is before ("implementations that implement ipBlock
// after rewriting"), so the pod must be allowed to reach each endpoint. VNIDs restrict the access to services (docs/tenants.md).
func (w *World) EvaluateService(pod *corev1.Pod, s Service) oracle.Verdict {
	from := oracle.Endpoint{Addr: netip.MustParseAddr(pod.Status.PodIP), Pod: pod}
	if a, b := w.VNIDs[pod.Namespace], w.VNIDs[s.Namespace]; w.VNIDs != nil && a != b && a != 0 && b != 0 {
		return oracle.Verdict{Allowed: false, Why: fmt.Sprintf("VNID %d may not reach a service of %d", a, b)}
	}
	for _, to := range s.Endpoints {
		if v := w.Evaluate(oracle.Connection{From: from, To: to.Endpoint, Protocol: s.Protocol, Port: to.Port}); !v.Allowed {
			return oracle.Verdict{Allowed: false, Why: fmt.Sprintf("%s:%d: %s", to.Addr, to.Port, v.Why)}
		}
	}
	return oracle.Verdict{Allowed: true, Why: "all endpoints may be reached"}
}

// DrawProxiedServices draws services whose endpoints are nodes and the world outside: one to three each.
func (w *World) DrawProxiedServices(r *rand.Rand, n int) []Service {
	var ends []oracle.Endpoint
	for _, e := range w.Endpoints() {
		if e.Pod == nil && e.Through == "" {
			ends = append(ends, e)
		}
	}
	all := make([]Service, n)
	for i := range all {
		s := &all[i]
		s.Addr = netip.AddrFrom4([4]byte{172, 30, 1, byte(i)})
		s.Namespace = w.Namespaces[r.IntN(len(w.Namespaces))].Name
		s.Protocol = Protocols()[r.IntN(3)]
		s.Port = 443
		ports := Ports(s.Protocol)
		for range 1 + r.IntN(3) {
			s.Endpoints = append(s.Endpoints, Target{ends[r.IntN(len(ends))], ports[r.IntN(len(ports))]})
		}
	}
	return all
}
