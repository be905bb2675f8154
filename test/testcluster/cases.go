package testcluster

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/mattfenwick/cyclonus/pkg/generator"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Case is one of the cases that cyclonus generates: changes of a cluster of three namespaces with three pods each.
type Case struct {
	Name  string
	steps []*generator.TestStep
}

// Cases returns all of them.
func Cases() []Case {
	const last = 3*3 + 1 // the pod c in z, at whose address blocks are aimed
	all := generator.NewTestCaseGenerator(true, caseAddr(last).String(), caseNames("x", "y", "z"), nil, nil).GenerateAllTestCases()
	cases := make([]Case, len(all))
	for i, c := range all {
		cases[i] = Case{fmt.Sprintf("%d %s", i, c.Description), c.Steps}
	}
	return cases
}

func caseNames(names ...string) []string { return names }

// caseAddr is the address of the i-th pod, counted from 2. They take turns on two nodes.
func caseAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 128, byte(2 * (i % 2)), byte(i)}) }

// Play makes the changes one after the other, notifies the watcher, and calls check after each.
func (c Case) Play(to Watcher, check func(step int, w *World)) {
	w := newWorld()
	w.serial = 1
	for _, ns := range caseNames("x", "y", "z") {
		w.caseNamespace(ns, map[string]string{"ns": ns}, to)
		for _, pod := range caseNames("a", "b", "c") {
			w.casePod(ns, pod, map[string]string{"pod": pod}, to)
		}
	}
	for i, step := range c.steps {
		for _, a := range step.Actions {
			w.act(a, to)
		}
		check(i, w)
	}
}

func (w *World) act(a *generator.Action, to Watcher) {
	switch {
	case a.CreatePolicy != nil:
		w.setPolicy(a.CreatePolicy.Policy, to)
	case a.UpdatePolicy != nil:
		w.setPolicy(a.UpdatePolicy.Policy, to)
	case a.DeletePolicy != nil:
		i := slices.IndexFunc(w.Policies, func(p *networkingv1.NetworkPolicy) bool {
			return p.Namespace == a.DeletePolicy.Namespace && p.Name == a.DeletePolicy.Name
		})
		w.deletePolicy(w.Policies[i], to)
	case a.CreateNamespace != nil:
		w.caseNamespace(a.CreateNamespace.Namespace, a.CreateNamespace.Labels, to)
	case a.SetNamespaceLabels != nil:
		w.caseNamespace(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels, to)
	case a.DeleteNamespace != nil:
		w.dropNamespace(w.namespace(a.DeleteNamespace.Namespace), to)
	case a.CreatePod != nil:
		w.casePod(a.CreatePod.Namespace, a.CreatePod.Pod, a.CreatePod.Labels, to)
	case a.SetPodLabels != nil:
		i := w.pod(a.SetPodLabels.Namespace, a.SetPodLabels.Pod)
		w.Pods[i] = w.Pods[i].DeepCopy()
		w.Pods[i].Labels = a.SetPodLabels.Labels
		to.SetPod(w.Pods[i])
	case a.DeletePod != nil:
		w.deletePod(w.Pods[w.pod(a.DeletePod.Namespace, a.DeletePod.Pod)], to)
	}
}

func (w *World) pod(namespace, name string) int {
	return slices.IndexFunc(w.Pods, func(p *corev1.Pod) bool { return p.Namespace == namespace && p.Name == name })
}

func (w *World) namespace(name string) *corev1.Namespace {
	return w.Namespaces[slices.IndexFunc(w.Namespaces, func(n *corev1.Namespace) bool { return n.Name == name })]
}

func (w *World) setPolicy(p *networkingv1.NetworkPolicy, to Watcher) {
	w.Policies = slices.DeleteFunc(w.Policies, func(x *networkingv1.NetworkPolicy) bool { return x.Namespace == p.Namespace && x.Name == p.Name })
	w.Policies = append(w.Policies, p)
	to.SetPolicy(p)
}

func (w *World) caseNamespace(name string, set map[string]string, to Watcher) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}
	w.Namespaces = slices.DeleteFunc(w.Namespaces, func(x *corev1.Namespace) bool { return x.Name == name })
	w.Namespaces = append(w.Namespaces, ns)
	to.SetNamespace(ns)
}

// casePod makes a pod with the ports that the cases speak of.
func (w *World) casePod(namespace, name string, set map[string]string, to Watcher) {
	w.serial++
	addr := caseAddr(w.serial).String()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: set}}
	p.Spec.NodeName = w.Nodes[w.serial%2]
	p.Status.PodIP, p.Status.PodIPs = addr, []corev1.PodIP{{IP: addr}}
	for _, port := range []int32{80, 81} {
		for _, protocol := range Protocols()[:3] {
			name := portName(port, protocol)
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
				Name: name, Ports: []corev1.ContainerPort{{Name: name, ContainerPort: port, Protocol: protocol}},
			})
		}
	}
	w.Pods = append(w.Pods, p)
	to.SetPod(p)
}

func portName(port int32, protocol corev1.Protocol) string {
	return fmt.Sprintf("serve-%d-%s", port, strings.ToLower(string(protocol)))
}
