package verification

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// fakeNodes are nodes whose flows do what the objects allow, but for faults. The source's node decides about egress, the destination's about ingress.
type fakeNodes struct {
	mu      sync.Mutex
	objects *Snapshot
	reads   int
	packets map[string]int // that each node traced, by its name and the packet

	batch   int                                                                          // packets of an answer; 0: all
	silent  map[string]error                                                             // why agents do not answer
	change  func(reads int, s *Snapshot)                                                 // before objects are read for the n-th time
	corrupt func(reads int, node, from, to string, port uint16) *diagnostics.TraceResult // instead of the right result

	sent  map[string]int                                          // packets that each node sent, by protocol, names and port
	probe func(reads int, packet string) *diagnostics.ProbeStatus // instead of the right result
}

// newFakeNodes returns pods web and db in the namespaces a, b and c, on the nodes n1 and n2. Policies isolate a/db, which only b/web reaches at port 80, and the
// egress of c/web.
func newFakeNodes() *fakeNodes {
	s := &Snapshot{}
	for i, name := range []string{"a/db", "a/web", "b/db", "b/web", "c/db", "c/web"} {
		namespace, name, _ := strings.Cut(name, "/")
		node := []string{"n1", "n2"}[i%2]
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"app": name}}}
		p.Spec.NodeName, p.Status.PodIP = node, netip.AddrFrom4([4]byte{10, 128, byte(2 * (i % 2)), byte(10 + i)}).String()
		p.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{ContainerPort: 80}}}}
		s.Pods = append(s.Pods, p)
		if i%2 == 0 {
			s.Namespaces = append(s.Namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"ns": namespace}}})
		}
	}
	app := func(name string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}
	}
	web, b := app("web"), metav1.LabelSelector{MatchLabels: map[string]string{"ns": "b"}}
	s.Policies = []*networkingv1.NetworkPolicy{
		{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "db"}, Spec: networkingv1.NetworkPolicySpec{PodSelector: app("db"), Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &web, NamespaceSelector: &b}}, Ports: []networkingv1.NetworkPolicyPort{{Port: new(int80())}},
		}}}},
		{ObjectMeta: metav1.ObjectMeta{Namespace: "c", Name: "web"}, Spec: networkingv1.NetworkPolicySpec{PodSelector: web, PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}}},
	}
	return &fakeNodes{objects: s, packets: map[string]int{}, sent: map[string]int{}}
}

func (f *fakeNodes) verifier() *Verifier {
	return &Verifier{Read: f.read, Node: f.node, Agents: f, Budget: 1 << 40}
}

func (f *fakeNodes) read(context.Context) (*Snapshot, error) {
	f.reads++
	s := *f.objects
	s.Pods, s.Policies = slices.Clone(s.Pods), slices.Clone(s.Policies)
	f.objects = &s
	if f.change != nil {
		f.change(f.reads, f.objects)
	}
	return f.objects, nil
}

func (f *fakeNodes) node(name string) (tracing.Node, error) {
	if name == "n9" {
		return tracing.Node{}, errors.New("no HostSubnet")
	}
	return tracing.Node{Name: name}, nil
}

func (f *fakeNodes) pod(addr string) *corev1.Pod {
	return f.objects.Pods[slices.IndexFunc(f.objects.Pods, func(p *corev1.Pod) bool { return p.Status.PodIP == addr })]
}

// Traces implements Agents.
func (f *fakeNodes) Traces(_ context.Context, node tracing.Node, packets []diagnostics.TracePacket) (results []diagnostics.TraceResult, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.silent[node.Name]; err != nil {
		return nil, err
	}
	if f.batch > 0 && len(packets) > f.batch {
		packets = packets[:f.batch]
	}
	for _, p := range packets {
		f.packets[fmt.Sprintf("%s %s %s>%s:%d %d", node.Name, p.Protocol, p.From, p.Destination, p.DestinationPort, p.VNID)]++
		results = append(results, f.trace(node.Name, p))
	}
	return results, nil
}

func (f *fakeNodes) trace(node string, p diagnostics.TracePacket) diagnostics.TraceResult {
	to := f.pod(p.Destination)
	var from *corev1.Pod
	if name, ok := strings.CutPrefix(p.From, "pod/"); ok {
		from = f.objects.Pods[slices.IndexFunc(f.objects.Pods, func(o *corev1.Pod) bool { return keyOf(o) == name })]
	} else {
		from = f.pod(p.Source)
	}
	if f.corrupt != nil {
		if r := f.corrupt(f.reads, node, keyOf(from), keyOf(to), p.DestinationPort); r != nil {
			return *r
		}
	}
	isFirst, isLast := from.Spec.NodeName == node, to.Spec.NodeName == node
	conn := oracle.Connection{From: endpoint(from), To: endpoint(to), Protocol: corev1.Protocol(p.Protocol), Port: int32(p.DestinationPort)}
	v := f.objects.Evaluate(conn)
	isIngress := strings.Contains(v.Why, "Ingress")
	out := diagnostics.TraceOutput{To: nameOf(to), Packet: diagnostics.TracePacket{Protocol: p.Protocol, Source: from.Status.PodIP, Destination: p.Destination, DestinationPort: p.DestinationPort}}
	switch {
	case !v.Allowed && (isLast || isFirst && !isIngress):
		return diagnostics.TraceResult{Verdict: diagnostics.VerdictDropped, Reason: "dropped", Flow: &diagnostics.TraceStep{TableName: "denied"}}
	case isLast:
		return diagnostics.TraceResult{Verdict: diagnostics.VerdictDelivered, Reason: "delivered", Outputs: []diagnostics.TraceOutput{out}, Flow: &diagnostics.TraceStep{TableName: "output"}}
	}
	out.To, out.VNID = "node/"+to.Spec.NodeName, 17
	return diagnostics.TraceResult{Verdict: diagnostics.VerdictForwarded, Reason: "forwarded", Outputs: []diagnostics.TraceOutput{out}}
}

// asked returns the packets that were traced, without those of second hops.
func (f *fakeNodes) asked() []string {
	return slices.DeleteFunc(slices.Sorted(maps.Keys(f.packets)), func(p string) bool { return !strings.Contains(p, " pod/") })
}

// Probes implements Agents. Pods refuse what they receive: nothing listens.
func (f *fakeNodes) Probes(_ context.Context, node tracing.Node, packets []diagnostics.TracePacket) (results []diagnostics.ProbeStatus, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.silent["packets of "+node.Name]; err != nil {
		return nil, err
	}
	if f.batch > 0 && len(packets) > f.batch {
		packets = packets[:f.batch]
	}
	for _, p := range packets {
		name, to := strings.TrimPrefix(p.From, "pod/"), f.pod(p.Destination)
		from := f.objects.Pods[slices.IndexFunc(f.objects.Pods, func(o *corev1.Pod) bool { return keyOf(o) == name })]
		packet := fmt.Sprintf("%s %s %s %s %d", node.Name, p.Protocol, name, keyOf(to), p.DestinationPort)
		f.sent[packet]++
		status := diagnostics.ProbeStatus{Verdict: diagnostics.VerdictNoAnswer, Reason: "no answer within 2s"}
		if f.objects.Evaluate(oracle.Connection{From: endpoint(from), To: endpoint(to), Protocol: corev1.Protocol(p.Protocol), Port: int32(p.DestinationPort)}).Allowed {
			status = diagnostics.ProbeStatus{Verdict: diagnostics.VerdictRefused, Reason: "connection refused after 0.2 ms", Reached: true}
		}
		if f.probe != nil {
			if other := f.probe(f.reads, packet); other != nil {
				status = *other
			}
		}
		results = append(results, status)
	}
	return results, nil
}
