package tracing

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

func TestTrace(t *testing.T) {
	policy := diagnostics.TraceObject{Object: "networkpolicy/b/deny", Rule: "ingress 0"}
	tcp := func(source, destination string) diagnostics.TraceSpec {
		return diagnostics.TraceSpec{Source: source, Destination: destination, Port: 80}
	}
	for name, tc := range map[string]struct {
		spec   diagnostics.TraceSpec
		change func(*fakeCluster)
		want   diagnostics.Verdict
		reason string
		asked  []string
		not    string // a part of NotEvaluated
	}{
		"local": {spec: tcp("pod/a/web", "pod/a/db"), want: diagnostics.VerdictDelivered, reason: "delivered to pod/a/db on node node1", asked: []string{
			"node1 pod/a/web 10.128.0.5:49152>10.128.0.6:80 TCP", "node1 pod/a/db 10.128.0.6:80>10.128.0.5:49152 TCPreply",
		}},
		"remote": {spec: tcp("pod/a/web", "pod/b/db"), want: diagnostics.VerdictDelivered, reason: "delivered to pod/b/db on node node2", not: "the underlay between nodes node1 and node2", asked: []string{
			"node1 pod/a/web 10.128.0.5:49152>10.128.2.7:80 TCP", "node2 node/node1 10.128.0.5:49152>10.128.2.7:80 TCP",
			"node2 pod/b/db 10.128.2.7:80>10.128.0.5:49152 TCPreply", "node1 node/node2 10.128.2.7:80>10.128.0.5:49152 TCPreply",
		}},
		"ICMP": {spec: diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/a/db", Protocol: ICMP}, want: diagnostics.VerdictDelivered, reason: "delivered to pod/a/db on node node1", asked: []string{
			"node1 pod/a/web 10.128.0.5:0>10.128.0.6:0 ICMP", "node1 pod/a/db 10.128.0.6:0>10.128.0.5:0 ICMPreply",
		}},
		"denied on the other node": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) { c.answers["node2>10.128.2.7"] = denied("networkpolicy/b/deny denies it", policy) },
			want: diagnostics.VerdictDropped, reason: "on node node2: networkpolicy/b/deny denies it"},
		"allowed on both nodes": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error {
				a.Steps = append(a.Steps, diagnostics.TraceStep{TableName: "egress-policy", Objects: []diagnostics.TraceObject{{Object: "networkpolicy/a/out", Rule: "egress 1"}}})
				return nil
			}
			c.answers["node2>10.128.2.7"] = func(a *diagnostics.NodeTrace) error {
				a.Steps = append(a.Steps, diagnostics.TraceStep{TableName: "ingress-policy", Objects: []diagnostics.TraceObject{{Object: "networkpolicy/b/in", Rule: "ingress 0"}, {Object: "pod/b/db"}}})
				return nil
			}
		}, want: diagnostics.VerdictDelivered, reason: "delivered to pod/b/db on node node2; allowed by networkpolicy/a/out (egress 1) on node node1, networkpolicy/b/in (ingress 0) on node node2"},
		"replies dropped": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) { c.answers["node1<10.128.2.7"] = denied("no connection") },
			want: diagnostics.VerdictDropped, reason: "delivered to pod/b/db on node node2; replies are dropped on node node1: no connection"},
		"replies to another pod": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1<10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].To = "pod/z/secret"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "delivered to pod/b/db on node node2; replies arrive at another tenant's pod on node node1, from where the packet did not come"},
		"replies to the host": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1<10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].To = "host"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "delivered to pod/b/db on node node2; replies arrive at the host on node node1, from where the packet did not come"},
		"replies end on another node": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node2<10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].To = "pod/a/web"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "delivered to pod/b/db on node node2; replies arrive at pod/a/web on node node2, from where the packet did not come"},
		"replies with another source": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1<10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].Packet.Source = "192.0.2.99"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "delivered to pod/b/db on node node2; replies arrive with the source 192.0.2.99 instead of 10.128.2.7"},
		"replies with another destination": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1<10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].Packet.Destination = "10.128.0.9"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "delivered to pod/b/db on node node2; replies arrive with the destination 10.128.0.9 instead of 10.128.0.5"},
		"several outputs": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs = append(a.Outputs, a.Outputs[0]); return nil }
		}, want: diagnostics.VerdictUnknown, reason: "node node1: the bridge sends the packet to 2 destinations"},
		"invalid egress IP": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].Packet.EgressIP = "x"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "node node1: invalid answer of the agent: its verdict and outputs can't be those of the packet"},
		"invalid VNID": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].VNID = 1 << 24; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "node node1: invalid answer of the agent: its verdict and outputs can't be those of the packet"},
		"agent down": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node2>10.128.2.7"] = func(*diagnostics.NodeTrace) error { return &AgentError{Reason: "timeout", SkipNode: true} }
		}, want: diagnostics.VerdictUnknown, reason: "node node2: timeout"},
		"older agent": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(*diagnostics.NodeTrace) error {
				return &AgentError{Reason: "the agent of node1 does not support it; upgrade the agent", SkipNode: true}
			}
		}, want: diagnostics.VerdictUnknown, reason: "node node1: the agent of node1 does not support it; upgrade the agent"},
		"older agent, which ignores a parameter": {spec: tcp("203.0.113.5", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node2>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Packet.Origin = ""; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "the agent of node node2 is older than the controller and can't evaluate it"},
		"unknown to the agent": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error {
				a.Verdict, a.Reason = diagnostics.VerdictUnknown, "a flow of another program"
				return nil
			}
		}, want: diagnostics.VerdictUnknown, reason: "node node1: a flow of another program"},
		"external machine": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) { c.nodes[1].NoAgent = "an external machine, which has no agent" },
			want: diagnostics.VerdictUnknown, reason: "node node2: an external machine, which has no agent"},
		"loop": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node2>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].To = "node/node1"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "nodes forward it more than 8 times"},
		"a node that does not exist": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].To = "node/node9"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "node node1 sends it to node node9, which has no HostSubnet"},
		"invalid output": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].Packet.Destination = "::1"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "node node1: invalid answer of the agent: its verdict and outputs can't be those of the packet"},
		"without an output": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs = nil; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "node node1: invalid answer of the agent: its verdict and outputs can't be those of the packet"},
		"another pod has the address": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) {
			c.answers["node2>10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].To = "pod/z/secret"; return nil }
		}, want: diagnostics.VerdictUnknown, reason: "node node2 delivers it to another tenant's pod and not to pod/b/db; the API server reports the same address for both"},
		"not scheduled": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) { c.pods["b/db"].Spec.NodeName = "" },
			want: diagnostics.VerdictUnknown, reason: "pod/b/db is not scheduled to a node"},
		"ended": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) { c.pods["a/web"].Status.Phase = corev1.PodSucceeded },
			want: diagnostics.VerdictUnknown, reason: "pod/a/web has ended (phase Succeeded)"},
		"without an address": {spec: tcp("pod/a/web", "pod/b/db"), change: func(c *fakeCluster) { c.addPod("b/db", "node2", "").Status.Phase = corev1.PodPending },
			want: diagnostics.VerdictUnknown, reason: "pod/b/db has no IPv4 address (phase Pending)"},

		"own node": {spec: tcp("pod/a/web", "node/node1"), want: diagnostics.VerdictDelivered, reason: "delivered to the host of node node1", not: "host-access and the firewall of node node1", asked: []string{
			"node1 pod/a/web 10.128.0.5:49152>192.0.2.1:80 TCP", "node1 host 192.0.2.1:80>10.128.0.5:49152 TCPreply",
		}},
		"another node": {spec: tcp("pod/a/web", "192.0.2.2"), want: diagnostics.VerdictDelivered,
			reason: "delivered to node node2 by the host of node node1, with the source 192.0.2.1 of the node", not: "the firewalls of the nodes node1 and node2"},
		"pod in the network of its node": {spec: tcp("pod/a/web", "pod/a/proxy"), want: diagnostics.VerdictDelivered, reason: "delivered to node node2 by the host of node node1, with the source 192.0.2.1 of the node"},
		"outside": {spec: tcp("pod/a/web", "203.0.113.5"), want: diagnostics.VerdictDelivered,
			reason: "delivered out of the cluster by the host of node node1, with the source 192.0.2.1 of the node, or 10.128.0.5 if its agent runs with --ip-masq=false", not: "the network behind it", asked: []string{
				"node1 pod/a/web 10.128.0.5:49152>203.0.113.5:80 TCP", "node1 host 203.0.113.5:80>10.128.0.5:49152 TCPreply",
			}},
		"outside, not masqueraded": {spec: tcp("pod/a/web", "203.0.113.5"), change: func(c *fakeCluster) {
			c.network.NonMasqueradeCIDRs = append(c.network.NonMasqueradeCIDRs, netPrefix("203.0.113.0/24"))
		}, want: diagnostics.VerdictDelivered, reason: "delivered out of the cluster by the host of node node1, with the source 10.128.0.5, which is not masqueraded (ovsdn.io/non-masquerade-cidrs)"},
		"outside, egress IP": {spec: tcp("pod/a/web", "203.0.113.5"), change: func(c *fakeCluster) {
			c.answers["node1>203.0.113.5"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].Packet.Source = "192.0.2.99"; return nil }
		}, want: diagnostics.VerdictDelivered, reason: "delivered out of the cluster by the host of node node1, with the source 192.0.2.99, an egress IP", not: "replies to 192.0.2.99", asked: []string{
			"node1 pod/a/web 10.128.0.5:49152>203.0.113.5:80 TCP",
		}},
		"outside, egress IP of another node": {spec: tcp("pod/a/web", "203.0.113.5"), change: func(c *fakeCluster) {
			c.answers["node1>203.0.113.5"] = func(a *diagnostics.NodeTrace) error {
				a.Outputs[0].To, a.Outputs[0].Packet.EgressIP = "node/node2", "192.0.2.99"
				return nil
			}
			c.answers["node2>203.0.113.5"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].Packet.Source = "192.0.2.99"; return nil }
		}, want: diagnostics.VerdictDelivered, reason: "delivered out of the cluster by the host of node node2, with the source 192.0.2.99, an egress IP", asked: []string{
			"node1 pod/a/web 10.128.0.5:49152>203.0.113.5:80 TCP", "node2 node/node1 10.128.0.5:49152>203.0.113.5:80 TCP 192.0.2.99",
		}, not: "replies to 192.0.2.99"},
		"from a node": {spec: tcp("node/node2", "pod/a/web"), want: diagnostics.VerdictDelivered, reason: "delivered to pod/a/web on node node1", not: "the underlay between nodes node1 and node2", asked: []string{
			"node2 host 10.128.2.1:49152>10.128.0.5:80 TCP", "node1 node/node2 10.128.2.1:49152>10.128.0.5:80 TCP",
			"node1 pod/a/web 10.128.0.5:80>10.128.2.1:49152 TCPreply", "node2 node/node1 10.128.0.5:80>10.128.2.1:49152 TCPreply",
		}},
		"from a pod in the network of its node": {spec: tcp("pod/a/proxy", "pod/b/db"), want: diagnostics.VerdictDelivered, reason: "delivered to pod/b/db on node node2", asked: []string{
			"node2 host 10.128.2.1:49152>10.128.2.7:80 TCP", "node2 pod/b/db 10.128.2.7:80>10.128.2.1:49152 TCPreply",
		}},
		"between nodes": {spec: tcp("pod/a/proxy", "node/node1"), want: diagnostics.VerdictUnknown, reason: "a packet from pod/a/proxy to node/node1 does not pass the pod network", asked: []string{}},
		"from outside": {spec: tcp("203.0.113.5", "pod/b/db"), want: diagnostics.VerdictDelivered, reason: "delivered to pod/b/db on node node2", not: "between 203.0.113.5 and node node2", asked: []string{
			"node2 host 203.0.113.5:49152>10.128.2.7:80 TCP routed", "node2 pod/b/db 10.128.2.7:80>203.0.113.5:49152 TCPreply",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			if tc.change != nil {
				tc.change(c)
			}
			status := c.trace(t, tc.spec, "a", "b")
			if status.Verdict != tc.want || status.Reason != tc.reason || len(status.Paths) != 1 || status.Paths[0].Verdict != tc.want {
				t.Errorf("got %s: %s, want %s: %s", status.Verdict, status.Reason, tc.want, tc.reason)
			}
			if len(c.asked) > 2*maxHops {
				t.Errorf("got %d requests to agents", len(c.asked))
			}
			if diff := cmp.Diff(tc.asked, append([]string{}, c.asked...)); tc.asked != nil && diff != "" {
				t.Errorf("requests to agents (-want +got):\n%s", diff)
			}
			if got := strings.Join(status.Paths[0].NotEvaluated, "\n"); !strings.Contains(got, tc.not) || tc.not == "" && tc.asked != nil && got != "" {
				t.Errorf("not evaluated: got %q, want %q", got, tc.not)
			}
		})
	}
}

func TestTrace_service(t *testing.T) {
	spec := diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api", Port: 80}
	fromNode, fromOutside := spec, spec
	fromNode.Source, fromOutside.Source = "node/node1", "203.0.113.5"
	policy := diagnostics.TraceObject{Object: "networkpolicy/b/deny", Rule: "ingress 0"}
	for name, tc := range map[string]struct {
		spec   diagnostics.TraceSpec
		change func(*fakeCluster)
		want   diagnostics.Verdict
		reason string
		paths  []string // verdict and endpoint of each
		asked  string   // one of the requests
	}{
		"each endpoint": {spec: spec, want: diagnostics.VerdictDelivered, reason: "service/a/api: 3 of 3 endpoints get the packet",
			paths: []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}, asked: "node1 host 10.128.0.5:49152>10.128.2.7:8080 TCP"},
		"one is denied": {spec: spec, change: func(c *fakeCluster) { c.answers["node2>10.128.2.7"] = denied("networkpolicy/b/deny denies it", policy) }, want: diagnostics.VerdictDropped,
			reason: "service/a/api: 2 of 3 endpoints get the packet; 10.128.2.7:8080: on node node2: table ingress-denied (83) dropped it: another tenant's policy",
			paths:  []string{"Delivered 10.128.0.6:8080 pod/a/db", "Dropped 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}},
		"an agent is down": {spec: spec, change: func(c *fakeCluster) {
			c.answers["node3>10.128.4.8"] = func(*diagnostics.NodeTrace) error { return &AgentError{Reason: "timeout", SkipNode: true} }
		}, want: diagnostics.VerdictUnknown, reason: "service/a/api: 2 of 3 endpoints get the packet; 10.128.4.8:8080: node node3: timeout",
			paths: []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Unknown 10.128.4.8:8080"}},
		"the service is denied": {spec: spec, change: func(c *fakeCluster) { c.answers["node1>172.30.0.9"] = denied("another VNID") }, want: diagnostics.VerdictDropped,
			reason: "on node node1: another VNID", paths: []string{"Dropped "}},
		"endpoint on the host network": {spec: spec, change: func(c *fakeCluster) { c.addService("a/api", "172.30.0.9", "192.0.2.2") }, want: diagnostics.VerdictDelivered,
			reason: "service/a/api: 1 of 1 endpoints get the packet: delivered to node node2 by the host of node node1, with the source 192.0.2.1 of the node",
			paths:  []string{"Delivered 192.0.2.2:8080 pod/a/proxy"}},
		"endpoint outside": {spec: spec, change: func(c *fakeCluster) { c.addService("a/api", "172.30.0.9", "203.0.113.5") }, want: diagnostics.VerdictDelivered,
			reason: "service/a/api: 1 of 1 endpoints get the packet: delivered out of the cluster by the host of node node1, with the source 192.0.2.1 of the node, or 10.128.0.5 if its agent runs with --ip-masq=false",
			paths:  []string{"Delivered 203.0.113.5:8080"}},
		"no endpoints": {spec: spec, change: func(c *fakeCluster) { c.addService("a/api", "172.30.0.9") }, want: diagnostics.VerdictDropped,
			reason: "service/a/api has no ready endpoints: the host rejects the connection"},
		"local traffic policy": {spec: spec, change: func(c *fakeCluster) {
			local := corev1.ServiceInternalTrafficPolicyLocal
			c.services["a/api"].Spec.InternalTrafficPolicy = &local
		}, want: diagnostics.VerdictDelivered, reason: "service/a/api: 1 of 1 endpoints get the packet: delivered to pod/a/db on node node1", paths: []string{"Delivered 10.128.0.6:8080 pod/a/db"}},
		"local traffic policy without endpoints": {spec: spec, change: func(c *fakeCluster) {
			local := corev1.ServiceInternalTrafficPolicyLocal
			c.addService("a/api", "172.30.0.9", "10.128.2.7").Spec.InternalTrafficPolicy = &local
		}, want: diagnostics.VerdictDropped, reason: "the internalTrafficPolicy of service/a/api is Local, and no endpoint is ready on node node1"},
		"too many endpoints": {spec: spec, change: func(c *fakeCluster) { c.isTruncated = true }, want: diagnostics.VerdictUnknown,
			reason: "service/a/api: 3 of 3 endpoints get the packet; only 3 of more than 3 endpoints were traced",
			paths:  []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}},
		"too many endpoints, one is denied": {spec: spec, change: func(c *fakeCluster) { c.isTruncated, c.answers["node2>10.128.2.7"] = true, denied("no rule") }, want: diagnostics.VerdictDropped,
			reason: "service/a/api: 2 of 3 endpoints get the packet; 10.128.2.7:8080: on node node2: no rule; only 3 of more than 3 endpoints were traced",
			paths:  []string{"Delivered 10.128.0.6:8080 pod/a/db", "Dropped 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}},
		"none of too many endpoints": {spec: spec, change: func(c *fakeCluster) { c.addService("a/api", "172.30.0.9"); c.isTruncated = true }, want: diagnostics.VerdictUnknown,
			reason: "service/a/api has too many endpoints: none of those that were read gets the packet"},
		"replies return to the host's proxy": {spec: spec, change: func(c *fakeCluster) {
			c.addService("a/api", "172.30.0.9", "10.128.2.7")
			c.answers["node1<10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].To = "host"; return nil }
		}, want: diagnostics.VerdictDelivered, reason: "service/a/api: 1 of 1 endpoints get the packet: delivered to another tenant's pod on node node2", paths: []string{"Delivered 10.128.2.7:8080"}},
		"by the switch, replies are translated": {spec: spec, change: func(c *fakeCluster) {
			c.addService("a/api", "172.30.0.9", "10.128.2.7")
			c.bySwitch = true
			c.answers["node1<10.128.2.7"] = func(a *diagnostics.NodeTrace) error { a.Outputs[0].Packet.Source = "172.30.0.9"; return nil }
		}, want: diagnostics.VerdictDelivered, reason: "service/a/api: 1 of 1 endpoints get the packet: delivered to another tenant's pod on node node2", paths: []string{"Delivered 10.128.2.7:8080"}},
		"headless": {spec: spec, change: func(c *fakeCluster) { c.services["a/api"].Spec.ClusterIP = corev1.ClusterIPNone }, want: diagnostics.VerdictUnknown,
			reason: "service/a/api has no IPv4 cluster IP that a proxy serves: clients reach what its DNS name resolves to", paths: []string{"Unknown "}},
		"mode subnet": {spec: spec, change: func(c *fakeCluster) { c.network.Mode = config.ModeSubnet }, want: diagnostics.VerdictDelivered, reason: "service/a/api: 3 of 3 endpoints get the packet",
			paths: []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}, asked: "node1 host 10.128.0.1:49152>10.128.2.7:8080 TCP"},
		"hairpin": {spec: spec, change: func(c *fakeCluster) { c.addService("a/api", "172.30.0.9", "10.128.0.5") }, want: diagnostics.VerdictDelivered,
			reason: "service/a/api: 1 of 1 endpoints get the packet: delivered to pod/a/web on node node1", paths: []string{"Delivered 10.128.0.5:8080 pod/a/web"}, asked: "node1 host 10.128.0.1:49152>10.128.0.5:8080 TCP hairpin"},
		"by the switch": {spec: spec, change: func(c *fakeCluster) { c.bySwitch = true }, want: diagnostics.VerdictDelivered, reason: "service/a/api: 3 of 3 endpoints get the packet",
			paths: []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}, asked: "node1 pod/a/web 10.128.0.5:49152>172.30.0.9:80 TCP 10.128.2.7:8080"},
		"by the switch, one is denied": {spec: spec, change: func(c *fakeCluster) { c.bySwitch = true; c.answers["node2>10.128.2.7"] = denied("no rule allows it") }, want: diagnostics.VerdictDropped,
			reason: "service/a/api: 2 of 3 endpoints get the packet; 10.128.2.7:8080: on node node2: no rule allows it",
			paths:  []string{"Delivered 10.128.0.6:8080 pod/a/db", "Dropped 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}, asked: "node2 node/node1 10.128.0.5:49152>10.128.2.7:8080 TCP"},
		"by the switch in mode subnet": {spec: spec, change: func(c *fakeCluster) { c.bySwitch, c.network.Mode = true, config.ModeSubnet }, want: diagnostics.VerdictDelivered,
			reason: "service/a/api: 3 of 3 endpoints get the packet",
			paths:  []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}, asked: "node1 pod/a/web 10.128.0.5:49152>172.30.0.9:80 TCP 10.128.2.7:8080"},
		"from a node": {spec: fromNode, want: diagnostics.VerdictDelivered, reason: "service/a/api: 3 of 3 endpoints get the packet",
			paths: []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}, asked: "node1 host 10.128.0.1:49152>10.128.2.7:8080 TCP"},
		"from outside": {spec: fromOutside, change: func(c *fakeCluster) {
			c.services["a/api"].Spec.Type, c.services["a/api"].Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30080
		},
			want: diagnostics.VerdictDelivered, reason: "service/a/api: 3 of 3 endpoints get the packet",
			paths: []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}, asked: "node2 host 10.128.2.1:49152>10.128.2.7:8080 TCP nodePort"},
		"from outside, external policy Local": {spec: fromOutside, change: func(c *fakeCluster) {
			s := &c.services["a/api"].Spec
			s.Type, s.Ports[0].NodePort, s.ExternalTrafficPolicy = corev1.ServiceTypeNodePort, 30080, corev1.ServiceExternalTrafficPolicyLocal
		}, want: diagnostics.VerdictDelivered, reason: "service/a/api: 3 of 3 endpoints get the packet",
			paths: []string{"Delivered 10.128.0.6:8080 pod/a/db", "Delivered 10.128.2.7:8080", "Delivered 10.128.4.8:8080"}, asked: "node2 host 203.0.113.5:49152>10.128.2.7:8080 TCP nodePort"},
		"from outside without an address": {spec: fromOutside, want: diagnostics.VerdictDropped,
			reason: "service/a/api has no node port, external IP or load balancer: hosts outside have no address of it"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster()
			if tc.change != nil {
				tc.change(c)
			}
			status := c.trace(t, tc.spec, "a")
			var paths []string
			for _, p := range status.Paths {
				paths = append(paths, string(p.Verdict)+" "+p.Endpoint)
			}
			if diff := cmp.Diff(tc.paths, paths); diff != "" || status.Verdict != tc.want || status.Reason != tc.reason {
				t.Errorf("got %s: %s\nwant %s: %s\npaths (-want +got):\n%s", status.Verdict, status.Reason, tc.want, tc.reason, diff)
			}
			if asked := strings.Join(c.asked, "\n") + "\n"; tc.asked != "" && !strings.Contains(asked, tc.asked+"\n") {
				t.Errorf("requests to agents: got\n%swant also\n%s", asked, tc.asked)
			}
		})
	}
}

// A silent agent costs one time-out, however many endpoints are on its node.
func TestTrace_asksSilentAgentsOnce(t *testing.T) {
	c := newCluster()
	c.addPod("a/y", "node2", "10.128.2.9")
	c.addService("a/api", "172.30.0.9", "10.128.2.7", "10.128.2.9")
	for _, addr := range []string{"10.128.2.7", "10.128.2.9"} {
		c.answers["node2>"+addr] = func(*diagnostics.NodeTrace) error { return &AgentError{Reason: "timeout", SkipNode: true} }
	}
	status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api", Port: 80}, "a")
	if asked := strings.Count(strings.Join(c.asked, "\n"), "node2 "); asked != 1 || status.Paths[1].Reason != "node node2: timeout" {
		t.Errorf("got %d requests to node2, and the reason %q, want 1 and the time-out", asked, status.Paths[1].Reason)
	}
}

func TestTrace_boundsEndpoints(t *testing.T) {
	c := newCluster()
	var addrs []string
	for i := range 20 {
		addrs = append(addrs, "10.128.1."+itoa(i+1))
		c.addPod("a/e"+itoa(i), "node1", addrs[i])
	}
	c.addService("a/api", "172.30.0.9", addrs...)
	status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api", Port: 80}, "a")
	if len(status.Paths) != diagnostics.MaxTracePaths || !status.Truncated || !strings.Contains(status.Reason, "16 of 16 endpoints get the packet; only 16 of 20 endpoints were traced") || status.Verdict != diagnostics.VerdictUnknown {
		t.Errorf("got %d paths, truncated %v: %s", len(status.Paths), status.Truncated, status.Reason)
	}
}

func TestTrace_invalid(t *testing.T) {
	for name, tc := range map[string]struct {
		spec diagnostics.TraceSpec
		want string
	}{
		"address of a pod":                         {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "10.128.2.7", Port: 80}, `spec.destination: Invalid value: "10.128.2.7": is an address of the pod network; write pod/NAMESPACE/NAME`},
		"address of a service":                     {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "172.30.0.9", Port: 80}, `spec.destination: Invalid value: "172.30.0.9": is an address of the service network; write service/NAMESPACE/NAME`},
		"source in the pod network without a node": {diagnostics.TraceSpec{Source: "10.131.0.1", Destination: "pod/a/web", Port: 80}, `spec.source: Invalid value: "10.131.0.1": is an address of the pod network; write pod/NAMESPACE/NAME`},
		"another port":                             {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api", Port: 81}, `spec.port: Invalid value: 81: service/a/api has no such port of TCP; it has 80/TCP`},
		"another protocol":                         {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api", Protocol: UDP, Port: 80}, `spec.port: Invalid value: 80: service/a/api has no such port of UDP; it has 80/TCP`},
		"no port":                                  {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/dns"}, `spec.port: Required value: service/a/dns has no TCP port; specify protocol and port of one of: 53/UDP`},
		"several ports":                            {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/many"}, `spec.port: Required value: service/a/many has several TCP ports; specify one of: 80/TCP, 443/TCP`},
		"a pod that is missing":                    {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/a/missing", Port: 80}, `pods "missing" not found`},
		"a node that is missing":                   {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "node/missing", Port: 80}, `nodes "missing" not found`},
		"missing service":                          {diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/missing", Port: 80}, `services "missing" not found`},
	} {
		c := newCluster()
		c.addService("a/dns", "172.30.0.10").Spec.Ports = []corev1.ServicePort{{Protocol: corev1.ProtocolUDP, Port: 53}}
		c.addService("a/many", "172.30.0.11").Spec.Ports = []corev1.ServicePort{
			{Name: "a", Protocol: corev1.ProtocolTCP, Port: 80}, {Name: "b", Protocol: corev1.ProtocolTCP, Port: 443}, {Name: "c", Protocol: corev1.ProtocolUDP, Port: 443},
		}
		if _, err := c.tryTrace(t, tc.spec, "a"); err == nil || err.Error() != tc.want {
			t.Errorf("%s: got error %v, want %s", name, err, tc.want)
		}
	}
}
