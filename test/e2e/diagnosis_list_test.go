package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// strangersPort is that of the service of the other namespace.
const strangersPort = 80

func tenantDiagnoses() []diagnosis {
	join := func(t *testing.T, w *diagnosed) { w.ChangeNetwork(t, w.theirs, "join:"+w.namespace) }
	isolate := func(t *testing.T, w *diagnosed) func() {
		w.ChangeNetwork(t, w.theirs, "isolate")
		return nil
	}
	return []diagnosis{
		{
			name: "VNIDs differ", prepare: join, inject: isolate,
			ask: traceTo((*diagnosed).strangerPod, fixture.HTTPPort),
			words: func(w *diagnosed) []string {
				return []string{"on node " + fixture.Node2, "isolation: VNID", "may not reach VNID", w.theirs + "/" + w.stranger.Name}
			},
		},
		{
			name: "service of another VNID",
			prepare: func(t *testing.T, w *diagnosed) {
				join(t, w)
				w.Expose(t, w.theirs, "theirs", servicePort{Protocol: corev1.ProtocolTCP, Port: strangersPort, Target: fixture.HTTPPort}, w.stranger)
			},
			inject: isolate,
			ask:    traceTo(func(w *diagnosed) string { return "service/" + w.theirs + "/theirs" }, strangersPort),
			words: func(w *diagnosed) []string {
				return []string{"isolation: VNID", "may not reach VNID", "service/" + w.theirs + "/theirs"}
			},
		},
		{
			name: "change of a VNID to that of no namespace", ask: status,
			inject: func(t *testing.T, w *diagnosed) func() {
				patch := []byte(`{"metadata":{"annotations":{"` + networkv1.ChangePodNetworkAnnotation + `":"join:no-such-namespace"}}}`)
				if _, err := w.Network.NetworkV1().NetNamespaces().Patch(t.Context(), w.theirs, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
					t.Fatal(err)
				}
				return nil
			},
			words: func(w *diagnosed) []string {
				return []string{"netnamespace/" + w.theirs + ": " + eventreason.NetworkChangeRefused}
			},
		},
	}
}

func policyDiagnoses() []diagnosis {
	isolate := func(name string, kind networkingv1.PolicyType) func(*testing.T, *diagnosed) func() {
		return func(t *testing.T, w *diagnosed) func() {
			w.SetPolicy(t, &networkingv1.NetworkPolicy{
				ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: name}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{kind}},
			})
			return func() {
				if err := w.Kube.NetworkingV1().NetworkPolicies(w.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			}
		}
	}
	of := func(direction, name string) func(*diagnosed) []string {
		return func(w *diagnosed) []string {
			return []string{"isolated for " + direction + " by networkpolicy/" + w.namespace + "/" + name}
		}
	}
	toC := traceTo((*diagnosed).podC, fixture.HTTPPort)
	return []diagnosis{
		{name: "a policy denies ingress", inject: isolate("closed-in", networkingv1.PolicyTypeIngress), ask: toC, words: of("ingress", "closed-in")},
		{name: "a policy denies egress", inject: isolate("closed-out", networkingv1.PolicyTypeEgress), ask: toC, words: of("egress", "closed-out")},
		{
			name: "service without endpoints",
			inject: func(t *testing.T, w *diagnosed) func() {
				w.CreateService(t, w.namespace, "empty", servicePort{Protocol: corev1.ProtocolTCP, Port: strangersPort, Target: fixture.HTTPPort}, map[string]string{"no": "pod"})
				return nil
			},
			ask:   traceTo(func(w *diagnosed) string { return "service/" + w.namespace + "/empty" }, strangersPort),
			words: containing("has no ready endpoints"),
		},
		{
			name: "pod is not scheduled",
			inject: func(t *testing.T, w *diagnosed) func() {
				p := fixture.Netexec("pending", "")
				p.Spec.NodeSelector = map[string]string{"no": "node"}
				w.Create(t, w.namespace, p)
				return nil
			},
			ask:   traceTo(func(w *diagnosed) string { return "pod/" + w.namespace + "/pending" }, fixture.HTTPPort),
			words: containing("pending is not scheduled to a node"),
		},
	}
}

// firewall creates an EgressNetworkPolicy.
func firewall(rules ...networkv1.EgressNetworkPolicyRule) func(*testing.T, *diagnosed) func() {
	return func(t *testing.T, w *diagnosed) func() {
		policies := w.Network.NetworkV1().EgressNetworkPolicies(w.namespace)
		o := &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "default"}, Spec: networkv1.EgressNetworkPolicySpec{Egress: rules}}
		if _, err := policies.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := policies.Delete(t.Context(), o.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
}

func outsideDiagnoses() []diagnosis {
	deny := func(cidr string) networkv1.EgressNetworkPolicyRule {
		return networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleDeny, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: cidr}}
	}
	names := func(n int) (rules []networkv1.EgressNetworkPolicyRule) {
		for i := range n {
			rules = append(rules, networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleAllow, To: networkv1.EgressNetworkPolicyPeer{DNSName: fmt.Sprintf("n%d.example.com", i)}})
		}
		return rules
	}
	hosted := func(ip netip.Addr, nodes ...string) func(*testing.T, *diagnosed) func() {
		return func(t *testing.T, w *diagnosed) func() {
			for _, node := range nodes {
				w.hostEgressIPs(t, node, ip)
			}
			return func() {
				for _, node := range nodes {
					w.hostEgressIPs(t, node)
				}
			}
		}
	}
	farIP := netip.MustParseAddr("198.51.100.9") // in no network of a node
	notPlaced := func(t *testing.T, w *diagnosed) func() {
		w.useEgressIPs(t, w.theirs, farIP)
		undo := hosted(farIP, fixture.Node2)(t, w)
		return func() { undo(); w.useEgressIPs(t, w.theirs) }
	}
	outside := traceTo(toOutside, strangersPort)
	return []diagnosis{
		{
			name: "no node hosts the egress IP",
			inject: func(t *testing.T, w *diagnosed) func() {
				w.useEgressIPs(t, w.namespace, egressIP(1))
				return func() { w.useEgressIPs(t, w.namespace) }
			},
			ask: outside, words: containing("no node hosts the egress IP of the namespace"),
		},
		{name: "two nodes host an egress IP", inject: hosted(egressIP(2), fixture.Node1, fixture.Node2), ask: status, words: containing(eventreason.EgressIPConflict, egressIP(2).String())},
		{
			name: "egress IP of no network of the node", ask: status, inject: notPlaced,
			words: containing("node/"+fixture.Node2+": "+eventreason.EgressIPNotPlaced, farIP.String()),
		},
		{
			name: "egress IP that its node drops", inject: notPlaced,
			ask:   func(*diagnosed) []string { return []string{"egress-ips", farIP.String(), "--output=wide"} },
			words: containing("NotPlaced", fixture.Node2+" drops packets with it"),
		},
		{name: "an egress firewall denies", inject: firewall(deny("0.0.0.0/0")), ask: outside, words: containing("an EgressNetworkPolicy of the namespace denies the destination")},
		{
			name: "DNS name of an egress firewall does not resolve", ask: outside,
			inject: firewall(
				networkv1.EgressNetworkPolicyRule{Type: networkv1.EgressNetworkPolicyRuleAllow, To: networkv1.EgressNetworkPolicyPeer{DNSName: "no-such-name.example.com"}},
				deny("0.0.0.0/0")),
			words: containing("DNS names of its rules without an address: no-such-name.example.com"),
		},
		{name: "invalid egress firewall", inject: firewall(names(101)...), ask: status, words: containing("egressnetworkpolicy/", eventreason.InvalidEgressNetworkPolicy)},
	}
}

func objectDiagnoses() []diagnosis {
	matrix := func(do, undo func(*testing.T, *faultMatrix)) func(*testing.T, *diagnosed) func() {
		return func(t *testing.T, w *diagnosed) func() {
			do(t, w.faultMatrix)
			return func() { undo(t, w.faultMatrix) }
		}
	}
	return []diagnosis{
		{
			name: "HostSubnet edited", inject: matrix(breakHostSubnet(fixture.Node1), restoreHostSubnet(fixture.Node1)), ask: status,
			words: containing("node/" + fixture.Node1 + ": " + eventreason.InvalidHostSubnet),
		},
		{
			name: "NetNamespace edited", inject: matrix(breakNetNamespace, restoreNetNamespace), ask: status,
			words: func(w *diagnosed) []string {
				return []string{"netnamespace/" + w.namespace + ": " + eventreason.InvalidNetNamespace}
			},
		},
		{
			name: "ClusterNetwork invalid", inject: matrix(breakClusterNetwork, restoreClusterNetwork), ask: status,
			words: containing("ClusterNetwork default: not accepted: Invalid: "),
		},
		{name: "service network edited", inject: editServiceNetwork, ask: status, words: containing("ClusterNetwork default: not accepted: InUse: ", "serviceNetwork: it can't move from ")},
		{name: "two nodes with one address", inject: twinNode, ask: status, words: containing("twin: no HostSubnet", "node/twin: "+eventreason.NodeAddressUnusable)},
		{
			name: "invalid bandwidth", ask: status,
			inject: annotatePod("kubernetes.io/ingress-bandwidth", "ten"),
			words:  func(w *diagnosed) []string { return []string{w.podA() + ": " + eventreason.InvalidBandwidth} },
		},
	}
}

// editServiceNetwork sets another service network than that of the API server.
func editServiceNetwork(t *testing.T, w *diagnosed) func() {
	set := func(network string) {
		patch := encoded(t, map[string]any{"serviceNetwork": network})
		if _, err := w.Network.NetworkV1().ClusterNetworks().Patch(t.Context(), networkv1.ClusterNetworkDefault, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	set("10.55.0.0/16")
	return func() { set(w.Shape().ServiceNetwork.String()) }
}

// twinNode creates a Node with the address of node1.
func twinNode(t *testing.T, w *diagnosed) func() {
	nodes := w.Kube.CoreV1().Nodes()
	o, err := nodes.Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "twin"},
		Status:     corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: w.Addr(t, fixture.Node1).String()}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := nodes.Delete(t.Context(), o.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}
}

// annotatePod sets an annotation of pod a.
func annotatePod(key, value string) func(*testing.T, *diagnosed) func() {
	return func(t *testing.T, w *diagnosed) func() {
		set := func(value any) {
			patch := encoded(t, map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
			if _, err := w.Kube.CoreV1().Pods(w.namespace).Patch(t.Context(), w.a.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		set(value)
		return func() { set(nil) }
	}
}

func programDiagnoses() []diagnosis {
	stopped := func(machine, service string) func(*testing.T, *diagnosed) func() {
		return func(t *testing.T, w *diagnosed) func() {
			w.service(t, machine, service, (*lab.Service).Stop)
			return func() { w.service(t, machine, service, (*lab.Service).Start) }
		}
	}
	return []diagnosis{
		{name: "agent stopped", inject: stopped(fixture.Node3, agentService), ask: status, words: containing(fixture.Node3+": connection refused", "the agent does not run")},
		{
			name: "vswitchd stopped", ask: status, words: containing(fixture.Node3+": from ", ": neither the overlay nor the underlay answers"), // the host's own packets pass it
			inject: func(t *testing.T, w *diagnosed) func() {
				w.service(t, fixture.Node3, vswitchdService, (*lab.Service).Stop)
				return func() {
					w.service(t, fixture.Node3, vswitchdService, (*lab.Service).Start)
					w.restoreUnderlay(t, fixture.Node3)
				}
			},
		},
		{name: "no controller leads", inject: refuseLease, ask: status, words: containing("no controller leads: ")},
		{name: "no controller", inject: stopped(lab.ControlPlane, controllerService), ask: status, words: containing("no controller answers for the API group")},
	}
}

// refuseLease takes the right to renew the Lease from the controllers.
func refuseLease(t *testing.T, w *diagnosed) func() {
	roles := w.Kube.RbacV1().Roles(certificates.Namespace)
	o, err := roles.Get(t.Context(), controllerService, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	set := func(rules []rbacv1.PolicyRule) {
		patch := encoded(t, map[string]any{"rules": rules})
		if _, err := roles.Patch(t.Context(), o.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var others []rbacv1.PolicyRule
	for _, rule := range o.Rules {
		if rule.Resources[0] != "leases" {
			others = append(others, rule)
		}
	}
	set(others)
	return func() { set(o.Rules) }
}
