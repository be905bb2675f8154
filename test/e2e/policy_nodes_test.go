package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// The namespace that the manifests create for host networks, and OpenShift's label.
const (
	hostNetworkNamespace = "openshift-host-network"
	hostNetworkLabel     = "policy-group.network.openshift.io/host-network"
)

// askTime is the timeout of a client in testNodeSources.
const askTime = time.Second

// nodeSource is a client with the pod or node port that it connects to.
type nodeSource struct {
	name  string
	from  wire.NetNS
	to    netip.AddrPort
	node  string // whose host network the client is in; "" for others
	other bool   // the pod is on another node
	port  string // the node whose node port the client uses
	pod   bool   // the client is a pod, and the packet has its address
}

// nodeSources returns clients of an isolated pod on each node: the host networks of all nodes and, as clients that are no nodes, a pod of VNID 0,
// and it and a host outside through the node ports of all nodes.
func (c *cluster) nodeSources(t *testing.T, namespace string, stranger pod) []nodeSource {
	t.Helper()
	var all []nodeSource
	outside := c.Machine(t, lab.Outside).NetNS
	for i, target := range c.Nodes() {
		p := c.Run(t, namespace, fixture.Netexec(fmt.Sprint("isolated-", i), target))[0]
		port := c.nodePort(t, namespace, p)
		direct := netip.AddrPortFrom(p.Addr, fixture.HTTPPort)
		all = append(all, nodeSource{name: "a pod of VNID 0 to " + target, from: stranger.NetNS, to: direct, other: true, pod: true})
		for _, node := range c.Nodes() {
			through := netip.AddrPortFrom(c.Addr(t, node), port)
			all = append(all,
				nodeSource{name: node + " to " + target, from: c.Machine(t, node).NetNS, to: direct, node: node, other: node != target},
				nodeSource{name: "outside through " + node + " to " + target, from: outside, to: through, port: node},
				nodeSource{name: "a pod through " + node + " to " + target, from: stranger.NetNS, to: through, port: node, pod: node == stranger.Node},
			)
		}
	}
	return all
}

// nodePort creates a service of the pod and returns its node port.
func (c *cluster) nodePort(t *testing.T, namespace string, p pod) uint16 {
	t.Helper()
	name := "of-" + p.Name
	c.Expose(t, namespace, name, servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, p)
	s, err := c.Kube.CoreV1().Services(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(`{"spec":{"type":"NodePort"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return uint16(s.Spec.Ports[0].NodePort)
}

// askAll has all clients connect at once. It returns an error for each that reaches its pod though it should not, and one for each that does not though
// it should.
func askAll(ctx context.Context, all []nodeSource, want func(nodeSource) bool) (reached, refused error) {
	ctx, cancel := context.WithTimeout(ctx, askTime)
	defer cancel()
	forbidden, faults := make([]error, len(all)), make([]error, len(all))
	var asking sync.WaitGroup
	for i, s := range all {
		asking.Go(func() {
			_, err := fixture.HostnameHTTP(ctx, s.from, s.to.Addr(), s.to.Port())
			switch got := err == nil; {
			case got && !want(s):
				forbidden[i] = fmt.Errorf("%s: reached, want refused", s.name)
			case !got && want(s):
				faults[i] = fmt.Errorf("%s: refused, want reached: %w", s.name, err)
			}
		})
	}
	asking.Wait()
	return errors.Join(forbidden...), errors.Join(faults...)
}

// testNodeSources: policies admit clients in the host networks of all nodes, by selectors of namespaces and by blocks. Blocks admit
// other clients only by the source address of their packets.
func testNodeSources(t *testing.T, c *cluster) {
	namespace := c.Namespace(t)
	nodes := c.Nodes()
	stranger := c.Run(t, metav1.NamespaceDefault, fixture.Netexec("stranger-"+namespace, nodes[len(nodes)-1]))[0]
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := c.Kube.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, stranger.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	all := c.nodeSources(t, namespace, stranger)
	expect := func(what string, want func(nodeSource) bool) {
		t.Helper()
		fixture.Stops(t, fixture.SyncTime, what, func(ctx context.Context) (reached, refused error) { return askAll(ctx, all, want) })
	}
	expect("without a policy", func(nodeSource) bool { return true })

	selecting := func(namespaces, pods *metav1.LabelSelector) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{NamespaceSelector: namespaces, PodSelector: pods}
	}
	block := func(addr netip.Addr) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: netip.PrefixFrom(addr, 32).String()}}
	}
	label := &metav1.LabelSelector{MatchLabels: map[string]string{hostNetworkLabel: ""}}
	name := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: hostNetworkNamespace}}
	pods := &metav1.LabelSelector{MatchLabels: map[string]string{"app": stranger.Name}}
	ownNode := func(s nodeSource) bool { return s.node != "" && !s.other }
	anyNode := func(s nodeSource) bool { return s.node != "" }
	first := func(s nodeSource) bool { return ownNode(s) || s.node == nodes[0] }
	for _, tc := range []struct {
		name string
		peer networkingv1.NetworkPolicyPeer
		want func(nodeSource) bool
	}{
		{"pods of its namespace", selecting(nil, &metav1.LabelSelector{}), ownNode},
		{"OpenShift's label", selecting(label, nil), anyNode},
		{"OpenShift's label and pods", selecting(label, pods), ownNode},
		{"the namespace's name", selecting(name, &metav1.LabelSelector{}), anyNode},
		{"a node's own address", block(c.Addr(t, nodes[0])), first},
		// Packets that the node masquerades have that address, too.
		{"a node's address in the pod network", block(c.Gateway(t, nodes[0])), func(s nodeSource) bool { return first(s) || s.port == nodes[0] }},
		// The pod of VNID 0 is in a namespace that is selected. Its own node preserves its address through a node port.
		{"all namespaces", selecting(&metav1.LabelSelector{}, nil), func(s nodeSource) bool { return anyNode(s) || s.pod }},
		{"pods of its namespace again", selecting(nil, &metav1.LabelSelector{}), ownNode},
	} {
		policy := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "nodes"}}
		policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{tc.peer}}}
		c.SetPolicy(t, policy)
		expect("ingress from "+tc.name, tc.want)
	}
}
