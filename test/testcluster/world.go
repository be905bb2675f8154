// Package testcluster has small clusters that change at random, or as the cases of cyclonus, for comparisons with package oracle.
package testcluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

// World is a small cluster that changes at random, alike for one seed. It is small in everything, labels and ports too, so
// that what is drawn at random meets.
type World struct {
	oracle.Cluster
	NetNamespaces []*networkv1.NetNamespace
	HostSubnets   []*networkv1.HostSubnet
	Reserved      []netip.Prefix // the pod network and the service network
	Nodes         []string
	rand          *rand.Rand
	serial        int
}

// Watcher is notified of changes. An object that it receives is not changed afterwards.
type Watcher interface {
	SetNamespace(*corev1.Namespace)
	DeleteNamespace(*corev1.Namespace)
	SetPod(*corev1.Pod)
	DeletePod(*corev1.Pod)
	SetPolicy(*networkingv1.NetworkPolicy)
	DeletePolicy(*networkingv1.NetworkPolicy)
	SetClusterPolicy(*policyv1alpha2.ClusterNetworkPolicy)
	DeleteClusterPolicy(*policyv1alpha2.ClusterNetworkPolicy)
}

// The cluster that a world begins with, and the most that it grows to.
const (
	maxNamespaces = 5
	maxPods       = 20
	maxPolicies   = 10
	maxCluster    = 4
)

// NewWorld returns the cluster of a seed. The watcher has heard of all that is in it.
func NewWorld(seed uint64, w Watcher) *World {
	world := newWorld()
	world.rand = rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // to be repeatable
	for range 2 + world.rand.IntN(maxNamespaces-1) {
		world.addNamespace(w)
	}
	if world.chance(60) {
		world.addHostNetwork(w)
	}
	for range 4 + world.rand.IntN(maxPods-3) {
		world.addPod(w)
	}
	for range 1 + world.rand.IntN(maxPolicies) {
		world.addPolicy(w)
	}
	for range world.rand.IntN(maxCluster) {
		world.addClusterPolicy(w)
	}
	return world
}

// newWorld has two nodes, which differ in a label.
func newWorld() *World {
	return &World{
		Nodes: []string{"n1", "n2"},
		Cluster: oracle.Cluster{
			NodeLabels: map[string]map[string]string{
				"n1": {"app": "a", corev1.LabelTopologyZone: "z1"}, "n2": {"app": "b", corev1.LabelTopologyZone: "z2"},
			},
			NodeAddrs:   map[string][]netip.Addr{"n1": {NodeIP(0), NodeAddr(0)}, "n2": {NodeIP(1), NodeAddr(1)}},
			HostNetwork: HostNetwork(),
			PodNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
		},
		Reserved: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14"), netip.MustParsePrefix("172.30.0.0/16")},
	}
}

// Step makes one change, and describes it.
func (w *World) Step(to Watcher) string {
	steps := []struct {
		name   string
		weight int
		can    bool
		do     func(Watcher)
	}{
		{"add a pod", 8, len(w.Pods) < maxPods, w.addPod},
		{"give a pod its address", 3, len(w.waiting()) > 0, w.startPod},
		{"relabel a pod", 8, len(w.Pods) > 0, w.relabelPod},
		{"end a pod", 2, len(w.Pods) > 0, w.endPod},
		{"remove a pod", 2, len(w.Pods) > 2, w.removePod},
		{"remove a pod that has ended", 4, len(w.ended()) > 0, w.removeEnded},
		{"add a namespace", 3, len(w.Namespaces) < maxNamespaces, w.addNamespace},
		{"remove a namespace", 1, len(w.Namespaces) > 2, w.removeNamespace},
		{"add a host-network namespace", 2, len(w.withoutHostNetwork()) > 0, w.addHostNetwork},
		{"relabel a namespace", 5, true, w.relabelNamespace},
		{"add a policy", 6, len(w.Policies) < maxPolicies, w.addPolicy},
		{"change a policy", 6, len(w.Policies) > 0, w.changePolicy},
		{"remove a policy", 2, len(w.Policies) > 0, w.removePolicy},
		{"add a cluster policy", 3, len(w.ClusterPolicies) < maxCluster, w.addClusterPolicy},
		{"change a cluster policy", 2, len(w.ClusterPolicies) > 0, w.changeClusterPolicy},
		{"remove a cluster policy", 1, len(w.ClusterPolicies) > 0, w.removeClusterPolicy},
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
func (w *World) Endpoints() []oracle.Endpoint {
	var all []oracle.Endpoint
	for _, p := range w.Pods {
		if oracle.IsSubject(p) && p.Status.PodIP != "" {
			all = append(all, oracle.Endpoint{Addr: netip.MustParseAddr(p.Status.PodIP), Pod: p})
		}
	}
	for i, n := range w.Nodes {
		all = append(all, oracle.Endpoint{Addr: NodeAddr(i), Node: n}, oracle.Endpoint{Addr: NodeIP(i), Node: n}, oracle.Endpoint{Addr: NodeAddr(i), Through: n})
	}
	return append(all, oracle.Endpoint{Addr: netip.MustParseAddr("192.0.2.7")}, oracle.Endpoint{Addr: netip.MustParseAddr("198.51.100.9")})
}

// NodeAddr is the address, in the pod network, that the i-th node has.
func NodeAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 128, byte(2 * i), 1}) }

// NodeIP is the i-th node's own address.
func NodeIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 31, 0, byte(11 + i)}) }

// HostNetwork returns the names of host-network namespaces, existing or not. OpenShift labels the first with hostNetworkLabel.
func HostNetwork() []string { return []string{"openshift-host-network", "default"} }

const hostNetworkLabel = "policy-group.network.openshift.io/host-network"

// Ports are the destination ports of the protocol that distinguish the rules of a world; only 0 if it has none.
func Ports(protocol corev1.Protocol) []int32 {
	if protocol == "" {
		return []int32{0}
	}
	return []int32{79, 80, 81, 82, 8080, 8081, 9000}
}

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
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.name("ns")}}
	ns.Labels = w.newNamespaceLabels(ns.Name)
	w.Namespaces = append(w.Namespaces, ns)
	to.SetNamespace(ns)
}

// withoutHostNetwork returns the names of host-network namespaces that do not exist.
func (w *World) withoutHostNetwork() []string {
	return slices.DeleteFunc(HostNetwork(), func(name string) bool {
		return slices.ContainsFunc(w.Namespaces, func(ns *corev1.Namespace) bool { return ns.Name == name })
	})
}

func (w *World) addHostNetwork(to Watcher) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: pick(w, w.withoutHostNetwork())}}
	ns.Labels = w.newNamespaceLabels(ns.Name)
	w.Namespaces = append(w.Namespaces, ns)
	to.SetNamespace(ns)
}

// newNamespaceLabels draws the labels of a namespace. Any namespace may get hostNetworkLabel.
func (w *World) newNamespaceLabels(name string) map[string]string {
	set := w.labels()
	set[corev1.LabelMetadataName] = name
	if percent := map[bool]int{true: 70, false: 10}[slices.Contains(w.HostNetwork, name)]; w.chance(percent) {
		set[hostNetworkLabel] = ""
	}
	return set
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
	ns.Labels = w.newNamespaceLabels(ns.Name)
	w.Namespaces[i] = ns
	to.SetNamespace(ns)
}

func (w *World) addPod(to Watcher) {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: w.name("p"), Namespace: pick(w, w.Namespaces).Name, Labels: w.labels()}}
	p.Spec.NodeName = pick(w, w.Nodes)
	w.addPorts(&p.Spec)
	switch {
	case w.chance(5):
		p.Spec.HostNetwork = true
	case w.chance(85):
		w.giveAddr(p)
	}
	w.Pods = append(w.Pods, p)
	to.SetPod(p)
}

// addPorts gives names to ports: the same name to two numbers now and then, and some in a sidecar.
func (w *World) addPorts(s *corev1.PodSpec) {
	web := func() corev1.Container {
		return corev1.Container{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: pick(w, []int32{80, 8080}), Protocol: pick(w, Protocols()[:3])}}}
	}
	admin := corev1.Container{Ports: []corev1.ContainerPort{{Name: "admin", ContainerPort: 9000}}}
	s.Containers = []corev1.Container{{}}
	if w.chance(70) {
		s.Containers = append(s.Containers, web())
	}
	if w.chance(15) {
		s.Containers = append(s.Containers, web())
	}
	if w.chance(15) {
		s.Containers = append(s.Containers, admin)
	}
	if w.chance(15) {
		always := corev1.ContainerRestartPolicyAlways
		admin.RestartPolicy = &always
		s.InitContainers = append(s.InitContainers, admin)
	}
	if w.chance(15) {
		s.InitContainers = append(s.InitContainers, web()) // it has ended before the pod listens
	}
}

func (w *World) giveAddr(p *corev1.Pod) {
	p.Status.PodIP = w.freeAddr(slices.Index(w.Nodes, p.Spec.NodeName))
	p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
}

// freeAddr takes addresses again soon, since that is where mistakes are.
func (w *World) freeAddr(node int) string {
	for last := byte(2); ; last++ {
		addr := netip.AddrFrom4([4]byte{10, 128, byte(2 * node), last}).String()
		if !slices.ContainsFunc(w.Pods, func(p *corev1.Pod) bool { return oracle.IsSubject(p) && p.Status.PodIP == addr }) {
			return addr
		}
	}
}

func (w *World) removePod(to Watcher) { w.deletePod(pick(w, w.Pods), to) }

func (w *World) removeEnded(to Watcher) { w.deletePod(pick(w, w.ended()), to) }

func (w *World) deletePod(p *corev1.Pod, to Watcher) {
	w.Pods = slices.DeleteFunc(w.Pods, func(x *corev1.Pod) bool { return x == p })
	to.DeletePod(p)
}

// waiting are the pods without an address yet, and ended those that have lost theirs.
func (w *World) waiting() []*corev1.Pod {
	return w.only(func(p *corev1.Pod) bool { return oracle.IsSubject(p) && p.Status.PodIP == "" })
}

func (w *World) ended() []*corev1.Pod {
	return w.only(func(p *corev1.Pod) bool { return p.Status.Phase != "" })
}

func (w *World) only(wanted func(*corev1.Pod) bool) []*corev1.Pod {
	return slices.DeleteFunc(slices.Clone(w.Pods), func(p *corev1.Pod) bool { return !wanted(p) })
}

func (w *World) startPod(to Watcher) { w.changePod(pick(w, w.waiting()), to, w.giveAddr) }

func (w *World) relabelPod(to Watcher) {
	w.changePod(pick(w, w.Pods), to, func(p *corev1.Pod) { p.Labels = w.labels() })
}

func (w *World) endPod(to Watcher) {
	w.changePod(pick(w, w.Pods), to, func(p *corev1.Pod) {
		p.Status.Phase = pick(w, []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed})
	})
}

func (w *World) changePod(p *corev1.Pod, to Watcher, change func(*corev1.Pod)) {
	changed := p.DeepCopy()
	change(changed)
	w.Pods[slices.Index(w.Pods, p)] = changed
	to.SetPod(changed)
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
