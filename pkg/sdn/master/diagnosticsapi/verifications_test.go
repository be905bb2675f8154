package diagnosticsapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// batchingAgents deliver all packets of pods but those to a/db, which another program's flow drops. Objects of that flow are of three tenants.
type batchingAgents struct{ batches, probes atomic.Int32 }

// sent has the results of packets from pods: all are answered.
func (a *batchingAgents) sent(packets []diagnostics.TracePacket) (string, error) {
	a.probes.Add(1)
	var answer diagnostics.NodeProbes
	for range packets {
		answer.Results = append(answer.Results, diagnostics.ProbeStatus{Verdict: diagnostics.VerdictAnswered, Reason: "connected\x1b", Reached: true})
	}
	content, err := json.Marshal(answer)
	return string(content), err
}

func (a *batchingAgents) answer(_ context.Context, node, path string, query url.Values) (string, error) {
	var batch diagnostics.PacketBatch
	if err := json.Unmarshal([]byte(query.Get("body")), &batch); err == nil && path == diagnostics.NodeProbesPath {
		return a.sent(batch.Packets)
	}
	if err := json.Unmarshal([]byte(query.Get("body")), &batch); err != nil || path != diagnostics.NodeTracesPath {
		return "", fmt.Errorf("got path %s: %w", path, err)
	}
	a.batches.Add(1)
	var answer diagnostics.NodeTraces
	names := map[string]string{"10.128.0.5": "pod/a/web", "10.128.0.6": "pod/a/db", "10.128.2.7": "pod/b/db", "10.128.0.7": "pod/b/web"}
	for _, p := range batch.Packets {
		source := p.Source
		for addr, name := range names {
			if name == p.From {
				source = addr
			}
		}
		out := diagnostics.TraceOutput{To: names[p.Destination], Packet: diagnostics.TracePacket{Protocol: p.Protocol, Source: source, Destination: p.Destination, DestinationPort: p.DestinationPort}}
		r := diagnostics.TraceResult{Verdict: diagnostics.VerdictDelivered, Reason: "delivered", Outputs: []diagnostics.TraceOutput{out}}
		there := map[bool]string{true: "node2", false: "node1"}[strings.HasPrefix(p.Destination, "10.128.2.")]
		switch {
		case p.Destination == "10.128.0.6" && there == node:
			objects := []diagnostics.TraceObject{{Object: "networkpolicy/a/own"}, {Object: "networkpolicy/hidden/secret"}, {Object: "clusternetworkpolicy/admin"}}
			r = diagnostics.TraceResult{Verdict: diagnostics.VerdictDropped, Reason: "networkpolicy/hidden/secret denies it\x1b", Objects: objects,
				Flow: &diagnostics.TraceStep{TableName: "ingress-policy", Match: "secret", Objects: objects}}
		case there != node:
			r.Verdict, r.Outputs[0].To, r.Outputs[0].VNID = diagnostics.VerdictForwarded, "node/"+there, 17
		}
		answer.Results = append(answer.Results, r)
	}
	content, err := json.Marshal(answer)
	return string(content), err
}

// newVerificationFixture serves the pods of newTraceFixture, without policies.
func newVerificationFixture(t *testing.T, rights ...string) (*fixture, *batchingAgents) {
	t.Helper()
	f := newTraceFixture(t, rights...)
	agents := &batchingAgents{}
	f.Agents, f.settle = agentFunc(agents.answer), 0
	for _, name := range []string{"a", "b"} {
		if err := f.kube.Tracker().Add(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			t.Fatal(err)
		}
	}
	return f, agents
}

func (f *fixture) postVerification(t *testing.T, namespace string, spec diagnostics.VerificationSpec) response {
	t.Helper()
	content, err := json.Marshal(diagnostics.Verification{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	if namespace != "" {
		namespace = "/namespaces/" + namespace
	}
	return f.postBody(t, "u", namespace+"/verifications", string(content))
}

func pairsOf(o diagnostics.Verification) (pairs []string) {
	for _, d := range o.Status.Differences {
		pairs = append(pairs, fmt.Sprintf("%s %s %s %d %s %s", d.Source, d.Destination, d.Protocol, d.Port, d.Expected, d.Actual))
	}
	return pairs
}

// A user with the right at the cluster scope has all pairs, and reads all names.
func TestVerifications_cluster(t *testing.T) {
	f, _ := newVerificationFixture(t, "u create verifications")
	o := decode[diagnostics.Verification](t, f.postVerification(t, "", diagnostics.VerificationSpec{}), http.StatusCreated)
	want := []string{"pod/a/web pod/a/db TCP 27123 Delivered Dropped", "pod/b/db pod/a/db TCP 27123 Delivered Dropped", "pod/b/web pod/a/db TCP 27123 Delivered Dropped"}
	if diff := cmp.Diff(want, pairsOf(o)); diff != "" {
		t.Fatalf("differences (-want +got):\n%s", diff)
	}
	d := o.Status.Differences[1]
	if o.Kind != "Verification" || o.Namespace != "" || o.Status.Pods != 4 || o.Status.Questions != 12 || o.Status.Unknown+o.Status.Changed != 0 || o.Status.Continue != "" ||
		d.Node != "node1" || d.Reason != `"networkpolicy/hidden/secret denies it\x1b"` || len(d.Objects) != 3 || d.Flow.Match != "secret" || d.ExpectedReason == "" {
		t.Errorf("got %+v", o)
	}
	o = decode[diagnostics.Verification](t, f.postVerification(t, "", diagnostics.VerificationSpec{Sample: 5}), http.StatusCreated)
	if o.Status.Questions != 5 {
		t.Errorf("a sample: got %+v", o.Status)
	}
	o = decode[diagnostics.Verification](t, f.postVerification(t, "", diagnostics.VerificationSpec{Continue: strings.Repeat("f", 32)}), http.StatusCreated)
	if o.Status.Questions != 0 || len(o.Status.Differences) != 0 || o.Status.Continue != "" {
		t.Errorf("continued after the last pair: got %+v", o.Status)
	}
	// In a namespace: also the pairs with pods of others.
	if r := f.postVerification(t, "b", diagnostics.VerificationSpec{}); r.code != http.StatusForbidden {
		t.Errorf("without the right in the namespace: got %d", r.code)
	}
	f, _ = newVerificationFixture(t, "u create verifications", "u create verifications b")
	o = decode[diagnostics.Verification](t, f.postVerification(t, "b", diagnostics.VerificationSpec{}), http.StatusCreated)
	if o.Status.Questions != 10 || !slices.Equal(pairsOf(o), want[1:]) || o.Status.Differences[0].Flow.Match != "secret" {
		t.Errorf("in a namespace: got %+v", o.Status)
	}
}

// A tenant has the pairs with both ends in the namespace, and reads no names of other tenants.
func TestVerifications_tenant(t *testing.T) {
	f, agents := newVerificationFixture(t, "u create verifications a", "u create traces b")
	r := f.postVerification(t, "a", diagnostics.VerificationSpec{})
	o := decode[diagnostics.Verification](t, r, http.StatusCreated)
	if diff := cmp.Diff([]string{"pod/a/web pod/a/db TCP 27123 Delivered Dropped"}, pairsOf(o)); diff != "" {
		t.Fatalf("differences (-want +got):\n%s", diff)
	}
	d := o.Status.Differences[0]
	want := []diagnostics.TraceObject{{Object: "networkpolicy/a/own"}, {Object: "another tenant's policy"}, {Object: "a ClusterNetworkPolicy"}}
	if diff := cmp.Diff(want, d.Objects); diff != "" {
		t.Errorf("objects (-want +got):\n%s", diff)
	}
	if o.Namespace != "a" || o.Status.Pods != 2 || o.Status.Questions != 2 || strings.Contains(r.body, "secret") || strings.Contains(r.body, `"admin"`) || strings.Contains(r.body, "/b/") {
		t.Errorf("got %s", r.body)
	}
	before := agents.batches.Load()
	for namespace, code := range map[string]int{"": http.StatusForbidden, "b": http.StatusForbidden, "a": http.StatusUnprocessableEntity} {
		if r := f.postVerification(t, namespace, diagnostics.VerificationSpec{Sample: -1}); r.code != code {
			t.Errorf("namespace %q: got %d %s, want %d", namespace, r.code, r.body, code)
		}
	}
	if r := f.postVerification(t, "a", diagnostics.VerificationSpec{Sample: diagnostics.MaxSample + 1, Continue: "a/db a/web"}); r.code != http.StatusUnprocessableEntity || !strings.Contains(r.body, "spec.continue") {
		t.Errorf("got %d %s", r.code, r.body)
	}
	if got := agents.batches.Load(); got != before {
		t.Errorf("refused requests asked agents %d times", got-before)
	}
}

// Packets are sent with the right to create probes in the same scope. One that is answered although a policy denies it is a difference.
func TestVerifications_packets(t *testing.T) {
	f, agents := newVerificationFixture(t, "u create verifications", "u create verifications a", "u create probes a")
	isolated := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "all"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}
	if err := f.kube.Tracker().Add(isolated); err != nil {
		t.Fatal(err)
	}
	spec := diagnostics.VerificationSpec{Packets: true}
	for _, namespace := range []string{"", "a"} { // of a: also pairs with others
		if r := f.postVerification(t, namespace, spec); r.code != http.StatusForbidden || !strings.Contains(r.body, "probes") || agents.batches.Load()+agents.probes.Load() > 0 {
			t.Errorf("namespace %q: got %d %s", namespace, r.code, r.body)
		}
	}
	f, agents = newVerificationFixture(t, "u create verifications", "u create probes")
	if err := f.kube.Tracker().Add(isolated); err != nil {
		t.Fatal(err)
	}
	o := decode[diagnostics.Verification](t, f.postVerification(t, "", spec), http.StatusCreated)
	want := []string{
		"pod/a/db pod/a/web TCP 27123 Dropped Delivered", "pod/a/web pod/a/db TCP 27123 Dropped Delivered", "pod/b/db pod/a/db TCP 27123 Dropped Delivered",
		"pod/b/db pod/a/web TCP 27123 Dropped Delivered", "pod/b/web pod/a/db TCP 27123 Dropped Delivered", "pod/b/web pod/a/web TCP 27123 Dropped Delivered",
	}
	if diff := cmp.Diff(want, pairsOf(o)); diff != "" || agents.probes.Load() == 0 {
		t.Fatalf("got %+v, differences (-want +got):\n%s", o.Status, diff)
	}
	if d := o.Status.Differences[0]; d.ByPacket {
		t.Errorf("by a trace: got %+v", d)
	}
	if d := o.Status.Differences[1]; !d.ByPacket || d.Node != "node1" || !strings.Contains(d.Reason, "a packet that was sent: ") || strings.Contains(d.Reason, "\x1b") {
		t.Errorf("got %+v", d)
	}
	f, agents = newVerificationFixture(t, "u create verifications a", "u create probes a")
	o = decode[diagnostics.Verification](t, f.postVerification(t, "a", spec), http.StatusCreated)
	if o.Status.Questions != 2 || agents.probes.Load() == 0 {
		t.Errorf("a tenant: got %+v", o.Status)
	}
}

// An agent of an earlier version, and one whose answer is invalid, answer no question.
func TestVerifications_unanswered(t *testing.T) {
	f, agents := newVerificationFixture(t, "u create verifications", "u create verifications a")
	f.Agents = agentFunc(func(ctx context.Context, node, path string, query url.Values) (string, error) {
		if node == "node2" {
			return "", &agentError{code: http.StatusNotFound}
		}
		return agents.answer(ctx, node, path, query)
	})
	o := decode[diagnostics.Verification](t, f.postVerification(t, "", diagnostics.VerificationSpec{}), http.StatusCreated)
	if o.Status.Unknown != 6 || !slices.Equal(o.Status.Unanswered, []string{"node node2: the agent of node2 does not support it; upgrade the agent"}) || len(o.Status.Differences) != 2 {
		t.Errorf("got %+v", o.Status)
	}
	for _, answer := range []string{`{}`, `{"results":[` + strings.Repeat(`{"verdict":"Dropped"},`, 20) + `{}]}`, `{"results":1}`} {
		f.Agents = agentFunc(func(context.Context, string, string, url.Values) (string, error) { return answer, nil })
		o = decode[diagnostics.Verification](t, f.postVerification(t, "", diagnostics.VerificationSpec{}), http.StatusCreated)
		if o.Status.Unknown != 12 || len(o.Status.Differences) > 0 || len(o.Status.Unanswered) != 2 || !strings.Contains(o.Status.Unanswered[0], "invalid answer") {
			t.Errorf("%.20s: got %+v", answer, o.Status)
		}
	}
}

// The objects of the API server decide: policies, ClusterNetworkPolicies if there are any, services, and VNIDs in mode multitenant.
func TestVerifications_objects(t *testing.T) {
	f, _ := newVerificationFixture(t, "u create verifications")
	isolated := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "all"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}}}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "db"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	service.Spec.Selector, service.Spec.Ports[0].TargetPort.IntVal = map[string]string{"app": "db"}, 8080
	ended, host, outside, deleted := tracedPod("b", "ended", "node1", "10.128.0.8"), tracedPod("b", "host", "node1", "192.0.2.1"), tracedPod("b", "outside", "node1", "203.0.113.7"), tracedPod("b", "deleted", "node1", "10.128.0.9")
	ended.Status.Phase, host.Spec.HostNetwork, deleted.DeletionTimestamp, deleted.Finalizers = corev1.PodSucceeded, true, &metav1.Time{}, []string{"x"}
	for _, o := range []runtime.Object{isolated, service, ended, host, outside, deleted} {
		if err := f.kube.Tracker().Add(o); err != nil {
			t.Fatal(err)
		}
	}
	f.policies.PrependReactor("list", "clusternetworkpolicies", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewNotFound(resourceOf("clusternetworkpolicies"), "")
	})
	o := decode[diagnostics.Verification](t, f.postVerification(t, "", diagnostics.VerificationSpec{}), http.StatusCreated)
	want := []string{"pod/a/db pod/a/web TCP 27123 Dropped Delivered", "pod/b/db pod/a/web TCP 27123 Dropped Delivered", "pod/b/web pod/a/web TCP 27123 Dropped Delivered"}
	if diff := cmp.Diff(want, pairsOf(o)); diff != "" || o.Status.Pods != 4 {
		t.Errorf("with a policy: got %+v, differences (-want +got):\n%s", o.Status, diff)
	}

	setMode(t, f, config.ModeMultitenant)
	for name, vnid := range map[string]uint32{"a": 10, "b": 11} {
		if err := f.network.Tracker().Add(&networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: vnid}); err != nil {
			t.Fatal(err)
		}
	}
	o = decode[diagnostics.Verification](t, f.postVerification(t, "", diagnostics.VerificationSpec{}), http.StatusCreated)
	if len(o.Status.Differences) != 7 { // to a/web of all, to pods of b of those of a
		t.Errorf("with VNIDs: got %q", pairsOf(o))
	}
	setMode(t, f, config.ModeSubnet)
	o = decode[diagnostics.Verification](t, f.postVerification(t, "", diagnostics.VerificationSpec{}), http.StatusCreated)
	if len(o.Status.Differences) != 3 || !strings.Contains(pairsOf(o)[0], "pod/a/db TCP 27123 Delivered Dropped") {
		t.Errorf("mode subnet: got %q", pairsOf(o))
	}
	f.kube.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(resourceOf("pods"), "", nil)
	})
	if r := f.postVerification(t, "", diagnostics.VerificationSpec{}); r.code != http.StatusServiceUnavailable {
		t.Errorf("without the right to list pods: got %d %s", r.code, r.body)
	}
}

func setMode(t *testing.T, f *fixture, mode config.Mode) {
	t.Helper()
	o := tracedNetwork()
	n, err := config.ActiveNetwork(o)
	if err != nil {
		t.Fatal(err)
	}
	n.Mode = mode
	accepted, err := n.Accepted()
	if err != nil {
		t.Fatal(err)
	}
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, config.AcceptedAnnotation, accepted)
	if _, err := f.network.NetworkV1().ClusterNetworks().Update(t.Context(), o, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestVerifications_tooManyPods(t *testing.T) {
	f, agents := newVerificationFixture(t, "u create verifications")
	for i := range 1001 {
		if err := f.kube.Tracker().Add(tracedPod("a", fmt.Sprintf("p%d", i), "node1", fmt.Sprintf("10.129.%d.%d", i/250, i%250))); err != nil {
			t.Fatal(err)
		}
	}
	if r := f.postVerification(t, "", diagnostics.VerificationSpec{}); r.code != http.StatusBadRequest || !strings.Contains(r.body, "1009020 pairs") || agents.batches.Load() > 0 {
		t.Errorf("got %d %s", r.code, r.body)
	}
}

// An agent can't fill the memory: of arrays and texts a part is retained.
func TestTracesAnswer_limits(t *testing.T) {
	long := strings.Repeat("x", 100_000)
	many := func(element string, n int) string {
		return "[" + strings.TrimSuffix(strings.Repeat(element+",", n), ",") + "]"
	}
	result := `{"verdict":"Delivered","reason":"` + long + `","objects":` + many(`{"object":"o"}`, 100) + `,"outputs":` + many(`{"to":"t","hostIP":"h","packet":{"source":"s"}}`, 100) +
		`,"flow":{"tableName":"t","names":` + many(`"n"`, 100) + `,"objects":` + many(`{"object":"o"}`, 100) + `}}`
	a := &tracesAnswer{}
	if err := a.decode(strings.NewReader(`{"results":[` + result + `,` + strings.Replace(result, `"hostIP":"h"`, `"hostIP":"`+long+`"`, 1) + `]}`)); err != nil || len(a.Results) != 2 {
		t.Fatalf("got %d results, %v", len(a.Results), err)
	}
	for _, r := range a.Results {
		if len(r.Reason) > 2*maxMessage || len(r.Objects) != maxResultObjects || len(r.Outputs) != maxTraceOutputs || len(r.Flow.Names) != maxResultObjects || len(r.Flow.Objects) != maxResultObjects {
			t.Errorf("got %d bytes, %d objects, %d outputs, a flow with %d names", len(r.Reason), len(r.Objects), len(r.Outputs), len(r.Flow.Names))
		}
		if len(r.Outputs[0].HostIP) > 2*maxName || r.Outputs[0].Packet.Source != "s" {
			t.Errorf("got output %.200v", r.Outputs[0])
		}
	}
	empty := &tracesAnswer{}
	if err := empty.decode(strings.NewReader(`{"results":` + many("{}", 1_000_000) + `}`)); err != nil || len(empty.Results) != 0 {
		t.Errorf("got %d results of a million empty ones, %v", len(empty.Results), err)
	}
}
