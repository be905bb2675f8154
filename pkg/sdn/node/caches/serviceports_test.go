package caches

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/services"
)

// Host ports that Services have on all nodes, or at an address of the node, are taken, as the agent caches Services for either proxy.
func TestServiceWith(t *testing.T) {
	for name, transform := range map[string]cache.TransformFunc{"external": services.Transform, "ovs": endpoints.TransformService} {
		t.Run(name, func(t *testing.T) {
			index := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{servicePortIndex: indexServicePorts})
			for _, s := range []*corev1.Service{
				{
					ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "web"},
					Spec: corev1.ServiceSpec{
						Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "172.30.0.1", ClusterIPs: []string{"172.30.0.1"}, ExternalIPs: []string{"192.0.2.1"},
						ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: 32000,
						Ports: []corev1.ServicePort{{Port: 80, NodePort: 30080}, {Port: 53, NodePort: 30053, Protocol: corev1.ProtocolUDP}},
					},
					Status: corev1.ServiceStatus{LoadBalancer: corev1.LoadBalancerStatus{Ingress: []corev1.LoadBalancerIngress{{Hostname: "lb.example"}, {IP: "192.0.2.2"}}}},
				},
				{
					ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "internal"},
					Spec:       corev1.ServiceSpec{ClusterIP: "172.30.0.2", ClusterIPs: []string{"172.30.0.2"}, Ports: []corev1.ServicePort{{Port: 8080}}},
				},
			} {
				obj, err := transform(s)
				if err == nil {
					err = index.Add(obj)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			for _, tc := range []struct {
				protocol string
				port     int
				addr     string
				taken    bool
			}{
				{"tcp", 30080, "192.0.2.9", true}, {"udp", 30080, "192.0.2.9", false}, {"udp", 30053, "192.0.2.9", true}, {"tcp", 32000, "192.0.2.9", true},
				{"tcp", 80, "192.0.2.9", false}, {"tcp", 80, "192.0.2.1", true}, {"udp", 53, "192.0.2.2", true}, {"tcp", 53, "192.0.2.2", false},
				{"tcp", 8080, "192.0.2.1", false},
			} {
				want := ""
				if tc.taken {
					want = "tenant/web"
				}
				got, err := serviceWith(index, tc.protocol, tc.port, []netip.Addr{netip.MustParseAddr(tc.addr)})
				if got != want || err != nil {
					t.Errorf("%s:%d/%s: got Service %q (%v), want %q", tc.addr, tc.port, tc.protocol, got, err, want)
				}
			}
		})
	}
}
