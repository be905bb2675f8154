package networkpolicy

import (
	"net/netip"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Addresses of the remote node n2, and a policy about all pods of namespace a that allows what the peer sends to TCP port 80.
const (
	remoteOwn    = "172.31.0.12"
	remoteInside = "10.129.0.1"
	allNodes     = "ip,reg4=0x400/0x400,cookie="
	nodesInBlock = "ip,reg4=0x400/0x400,reg6="
)

const hostNetworkLabel = "policy-group.network.openshift.io/host-network"

func hostNetwork() *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: hostNetworkNamespaces()[0], Labels: map[string]string{hostNetworkLabel: ""}}}
}

// remoteNode is a HostSubnet as ovsdn-controller makes it for a Node.
func remoteNode() *networkv1.HostSubnet {
	return &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: "n2", Annotations: map[string]string{networkv1.NodeUIDAnnotation: "uid"}},
		Host:       "n2", HostIP: remoteOwn, Subnet: "10.129.0.0/23",
	}
}

func ingressFrom(peer networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "nodes"}, Spec: networkingv1.NetworkPolicySpec{
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{peer}, Ports: []networkingv1.NetworkPolicyPort{onPort(80)},
		}},
	}}
}

func byHostNetwork() networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{hostNetworkLabel: ""}}}
}

func byBlock(cidr string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr}}
}

// Nodes are one flow, which exists while a host-network namespace exists and a rule selects it.
func TestNodesAreOneFlow(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, func(f *fixture) {
		f.tenant("a", 10, nil)
		f.hostSubnets.Add(remoteNode())
		f.networkPolicies.Add(ingressFrom(byHostNetwork()))
	})
	f.attachPod(podObject("a", "web", "1", "", nil), "s1", 3, "10.128.0.5")
	f.eventually(has(0, allNodes))
	f.namespaces.Add(hostNetwork())
	f.eventually(has(1, "table=81", allNodes))
	f.namespaces.Delete(hostNetwork())
	f.eventually(has(0, allNodes))
}

// An ingress block of IPv4 has one flow more for nodes, except 0.0.0.0/0; an egress or IPv6 block has none.
func TestBlocksOfNodes(t *testing.T) {
	tier.Parallel(t)
	f := newFixture(t, func(f *fixture) { f.tenant("a", 10, nil) })
	f.attachPod(podObject("a", "web", "1", "", nil), "s1", 3, "10.128.0.5")
	for cidr, want := range map[string]int{"172.31.0.0/24": 1, remoteOwn + "/32": 1, "0.0.0.0/0": 0, "2001:db8::/32": 0} {
		policy := ingressFrom(byBlock(cidr))
		policy.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: policy.Spec.Ingress[0].From}}
		f.networkPolicies.Add(policy)
		f.eventually(has(2, "table=", "conj_id")) // of both rules
		if err := has(want, nodesInBlock)(f.policyFlows()); err != nil {
			t.Errorf("%s: %v", cidr, err)
		}
		f.networkPolicies.Delete(policy)
		f.eventually(has(0, ""))
	}
}

// Connections of nodes are valid if a policy allows the nodes.
func TestConnEvaluator_connectionsOfNodes(t *testing.T) {
	tier.Parallel(t)
	const pod, ownInside, ownAddr, outside = "10.128.0.2:80", "10.128.0.1:1000", "172.31.0.11:1000", "192.0.2.1:1000"
	conns := map[string]ovs.Connection{
		"inside":     tracked(zoneTarget, protocolTCP, remoteInside+":1000", pod),
		"own":        tracked(zoneTarget, protocolTCP, remoteOwn+":1000", pod),
		"this node":  tracked(zoneHere, protocolTCP, ownInside, pod),
		"this node'": tracked(zoneTarget, protocolTCP, ownAddr, pod),
		"outside":    tracked(zoneTarget, protocolTCP, outside, pod),
	}
	notNode := remoteNode()
	notNode.Annotations[networkv1.FixedVNIDHostAnnotation] = "0"
	for _, tc := range []struct {
		name  string
		peer  networkingv1.NetworkPolicyPeer
		node  *networkv1.HostSubnet
		stale string
	}{
		{"by the namespace", byHostNetwork(), remoteNode(), "outside"},
		{"by its own address", byBlock(remoteOwn + "/32"), remoteNode(), "outside"},
		{"by its address in the pod network", byBlock(remoteInside + "/32"), remoteNode(), "outside"},
		{"another node's address", byBlock("172.31.0.13/32"), remoteNode(), "inside own outside"},
		{"pods", networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}, remoteNode(), "inside own outside"},
		{"a host that is no node", byHostNetwork(), notNode, "inside own outside"},
	} {
		f := newPrimed(t, func(f *fixture) {
			f.tenant("a", 10, nil)
			f.namespaces.Add(hostNetwork())
			f.hostSubnets.Add(tc.node)
			f.networkPolicies.Add(ingressFrom(tc.peer))
			f.compiler.node.VTEP = netip.MustParseAddr("172.31.0.11")
		})
		f.attachPod(podObject("a", "web", "1", "10.128.0.2", nil), "s1", 3, "10.128.0.2")
		var stale []string
		f.Policies.mu.Lock()
		for _, name := range strings.Fields("inside own outside") {
			if isStale(f.evaluator(false), conns[name]) {
				stale = append(stale, name)
			}
		}
		for _, name := range []string{"this node", "this node'"} {
			if isStale(f.evaluator(false), conns[name]) {
				t.Errorf("%s: got not valid for a probe of this node, want valid", tc.name)
			}
		}
		f.Policies.mu.Unlock()
		if got := strings.Join(stale, " "); got != tc.stale {
			t.Errorf("%s: got connections %q not valid, want %q", tc.name, got, tc.stale)
		}
	}
}

// A host-network namespace that does not exist is logged once, when the agent starts, and is no error.
func TestMissingHostNetworkNamespaceIsReported(t *testing.T) {
	tier.Parallel(t)
	for name, exists := range map[string]bool{"missing": false, "present": true} {
		t.Run(name, func(t *testing.T) {
			f := newPrimed(t, func(f *fixture) {
				if exists {
					f.namespaces.Add(hostNetwork())
				}
			})
			var log logRecorder
			f.must(f.Prime(log.withLogger(t.Context())))
			lines := log.all()
			reported := len(lines) == 1 && strings.Contains(lines[0], hostNetworkNamespaces()[0])
			if reported == exists || exists && len(lines) > 0 {
				t.Errorf("logged %q", lines)
			}
		})
	}
}
