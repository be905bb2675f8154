package tracing

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Names and flows of objects that the user does not see are nowhere in the answer.
func TestTrace_redacts(t *testing.T) {
	hidden := []diagnostics.TraceObject{
		{Object: "networkpolicy/hidden/secret", Rule: "secret 7"}, {Object: "networkpolicy/hidden/secret2"}, {Object: "egressnetworkpolicy/hidden/secret"}, {Object: "pod/hidden/secret"},
		{Object: "clusternetworkpolicy/secret"}, {Object: "namespace/hidden"}, {Object: "service/hidden/secret"}, {Object: "secret"},
	}
	c := newCluster()
	c.addPod("hidden/secret", "node2", "10.128.2.9")
	c.addService("a/api", "172.30.0.9", "10.128.2.9", "10.128.4.8")
	c.slices["a/api"][0].Endpoints[0].TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "hidden", Name: "visible"} // which the tenant may write
	c.slices["a/api"][0].Endpoints[1].TargetRef = &corev1.ObjectReference{Kind: "Pod", Name: "secret\x1b[2J"}
	change := func(a *diagnostics.NodeTrace) error {
		a.Reason = "secret reason"
		for _, o := range hidden {
			a.Steps = append(a.Steps, diagnostics.TraceStep{
				Table: 81, TableName: "ingress-policy", Match: "secret", Actions: "secret", Cookie: "secret", Names: []string{"secret"}, Objects: []diagnostics.TraceObject{o, {Object: "networkpolicy/a/own"}},
			})
		}
		return nil
	}
	c.answers["node2>10.128.2.9"] = change
	c.answers["node1<10.128.2.9"] = change
	c.answers["node2<10.128.2.9"] = func(*diagnostics.NodeTrace) error {
		return &AgentError{Reason: "the secret has no port"}
	}
	c.answers["node3>10.128.4.8"] = denied("secret reason", hidden...)
	status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api", Port: 80}, "a")
	encoded, err := json.MarshalIndent(status, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"secret", "hidden"} {
		if i := strings.Index(string(encoded), word); i >= 0 {
			t.Errorf("the answer has %q: %s", word, encoded[max(0, i-200):min(len(encoded), i+50)])
		}
	}
	for _, word := range []string{"another tenant's policy", "another tenant's pod", "a ClusterNetworkPolicy", "another tenant's namespace", "networkpolicy/a/own", "in_port=3"} {
		if !strings.Contains(string(encoded), word) {
			t.Errorf("the answer has no %q: %s", word, encoded)
		}
	}
}

// The VNID of another tenant, to which a service belongs, is nowhere in the answer. What an agent adds to a packet does not reach the next one.
func TestTrace_redactsVNIDs(t *testing.T) {
	c := newCluster()
	c.addService("a/api", "172.30.0.9", "10.128.2.7")
	c.answers["node2<10.128.2.7"] = func(a *diagnostics.NodeTrace) error {
		a.Reason, a.Outputs[0].VNID = "sends it with VNID 4711", 4711
		a.Outputs[0].Packet.Conntrack, a.Outputs[0].Packet.Endpoint, a.Outputs[0].Packet.VNID = "invalid", "invalid", 4711
		return nil
	}
	for namespace, shown := range map[string]bool{"a": false, "b": true} {
		status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "service/a/api", Port: 80}, "a", namespace)
		encoded, err := json.Marshal(status)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(string(encoded), "4711"); got != shown || strings.Contains(string(encoded), "invalid") {
			t.Errorf("a user with rights in %s sees the VNID: %v, want %v: %s", namespace, got, shown, encoded)
		}
		if asked := strings.Join(c.asked, "\n"); strings.Contains(asked, "invalid") {
			t.Errorf("requests to agents: got\n%s", asked)
		}
	}
}

// Reasons of agents and flows that name no object may still be about other tenants.
func TestTrace_redactsReasons(t *testing.T) {
	for name, tc := range map[string]struct {
		reason string
		shown  bool
	}{
		"no names":           {"table remote (90) dropped it: no HostSubnet has a subnet with the destination (10.128.0.3 to 10.131.0.9:80)", true},
		"networks and nodes": {"denies the destination (the rule for 203.0.113.0/24); it goes to node/node2.", true},
		"own":                {"VNID 17 (pod a/web) may not reach VNID 23 (pod a/db), by networkpolicy/a/deny.", true},
		"a pod":              {"VNID 17 (pod a/web) may not reach VNID 23 (pod hidden/cart)", false},
		"a policy":           {"isolated by networkpolicy/hidden/deny, and no rule allows it", false},
		"a cluster's policy": {"rule ingress 0 of clusternetworkpolicy/deny denies it", false},
		"a rule":             {"hidden/deny/ingress/0 denies it", false},
	} {
		c := newCluster()
		static := diagnostics.TraceStep{TableName: "ingress-policy", Match: "ip,reg4=0x10/0x10", Cookie: fmt.Sprintf("0x%x", uint64(pipeline.KindNode)<<56|1)}
		c.answers["node2>10.128.2.7"] = func(a *diagnostics.NodeTrace) error {
			a.Steps = append(a.Steps, static)
			return denied(tc.reason)(a)
		}
		c.answers["node1>10.128.2.7"] = func(a *diagnostics.NodeTrace) error {
			a.Steps = append(a.Steps, diagnostics.TraceStep{TableName: "egress-policy", Match: "conj_id=7"})
			return nil
		}
		status := c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db", Port: 80}, "a")
		if got := strings.Contains(status.Reason, tc.reason); got != tc.shown {
			t.Errorf("%s: got the reason %s", name, status.Reason)
		}
		if hop := status.Paths[0].Hops[0]; hop.Steps[1].Match != "" || hop.Reason != "sent to node/node2" {
			t.Errorf("a flow of an unknown policy: got %+v with the reason %s, want no match and another reason", hop.Steps[1], hop.Reason)
		}
		c.answers["node2>10.128.2.7"] = func(*diagnostics.NodeTrace) error { return &AgentError{Reason: tc.reason} }
		if got := strings.Contains(c.trace(t, diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/b/db", Port: 80}, "a").Reason, tc.reason); got != tc.shown {
			t.Errorf("%s: an agent's error is shown: %v, want %v", name, got, tc.shown)
		}
	}
}
