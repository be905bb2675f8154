package endpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestService_Frontends(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*corev1.Service)
		want   string
	}{
		{"cluster IP", nil, "ClusterIP 172.30.0.10:80 of 0"},
		{"all kinds", func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"192.0.2.1"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
			s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80, NodePort: 30080}, {Name: "b", Port: 443}}
		}, "ClusterIP 172.30.0.10:80 of 0, LoadBalancer 198.51.100.1:80 of 0, ExternalIP 192.0.2.1:80 of 0, NodePort invalid IP:30080 of 0, " +
			"ClusterIP 172.30.0.10:443 of 1, LoadBalancer 198.51.100.1:443 of 1, ExternalIP 192.0.2.1:443 of 1"},
		{"one address in several fields", func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{"198.51.100.1", "172.30.0.10"}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
		}, "ClusterIP 172.30.0.10:80 of 0, LoadBalancer 198.51.100.1:80 of 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			all, more := NewService(apiService(c.change)).Frontends(10)
			for _, f := range all {
				name := map[FrontendKind]string{ClusterIP: "ClusterIP", LoadBalancer: "LoadBalancer", ExternalIP: "ExternalIP", NodePort: "NodePort"}[f.Kind]
				got = append(got, fmt.Sprintf("%s %s:%d of %d", name, f.Addr, f.Port, f.Of))
			}
			if got := strings.Join(got, ", "); got != c.want || more {
				t.Errorf("got  %s and others: %t\nwant %s", got, more, c.want)
			}
		})
	}
}

// Each port has its cluster IP, and of the other frontends the first ones, however many there are.
func TestService_FrontendsLimit(t *testing.T) {
	svc := NewService(apiService(func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.2.2"}
		s.Spec.Ports = []corev1.ServicePort{{Name: "a", Port: 80, NodePort: 30080}, {Name: "b", Port: 443, NodePort: 30443}, {Name: "c", Port: 8080}}
	}))
	complete, _ := svc.Frontends(8)
	for limit := range 10 {
		var want []Frontend
		others := 0
		for _, f := range complete {
			if f.Kind != ClusterIP {
				others++
			}
			if f.Kind == ClusterIP || others <= limit {
				want = append(want, f)
			}
		}
		if got, more := svc.Frontends(limit); !slices.Equal(got, want) || others != 8 || more != (limit < others) {
			t.Errorf("limit %d of %d: got %v and others: %t, want %v", limit, others, got, more, want)
		}
	}
}
