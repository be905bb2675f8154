package tracing

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// Packets of hosts outside and of nodes enter the bridge with the cluster IP as their destination.
func TestTrace_balancedForHosts(t *testing.T) {
	const (
		network = "routes and firewalls between 203.0.113.5 and node node2, and the firewall of that node: the trace begins where its host sends the packet to tun0"
		table   = "the nftables table ip ovsdn-services of node node2, which translates "
		others  = "other nodes by which the packet may enter: the trace begins on the endpoint's own node"
	)
	outside := diagnostics.TraceSpec{Source: "203.0.113.5", Destination: "service/a/api", Port: 80}
	node := outside
	node.Source = "node/node1"
	for name, tc := range map[string]struct {
		spec         diagnostics.TraceSpec
		change       func(*fakeCluster, *corev1.Service)
		want         diagnostics.Verdict
		reason       string
		asked        []string // the requests for the first direction
		notEvaluated []string // of the first path
	}{
		"a node": {spec: node, want: diagnostics.VerdictDelivered, reason: "delivered to another tenant's pod on node node2", asked: []string{
			"node1 host 10.128.0.1:49152>172.30.0.9:80 TCP", "node1 host 10.128.0.1:49152>172.30.0.9:80 TCP 10.128.2.7:8080", "node2 node/node1 10.128.0.1:49152>10.128.2.7:8080 TCP",
		}, notEvaluated: []string{"the underlay between nodes node1 and node2"}},
		"a node whose switch selects no endpoint": {spec: node, change: func(c *fakeCluster, _ *corev1.Service) { c.bySwitch = false }, want: diagnostics.VerdictUnknown,
			reason: "the switch of node node1 selects no endpoint of service/a/api, and sends the packet to the host, which rejects it unless it has another service proxy",
			asked:  []string{"node1 host 10.128.0.1:49152>172.30.0.9:80 TCP"}},
		"outside": {spec: outside, want: diagnostics.VerdictDelivered, reason: "delivered to another tenant's pod on node node2",
			asked: []string{"node2 host 203.0.113.5:49152>172.30.0.9:80 TCP 10.128.2.7:8080nodePort"}, notEvaluated: []string{network, table + "node port 30080 to 172.30.0.9:80", others}},
		"outside, denied": {spec: outside, change: func(c *fakeCluster, _ *corev1.Service) { c.answers["node2>172.30.0.9"] = denied("no rule allows it") },
			want: diagnostics.VerdictDropped, reason: "on node node2: no rule allows it", asked: []string{"node2 host 203.0.113.5:49152>172.30.0.9:80 TCP 10.128.2.7:8080nodePort"},
			notEvaluated: []string{network, table + "node port 30080 to 172.30.0.9:80", others}},
		"outside, the switch selects no endpoint": {spec: outside, change: func(c *fakeCluster, _ *corev1.Service) { c.bySwitch = false }, want: diagnostics.VerdictUnknown,
			reason: "the switch of node node2 selects no endpoint of service/a/api, and sends the packet to the host, which rejects it unless it has another service proxy",
			asked:  []string{"node2 host 203.0.113.5:49152>172.30.0.9:80 TCP 10.128.2.7:8080nodePort"}, notEvaluated: []string{network, table + "node port 30080 to 172.30.0.9:80", others}},
		"addresses of which one is limited": {spec: outside, change: func(_ *fakeCluster, svc *corev1.Service) { loadBalancer(svc, "192.0.2.128/25") },
			want: diagnostics.VerdictDelivered, reason: "delivered to another tenant's pod on node node2", asked: []string{"node2 host 203.0.113.5:49152>172.30.0.9:80 TCP 10.128.2.7:8080nodePort"},
			notEvaluated: []string{network, table + "node port 30080, 198.51.100.10:80 to 172.30.0.9:80; it drops packets of 203.0.113.5 to addresses of the load balancer, " +
				"since loadBalancerSourceRanges do not include it", others}},
		"all addresses": {spec: outside, change: func(_ *fakeCluster, svc *corev1.Service) { loadBalancer(svc, "203.0.113.0/24") },
			want: diagnostics.VerdictDelivered, reason: "delivered to another tenant's pod on node node2", asked: []string{"node2 host 203.0.113.5:49152>172.30.0.9:80 TCP 10.128.2.7:8080nodePort"},
			notEvaluated: []string{network, table + "node port 30080, 198.51.100.10:80, 198.51.100.20:80 to 172.30.0.9:80", others}},
		"only a limited address": {spec: outside, change: func(_ *fakeCluster, svc *corev1.Service) {
			loadBalancer(svc, "192.0.2.128/25")
			svc.Spec.ExternalIPs, svc.Spec.Ports[0].NodePort = nil, 0
		}, want: diagnostics.VerdictDropped, reason: "the loadBalancerSourceRanges of service/a/api do not include 203.0.113.5, and it has no other external address"},
		"endpoint outside": {spec: outside, change: func(c *fakeCluster, _ *corev1.Service) {
			c.slices["a/api"][0].Endpoints[0].Addresses[0] = "203.0.113.9"
		},
			want: diagnostics.VerdictUnknown, reason: "no node has the endpoint: by which node the packet enters is not known"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			c.network.ServiceProxy, c.bySwitch = config.ServiceProxyOVS, true
			svc := c.addService("a/api", "172.30.0.9", "10.128.2.7")
			svc.Spec.Type, svc.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
			if tc.change != nil {
				tc.change(c, svc)
			}
			status := c.trace(t, tc.spec, "a")
			reason, notEvaluated := status.Reason, []string(nil)
			if len(status.Paths) > 0 {
				reason, notEvaluated = status.Paths[0].Reason, status.Paths[0].NotEvaluated
			}
			asked := slices.DeleteFunc(c.asked, func(s string) bool { return strings.Contains(s, string(diagnostics.ConntrackReply)) })
			if status.Verdict != tc.want || reason != tc.reason {
				t.Errorf("got %s: %s\nwant %s: %s", status.Verdict, reason, tc.want, tc.reason)
			}
			if diff := cmp.Diff(tc.asked, asked); diff != "" && len(tc.asked)+len(asked) > 0 {
				t.Errorf("requests to agents (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.notEvaluated, notEvaluated); diff != "" {
				t.Errorf("not evaluated (-want +got):\n%s", diff)
			}
		})
	}
}

// loadBalancer gives the service an address of a load balancer, which is open to the range, and an external IP.
func loadBalancer(svc *corev1.Service, sources string) {
	svc.Spec.Type, svc.Spec.ExternalIPs, svc.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, []string{"198.51.100.10"}, []string{sources}
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "198.51.100.20"}}
}
