package diagnosticsserver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/verification"
	"github.com/ovsdn/ovsdn/test/tier"
)

// batchAgent is the agent of the node, for a verification.
type batchAgent struct {
	*traceNode
	t *testing.T
}

// Traces implements verification.Agents.
func (a batchAgent) Traces(_ context.Context, _ tracing.Node, packets []diagnostics.TracePacket) ([]diagnostics.TraceResult, error) {
	return a.batchOf(a.t, packets...), nil
}

// Probes implements verification.Agents.
func (a batchAgent) Probes(context.Context, tracing.Node, []diagnostics.TracePacket) ([]diagnostics.ProbeStatus, error) {
	return nil, errors.New("no packets are sent here")
}

// verifiedObjects are three pods of the node, and a policy as rule 77: of them only web reaches db.
func verifiedObjects() *verification.Snapshot {
	s := &verification.Snapshot{}
	for _, pod := range tracePods() {
		if !slices.Contains([]string{"web", "db", "cart"}, pod.Name) {
			continue
		}
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name, Labels: map[string]string{"app": pod.Name}}}
		p.Spec.NodeName, p.Status.PodIP = "node1", pod.Addrs[0].String()
		s.Pods = append(s.Pods, p)
	}
	verification.Sort(s.Pods)
	app := func(name string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	web := app("web")
	s.Policies = []*networkingv1.NetworkPolicy{{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "allow"}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: app("db"), Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &web}}}},
	}}}
	return s
}

// TestVerification_faults: a verification with the agent of a real switch finds no difference before each fault of the flows, and the connection after it.
func TestVerification_faults(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	v := &verification.Verifier{
		Read: func(context.Context) (*verification.Snapshot, error) { return verifiedObjects(), nil },
		Node: func(name string) (tracing.Node, error) { return tracing.Node{Name: name}, nil }, Agents: batchAgent{n, t},
	}
	differences := func() []string {
		result, err := v.Verify(t.Context(), verification.Request{})
		if err != nil || result.Status.Questions != 6 || result.Status.Unknown+result.Status.Changed > 0 {
			t.Fatalf("got %+v, error %v", result, err)
		}
		found := []string{}
		for _, d := range result.Differences {
			found = append(found, fmt.Sprintf("%s to %s: %s, not %s, by %s", d.Source, d.Destination, d.Actual, d.Expected, d.Result.Flow.TableName))
		}
		return found
	}
	flows := n.sw.Dump(t)
	local := matchOf(t, flows, "table=70,", "nw_dst=10.128.0.4")
	for name, tc := range map[string]struct {
		command []string
		want    string
	}{
		"a flow deleted": {[]string{"--strict", "del-flows", "br0", local}, "pod/default/web to pod/default/db: Dropped, not Delivered, by local-pod"},
		"a flow added": {[]string{"add-flow", "br0", "table=81,priority=65000,ip,nw_dst=10.128.0.4,actions=goto_table:133"},
			"pod/shop/cart to pod/default/db: Delivered, not Dropped, by ingress-policy"},
		"a flow changed": {[]string{"--strict", "mod-flows", "br0", local + ",actions=drop"}, "pod/default/web to pod/default/db: Dropped, not Delivered, by local-pod"},
		"a member of a conjunction missing": {[]string{"--strict", "del-flows", "br0", matchOf(t, flows, "conjunction(77,2/2)", "nw_src=10.128.0.3")},
			"pod/default/web to pod/default/db: Dropped, not Delivered, by ingress-denied"},
	} {
		if found := differences(); len(found) > 0 {
			t.Errorf("before %s: got %q", name, found)
		}
		n.sw.OFCtl(t, tc.command...)
		if diff := cmp.Diff([]string{tc.want}, differences()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		n.store.Resync()
		n.awaitFlows(t, flows)
	}
}
