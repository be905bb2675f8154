package main

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/test/bareagent"
)

// cluster is what policies are about.
type cluster struct {
	namespaces []*corev1.Namespace
	pods       []*corev1.Pod
	policies   []*networkingv1.NetworkPolicy
}

// podAt is the i-th address of the pod network.
func podAt(i int) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 128 + byte(i>>16), byte(i >> 8), byte(i)})
}

func podObject(namespace, name, app, node string, addr netip.Addr) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": app}}}
	p.Spec.NodeName = node
	p.Spec.Containers = []corev1.Container{{Name: "c", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}}}}
	p.Status.PodIP, p.Status.PodIPs = addr.String(), []corev1.PodIP{{IP: addr.String()}}
	return p
}

// allow lets peers reach a port of the pods that have one of the labels; of all pods for none.
func allow(namespace, name string, port int, apps []string, peers ...networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if len(apps) > 0 {
		p.Spec.PodSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: apps}}
	}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: []networkingv1.NetworkPolicyPort{{Port: new(intstr.FromInt(port))}}}}
	return p
}

func withLabel(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// rulesOf is a namespace in which n policies let 250 pods that all of them name, and 250 of their own, reach two pods of this node.
func rulesOf(n int) *cluster {
	const namespace, half = "ns", 250
	c := &cluster{namespaces: []*corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: namespace}}}}
	add := func(app, node string) {
		at := len(c.pods)
		c.pods = append(c.pods, podObject(namespace, fmt.Sprintf("pod%d", at), app, node, podAt(2+at)))
	}
	add("target", bareagent.NodeName)
	add("target", bareagent.NodeName)
	for range half {
		add("shared", "elsewhere")
	}
	for i := range n {
		own := fmt.Sprintf("own%d", i)
		for range half {
			add(own, "elsewhere")
		}
		c.policies = append(c.policies, allow(namespace, fmt.Sprintf("np%d", i), 1000+i, nil,
			networkingv1.NetworkPolicyPeer{PodSelector: withLabel("app", "shared")}, networkingv1.NetworkPolicyPeer{PodSelector: withLabel("app", own)}))
	}
	return c
}

// frontend is a label of pods that all policies of a group of namespaces let in.
const frontend = "frontend"

// clusterOf has ten pods and a policy in each of n namespaces, which lets pods of one label of ten, and frontends, of a group of ten namespaces, and a
// block of addresses, reach two pods. Of every so many namespaces one has one of these on this node.
func clusterOf(n, every int) *cluster {
	c := &cluster{}
	const perNamespace, perGroup = 10, 10
	for i := range n {
		namespace, group := fmt.Sprintf("ns%d", i), fmt.Sprintf("group%d", i/perGroup)
		c.namespaces = append(c.namespaces, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"group": group}}})
		for k := range perNamespace {
			node := "elsewhere"
			if k == 0 && i%every == 0 {
				node = bareagent.NodeName
			}
			c.pods = append(c.pods, podObject(namespace, fmt.Sprintf("pod%d", k), fmt.Sprintf("a%d", k), node, podAt(2+perNamespace*i+k)))
		}
		peers := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{fmt.Sprintf("a%d", i%perNamespace), frontend}},
		}}
		c.policies = append(c.policies, allow(namespace, "np", 8000+i%100, []string{"a0", "a1"},
			networkingv1.NetworkPolicyPeer{NamespaceSelector: withLabel("group", group), PodSelector: peers},
			networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: fmt.Sprintf("192.%d.%d.0/24", i/256, i%256)}}))
	}
	return c
}
