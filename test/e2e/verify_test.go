package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// verification asks the diagnostics API as the administrator, for the pairs with a pod of the namespace.
func (c *cluster) verification(ctx context.Context, namespace string) (*diagnostics.VerificationStatus, error) {
	raw, err := c.Kube.Discovery().RESTClient().Post().AbsPath("/apis", diagnostics.Group, diagnostics.Version, "namespaces", namespace, "verifications").
		SetHeader("Content-Type", "application/json").Body([]byte("{}")).Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("verify namespace %s: %w: %s", namespace, err, raw)
	}
	answer := &diagnostics.Verification{}
	return &answer.Status, json.Unmarshal(raw, answer)
}

// testVerification is a part of TestCapabilities: the flows of all nodes do what policies of two namespaces allow, for pods on both nodes. Faults of flows are
// injected below this layer (TestVerification_faults): here the agents repair them at once.
func testVerification(t *testing.T, x *trio) {
	ns, other := x.Namespace(t), x.Namespace(t)
	x.Run(t, ns, fixture.Netexec("web", fixture.Node1), fixture.Netexec("db", fixture.Node2))
	x.Run(t, other, fixture.Netexec("web", fixture.Node2))
	port, tcp := intstr.FromInt32(8080), corev1.ProtocolTCP
	x.SetPolicy(t, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own"}, Spec: networkingv1.NetworkPolicySpec{
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}, Ports: []networkingv1.NetworkPolicyPort{{Port: &port, Protocol: &tcp}},
		}},
	}})
	x.SetPolicy(t, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "closed"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	}})
	const pairs = 2 // between the pods of the namespace, and more with those of others
	fixture.EventuallyEqual(t, fixture.SyncTime, "flows of all nodes", func(ctx context.Context) (diff string, err error) {
		got, err := x.verification(ctx, ns)
		if err != nil {
			return "", err
		}
		// Pods that start or end beside it have no answers.
		if got.Continue != "" || got.Questions < 2*pairs || got.Unknown == got.Questions {
			return "", fmt.Errorf("got %+v, want answers", *got)
		}
		return cmp.Diff([]diagnostics.Difference(nil), got.Differences, cmpopts.EquateEmpty()), nil
	})
	fixture.Eventually(t, fixture.SyncTime, "kubectl ovsdn verify", func(ctx context.Context) error {
		return x.kubectlOVSDN(ctx, nil, "verify", "--sample=20")
	})
	fixture.Eventually(t, fixture.SyncTime, "kubectl ovsdn verify --packets", func(ctx context.Context) error {
		var o diagnostics.Verification
		err := x.kubectlOVSDN(ctx, &o, "verify", "--packets", "--namespace="+ns)
		if err == nil && o.Status.Sent == 0 {
			err = errors.New("no packet was sent")
		}
		return err
	})
}

// TestVerificationOfManyPods verifies 60 pods with 30 policies on three nodes: it takes half a minute at most.
func TestVerificationOfManyPods(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: 60 pods, and a bound in time")
	}
	c := ownCluster(t, "e2e-verify", lab.Shape{Nodes: 3, Mode: lab.NetworkPolicy, ServiceProxy: lab.External, Install: fixture.Install()})
	const namespaces, podsEach, limit = 6, 10, 30 * time.Second
	all := make([]string, namespaces)
	for i := range all {
		all[i] = c.Namespace(t)
		for j := range podsEach {
			p := fixture.Netexec(fmt.Sprintf("p%d", j), c.Nodes()[j%3])
			p.Labels["team"] = fmt.Sprint(j % 3)
			p.Spec.Containers[0].ReadinessProbe = nil
			c.Create(t, all[i], p)
		}
	}
	for i, ns := range all {
		for _, p := range verifiedPolicies(ns, all[(i+1)%namespaces]) {
			c.SetPolicy(t, p)
		}
	}
	for _, ns := range all {
		for j := range podsEach {
			c.Ready(t, ns, fmt.Sprintf("p%d", j))
		}
	}
	verify := func(ctx context.Context) (o diagnostics.Verification, err error) {
		err = c.kubectlOVSDN(ctx, &o, "verify")
		return o, err
	}
	fixture.Eventually(t, fixture.SyncTime, "verify all pods without differences", func(ctx context.Context) error {
		_, err := verify(ctx)
		return err
	})
	before := map[string]time.Duration{}
	for _, node := range c.Nodes() {
		before[node] = c.cpuTime(t, node, vswitchdService)
	}
	began := time.Now()
	got, err := verify(t.Context())
	took := time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d questions about %d pods in %.1fs", got.Status.Questions, got.Status.Pods, took.Seconds())
	if took > limit {
		t.Errorf("it took %.1fs, want at most %v", took.Seconds(), limit)
	}
	for _, node := range c.Nodes() {
		share := (c.cpuTime(t, node, vswitchdService) - before[node]).Seconds() / took.Seconds()
		t.Logf("ovs-vswitchd of %s used %.0f%% of a processor, including other traffic of the cluster", node, 100*share)
	}
	c.verifyByPackets(t)
	t.Run("faults", func(t *testing.T) { c.verifyFaults(t, all) })
}

// verifyFaults injects faults of flows on the first node, whose agent does not repair them: the verification of the namespaces finds each, and nothing before
// and after it.
func (c *cluster) verifyFaults(t *testing.T, namespaces []string) {
	node := c.Nodes()[0]
	restore := c.replaceAgent(t, node, buildWithoutRepair(t))
	defer restore()
	subject := c.Ready(t, namespaces[0], "p0").Addr // on the first node
	find := func(wanted bool) func(context.Context) error {
		return func(ctx context.Context) error {
			questions, differences := 0, []diagnostics.Difference(nil)
			for _, ns := range namespaces {
				got, err := c.verification(ctx, ns)
				if err != nil {
					return err
				}
				if questions, differences = questions+got.Questions, append(differences, got.Differences...); wanted && len(differences) > 0 {
					return nil
				}
			}
			if wanted || len(differences) > 0 {
				return fmt.Errorf("got %d differences in %d questions, want some: %t: %+v", len(differences), questions, wanted, differences)
			}
			return nil
		}
	}
	fixture.Eventually(t, fixture.NodeTime, "no difference", find(false))
	const saved = "/run/flows-verified"
	c.Output(t, node, "sh", "-ec", "ovs-ofctl -O OpenFlow14 --no-names --no-stats dump-flows br0 | grep actions= >"+saved)
	flow := func(command, flow string) []string {
		return []string{"ovs-ofctl", "-O", "OpenFlow14", command, "br0", flow}
	}
	local, member := fmt.Sprintf("table=70,ip,nw_dst=%s", subject), c.memberOfConjunction(t, node)
	for name, command := range map[string][]string{
		"a flow deleted":                    flow("del-flows", local),
		"a flow added":                      flow("add-flow", fmt.Sprintf("table=81,priority=65000,ip,nw_dst=%s,actions=goto_table:133", subject)),
		"a flow changed":                    flow("mod-flows", local+",actions=drop"),
		"a member of a conjunction missing": {"ovs-ofctl", "-O", "OpenFlow14", "--strict", "del-flows", "br0", member},
	} {
		t.Run(name, func(t *testing.T) {
			c.Output(t, node, command...)
			fixture.Eventually(t, fixture.NodeTime, "the difference", find(true))
			c.Output(t, node, "ovs-ofctl", "-O", "OpenFlow14", "--bundle", "replace-flows", "br0", saved)
			fixture.Eventually(t, fixture.NodeTime, "no difference", find(false))
		})
	}
}

// memberOfConjunction returns the match of a flow of an ingress rule that several conditions have, for ovs-ofctl.
func (c *cluster) memberOfConjunction(t *testing.T, node string) string {
	t.Helper()
	flows, err := c.DumpFlows(t.Context(), node, "-O", "OpenFlow14")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range flows {
		if match, actions, _ := strings.Cut(f.Text, " actions="); f.Table == "81" && strings.HasPrefix(actions, "conjunction(") {
			return "table=81," + match
		}
	}
	t.Fatalf("table 81 of %s has no conjunctions", node)
	return ""
}

// buildWithoutRepair builds an agent that does not repair changes by other programs, and returns the program's path.
func buildWithoutRepair(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	overlay, dir := map[string]string{}, t.TempDir()
	for name, change := range map[string][2]string{
		"br0/events.go":      {`runner("flow repair", st.Audit)`, `runner("flow repair", func() {})`},
		"flowstore/audit.go": {"const auditInterval = time.Minute", "const auditInterval = 24 * time.Hour"},
	} {
		source := filepath.Join(root, "pkg/sdn/node", name)
		content, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(content), change[0], change[1], 1)
		if changed == string(content) {
			t.Fatalf("%s is not as this test expects it", name)
		}
		overlay[source] = filepath.Join(dir, filepath.Base(name))
		if err := os.WriteFile(overlay[source], []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return buildOverlay(t, root, overlay)
}

// verifyByPackets sends packets for thousands of questions that are drawn at random: what happens to them is what their traces are.
func (c *cluster) verifyByPackets(t *testing.T) {
	t.Helper()
	const packets, sample = 2000, 400
	sent, unconfirmed := 0, 0
	for began := time.Now(); sent < packets; {
		var o diagnostics.Verification
		if err := c.kubectlOVSDN(t.Context(), &o, "verify", "--packets", fmt.Sprintf("--sample=%d", sample)); err != nil {
			t.Fatal(err)
		}
		if o.Status.Sent == 0 {
			t.Fatalf("no packet was sent: %+v", o.Status)
		}
		sent, unconfirmed = sent+o.Status.Sent, unconfirmed+o.Status.Unconfirmed
		t.Logf("%d packets, %d of them without an answer of UDP, in %.0fs", sent, unconfirmed, time.Since(began).Seconds())
	}
}

// verifiedPolicies are five policies of a namespace: some ports and a range of its own pods, one port for a team of another namespace, and one for the egress of a team.
func verifiedPolicies(ns, other string) []*networkingv1.NetworkPolicy {
	tcp, udp := corev1.ProtocolTCP, corev1.ProtocolUDP
	port := func(protocol *corev1.Protocol, from, end int32) networkingv1.NetworkPolicyPort {
		number := intstr.FromInt32(from)
		p := networkingv1.NetworkPolicyPort{Protocol: protocol, Port: &number}
		if end > from {
			p.EndPort = &end
		}
		return p
	}
	team := func(n string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchLabels: map[string]string{"team": n}}
	}
	own := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}
	others := []networkingv1.NetworkPolicyPeer{{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: other}}, PodSelector: team("1"),
	}}
	ingress := func(name string, subject *metav1.LabelSelector, from []networkingv1.NetworkPolicyPeer, ports ...networkingv1.NetworkPolicyPort) *networkingv1.NetworkPolicy {
		return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *subject, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{From: from, Ports: ports}},
		}}
	}
	return []*networkingv1.NetworkPolicy{
		ingress("web", team("0"), own, port(&tcp, 8080, 0), port(&tcp, 443, 0)),
		ingress("range", team("0"), own, port(&tcp, 9000, 9100)),
		ingress("dns", team("1"), own, port(&udp, 53, 0)),
		ingress("shared", team("2"), others, port(&tcp, 5432, 0)),
		{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "egress"}, Spec: networkingv1.NetworkPolicySpec{
			PodSelector: *team("2"), PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress: []networkingv1.NetworkPolicyEgressRule{{To: own, Ports: []networkingv1.NetworkPolicyPort{port(&tcp, 8080, 0), port(&udp, 53, 0)}}},
		}},
	}
}
