package balancer

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/seed"
)

// external returns a service with an external IP, an address of a load balancer that some clients may use, and a node port.
func external(name, clusterIP string, created int64) *corev1.Service {
	svc := service(func(s *corev1.ServiceSpec) {
		s.Type, s.ClusterIP, s.ClusterIPs = corev1.ServiceTypeLoadBalancer, clusterIP, []string{clusterIP}
		s.ExternalIPs, s.LoadBalancerSourceRanges = []string{"198.51.100.10"}, []string{"10.128.0.0/25"}
		s.Ports = []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: 30080}}
		s.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	svc.Name, svc.CreationTimestamp = name, metav1.NewTime(time.Unix(created, 0))
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.20"}}
	return svc
}

// TestBalancer_external: pods reach a service on its external addresses and its node port, also with endpoints on other nodes only and externalTrafficPolicy Local.
func TestBalancer_external(t *testing.T) {
	f := newFixture(t, config.ModeNetworkPolicy)
	const (
		chosen  = "tcp,nw_dst=198.51.100.10,tp_dst=80,tcp_flags=+syn-ack,actions="
		limited = "tcp,nw_src=10.128.0.0/25,nw_dst=198.51.100.20,tp_dst=80,tcp_flags=+syn-ack,actions="
		others  = "tcp,nw_dst=198.51.100.20,tp_dst=80,tcp_flags=+syn-ack,actions=drop"
		node    = "reg4=0x40000/0x40000,tp_dst=30080,tcp_flags=+syn-ack,actions="
	)
	f.services.Add(external("svc", "172.30.0.10", 2))
	f.expect("without endpoints", []string{chosen + "goto_table:69", limited + "goto_table:69", node + "goto_table:69", others})
	f.slices.Add(slice("b", "web", corev1.ProtocolTCP, 8080, "10.129.0.7"))
	f.expect("an endpoint", []string{toB, chosen + "group:", limited + "group:", node + "group:", others})

	// The older of two services gets the packets, however the changes of both are ordered.
	f.services.Add(external("old", "172.30.0.11", 1))
	f.expect("an older service", []string{chosen + "goto_table:69", limited + "goto_table:69", node + "goto_table:69", "tcp,nw_dst=172.30.0.10,tp_dst=80,actions=group:"},
		chosen+"group:", node+"group:")
	await.OK(t, timeout, func(context.Context) error {
		f.Balancer.mu.Lock()
		defer f.Balancer.mu.Unlock()
		if !f.reported["ns/svc"].limits[limitConflict] || f.reported["ns/old"].limits[limitConflict] {
			return fmt.Errorf("reported: got %v, want the conflict of ns/svc", f.reported)
		}
		return nil
	})
	f.services.Delete(external("old", "172.30.0.11", 1))
	f.expect("without the older service", []string{chosen + "group:", limited + "group:", node + "group:"})
	f.services.Delete(external("svc", "172.30.0.10", 2))
	f.expect("deleted", nil, "198.51.100", "30080", "reg8")
	f.Balancer.mu.Lock()
	defer f.Balancer.mu.Unlock()
	if len(f.claims.services)+len(f.claims.of) > 0 {
		t.Errorf("claims after the deletion: got %v, want none", f.claims)
	}
}

// TestClients_ofExternalAddresses: an external IP, which the owner of a service chooses, does not take packets of VNID 0; the address of a load balancer does.
func TestClients_ofExternalAddresses(t *testing.T) {
	f := newFixture(t, config.ModeMultitenant)
	publish(f, 17)
	f.services.Add(external("svc", "172.30.0.10", 1))
	f.slices.Add(slice("b", "web", corev1.ProtocolTCP, 8080, "10.129.0.7"))
	f.expect("VNID 17", []string{"tcp,reg0=0x11,nw_dst=198.51.100.10,tp_dst=80", "tcp,reg0=0,nw_src=10.128.0.0/25,nw_dst=198.51.100.20,tp_dst=80"},
		"tcp,reg0=0,nw_dst=198.51.100.10")
}

// recorder is a Host.
type recorder map[string][]servicenat.Frontend

func (r recorder) Set(service string, frontends []servicenat.Frontend) { r[service] = frontends }

// TestHostFrontends: the host sends hosts outside to the cluster IP, where the switch has the endpoints by externalTrafficPolicy.
func TestHostFrontends(t *testing.T) {
	node := pipeline.Node{ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16")}
	to := netip.MustParseAddrPort("172.30.0.10:80")
	for name, test := range map[string]struct {
		endpoints []string // on n1 those of 10.128.0.0/24
		policy    corev1.ServiceExternalTrafficPolicy
		verdict   endpoints.Verdict
		frontends []pipeline.Frontend // of the cluster IP, with their flags and the number of endpoints in Port
	}{
		"cluster": {
			[]string{"10.128.0.5", "10.129.0.7"}, corev1.ServiceExternalTrafficPolicyCluster, endpoints.Forward,
			[]pipeline.Frontend{{Port: 2}, {Kind: pipeline.FromOutside, Port: 2}},
		},
		"local": {
			[]string{"10.128.0.5", "10.129.0.7"}, corev1.ServiceExternalTrafficPolicyLocal, endpoints.Forward,
			[]pipeline.Frontend{{Port: 2}, {Kind: pipeline.FromOutside, Port: 1}},
		},
		"local, elsewhere":  {[]string{"10.129.0.7"}, corev1.ServiceExternalTrafficPolicyLocal, endpoints.Drop, []pipeline.Frontend{{Port: 1}}},
		"without endpoints": {nil, corev1.ServiceExternalTrafficPolicyCluster, endpoints.Reject, []pipeline.Frontend{{}}},
	} {
		host := recorder{}
		b := &Balancer{node: node, nodeName: "n1", claims: newClaims(), host: host}
		object := external("svc", "172.30.0.10", 1)
		object.Spec.ExternalTrafficPolicy = test.policy
		svc := endpoints.NewService(object)
		held := b.claim("ns/svc", svc, b.usable(svc, &report{}))
		s := endpoints.NewSlice(slice("a", "web", corev1.ProtocolTCP, 8080, test.endpoints...), node.ServiceNetwork)
		selected, _ := endpoints.Select(svc, []*endpoints.Slice{s}, endpoints.Node{Name: "n1"})
		want := []servicenat.Frontend{
			{Addr: netip.MustParseAddr("198.51.100.20"), Protocol: corev1.ProtocolTCP, Port: 80, To: to, Verdict: test.verdict, Sources: svc.SourceRanges},
			{Addr: netip.MustParseAddr("198.51.100.10"), Protocol: corev1.ProtocolTCP, Port: 80, To: to, Verdict: test.verdict},
			{Protocol: corev1.ProtocolTCP, Port: 30080, To: to, Verdict: test.verdict},
		}
		if got := b.hostFrontends(svc, held, selected, false); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: frontends of the host: got %+v, want %+v", name, got, want)
		}
		var got []pipeline.Frontend
		for _, f := range b.frontends(svc, held, selected, &report{}) {
			if f.Addr == to.Addr() {
				got = append(got, pipeline.Frontend{Kind: f.Kind, Port: uint16(len(f.Endpoints))}) //nolint:gosec // few
			}
		}
		if !reflect.DeepEqual(got, test.frontends) {
			t.Errorf("%s: frontends of the cluster IP: got %+v, want %+v", name, got, test.frontends)
		}
	}
}

// TestLimitAffine: session affinity has a flow for each frontend and endpoint; those beyond the limit have no affinity.
func TestLimitAffine(t *testing.T) {
	of := func(endpoints int, affinity uint16) pipeline.Frontend {
		return pipeline.Frontend{Affinity: affinity, Endpoints: make([]netip.AddrPort, endpoints)}
	}
	frontends := []pipeline.Frontend{of(maxAffineFlows-1, 60), of(5, 0), of(1, 60), of(0, 60), of(1, 60)}
	var found report
	found.limitAffine(frontends)
	for i, want := range []uint16{60, 0, 60, 60, 0} {
		if got := frontends[i].Affinity; got != want {
			t.Errorf("frontend %d: got affinity %d, want %d", i, got, want)
		}
	}
	if !found.limits[limitAffine] {
		t.Error("the limit is not reported")
	}
}

// TestHostFrontends_ofNode: in mode multitenant an external IP, which the owner of a service chooses, does not take packets of the node's programs.
func TestHostFrontends_ofNode(t *testing.T) {
	for mode, want := range map[config.Mode]map[string]bool{
		config.ModeMultitenant:   {"198.51.100.10": true, "198.51.100.20": false, "invalid IP": false},
		config.ModeNetworkPolicy: {"198.51.100.10": false, "198.51.100.20": false, "invalid IP": false},
		config.ModeSubnet:        {"198.51.100.10": false, "198.51.100.20": false, "invalid IP": false},
	} {
		b := &Balancer{node: pipeline.Node{Mode: mode, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16")}, claims: newClaims()}
		svc := endpoints.NewService(external("svc", "172.30.0.10", 1))
		selected, _ := endpoints.Select(svc, nil, endpoints.Node{})
		got := map[string]bool{}
		for _, f := range b.hostFrontends(svc, b.usable(svc, &report{}), selected, false) {
			got[f.Addr.String()] = f.TenantAddress
		}
		if !maps.Equal(got, want) {
			t.Errorf("%s: frontends that the node's programs do not use: got %v, want %v", mode, got, want)
		}
	}
}

// TestCompile_otherServiceNetwork: the host does not send connections from outside to a cluster IP in another network, so the switch does not open it to them.
func TestCompile_otherServiceNetwork(t *testing.T) {
	for clusterIP, want := range map[string]bool{"172.30.0.10": true, "172.31.0.10": false} {
		b := balancerOf(t, slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5"))
		c := b.compile(t.Context(), b.candidate("ns/svc", endpoints.NewService(external("svc", clusterIP, 1))))
		outside := false
		for _, f := range c.frontends {
			outside = outside || f.Kind == pipeline.FromOutside
		}
		if len(c.frontends) < 4 || outside != want || (len(c.host) > 0) != want {
			t.Errorf("cluster IP %s: got frontends %+v and of the host %+v, want those of outside: %v", clusterIP, c.frontends, c.host, want)
		}
	}
}

// TestCompile_sources: no client reaches an address of a load balancer whose sources would need too many flows, or that has a list without valid sources. The switch and
// the host decide the same.
func TestCompile_sources(t *testing.T) {
	ranges := func(number int) (all []string) {
		for i := range number {
			all = append(all, fmt.Sprintf("10.%d.%d.0/24", i/128, 2*(i%128))) // not adjacent, so that none contains another
		}
		return all
	}
	for name, test := range map[string]struct {
		ranges, addrs []string
		open          int // addresses of the load balancer with clients
		limited       bool
	}{
		"no list":            {nil, []string{"198.51.100.20"}, 1, false},
		"at the limit":       {ranges(maxSourceFlows / 2), []string{"198.51.100.20", "198.51.100.21"}, 2, false},
		"beyond the limit":   {ranges(maxSourceFlows/2 + 1), []string{"198.51.100.20", "198.51.100.21"}, 1, true},
		"one beyond":         {ranges(maxSourceFlows + 1), []string{"198.51.100.20"}, 0, true},
		"contained in one":   {append(ranges(maxSourceFlows+1), "10.0.0.0/8"), []string{"198.51.100.20"}, 1, false},
		"no IPv4 range":      {[]string{"2001:db8::/32"}, []string{"198.51.100.20"}, 0, true},
		"invalid range only": {[]string{"x"}, []string{"198.51.100.20"}, 0, true},
	} {
		b := balancerOf(t, slice("a", "web", corev1.ProtocolTCP, 8080, "10.128.0.5"))
		object := external("svc", "172.30.0.10", 1)
		object.Spec.ExternalIPs, object.Spec.LoadBalancerSourceRanges, object.Status.LoadBalancer.Ingress = nil, test.ranges, nil
		for _, addr := range test.addrs {
			object.Status.LoadBalancer.Ingress = append(object.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: addr})
		}
		c := b.compile(t.Context(), b.candidate("ns/svc", endpoints.NewService(object)))
		open, openOnHost, closed := 0, 0, 0
		for _, f := range c.frontends {
			switch {
			case f.Kind == pipeline.LoadBalancer && len(f.Endpoints) > 0 && (len(f.Sources) > 0) == (len(test.ranges) > 0):
				open++
			case f.Kind == pipeline.LoadBalancer && len(f.Endpoints) == 0 && f.Closed && len(f.Sources) == 0:
				closed++
			}
		}
		for _, f := range c.host {
			if f.Addr.IsValid() && f.Verdict == endpoints.Forward && (len(f.Sources) > 0) == (len(test.ranges) > 0) {
				openOnHost++
			}
			if f.Addr.IsValid() && f.Verdict == endpoints.Drop && len(f.Sources) == 0 {
				closed++
			}
		}
		if open != test.open || openOnHost != test.open || closed != 2*(len(test.addrs)-test.open) || c.report.limits[limitSources] != test.limited {
			t.Errorf("%s: got %d addresses with clients in the switch and %d on the host, %d closed of both, reported %v; want %d, %d, %d, %v", name,
				open, openOnHost, closed, c.report.limits[limitSources], test.open, test.open, 2*(len(test.addrs)-test.open), test.limited)
		}
	}
}

// balancerOf returns a Balancer of node n1 with a host and a slice, for compile.
func balancerOf(t *testing.T, s *discoveryv1.EndpointSlice) *Balancer {
	t.Helper()
	network := netip.MustParsePrefix("172.30.0.0/16")
	slices := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{indexService: indexByService})
	if err := slices.Add(endpoints.NewSlice(s, network)); err != nil {
		t.Fatal(err)
	}
	return &Balancer{node: pipeline.Node{ServiceNetwork: network}, nodeName: "n1", slices: slices, claims: newClaims(), host: recorder{}}
}

// TestClaims compares claims with a model that computes all holders again.
func TestClaims(t *testing.T) {
	random := seed.Rand(t)
	c, model := newClaims(), map[string]map[claim]rank{}
	at := func(port uint16) claim { return claim{goovs.ProtocolTCPv4, netip.AddrPortFrom(netip.Addr{}, port)} }
	holders := func() map[claim]string {
		out := map[claim]string{}
		for _, name := range slices.Sorted(maps.Keys(model)) {
			for claim, r := range model[name] {
				if other, ok := out[claim]; !ok || r.compare(model[other][claim]) < 0 {
					out[claim] = name
				}
			}
		}
		return out
	}
	for range 2000 {
		name, wanted := fmt.Sprint("svc", random.IntN(6)), map[claim]rank{}
		for port := range uint16(3) {
			if random.IntN(2) == 0 {
				wanted[at(port)] = rank{endpoints.FrontendKind(1 + random.IntN(2)), random.Int64N(3)} //nolint:gosec // small
			}
		}
		before := holders()
		others := c.set(name, wanted)
		model[name] = wanted
		after := holders()
		for port := range uint16(3) {
			if got := c.holders[at(port)]; got != after[at(port)] {
				t.Fatalf("holder of port %d: got %q, want %q", port, got, after[at(port)])
			}
			if was, is := before[at(port)], after[at(port)]; was != is {
				for _, other := range []string{was, is} {
					if other != "" && other != name && !slices.Contains(others, other) {
						t.Fatalf("port %d moved from %q to %q with a change of %q: got %q to compile again", port, was, is, name, others)
					}
				}
			}
		}
	}
	for name := range model {
		c.set(name, nil)
	}
	if len(c.services)+len(c.holders)+len(c.of) > 0 {
		t.Errorf("without services: got %v, want no claims", c)
	}
}

// TestRank: an external IP does not take the packets of another service's load balancer, however old it is.
func TestRank(t *testing.T) {
	c, port := newClaims(), claim{goovs.ProtocolTCPv4, netip.MustParseAddrPort("198.51.100.20:443")}
	c.set("a/old", map[claim]rank{port: {endpoints.ExternalIP, 1}})
	if got := c.set("b/ingress", map[claim]rank{port: {endpoints.LoadBalancer, 2}}); !slices.Equal(got, []string{"a/old"}) {
		t.Errorf("services to compile again: got %q, want a/old", got)
	}
	if got := c.holders[port]; got != "b/ingress" {
		t.Errorf("holder: got %q, want b/ingress", got)
	}
}

// TestBalancer_usable: what a service may not take has no frontends, and a service of very many has the first.
func TestBalancer_usable(t *testing.T) {
	b := &Balancer{node: pipeline.Node{
		ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}, VXLANPort: 4789,
	}}
	count := func(change func(*corev1.ServiceSpec)) (external int, reported [limits]bool) {
		var found report
		for _, f := range b.usable(endpoints.NewService(service(change)), &found) {
			if f.Kind != endpoints.ClusterIP {
				external++
			}
		}
		return external, found.limits
	}
	for name, test := range map[string]struct {
		change func(*corev1.ServiceSpec)
		want   int
		limits [limits]bool
	}{
		"two ports":                    {func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"198.51.100.10"} }, 2, [limits]bool{}},
		"pod network, service network": {func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"10.128.0.5", "172.30.9.9"} }, 0, [limits]bool{limitAddress: true}},
		"UDP port of clients": {func(s *corev1.ServiceSpec) {
			s.ExternalIPs, s.Ports[0].Port, s.Ports[1].Port = []string{"198.51.100.10"}, 40000, 40000
		}, 1, [limits]bool{limitClientPort: true}},
		"port of VXLAN": {func(s *corev1.ServiceSpec) {
			s.Type, s.ExternalIPs, s.Ports[0].Port, s.Ports[1].Port, s.Ports[1].NodePort = corev1.ServiceTypeNodePort, []string{"198.51.100.10"}, 4789, 4789, 4789
		}, 1, [limits]bool{limitTunnel: true}}, // TCP is no VXLAN
		"very many": {func(s *corev1.ServiceSpec) {
			for i := range 250 {
				s.ExternalIPs = append(s.ExternalIPs, fmt.Sprint("198.51.100.", i))
			}
			for i := range 10 {
				s.Ports = append(s.Ports, corev1.ServicePort{Name: fmt.Sprint(i), Protocol: corev1.ProtocolTCP, Port: int32(1000 + i)}) //nolint:gosec // small
			}
		}, maxExternal, [limits]bool{limitNumber: true}},
	} {
		if got, reported := count(test.change); got != test.want || reported != test.limits {
			t.Errorf("%s: got %d external frontends, reported %v, want %d, %v", name, got, reported, test.want, test.limits)
		}
	}
}

// TestBalancer_apiServer: no service takes TCP connections to the API server, by whichever field it has the address.
func TestBalancer_apiServer(t *testing.T) {
	b := &Balancer{
		node:     pipeline.Node{ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16")},
		reserved: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:80"), netip.MustParseAddrPort("192.0.2.10:53"), netip.MustParseAddrPort("192.0.2.11:443")},
	}
	for kind, change := range map[endpoints.FrontendKind]func(*corev1.Service, string){
		endpoints.ExternalIP: func(svc *corev1.Service, addr string) { svc.Spec.ExternalIPs = []string{addr} },
		endpoints.LoadBalancer: func(svc *corev1.Service, addr string) {
			svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: addr}}
		},
	} {
		for addr, want := range map[string][]uint16{"192.0.2.10": {53}, "192.0.2.11": {80, 53}, "192.0.2.12": {80, 53}} { // TCP 80 and UDP 53
			svc := service(nil)
			change(svc, addr)
			var found report
			var got []uint16
			for _, f := range b.usable(endpoints.NewService(svc), &found) {
				if f.Kind == kind {
					got = append(got, f.Port)
				}
			}
			if reported := found.limits[limitAddress] || found.limits[limitClientPort]; !slices.Equal(got, want) || reported != (len(want) < 2) {
				t.Errorf("kind %v, %s: got ports %v, reported %v, want ports %v", kind, addr, got, reported, want)
			}
		}
	}
}
