package node

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostports"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/services"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sysctl"
)

func TestRouteLoopback(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "net/ipv4/conf/tun0/route_localnet")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		permit bool
		want   string
	}{{true, "1"}, {true, "1"}, {false, "0"}} {
		if err := routeLoopback(sysctl.Dir(dir), tc.permit); err != nil {
			t.Fatal(err)
		}
		if got, err := sysctl.Dir(dir).Get("net/ipv4/conf/tun0/route_localnet"); got != tc.want || err != nil {
			t.Errorf("permit %t: got %q (%v), want %q", tc.permit, got, err, tc.want)
		}
	}
}

// Host ports that pods in the host's network declare are taken.
func TestHostPod(t *testing.T) {
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	pods := factory.Core().V1().Pods().Informer().GetStore()
	for name, spec := range map[string]struct {
		hostNetwork bool
		phase       corev1.PodPhase
		port        corev1.ContainerPort
	}{
		"proxy": {true, corev1.PodRunning, corev1.ContainerPort{HostPort: 80}}, "probes": {true, corev1.PodPending, corev1.ContainerPort{HostPort: 81, HostIP: "127.0.0.1"}},
		"done": {true, corev1.PodSucceeded, corev1.ContainerPort{HostPort: 82}}, "web": {false, corev1.PodRunning, corev1.ContainerPort{HostPort: 83}},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: corev1.PodStatus{Phase: spec.phase},
			Spec: corev1.PodSpec{HostNetwork: spec.hostNetwork, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{spec.port}}}},
		}
		if err := pods.Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	n := &nodeNetwork{agent: &agent{}, caches: &caches.Set{Local: factory}}
	for _, tc := range []struct {
		mapping hostports.Mapping
		want    string
	}{
		{hostports.Mapping{HostPort: 80, Protocol: "tcp"}, "ns/proxy"}, {hostports.Mapping{HostPort: 80, Protocol: "udp"}, ""},
		{hostports.Mapping{HostPort: 80, Protocol: "tcp", HostIP: "192.0.2.1"}, "ns/proxy"}, {hostports.Mapping{HostPort: 81, Protocol: "tcp"}, "ns/probes"},
		{hostports.Mapping{HostPort: 81, Protocol: "tcp", HostIP: "192.0.2.1"}, ""},
		{hostports.Mapping{HostPort: 82, Protocol: "tcp"}, ""}, {hostports.Mapping{HostPort: 83, Protocol: "tcp"}, ""},
	} {
		if got := n.hostPod(tc.mapping); got != tc.want {
			t.Errorf("host port %s: got pod %q, want %q", tc.mapping, got, tc.want)
		}
	}
}

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
				got, err := serviceWith(index, hostports.Mapping{HostPort: tc.port, Protocol: tc.protocol}, []netip.Addr{netip.MustParseAddr(tc.addr)})
				if got != want || err != nil {
					t.Errorf("%s:%d/%s: got Service %q (%v), want %q", tc.addr, tc.port, tc.protocol, got, err, want)
				}
			}
		})
	}
}
