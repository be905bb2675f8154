package verification

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

func int80() intstr.IntOrString { return intstr.FromInt32(80) }

const (
	delivered = diagnostics.VerdictDelivered
	dropped   = diagnostics.VerdictDropped
	forwarded = diagnostics.VerdictForwarded
	unknownV  = diagnostics.VerdictUnknown
)

// verify answers a request. It returns the differences: pods, port, expected and actual verdict, node.
func (f *fakeNodes) verify(t *testing.T, q Request) (*Result, []string) {
	t.Helper()
	result, err := f.verifier().Verify(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	found := []string{}
	for _, d := range result.Differences {
		found = append(found, fmt.Sprintf("%s %s %d %s %s %s", strings.TrimPrefix(d.Source, "pod/"), strings.TrimPrefix(d.Destination, "pod/"), d.Port, d.Expected, d.Actual, d.Node))
	}
	return result, found
}

// The six pods have 30 pairs with the ports 80 and one that nothing names.
func TestVerify(t *testing.T) {
	f := newFakeNodes()
	f.batch = 7
	result, found := f.verify(t, Request{})
	if s := result.Status; len(found) > 0 || s.Pods != 6 || s.Questions != 60 || s.Unknown+s.Changed != 0 || s.Continue != "" || f.reads != 1 {
		t.Errorf("got %+v, differences %v after %d reads", s, found, f.reads)
	}
	if got := f.asked(); len(got) != 60 {
		t.Errorf("got %d packets at sources, want 60: %v", len(got), got)
	}
	if f.packets["n2 TCP node/n1>10.128.2.11:80 17"] == 0 {
		t.Errorf("got packets %v, want those from the tunnel with the VNID", f.packets)
	}
}

func TestVerify_differences(t *testing.T) {
	to := func(name string, verdict diagnostics.Verdict) *diagnostics.TraceResult {
		r := &diagnostics.TraceResult{Verdict: verdict, Reason: "wrong", Flow: &diagnostics.TraceStep{TableName: "added"}}
		for n := range strings.FieldsSeq(name) {
			r.Outputs = append(r.Outputs, diagnostics.TraceOutput{To: n, Packet: diagnostics.TracePacket{Protocol: "TCP", Source: "10.128.0.1", Destination: "10.128.0.2"}})
		}
		return r
	}
	for name, tc := range map[string]struct {
		at     string // node, source, destination, port
		result *diagnostics.TraceResult
		want   []string
	}{
		"dropped on the destination's node":  {"n1 b/web a/db 80", to("", dropped), []string{"b/web a/db 80 Delivered Dropped n1"}},
		"dropped on the source's node":       {"n2 b/web a/db 80", to("", dropped), []string{"b/web a/db 80 Delivered Dropped n2"}},
		"delivered to an isolated pod":       {"n1 a/web a/db 27123", to("pod/a/db", delivered), []string{"a/web a/db 27123 Dropped Delivered n1"}},
		"delivered by the same node":         {"n1 b/db a/db 80", to("pod/a/db", delivered), []string{"b/db a/db 80 Dropped Delivered n1"}},
		"delivered to another pod":           {"n2 a/db a/web 80", to("pod/b/web", delivered), []string{"a/db a/web 80 Delivered Forwarded n2"}},
		"also delivered to another pod":      {"n2 a/db a/web 80", to("pod/a/web pod/b/web", delivered), []string{"a/db a/web 80 Delivered Forwarded n2"}},
		"to the host":                        {"n2 a/db a/web 80", to("host", forwarded), []string{"a/db a/web 80 Delivered Forwarded n2"}},
		"to the tunnel of another node":      {"n1 a/db a/web 80", to("node/n3", forwarded), []string{"a/db a/web 80 Delivered Forwarded n1"}},
		"denied, and to the host":            {"n1 a/web a/db 80", to("host", forwarded), []string{"a/web a/db 80 Dropped Forwarded n1"}},
		"delivered to a pod of another node": {"n2 b/web a/db 80", to("pod/a/db", delivered), []string{"b/web a/db 80 Delivered Forwarded n2"}},
		"another packet in the tunnel":       {"n2 b/web a/db 80", to("node/n1", forwarded), []string{"b/web a/db 80 Delivered Forwarded n2"}},
		"not known":                          {"n1 a/web a/db 80", to("", unknownV), []string{}},
	} {
		f := newFakeNodes()
		f.corrupt = func(_ int, node, from, to string, port uint16) *diagnostics.TraceResult {
			if tc.at == fmt.Sprintf("%s %s %s %d", node, from, to, port) {
				return tc.result
			}
			return nil
		}
		result, found := f.verify(t, Request{})
		if diff := cmp.Diff(tc.want, found); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
			continue
		}
		if len(found) > 0 && (!strings.Contains(result.Differences[0].Result.Reason, "wrong") || result.Differences[0].Result.Flow.TableName != "added") {
			t.Errorf("%s: got %+v, want the reason and the flow of the node", name, result.Differences[0].Result)
		}
		if isUnknown := tc.result.Verdict == unknownV; (result.Status.Unknown == 1) != isUnknown || isUnknown && result.Status.Unanswered[0] != "wrong" {
			t.Errorf("%s: got %+v", name, result.Status)
		}
	}
}

// What differs only once, or whose objects change in the meantime, is no difference.
func TestVerify_changes(t *testing.T) {
	fault := func(reads int, _, from, to string, port uint16) *diagnostics.TraceResult {
		if from == "b/web" && to == "a/db" && port == 80 {
			return &diagnostics.TraceResult{Verdict: dropped}
		}
		return nil
	}
	podAt := func(at int, change func(*corev1.Pod)) func(int, *Snapshot) {
		return func(reads int, s *Snapshot) {
			if reads == at {
				s.Pods[0] = s.Pods[0].DeepCopy()
				change(s.Pods[0])
			}
		}
	}
	for name, tc := range map[string]struct {
		corrupt func(int, string, string, string, uint16) *diagnostics.TraceResult
		change  func(int, *Snapshot)
		changed int
		reads   int
	}{
		"the fault remains":           {fault, nil, 0, 3},
		"a label that no one selects": {fault, podAt(2, func(p *corev1.Pod) { p.Annotations = map[string]string{"x": "y"} }), 0, 3},
		"the fault ends": {func(reads int, node, from, to string, port uint16) *diagnostics.TraceResult {
			if reads > 1 {
				return nil
			}
			return fault(reads, node, from, to, port)
		}, nil, 1, 3},
		"the pod is replaced":       {fault, podAt(2, func(p *corev1.Pod) { p.UID = "new" }), 1, 3},
		"the pod is replaced later": {fault, podAt(3, func(p *corev1.Pod) { p.UID = "new" }), 1, 3},
		"the pod moves":             {fault, podAt(2, func(p *corev1.Pod) { p.Status.PodIP = "10.128.0.99" }), 1, 3},
		"the pod is relabeled":      {fault, podAt(3, func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db", "x": "y"} }), 1, 3},
		"the pod is deleted":        {fault, func(reads int, s *Snapshot) { s.Pods = s.Pods[min(reads-1, 1):] }, 1, 3},
		"the policy changes": {fault, func(reads int, s *Snapshot) {
			if reads == 2 {
				s.Policies[0] = s.Policies[0].DeepCopy()
				s.Policies[0].Generation++
			}
		}, 1, 3},
		"the policy is deleted": {fault, func(reads int, s *Snapshot) { s.Policies = s.Policies[min(reads-1, 1):] }, 1, 3},
	} {
		f := newFakeNodes()
		f.corrupt, f.change = tc.corrupt, tc.change
		result, found := f.verify(t, Request{})
		if result.Status.Changed != tc.changed || len(found) != 1-tc.changed || f.reads != tc.reads || result.Status.Unknown > 0 {
			t.Errorf("%s: got %+v, differences %v after %d reads, want %d changes", name, result.Status, found, f.reads, tc.changed)
		}
	}
}

func TestVerify_silentNodes(t *testing.T) {
	f := newFakeNodes()
	f.silent = map[string]error{"n2": errors.New("connection refused")}
	f.objects.Pods[4].Spec.NodeName = "n9"
	result, found := f.verify(t, Request{})
	if s := result.Status; len(found) > 0 || s.Questions != 60 || s.Unknown <= 30 || s.Unknown >= 60 || len(s.Unanswered) != 2 || f.reads != 1 {
		t.Errorf("got %+v, differences %v", s, found)
	}
	for _, reason := range result.Status.Unanswered {
		if reason != "node n2: connection refused" && reason != "node n9: no HostSubnet" {
			t.Errorf("got reason %q", reason)
		}
	}
}

func TestVerify_namespace(t *testing.T) {
	for name, tc := range map[string]struct {
		request Request
		want    int
	}{
		"alone":                 {Request{Namespace: "a"}, 2 * 1 * 2},
		"with others":           {Request{Namespace: "a", WithOthers: true}, 2 * (2*2*4 + 2)},
		"that does not exist":   {Request{Namespace: "x"}, 0},
		"a sample":              {Request{Sample: 7}, 7},
		"a sample with others":  {Request{Namespace: "a", WithOthers: true, Sample: 9}, 9},
		"a sample of none":      {Request{Namespace: "x", Sample: 7}, 0},
		"a sample of all pairs": {Request{Namespace: "a", Sample: 4}, 4},
	} {
		f := newFakeNodes()
		result, found := f.verify(t, tc.request)
		if result.Status.Questions != tc.want || len(found) > 0 || len(f.asked()) != tc.want {
			t.Errorf("%s: got %+v, %d packets, want %d questions", name, result.Status, len(f.asked()), tc.want)
		}
		for _, p := range f.asked() {
			if tc.request.Namespace != "" && !strings.Contains(p, " pod/a/") && !strings.Contains(p, ">10.128.0.10:") && !strings.Contains(p, ">10.128.2.11:") {
				t.Errorf("%s: got packet %s of other namespaces", name, p)
			}
		}
	}
}

// newManyPods has 46 pods: all questions do not fit into the first group.
func newManyPods() *fakeNodes {
	f := newFakeNodes()
	for i := range 40 {
		p := f.objects.Pods[i%6].DeepCopy()
		p.Name, p.Status.PodIP = fmt.Sprintf("%s%02d", p.Name, i), fmt.Sprintf("10.128.1.%d", i)
		f.objects.Pods = append(f.objects.Pods, p)
	}
	Sort(f.objects.Pods)
	return f
}

// If flows drop everything, each answer has some differences, and all have each once.
func TestVerify_manyDifferences(t *testing.T) {
	f := newManyPods()
	f.corrupt = func(int, string, string, string, uint16) *diagnostics.TraceResult {
		return &diagnostics.TraceResult{Verdict: dropped}
	}
	found, questions, token := map[string]bool{}, 0, ""
	for {
		result, differences := f.verify(t, Request{Continue: token})
		if len(differences) > maxCandidates+1 {
			t.Fatalf("got %d differences in an answer", len(differences))
		}
		for _, d := range differences {
			if found[d] {
				t.Errorf("got %s twice", d)
			}
			found[d] = true
		}
		questions += result.Status.Questions
		if token = result.Status.Continue; token == "" {
			break
		}
	}
	r, err := f.verifier().newRun(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	allowed := 0
	for _, q := range r.questions().take(1 << 30) {
		if r.expected(q).Allowed {
			allowed++
		}
	}
	if questions != 46*45*2 || len(found) != allowed {
		t.Errorf("got %d questions, %d differences, want %d, %d", questions, len(found), 46*45*2, allowed)
	}
}

// Answers in parts have each question once, also if the pod where one ends is deleted.
func TestVerify_continue(t *testing.T) {
	f := newManyPods()
	v := f.verifier()
	v.Budget = 0
	requests, questions, token := 0, 0, ""
	for {
		result, err := v.Verify(t.Context(), Request{Continue: token})
		if err != nil || len(result.Differences) > 0 {
			t.Fatalf("got %+v, error %v", result, err)
		}
		requests++
		questions += result.Status.Questions
		if token = result.Status.Continue; token == "" {
			break
		}
	}
	if requests < 3 || questions != 46*45*2 || len(f.asked()) != questions {
		t.Errorf("got %d questions, %d of them distinct, in %d requests, want %d", questions, len(f.asked()), requests, 46*45*2)
	}
	for token, want := range map[string]int{strings.Repeat("f", 32): 0, "": 46 * 45 * 2} {
		v.Budget = 1 << 40
		if result, err := v.Verify(t.Context(), Request{Continue: token}); err != nil || result.Status.Questions != want || result.Status.Continue != "" {
			t.Errorf("token %s: got %+v, error %v, want %d questions", token, result, err, want)
		}
	}
}

// A request continues after the same pairs if pods were deleted in the meantime, and windows have each pair once.
func TestQuestions_order(t *testing.T) {
	f := newManyPods()
	for i := range 300 { // more pairs than a window
		p := f.objects.Pods[i%6].DeepCopy()
		p.Name, p.Status.PodIP = fmt.Sprintf("more%03d", i), fmt.Sprintf("10.129.%d.%d", i/200, i%200)
		f.objects.Pods = append(f.objects.Pods, p)
	}
	Sort(f.objects.Pods)
	for _, q := range []Request{{}, {Namespace: "a"}, {Namespace: "a", WithOthers: true}, {Namespace: "x", WithOthers: true}} {
		r, err := f.verifier().newRun(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		pairs := map[string]bool{}
		s := r.questions()
		for group := s.take(1000); len(group) > 0; group = s.take(1000) {
			for _, q := range group {
				name := nameOf(r.snapshot.Pods[q.from]) + " " + nameOf(r.snapshot.Pods[q.to])
				if !pairs[name] {
					names = append(names, name)
				}
				pairs[name] = true
				if !r.isAsked(q.from, q.to) {
					t.Fatalf("%+v: got pair %s", q, name)
				}
			}
		}
		if len(pairs) != r.pairs() || s.token != "" {
			t.Fatalf("%+v: got %d pairs, want %d; token %q", q, len(pairs), r.pairs(), s.token)
		}
		if q.Namespace == "" {
			wantSameOrder(t, f, names)
		}
	}
}

// wantSameOrder deletes a pod, and continues after some pairs: the others follow in the same order.
func wantSameOrder(t *testing.T, f *fakeNodes, names []string) {
	t.Helper()
	r, err := f.verifier().newRun(t.Context(), Request{})
	if err != nil {
		t.Fatal(err)
	}
	s := r.questions()
	taken := map[string]bool{}
	for _, q := range s.take(5000) {
		taken[nameOf(r.snapshot.Pods[q.from])+" "+nameOf(r.snapshot.Pods[q.to])] = true
	}
	deleted := nameOf(f.objects.Pods[7])
	f.objects.Pods = slices.Delete(slices.Clone(f.objects.Pods), 7, 8)
	if r, err = f.verifier().newRun(t.Context(), Request{Continue: s.token}); err != nil {
		t.Fatal(err)
	}
	want := slices.DeleteFunc(names[len(taken):], func(pair string) bool {
		from, to, _ := strings.Cut(pair, " ")
		return from == deleted || to == deleted
	})
	var got []string
	for _, q := range r.questions().take(1 << 30) {
		if pair := nameOf(r.snapshot.Pods[q.from]) + " " + nameOf(r.snapshot.Pods[q.to]); len(got) == 0 || got[len(got)-1] != pair {
			got = append(got, pair)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after the deletion of a pod (-want +got):\n%s", diff)
	}
}

func TestVerify_tooManyPairs(t *testing.T) {
	f := newFakeNodes()
	for i := range 1001 {
		p := f.objects.Pods[0].DeepCopy()
		p.Namespace, p.Name = "many", fmt.Sprintf("p%04d", i)
		f.objects.Pods = append(f.objects.Pods, p)
	}
	_, err := f.verifier().Verify(t.Context(), Request{})
	var tooMany *TooManyPairsError
	if !errors.As(err, &tooMany) || tooMany.Pairs != 1007*1006 {
		t.Errorf("got error %v", err)
	}
	if result, _ := f.verify(t, Request{Namespace: "a"}); result.Status.Questions != 4 {
		t.Errorf("in a namespace: got %+v", result.Status)
	}
	if result, _ := f.verify(t, Request{Sample: 5}); result.Status.Questions != 5 {
		t.Errorf("a sample: got %+v", result.Status)
	}
}

func TestPortsOf(t *testing.T) {
	f := newFakeNodes()
	f.objects.Services = []Service{
		{Namespace: "a", Selector: map[string]string{"app": "db"}, Targets: []oracle.Port{{Protocol: corev1.ProtocolUDP, Number: 53}, {Protocol: corev1.ProtocolTCP, Number: firstUnnamed}}},
		{Namespace: "a", Selector: map[string]string{"app": "web"}, Targets: []oracle.Port{{Protocol: corev1.ProtocolTCP, Number: 1}}},
		{Namespace: "b", Selector: map[string]string{"app": "db"}, Targets: []oracle.Port{{Protocol: corev1.ProtocolTCP, Number: 2}}},
	}
	want := []oracle.Port{
		{Protocol: corev1.ProtocolTCP, Number: firstUnnamed + 1}, {Protocol: corev1.ProtocolTCP, Number: 80}, {Protocol: corev1.ProtocolTCP, Number: firstUnnamed},
		{Protocol: corev1.ProtocolUDP, Number: firstUnnamed}, {Protocol: corev1.ProtocolUDP, Number: 53},
	}
	if diff := cmp.Diff(want, newPortsOf(f.objects).of(1, 0)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
