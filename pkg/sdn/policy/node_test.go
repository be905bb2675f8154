package policy

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/test/testcluster"
)

// hostNetwork has OpenShift's labels of its namespace for host networks, which exists.
func hostNetwork() (name string, set map[string]string) {
	name = testcluster.HostNetwork()[0]
	return name, map[string]string{"policy-group.network.openshift.io/host-network": "", corev1.LabelMetadataName: name}
}

// webFrom is a policy for the pods "web" with one peer, on all ports.
func webFrom(peer networkingv1.NetworkPolicyPeer) *networkingv1.NetworkPolicy {
	p := allowFrom("ns", "nodes", 0)
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{peer}}}
	return p
}

func withLabel(key, value string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{key: value}}
}

// nodeReaches evaluates a packet of a node by the flows and by Allows, which must agree.
func (c *compiled) nodeReaches(t *testing.T, sender, other string) bool {
	t.Helper()
	c.drain()
	ends := c.between(Ingress, target, netip.MustParseAddr(sender), 0)
	c.matchNode(ends, netip.MustParseAddr(other))
	byFlows := c.verdict(Ingress, target, ends, corev1.ProtocolTCP, 80)
	packet := Packet{Peer: netip.MustParseAddr(sender), Protocol: corev1.ProtocolTCP, Port: 80, FromPod: true}
	if tracked := c.engine.Allows(Ingress, target, packet); tracked != byFlows {
		t.Errorf("%s: allowed by flows %v, by Allows %v, want equal verdicts", sender, byFlows, tracked)
	}
	return byFlows
}

func TestPeersThatAdmitNodes(t *testing.T) {
	const own, inside = "172.31.0.12", "10.128.2.1"
	name, set := hostNetwork()
	block := func(cidr string, except ...string) networkingv1.NetworkPolicyPeer {
		return networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: cidr, Except: except}}
	}
	byLabel := withLabel("policy-group.network.openshift.io/host-network", "")
	for what, tc := range map[string]struct {
		peer  networkingv1.NetworkPolicyPeer
		admit bool
	}{
		"all namespaces":                         {networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}}, true},
		"OpenShift's label":                      {networkingv1.NetworkPolicyPeer{NamespaceSelector: byLabel}, true},
		"the name":                               {networkingv1.NetworkPolicyPeer{NamespaceSelector: withLabel(corev1.LabelMetadataName, name)}, true},
		"an empty selector of pods beside it":    {networkingv1.NetworkPolicyPeer{NamespaceSelector: byLabel, PodSelector: &metav1.LabelSelector{}}, true},
		"a selector of pods beside it":           {networkingv1.NetworkPolicyPeer{NamespaceSelector: byLabel, PodSelector: withLabel("app", "peer")}, false},
		"another namespace":                      {networkingv1.NetworkPolicyPeer{NamespaceSelector: withLabel("team", "b")}, false},
		"all pods of the policy's own namespace": {networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{}}, false},
		"a block of its own address":             {block("172.31.0.0/24"), true},
		"its own address":                        {block(own + "/32"), true},
		"its address in the pod network":         {block(inside + "/32"), true},
		"all but its own address":                {block("0.0.0.0/0", own+"/32"), true},
		"a block around its own address":         {block("172.31.0.0/24", own+"/32"), false},
		"another node's address":                 {block("172.31.0.11/32"), false},
		"no address":                             {block("0.0.0.0/32"), false},
	} {
		t.Run(what, func(t *testing.T) {
			c := small(t)
			c.engine.SetNamespace(name, set)
			c.engine.SetNodeNetwork("n2", netip.MustParseAddr(own), netip.MustParseAddr(inside))
			if err := c.engine.SetNetworkPolicy(webFrom(tc.peer)); err != nil {
				t.Fatal(err)
			}
			for _, ends := range [][2]string{{own, inside}, {inside, own}} {
				if got := c.nodeReaches(t, ends[0], ends[1]); got != tc.admit {
					t.Errorf("from %s: admitted %v, want %v", ends[0], got, tc.admit)
				}
			}
		})
	}
}

// Nodes are admitted while a namespace with the configured name exists and its labels match.
func TestNodesFollowTheirNamespace(t *testing.T) {
	name, set := hostNetwork()
	c := small(t)
	c.engine.SetNodeNetwork("n2", addr(20), addr(21))
	if err := c.engine.SetNetworkPolicy(webFrom(networkingv1.NetworkPolicyPeer{NamespaceSelector: withLabel("policy-group.network.openshift.io/host-network", "")})); err != nil {
		t.Fatal(err)
	}
	want := func(when string, want bool) {
		t.Helper()
		if got := c.nodeReaches(t, addr(21).String(), addr(20).String()); got != want {
			t.Errorf("%s: nodes are admitted: %v, want %v", when, got, want)
		}
	}
	want("without the namespace", false)
	c.engine.SetNamespace("tenant", set)
	want("another namespace with its labels", false)
	c.engine.SetNamespace(name, nil)
	want("the namespace without labels", false)
	c.engine.SetNamespace(name, set)
	want("the namespace", true)
	c.engine.DeleteNamespace(name)
	want("the namespace was deleted", false)
}

// The API of ClusterNetworkPolicy leaves host-networked pods out.
func TestClusterNetworkPoliciesDoNotSelectNodesAsSources(t *testing.T) {
	name, set := hostNetwork()
	c := small(t)
	c.engine.SetNamespace(name, set)
	c.engine.SetNodeNetwork("n2", addr(20), addr(21))
	if err := c.engine.SetNetworkPolicy(webFrom(networkingv1.NetworkPolicyPeer{PodSelector: withLabel("app", "peer")})); err != nil {
		t.Fatal(err)
	}
	cnp := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all"}, Spec: policyv1alpha2.ClusterNetworkPolicySpec{
		Tier: policyv1alpha2.AdminTier, Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: &metav1.LabelSelector{}},
		Ingress: []policyv1alpha2.ClusterNetworkPolicyIngressRule{{
			Action: policyv1alpha2.ClusterNetworkPolicyRuleActionAccept,
			From:   []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: &metav1.LabelSelector{}}},
		}},
	}}
	if err := c.engine.SetClusterNetworkPolicy(cnp); err != nil {
		t.Fatal(err)
	}
	if c.nodeReaches(t, addr(21).String(), addr(20).String()) {
		t.Error("got nodes allowed by a namespace selector of a ClusterNetworkPolicy, want them denied")
	}
}

// Nodes are one clause, whatever their number, and no event of a node compiles anything.
func TestNodesAreOneClause(t *testing.T) {
	name, set := hostNetwork()
	c := small(t)
	c.engine.SetNamespace(name, set)
	if err := c.engine.SetNetworkPolicy(webFrom(networkingv1.NetworkPolicyPeer{NamespaceSelector: &metav1.LabelSelector{}})); err != nil {
		t.Fatal(err)
	}
	c.engine.Drain()
	inside := netip.MustParseAddr("10.200.0.1")
	for range 1000 {
		c.engine.SetNodeNetwork(inside.String(), netip.AddrFrom4([4]byte{172, 31, inside.As4()[2], inside.As4()[3]}), inside)
		inside = inside.Next()
	}
	if clauses := c.engine.Drain(); len(clauses) > 0 {
		t.Errorf("changed clauses: got %v, want none", clauses)
	}
	if parts := c.engine.Compile(Clause{Kind: Nodes}); len(parts) != 1 || len(parts[0].Conj) != 1 {
		t.Errorf("parts of nodes: got %v, want one conjunction", parts)
	}
}
