package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/bareagent"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// memoryFigure: the most memory that the programs have at a time, beside the limits of the manifests, by which Go's garbage collector goes.
func memoryFigure() figure {
	return figure{
		name:  "memory",
		about: "memory of an agent with a node's budget of policies and with policy bombs, and of a controller with 10,000 namespaces, beside the manifests' limits",
		run: func(b *B) {
			n := b.newStartNode()
			b.agentMemory(n)
			b.controllerMemory(n)
		},
	}
}

const mebi = 1 << 20

// full are the namespaces whose policies take up the node's budget, bombed that of the policy bombs.
func full() []string { return []string{"full0", "full1"} }

const bombed = "bombed"

func (b *B) agentMemory(n *startNode) {
	pods := n.fillForPolicies(append(full(), bombed))
	limit := b.limitOf("node.yaml")
	agent := n.startLimited(limit)
	_, err := wave(b.Context(), pods, b.ours(n.ovs.NS, n.socket).add)
	b.must(err)
	record := func(scenario string) {
		b.record("agent, "+scenario, "MiB", seriesOf("ours, most", []float64{b.mostMemory(agent)}), seriesOf("limit", []float64{float64(limit) / mebi}, atMost(1)))
	}
	record("3 pods")

	const policies, blocks = 10, 4_900 // each is two flows: budgets of 10,000 for a policy and of 100,000 for a namespace
	b.progress("making %d policies", policies*len(full()))
	for k, namespace := range full() {
		for i := range policies {
			n.createPolicy(blocksPolicy(namespace, fmt.Sprintf("np%d", i), k*policies+i, blocks))
		}
	}
	want := policies * len(full()) * blocks * 2
	n.awaitFlows(func(have int) bool { return have >= want })
	record(fmt.Sprintf("%d flows of policies", want))

	b.progress("making policy bombs")
	for _, p := range bombs() {
		n.createPolicy(p)
	}
	n.awaitFlows(func(have int) bool { return have < want }) // each namespace has less now
	record("policy bombs beside them")
}

// fillForPolicies makes the objects of a cluster of one node in mode networkpolicy, with a pod in each namespace.
func (n *startNode) fillForPolicies(namespaces []string) []*sandbox {
	n.b.Helper()
	ctx := n.b.Context()
	n.createNetwork(config.ModeNetworkPolicy, netip.MustParsePrefix("10.128.0.0/14"))
	_, err := n.kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: bareagent.NodeName}}, metav1.CreateOptions{})
	n.b.must(err)
	n.b.must(n.hostSubnet(ctx, bareagent.NodeName, nodeAddr, "10.128.0.0/23"))
	pods := n.b.sandboxes(len(namespaces))
	for i, namespace := range namespaces {
		meta := metav1.ObjectMeta{Name: namespace}
		_, err = n.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: meta}, metav1.CreateOptions{})
		n.b.must(err)
		_, err = n.network.NetworkV1().NetNamespaces().Create(ctx, &networkv1.NetNamespace{
			ObjectMeta: meta, NetName: namespace, NetID: uint32(100 + i), //nolint:gosec // small
		}, metav1.CreateOptions{})
		n.b.must(err)
		// No controller makes it here, and pods are refused without.
		_, err = n.kube.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{})
		n.b.must(err)
		made, err := n.kube.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: pods[i].name},
			Spec:       corev1.PodSpec{NodeName: bareagent.NodeName, Containers: []corev1.Container{{Name: "c", Image: "localhost/none"}}},
		}, metav1.CreateOptions{})
		n.b.must(err)
		pods[i].namespace, pods[i].uid = namespace, string(made.UID)
	}
	return pods
}

func (n *startNode) createPolicy(p *networkingv1.NetworkPolicy) {
	n.b.Helper()
	_, err := n.kube.NetworkingV1().NetworkPolicies(p.Namespace).Create(n.b.Context(), p, metav1.CreateOptions{})
	n.b.must(err)
}

// blocksPolicy lets many addresses in, others than those of policies with another number.
func blocksPolicy(namespace, name string, number, blocks int) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: blocksFrom(number, blocks)}}
	return p
}

func blocksFrom(number, n int) (peers []networkingv1.NetworkPolicyPeer) {
	for i := range n {
		addr := netip.AddrFrom4([4]byte{192, byte(number), byte(i >> 7), byte(i << 1)})
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: addr.String() + "/32"}})
	}
	return peers
}

// bombs are a policy of as many exceptions as the API takes, one of named ports times blocks, and one of as many rules as are within its budget.
func bombs() []*networkingv1.NetworkPolicy {
	all := &networkingv1.IPBlock{CIDR: "0.0.0.0/0"}
	for _, p := range blocksFrom(100, 30_000) {
		all.Except = append(all.Except, p.IPBlock.CIDR)
	}
	exceptions := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: bombed, Name: "exceptions"}}
	exceptions.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: all}}}}

	names := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: bombed, Name: "names"}}
	rule := networkingv1.NetworkPolicyEgressRule{To: blocksFrom(101, 9_000)}
	for i := range 1_000 {
		rule.Ports = append(rule.Ports, networkingv1.NetworkPolicyPort{Port: new(intstr.FromString(fmt.Sprintf("p%d", i)))})
	}
	names.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{rule}

	rules := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: bombed, Name: "rules"}}
	rules.Spec.Ingress = make([]networkingv1.NetworkPolicyIngressRule, 9_000)
	return []*networkingv1.NetworkPolicy{exceptions, names, rules}
}

// patience is for a switch that takes a node's budget of flows on a slow machine.
const patience = 10 * time.Minute

// awaitFlows waits until the number of flows of ingress policies is as wanted.
func (n *startNode) awaitFlows(enough func(have int) bool) {
	n.b.Helper()
	ctx, cancel := context.WithTimeout(n.b.Context(), patience)
	defer cancel()
	n.b.must(wait.PollUntilContextCancel(ctx, time.Second, true, func(context.Context) (bool, error) {
		_, text, ok := strings.Cut(n.ovs.OFCtl(n.b, "dump-aggregate", ovstest.Bridge, "table=81"), "flow_count=")
		if !ok {
			return false, errors.New("ovs-ofctl reports no flow_count")
		}
		var have int
		_, err := fmt.Sscan(text, &have)
		n.b.step("%d flows", have)
		return enough(have), err
	}))
}

// limitOf returns the memory limit of a manifest's container, in bytes.
func (b *B) limitOf(manifest string) int64 {
	b.Helper()
	content, err := os.ReadFile(filepath.Join(b.root(), "deploy", "base", manifest))
	b.must(err)
	for document := range strings.SplitSeq(string(content), "\n---\n") {
		var o appsv1.DaemonSet // a Deployment has its containers in the same place
		b.must(yaml.Unmarshal([]byte(document), &o))
		if len(o.Spec.Template.Spec.Containers) > 0 {
			return o.Spec.Template.Spec.Containers[0].Resources.Limits.Memory().Value()
		}
	}
	b.Fatalf("%s has no container", manifest)
	return 0
}

// startLimited starts the real agent with the memory limit of its manifest. More arguments may be given.
func (n *startNode) startLimited(limit int64, more ...string) *process {
	n.b.Helper()
	p := n.b.start(n.ovs.NS, n.ovs.RunDir, "env", slices.Concat([]string{memoryVariable(limit), n.b.program("ovsdn-node")}, n.agentArgs(more...))...)
	n.b.awaitCNI(p, n.socket)
	return p
}

func memoryVariable(limit int64) string { return fmt.Sprintf("GOMEMLIMIT=%d", limit) }

// mostMemory returns the most memory that the process has had at a time, in MiB.
func (b *B) mostMemory(p *process) float64 { return b.memoryOf(p, peakMemory) }

// Fields of /proc/PID/status (proc(5)).
const (
	residentMemory = "VmRSS"
	peakMemory     = "VmHWM"
)

// memoryOf returns a field of the process, in MiB.
func (b *B) memoryOf(p *process, field string) float64 {
	b.Helper()
	mib, err := readMemory(p.cmd.Process.Pid, field)
	if err != nil {
		b.Fatalf("%v:\n%s", err, p.lastWords())
	}
	return mib
}

// readMemory returns a field of a running process, in MiB.
func readMemory(pid int, field string) (float64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		var kib float64
		if _, err := fmt.Sscanf(line, field+": %f kB", &kib); err == nil {
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("process %d has no %s: it has ended", pid, field)
}

const manyNamespaces = 10_000

// controllerMemory has a controller make the NetNamespaces of many namespaces.
func (b *B) controllerMemory(n *startNode) {
	b.progress("making %d namespaces", manyNamespaces)
	b.must(each(b.Context(), manyNamespaces, func(ctx context.Context, i int) error {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("tenant%d", i)}}
		_, err := n.kube.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{})
		return err
	}))
	limit := b.limitOf("controller.yaml")
	controller := b.start(n.ovs.NS, "", "env", memoryVariable(limit), b.program("ovsdn-controller"), "--kubeconfig="+n.kubeconfig, "--leader-elect=false")
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	b.must(wait.PollUntilContextCancel(ctx, 2*time.Second, true, func(ctx context.Context) (bool, error) {
		list, err := n.network.NetworkV1().NetNamespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		b.step("%d NetNamespaces", len(list.Items))
		return len(list.Items) >= manyNamespaces, nil
	}))
	b.record(fmt.Sprintf("controller, %d namespaces", manyNamespaces), "MiB",
		seriesOf("ours, most", []float64{b.mostMemory(controller)}), seriesOf("limit", []float64{float64(limit) / mebi}, atMost(1)))
}
