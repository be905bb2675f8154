package endpoints

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

func TestNewService_proxied(t *testing.T) {
	for _, c := range []struct {
		name     string
		change   func(*corev1.Service)
		want     string // the cluster IP; "": not proxied
		problems string
	}{
		{"cluster IP", nil, "172.30.0.10", ""},
		{"no families", func(s *corev1.Service) { s.Spec.IPFamilies = nil }, "172.30.0.10", ""},
		{"outside of the service network", func(s *corev1.Service) { s.Spec.ClusterIPs[0] = "10.0.0.1" }, "10.0.0.1", ""},
		{"IPv6 first", func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs = "fd00::1", []string{"fd00::1", "172.30.0.10"}
			s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		}, "172.30.0.10", ""},
		{"IPv6 only", func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "fd00::1", []string{"fd00::1"}, []corev1.IPFamily{corev1.IPv6Protocol}
		}, "", ""},
		{"IPv6 only without families", func(s *corev1.Service) {
			s.Spec.ClusterIP, s.Spec.ClusterIPs, s.Spec.IPFamilies = "fd00::1", []string{"fd00::1"}, nil
		}, "", ""},
		{"family without an address", func(s *corev1.Service) { s.Spec.ClusterIPs = nil }, "", ""},
		{"headless", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, "", ""},
		{"no cluster IP yet", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil }, "", ""},
		{"ExternalName", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, "", ""},
		{"other proxy", func(s *corev1.Service) { s.Labels = map[string]string{ProxyNameLabel: "other"} }, "", ""},
		{"other proxy without a name", func(s *corev1.Service) { s.Labels = map[string]string{ProxyNameLabel: ""} }, "", ""},
		{"no address", func(s *corev1.Service) { s.Spec.ClusterIPs[0] = "x" }, "", "InvalidAddress spec.clusterIP"},
		{"loopback", func(s *corev1.Service) { s.Spec.ClusterIPs[0] = "127.0.0.1" }, "", "UnusableAddress spec.clusterIP"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewService(apiService(c.change))
			if s.Proxied != (c.want != "") || s.Proxied && s.ClusterIP.String() != c.want {
				t.Errorf("got proxied %v, cluster IP %v, want %q", s.Proxied, s.ClusterIP, c.want)
			}
			if got := kinds(s.Problems); got != c.problems {
				t.Errorf("got problems %q, want %q", got, c.problems)
			}
			if _, ok := Select(s, nil, Node{}); ok != s.Proxied {
				t.Errorf("Select: got ok=%v, want %v", ok, s.Proxied)
			}
			if all, _ := s.Frontends(1); !s.Proxied && len(s.Ports)+len(all) > 0 {
				t.Errorf("got ports %v, frontends %v, want none", s.Ports, all)
			}
		})
	}
}

func TestNewService_ports(t *testing.T) {
	tcp := func(name string, port, nodePort int32) corev1.ServicePort {
		return corev1.ServicePort{Name: name, Protocol: corev1.ProtocolTCP, Port: port, NodePort: nodePort}
	}
	for _, c := range []struct {
		name     string
		ports    []corev1.ServicePort
		want     []ServicePort
		problems string
	}{
		{"default protocol", []corev1.ServicePort{{Port: 80}}, []ServicePort{{"", "TCP", 80, 0}}, ""},
		{"same number of two protocols", []corev1.ServicePort{tcp("a", 53, 30053), {Name: "b", Protocol: "UDP", Port: 53, NodePort: 30053}},
			[]ServicePort{{"a", "TCP", 53, 30053}, {"b", "UDP", 53, 30053}}, ""},
		{"0", []corev1.ServicePort{tcp("a", 0, 0), tcp("b", 80, 0)}, []ServicePort{{"b", "TCP", 80, 0}}, "InvalidPort spec.ports[0].port"},
		{"65536", []corev1.ServicePort{tcp("a", 65536, 0)}, nil, "InvalidPort spec.ports[0].port"},
		{"other protocol", []corev1.ServicePort{{Protocol: "ICMP", Port: 80}}, nil, "InvalidProtocol spec.ports[0].protocol"},
		{"duplicate", []corev1.ServicePort{tcp("a", 80, 0), tcp("b", 80, 0)}, []ServicePort{{"a", "TCP", 80, 0}}, "DuplicatePort spec.ports[1].port"},
		{"duplicate by default protocol", []corev1.ServicePort{{Name: "a", Port: 80}, tcp("b", 80, 0)}, []ServicePort{{"a", "TCP", 80, 0}},
			"DuplicatePort spec.ports[1].port"},
		{"node port out of range", []corev1.ServicePort{tcp("a", 80, 70000)}, []ServicePort{{"a", "TCP", 80, 0}}, "InvalidPort spec.ports[0].nodePort"},
		{"duplicate node port", []corev1.ServicePort{tcp("a", 80, 30080), tcp("b", 81, 30080)},
			[]ServicePort{{"a", "TCP", 80, 30080}, {"b", "TCP", 81, 0}}, "DuplicatePort spec.ports[1].nodePort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewService(apiService(func(s *corev1.Service) { s.Spec.Ports = c.ports }))
			if !reflect.DeepEqual(s.Ports, c.want) {
				t.Errorf("got ports %v, want %v", s.Ports, c.want)
			}
			if got := kinds(s.Problems); got != c.problems {
				t.Errorf("got problems %q, want %q", got, c.problems)
			}
		})
	}
}

func TestNewService_externalAddresses(t *testing.T) {
	vip, proxy := corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy
	s := NewService(apiService(func(s *corev1.Service) {
		s.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.2.001", "2001:db8::1", "", "x", "127.0.0.1"}
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{
			{IP: "198.51.100.1"}, {IP: "198.51.100.2", IPMode: &vip}, {IP: "198.51.100.3", IPMode: &proxy}, {Hostname: "lb.example.com"},
			{IP: "2001:db8::2"}, {IP: "198.51.100.300"},
		}
	}))
	if got, want := fmt.Sprint(s.ExternalIPs), "[192.0.2.1]"; got != want {
		t.Errorf("external IPs: got %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(s.LoadBalancerIPs), "[198.51.100.1 198.51.100.2]"; got != want {
		t.Errorf("load balancer IPs: got %s, want %s", got, want)
	}
	want := "InvalidAddress spec.externalIPs[4], UnusableAddress spec.externalIPs[5], InvalidAddress status.loadBalancer.ingress[5].ip"
	if got := kinds(s.Problems); got != want {
		t.Errorf("got problems %q, want %q", got, want)
	}
}

// TestNewService_unusableAddresses: a Service does not take packets to addresses that each host has, or that are of no single host.
func TestNewService_unusableAddresses(t *testing.T) {
	for _, addr := range []string{"0.0.0.0", "127.0.0.1", "127.255.0.9", "169.254.169.254", "224.0.0.1", "239.1.2.3", "255.255.255.255", "::ffff:127.0.0.1"} {
		s := NewService(apiService(func(s *corev1.Service) {
			s.Spec.ExternalIPs = []string{addr}
			s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
		}))
		want := "UnusableAddress spec.externalIPs[0], UnusableAddress status.loadBalancer.ingress[0].ip"
		if got := kinds(s.Problems); len(s.ExternalIPs)+len(s.LoadBalancerIPs) > 0 || got != want {
			t.Errorf("%s: got addresses %v and %v, problems %q, want none and %q", addr, s.ExternalIPs, s.LoadBalancerIPs, got, want)
		}
	}
}

func TestNewService_boundsAddressesAndPorts(t *testing.T) {
	s := NewService(apiService(func(s *corev1.Service) {
		s.Spec.Ports = nil
		for i := range 2000 {
			s.Spec.ExternalIPs = append(s.Spec.ExternalIPs, fmt.Sprintf("192.0.%d.%d", i/250, i%250))
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Port: int32(i + 1)}) //nolint:gosec // i is small
		}
	}))
	if len(s.ExternalIPs) != maxAddresses || len(s.Ports) != maxPorts || s.Problems.Total != 2 {
		t.Errorf("got %d addresses, %d ports, problems %q; want %d, %d, 2 problems",
			len(s.ExternalIPs), len(s.Ports), kinds(s.Problems), maxAddresses, maxPorts)
	}
}

func TestNewService_sourceRanges(t *testing.T) {
	for _, c := range []struct {
		name     string
		ranges   []string
		want     string
		problems int
	}{
		{"none", nil, "[]", 0},
		{"sorted, spaces and duplicates removed", []string{" 192.0.2.0/24 ", "10.0.0.0/8", "192.0.2.9/24"}, "[10.0.0.0/8 192.0.2.0/24]", 0},
		{"all clients", []string{"192.0.2.0/24", "0.0.0.0/0"}, "[]", 0},
		{"contained ranges removed", []string{"10.1.2.0/24", "192.0.2.0/25", "10.1.0.0/16", "10.0.0.0/8", "192.0.2.128/25", "10.255.0.0/16"},
			"[10.0.0.0/8 192.0.2.0/25 192.0.2.128/25]", 0},
		{"IPv6", []string{"2001:db8::/32", "192.0.2.0/24"}, "[192.0.2.0/24]", 0},
		{"IPv6 only", []string{"2001:db8::/32"}, "no clients", 1},
		{"invalid", []string{"192.0.2.0", "192.0.2.0/24", ""}, "[192.0.2.0/24]", 1},
		{"invalid only", []string{"x"}, "no clients", 2},
		{"empty only", []string{" "}, "no clients", 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewService(apiService(func(s *corev1.Service) {
				s.Spec.LoadBalancerSourceRanges = c.ranges
				s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.1"}}
			}))
			got := fmt.Sprint(s.SourceRanges)
			if s.NoSources && len(s.SourceRanges) == 0 {
				got = "no clients"
			}
			if got != c.want || s.Problems.Total != c.problems {
				t.Errorf("got %s, problems %v, want %s, %d problems", got, s.Problems, c.want, c.problems)
			}
		})
	}
}

func TestNewService_policies(t *testing.T) {
	internal := corev1.ServiceInternalTrafficPolicyLocal
	for _, c := range []struct {
		name          string
		change        func(*corev1.ServiceSpec)
		internal, ext bool
		healthCheck   uint16
		problems      string
	}{
		{name: "default", change: func(*corev1.ServiceSpec) {}},
		{name: "internal Local", change: func(s *corev1.ServiceSpec) { s.InternalTrafficPolicy = &internal }, internal: true},
		{name: "external Local of a cluster IP", change: func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy = "Local" }},
		{name: "external Local of an external IP",
			change: func(s *corev1.ServiceSpec) { s.ExternalTrafficPolicy, s.ExternalIPs = "Local", []string{"192.0.2.1"} }, ext: true},
		{name: "external Local of node ports",
			change: func(s *corev1.ServiceSpec) {
				s.Type, s.ExternalTrafficPolicy, s.HealthCheckNodePort = corev1.ServiceTypeNodePort, "Local", 31000
			}, ext: true},
		{name: "external Local of a load balancer",
			change: func(s *corev1.ServiceSpec) {
				s.Type, s.ExternalTrafficPolicy, s.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, "Local", 31000
			}, ext: true, healthCheck: 31000},
		{name: "external Cluster of a load balancer",
			change: func(s *corev1.ServiceSpec) {
				s.Type, s.ExternalTrafficPolicy, s.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, "Cluster", 31000
			}},
		{name: "no health check port",
			change: func(s *corev1.ServiceSpec) { s.Type, s.ExternalTrafficPolicy = corev1.ServiceTypeLoadBalancer, "Local" },
			ext:    true, problems: "InvalidHealthCheck spec.healthCheckNodePort"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewService(apiService(func(s *corev1.Service) { c.change(&s.Spec) }))
			if s.InternalLocal != c.internal || s.ExternalLocal != c.ext || s.HealthCheckNodePort != c.healthCheck {
				t.Errorf("got internal %v, external %v, health check %d; want %v, %v, %d",
					s.InternalLocal, s.ExternalLocal, s.HealthCheckNodePort, c.internal, c.ext, c.healthCheck)
			}
			if got := kinds(s.Problems); got != c.problems {
				t.Errorf("got problems %q, want %q", got, c.problems)
			}
		})
	}
}

func TestNewService_affinity(t *testing.T) {
	config := func(seconds int32) *corev1.SessionAffinityConfig {
		return &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	for _, c := range []struct {
		name     string
		affinity corev1.ServiceAffinity
		config   *corev1.SessionAffinityConfig
		want     time.Duration
		problems int
	}{
		{"none", corev1.ServiceAffinityNone, nil, 0, 0},
		{"none with a timeout", corev1.ServiceAffinityNone, config(60), 0, 0},
		{"default", corev1.ServiceAffinityClientIP, nil, 10_800 * time.Second, 0},
		{"empty configuration", corev1.ServiceAffinityClientIP, &corev1.SessionAffinityConfig{}, 10_800 * time.Second, 0},
		{"shortest", corev1.ServiceAffinityClientIP, config(1), time.Second, 0},
		{"longest", corev1.ServiceAffinityClientIP, config(86_400), 24 * time.Hour, 0},
		{"0", corev1.ServiceAffinityClientIP, config(0), 10_800 * time.Second, 1},
		{"too long", corev1.ServiceAffinityClientIP, config(86_401), 10_800 * time.Second, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := NewService(apiService(func(s *corev1.Service) { s.Spec.SessionAffinity, s.Spec.SessionAffinityConfig = c.affinity, c.config }))
			if s.Affinity != c.want || s.Problems.Total != c.problems {
				t.Errorf("got %v, problems %v, want %v, %d problems", s.Affinity, s.Problems, c.want, c.problems)
			}
		})
	}
}

func TestServiceIsAnObjectOfCaches(t *testing.T) {
	obj, err := TransformService(apiService(nil))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := cache.MetaNamespaceKeyFunc(obj); err != nil || got != "ns/web" {
		t.Errorf("key: got %q, %v, want ns/web", got, err)
	}
	s := obj.(*Service)
	if got := s.GetObjectKind().GroupVersionKind(); got != corev1.SchemeGroupVersion.WithKind("Service") {
		t.Errorf("kind: got %v, want Service", got)
	}
	if !reflect.DeepEqual(s.DeepCopyObject(), s) {
		t.Errorf("copy: got %+v, want %+v", s.DeepCopyObject(), s)
	}
	if again, err := TransformService(obj); err != nil || again != obj {
		t.Errorf("transform of a Service: got %v, %v, want the Service", again, err)
	}
}
