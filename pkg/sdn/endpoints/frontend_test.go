package endpoints

import (
	"fmt"
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
			for _, f := range NewService(apiService(c.change)).Frontends() {
				name := map[FrontendKind]string{ClusterIP: "ClusterIP", LoadBalancer: "LoadBalancer", ExternalIP: "ExternalIP", NodePort: "NodePort"}[f.Kind]
				got = append(got, fmt.Sprintf("%s %s:%d of %d", name, f.Addr, f.Port, f.Of))
			}
			if got := strings.Join(got, ", "); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}
