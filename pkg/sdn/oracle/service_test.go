package oracle

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// serviceCluster has the nodes n1 and n2 with the pods 10.128.0.5 (shop, VNID 10) and 10.128.2.5 (other, VNID 11), and the service shop/web: a cluster IP, a node
// port, an address of a load balancer and an external IP.
type serviceCluster struct {
	Cluster
	web   *corev1.Service
	slice *discoveryv1.EndpointSlice
}

func newServiceCluster() *serviceCluster {
	pod := func(namespace, addr, node string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: addr}, Spec: corev1.PodSpec{NodeName: node}}
		p.Status.PodIP = addr
		return p
	}
	name, protocol, port := "http", corev1.ProtocolTCP, int32(8080)
	c := &serviceCluster{
		Cluster: Cluster{
			Namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, {ObjectMeta: metav1.ObjectMeta{Name: "other"}}},
			Pods:       []*corev1.Pod{pod("shop", "10.128.0.5", "n1"), pod("other", "10.128.2.5", "n2")},
			NodeLabels: map[string]map[string]string{"n1": {corev1.LabelTopologyZone: "z1"}, "n2": {corev1.LabelTopologyZone: "z2"}},
			NodeAddrs: map[string][]netip.Addr{
				"n1": {netip.MustParseAddr("172.31.0.11"), netip.MustParseAddr("10.128.0.1")}, "n2": {netip.MustParseAddr("172.31.0.12"), netip.MustParseAddr("10.128.2.1")},
			},
			ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"), PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		},
		web: &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", CreationTimestamp: metav1.NewTime(time.Unix(1000, 0))},
			Spec: corev1.ServiceSpec{
				Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "172.30.0.10", ExternalIPs: []string{"198.51.100.20", "172.31.0.11"},
				Ports: []corev1.ServicePort{{Name: name, Protocol: protocol, Port: 80, NodePort: 30080}},
			},
		},
		slice: &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "shop", Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &protocol, Port: &port}},
		},
	}
	c.web.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.10"}}
	c.Services, c.EndpointSlices = []*corev1.Service{c.web}, []*discoveryv1.EndpointSlice{c.slice}
	c.add("10.128.0.5", "n1", nil)
	c.add("10.128.2.5", "n2", nil)
	return c
}

// add adds an endpoint, which change may change.
func (c *serviceCluster) add(addr, node string, change func(*discoveryv1.Endpoint)) {
	e := discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: &node}
	if change != nil {
		change(&e)
	}
	c.slice.Endpoints = append(c.slice.Endpoints, e)
}

func (c *serviceCluster) change(change func(*discoveryv1.Endpoint)) {
	for i := range c.slice.Endpoints {
		change(&c.slice.Endpoints[i])
	}
}

// evaluate returns the outcome with the endpoints; those that the client may not reach have a "!".
func (c *serviceCluster) evaluate(from Endpoint, at, to string) string {
	v := c.EvaluateBalancedService(ServiceConnection{From: from, At: at, To: netip.MustParseAddrPort(to), Protocol: corev1.ProtocolTCP})
	words := []string{string(v.Outcome)}
	for _, e := range v.Endpoints {
		mark := ""
		if !e.Verdict.Allowed {
			mark = "!"
		}
		words = append(words, mark+e.Addr.String())
	}
	return strings.Join(words, " ")
}

// Addresses of a service, in mode networkpolicy and in mode multitenant, where its own VNID is 10, that of the other pod 11.
func TestEvaluateBalancedService_addresses(t *testing.T) {
	const both, own = "forwarded 10.128.0.5:8080 10.128.2.5:8080", "forwarded 10.128.0.5:8080 !10.128.2.5:8080"
	for _, tc := range []struct {
		from, to, policy, tenant string
	}{
		{"shop", "172.30.0.10:80", both, own},
		{"shop", "172.30.0.10:81", "dropped", "dropped"},
		{"shop", "198.51.100.10:80", both, own},
		{"shop", "198.51.100.20:80", both, own},
		{"shop", "172.31.0.11:30080", both, own},
		{"shop", "172.31.0.12:30080", "no service", "no service"}, // a node port of another node
		{"shop", "192.0.2.7:80", "no service", "no service"},
		{"other", "172.30.0.10:80", both, "dropped"},
		{"other", "198.51.100.10:80", both, "no service"},
		{"other", "172.31.0.12:30080", both, "no service"},
		{"node", "172.30.0.10:80", both, both},
		{"node", "198.51.100.10:80", both, both},
		{"node", "198.51.100.20:80", both, "no service"},
		{"outside", "172.30.0.10:80", "dropped", "dropped"},
		{"outside", "198.51.100.20:80", both, both},
		{"outside", "172.31.0.11:80", both, "no service"}, // an external IP that is the node's
		{"outside", "172.31.0.11:30080", both, both},
	} {
		for mode, vnids := range map[string]map[string]uint32{"networkpolicy": nil, "multitenant": {"shop": 10, "other": 11}} {
			c := newServiceCluster()
			c.VNIDs = vnids
			from, at := map[string]Endpoint{
				"shop": {Addr: netip.MustParseAddr("10.128.0.5"), Pod: c.Pods[0]}, "other": {Addr: netip.MustParseAddr("10.128.2.5"), Pod: c.Pods[1]},
				"node": {Addr: c.NodeAddrs["n1"][1], Node: "n1"}, "outside": {Addr: netip.MustParseAddr("192.0.2.7")},
			}[tc.from], "n1"
			if tc.from == "other" {
				at = "n2"
			}
			want := tc.policy
			if vnids != nil {
				want = tc.tenant
			}
			if got := c.evaluate(from, at, tc.to); got != want {
				t.Errorf("%s to %s, mode %s: got %s, want %s", tc.from, tc.to, mode, got, want)
			}
		}
	}
}

// Endpoints for a pod and a host outside at node n1, by the cluster IP and by the address of the load balancer.
func TestEvaluateBalancedService_endpoints(t *testing.T) {
	const both, first, second = "forwarded 10.128.0.5:8080 10.128.2.5:8080", "forwarded 10.128.0.5:8080", "forwarded 10.128.2.5:8080"
	local := corev1.ServiceInternalTrafficPolicyLocal
	on := func(node string) func(*discoveryv1.Endpoint) {
		return func(e *discoveryv1.Endpoint) { e.NodeName = &node }
	}
	draining := func(e *discoveryv1.Endpoint) {
		e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	}
	zone := func(e *discoveryv1.Endpoint) {
		e.Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: map[string]string{"n1": "z1", "n2": "z2"}[*e.NodeName]}}}
	}
	for name, tc := range map[string]struct {
		change                          func(*serviceCluster)
		internal, external, fromOutside string
	}{
		"no policy":      {func(*serviceCluster) {}, both, both, both},
		"none":           {func(c *serviceCluster) { c.slice.Endpoints = nil }, "rejected", "rejected", "rejected"},
		"internal Local": {func(c *serviceCluster) { c.web.Spec.InternalTrafficPolicy = &local }, first, both, both},
		"external Local": {func(c *serviceCluster) { c.web.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal }, both, both, first},
		"both Local, none on the node": {func(c *serviceCluster) {
			c.web.Spec.InternalTrafficPolicy, c.web.Spec.ExternalTrafficPolicy = &local, corev1.ServiceExternalTrafficPolicyLocal
			c.change(on("n2"))
		}, "dropped", both, "dropped"},
		"one draining": {func(c *serviceCluster) { draining(&c.slice.Endpoints[0]) }, second, second, second},
		"all draining": {func(c *serviceCluster) { c.change(draining) }, both, both, both},
		"not ready": {func(c *serviceCluster) {
			c.change(func(e *discoveryv1.Endpoint) { e.Conditions.Ready = new(false) })
		}, "rejected", "rejected", "rejected"},
		"zones":                 {func(c *serviceCluster) { c.change(zone) }, first, first, first},
		"one without a zone":    {func(c *serviceCluster) { zone(&c.slice.Endpoints[0]) }, both, both, both},
		"no zone of the client": {func(c *serviceCluster) { c.change(zone); c.NodeLabels = nil }, both, both, both},
		"source ranges":         {func(c *serviceCluster) { c.web.Spec.LoadBalancerSourceRanges = []string{"10.128.0.0/23"} }, both, both, "dropped"},
		"another service's slice": {func(c *serviceCluster) {
			c.slice.Labels = map[string]string{discoveryv1.LabelServiceName: "api"}
		}, "rejected", "rejected", "rejected"},
		"an older service with the address": {func(c *serviceCluster) {
			older := c.web.DeepCopy()
			older.Name, older.Spec.ClusterIP, older.CreationTimestamp = "older", "172.30.0.11", metav1.NewTime(time.Unix(1, 0))
			c.Services = append(c.Services, older)
		}, both, "rejected", "rejected"},
		"an external IP that is the load balancer's": {func(c *serviceCluster) {
			older := c.web.DeepCopy()
			older.Name, older.Spec.ClusterIP, older.CreationTimestamp = "older", "172.30.0.11", metav1.NewTime(time.Unix(1, 0))
			older.Status, older.Spec.ExternalIPs = corev1.ServiceStatus{}, []string{"198.51.100.10"}
			c.Services = append(c.Services, older)
		}, both, both, both},
	} {
		c := newServiceCluster()
		tc.change(c)
		pod, outside := Endpoint{Addr: netip.MustParseAddr("10.128.0.5"), Pod: c.Pods[0]}, Endpoint{Addr: netip.MustParseAddr("192.0.2.7")}
		for i, want := range []string{tc.internal, tc.external, tc.fromOutside} {
			from, to := []Endpoint{pod, pod, outside}[i], []string{"172.30.0.10:80", "198.51.100.10:80", "198.51.100.10:80"}[i]
			if got := c.evaluate(from, "n1", to); got != want {
				t.Errorf("%s, %s to %s: got %s, want %s", name, from.Addr, to, got, want)
			}
		}
	}
}

// Policies evaluate the source that the endpoint sees: of a host outside its own address on the first node, and that node's address on tun0 on others.
func TestEvaluateBalancedService_policies(t *testing.T) {
	const first, second, neither = "forwarded 10.128.0.5:8080 !10.128.2.5:8080", "forwarded !10.128.0.5:8080 10.128.2.5:8080", "forwarded !10.128.0.5:8080 !10.128.2.5:8080"
	for cidr, want := range map[string]struct{ pod, node, outside string }{
		"192.0.2.7/32":   {first, first, first},
		"10.128.0.1/32":  {first, "forwarded 10.128.0.5:8080 10.128.2.5:8080", second},
		"10.128.0.5/32":  {"forwarded 10.128.0.5:8080 10.128.2.5:8080", first, neither},
		"172.30.0.10/32": {first, first, neither}, // never the service's own address
	} {
		c := newServiceCluster()
		for _, namespace := range []string{"shop", "other"} {
			c.Policies = append(c.Policies, &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "from"},
				Spec: networkingv1.NetworkPolicySpec{
					PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
					Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}}}},
				},
			})
		}
		pod := Endpoint{Addr: netip.MustParseAddr("10.128.0.5"), Pod: c.Pods[0]} // which reaches itself whatever its NetworkPolicies are
		node, outside := Endpoint{Addr: c.NodeAddrs["n1"][1], Node: "n1"}, Endpoint{Addr: netip.MustParseAddr("192.0.2.7")}
		got := fmt.Sprint(c.evaluate(pod, "n1", "172.31.0.11:30080"), ", ", c.evaluate(node, "n1", "172.31.0.11:30080"), ", ", c.evaluate(outside, "n1", "172.31.0.11:30080"))
		if want := fmt.Sprint(want.pod, ", ", want.node, ", ", want.outside); got != want {
			t.Errorf("ipBlock %s: got %s, want %s", cidr, got, want)
		}
	}
}

// An endpoint at the address on tun0 of another node: the node's programs reach it from their own address on tun0 only.
func TestEvaluateBalancedService_tun0(t *testing.T) {
	c := newServiceCluster()
	c.slice.Endpoints = nil
	c.add("10.128.2.1", "n2", nil)
	for _, tc := range []struct {
		from     netip.Addr
		to, want string
	}{
		{c.NodeAddrs["n1"][1], "172.30.0.10:80", "forwarded 10.128.2.1:8080"},
		{c.NodeAddrs["n1"][0], "172.30.0.10:80", "forwarded !10.128.2.1:8080"},
		{c.NodeAddrs["n1"][0], "198.51.100.10:80", "forwarded 10.128.2.1:8080"}, // from tun0's address, by the host's rules
	} {
		if got := c.evaluate(Endpoint{Addr: tc.from, Node: "n1"}, "n1", tc.to); got != tc.want {
			t.Errorf("%s to %s: got %s, want %s", tc.from, tc.to, got, tc.want)
		}
	}
}
