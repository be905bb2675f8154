package oracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// World is a small cluster that changes at random, alike for one seed. It is small in everything, labels and ports too, so
// that what is drawn at random meets.
type World struct {
	Cluster
	Nodes  []string
	rand   *rand.Rand
	serial int
}

// Watcher is told what changes. An object that it is given is not changed afterwards.
type Watcher interface {
	SetNamespace(*corev1.Namespace)
	DeleteNamespace(*corev1.Namespace)
	SetPod(*corev1.Pod)
	DeletePod(*corev1.Pod)
	SetPolicy(*networkingv1.NetworkPolicy)
	DeletePolicy(*networkingv1.NetworkPolicy)
}

// The cluster that a world begins with, and the most that it grows to.
const (
	maxNamespaces = 5
	maxPods       = 20
	maxPolicies   = 10
)

// NewWorld returns the cluster of a seed. The watcher has heard of all that is in it.
func NewWorld(seed uint64, w Watcher) *World {
	world := &World{rand: rand.New(rand.NewPCG(seed, 0)), Nodes: []string{"n1", "n2"}} //nolint:gosec // to be repeatable
	for range 2 + world.rand.IntN(maxNamespaces-1) {
		world.addNamespace(w)
	}
	for range 4 + world.rand.IntN(maxPods-3) {
		world.addPod(w)
	}
	for range 1 + world.rand.IntN(maxPolicies) {
		world.addPolicy(w)
	}
	return world
}

// Step changes one thing, and says what.
func (w *World) Step(to Watcher) string {
	steps := []struct {
		name   string
		weight int
		can    bool
		do     func(Watcher)
	}{
		{"add a pod", 3, len(w.Pods) < maxPods, w.addPod},
		{"remove a pod", 2, len(w.Pods) > 2, w.removePod},
		{"relabel a pod", 4, len(w.Pods) > 0, w.relabelPod},
		{"end a pod", 1, len(w.Pods) > 0, w.endPod},
		{"add a namespace", 1, len(w.Namespaces) < maxNamespaces, w.addNamespace},
		{"remove a namespace", 1, len(w.Namespaces) > 2, w.removeNamespace},
		{"relabel a namespace", 3, true, w.relabelNamespace},
		{"add a policy", 3, len(w.Policies) < maxPolicies, w.addPolicy},
		{"change a policy", 3, len(w.Policies) > 0, w.changePolicy},
		{"remove a policy", 2, len(w.Policies) > 0, w.removePolicy},
	}
	sum := 0
	for _, s := range steps {
		if s.can {
			sum += s.weight
		}
	}
	n := w.rand.IntN(sum)
	for _, s := range steps {
		if !s.can {
			continue
		}
		if n -= s.weight; n < 0 {
			s.do(to)
			return s.name
		}
	}
	return ""
}

// Endpoints are all that a connection may come from or go to: pods with addresses, the nodes, and the world outside.
func (w *World) Endpoints() []Endpoint {
	var all []Endpoint
	for _, p := range w.Pods {
		if subject(p) && p.Status.PodIP != "" {
			all = append(all, Endpoint{Addr: netip.MustParseAddr(p.Status.PodIP), Pod: p})
		}
	}
	for i, n := range w.Nodes {
		all = append(all, Endpoint{Addr: NodeAddr(i), Node: n})
	}
	return append(all, Endpoint{Addr: netip.MustParseAddr("192.0.2.7")}, Endpoint{Addr: netip.MustParseAddr("198.51.100.9")})
}

// NodeAddr is the address, in the pod network, that the i-th node has.
func NodeAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 128, byte(2 * i), 1}) }

// Ports are the destination ports, of every protocol, that tell the rules of a world apart.
func Ports() []int32 { return []int32{79, 80, 81, 82, 8080, 8081, 9000} }

// Protocols are those of a world. The last has no ports.
func Protocols() []corev1.Protocol {
	return []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP, ""}
}

func (w *World) name(prefix string) string {
	w.serial++
	return fmt.Sprintf("%s%d", prefix, w.serial)
}

func pick[T any](w *World, from []T) T { return from[w.rand.IntN(len(from))] }

func (w *World) chance(percent int) bool { return w.rand.IntN(100) < percent }

func (w *World) labels() map[string]string {
	set := map[string]string{}
	for _, key := range []string{"app", "tier"} {
		if w.chance(70) {
			set[key] = pick(w, []string{"a", "b", "c"})
		}
	}
	return set
}

func (w *World) addNamespace(to Watcher) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.name("ns"), Labels: w.labels()}}
	ns.Labels[corev1.LabelMetadataName] = ns.Name
	w.Namespaces = append(w.Namespaces, ns)
	to.SetNamespace(ns)
}

func (w *World) removeNamespace(to Watcher) { w.dropNamespace(pick(w, w.Namespaces), to) }

func (w *World) dropNamespace(ns *corev1.Namespace, to Watcher) {
	for _, p := range slices.Clone(w.Pods) {
		if p.Namespace == ns.Name {
			w.deletePod(p, to)
		}
	}
	for _, p := range slices.Clone(w.Policies) {
		if p.Namespace == ns.Name {
			w.deletePolicy(p, to)
		}
	}
	w.Namespaces = slices.DeleteFunc(w.Namespaces, func(x *corev1.Namespace) bool { return x == ns })
	to.DeleteNamespace(ns)
}

func (w *World) relabelNamespace(to Watcher) {
	i := w.rand.IntN(len(w.Namespaces))
	ns := w.Namespaces[i].DeepCopy()
	ns.Labels = w.labels()
	ns.Labels[corev1.LabelMetadataName] = ns.Name
	w.Namespaces[i] = ns
	to.SetNamespace(ns)
}

func (w *World) addPod(to Watcher) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: w.name("p"), Namespace: pick(w, w.Namespaces).Name, Labels: w.labels()}}
	node := w.rand.IntN(len(w.Nodes))
	p.Spec.NodeName = w.Nodes[node]
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	if w.chance(70) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
			corev1.ContainerPort{Name: "web", ContainerPort: pick(w, []int32{80, 8080}), Protocol: pick(w, Protocols()[:2])})
	}
	if w.chance(30) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{Name: "admin", ContainerPort: 9000})
	}
	if w.chance(5) {
		p.Spec.HostNetwork = true
	} else {
		p.Status.PodIP = w.freeAddr(node)
		p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
	}
	w.Pods = append(w.Pods, p)
	to.SetPod(p)
}

// freeAddr takes addresses again soon, since that is where mistakes are.
func (w *World) freeAddr(node int) string {
	for last := byte(2); ; last++ {
		addr := netip.AddrFrom4([4]byte{10, 128, byte(2 * node), last}).String()
		if !slices.ContainsFunc(w.Pods, func(p *corev1.Pod) bool { return subject(p) && p.Status.PodIP == addr }) {
			return addr
		}
	}
}

func (w *World) removePod(to Watcher) { w.deletePod(pick(w, w.Pods), to) }

func (w *World) deletePod(p *corev1.Pod, to Watcher) {
	w.Pods = slices.DeleteFunc(w.Pods, func(x *corev1.Pod) bool { return x == p })
	to.DeletePod(p)
}

func (w *World) relabelPod(to Watcher) {
	w.changePod(to, func(p *corev1.Pod) { p.Labels = w.labels() })
}

func (w *World) endPod(to Watcher) {
	w.changePod(to, func(p *corev1.Pod) {
		p.Status.Phase = pick(w, []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed})
	})
}

func (w *World) changePod(to Watcher, change func(*corev1.Pod)) {
	i := w.rand.IntN(len(w.Pods))
	w.Pods[i] = w.Pods[i].DeepCopy()
	change(w.Pods[i])
	to.SetPod(w.Pods[i])
}

func (w *World) addPolicy(to Watcher) {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: w.name("np"), Namespace: pick(w, w.Namespaces).Name}}
	p.Spec = w.policySpec()
	w.Policies = append(w.Policies, p)
	to.SetPolicy(p)
}

func (w *World) changePolicy(to Watcher) {
	i := w.rand.IntN(len(w.Policies))
	p := w.Policies[i].DeepCopy()
	p.Spec = w.policySpec()
	w.Policies[i] = p
	to.SetPolicy(p)
}

func (w *World) removePolicy(to Watcher) { w.deletePolicy(pick(w, w.Policies), to) }

func (w *World) deletePolicy(p *networkingv1.NetworkPolicy, to Watcher) {
	w.Policies = slices.DeleteFunc(w.Policies, func(x *networkingv1.NetworkPolicy) bool { return x == p })
	to.DeletePolicy(p)
}

func (w *World) policySpec() networkingv1.NetworkPolicySpec {
	s := networkingv1.NetworkPolicySpec{PodSelector: *w.selector()}
	for range w.rand.IntN(3) {
		s.Ingress = append(s.Ingress, networkingv1.NetworkPolicyIngressRule{From: w.peers(), Ports: w.ports()})
	}
	for range w.rand.IntN(3) {
		s.Egress = append(s.Egress, networkingv1.NetworkPolicyEgressRule{To: w.peers(), Ports: w.ports()})
	}
	s.PolicyTypes = pick(w, [][]networkingv1.PolicyType{
		nil, {networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress},
		{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	})
	return s
}

func (w *World) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if w.chance(50) {
		s.MatchLabels = map[string]string{pick(w, []string{"app", "tier"}): pick(w, []string{"a", "b", "c"})}
	}
	if w.chance(20) {
		r := metav1.LabelSelectorRequirement{Key: pick(w, []string{"app", "tier"}), Operator: pick(w, []metav1.LabelSelectorOperator{
			metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
		})}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = []string{"a", "b"}
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (w *World) peers() []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	for range w.rand.IntN(4) {
		var p networkingv1.NetworkPolicyPeer
		switch w.rand.IntN(5) {
		case 0:
			p.PodSelector = w.selector()
		case 1:
			p.NamespaceSelector = w.selector()
		case 2:
			p.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: pick(w, w.Namespaces).Name}}
		case 3:
			p.PodSelector, p.NamespaceSelector = w.selector(), w.selector()
		case 4:
			p.IPBlock = w.block()
		}
		peers = append(peers, p)
	}
	return peers
}

func (w *World) block() *networkingv1.IPBlock {
	b := &networkingv1.IPBlock{CIDR: pick(w, []string{"10.128.0.0/14", "10.128.0.0/23", "10.128.2.0/29", "0.0.0.0/0", "192.0.2.0/24", "10.128.0.4/32"})}
	if w.chance(40) {
		for _, except := range []string{"10.128.0.4/30", "10.128.2.3/32", "192.0.2.0/28"} {
			if netip.MustParsePrefix(b.CIDR).Bits() < netip.MustParsePrefix(except).Bits() && netip.MustParsePrefix(b.CIDR).Overlaps(netip.MustParsePrefix(except)) && w.chance(60) {
				b.Except = append(b.Except, except)
			}
		}
	}
	return b
}

func (w *World) ports() []networkingv1.NetworkPolicyPort {
	var ports []networkingv1.NetworkPolicyPort
	for range w.rand.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if w.chance(80) {
			protocol := pick(w, Protocols()[:3])
			p.Protocol = &protocol
		}
		switch w.rand.IntN(5) {
		case 0, 1:
			number := intstr.FromInt32(pick(w, Ports()))
			p.Port = &number
		case 2:
			name := intstr.FromString(pick(w, []string{"web", "admin", "none"}))
			p.Port = &name
		case 3:
			first, last := intstr.FromInt32(80), pick(w, []int32{80, 81, 8080, 65535})
			p.Port, p.EndPort = &first, &last
		}
		ports = append(ports, p)
	}
	return ports
}
