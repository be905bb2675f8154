package policy

import (
	"net/netip"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/ovsdn/ovsdn/test/testcluster"
)

func drawNamespace(t *rapid.T) string {
	return rapid.SampledFrom([]string{"a", "b", testcluster.HostNetwork()[0]}).Draw(t, "namespace")
}

func drawApp(t *rapid.T) map[string]string {
	return map[string]string{"app": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "app")}
}

func drawPod(t *rapid.T) PodKey {
	return PodKey{Namespace: drawNamespace(t), Name: rapid.SampledFrom([]string{"p", "q"}).Draw(t, "pod")}
}

func drawAddr(t *rapid.T) netip.Addr { return addr(rapid.IntRange(1, 5).Draw(t, "address")) }

func drawPortName(t *rapid.T) string {
	return rapid.SampledFrom([]string{"web", "dns"}).Draw(t, "port")
}

// drawSelector is nil for a peer that has none.
func drawSelector(t *rapid.T) *metav1.LabelSelector {
	switch rapid.IntRange(0, 2).Draw(t, "selector") {
	case 0:
		return nil
	case 1:
		return &metav1.LabelSelector{}
	}
	return &metav1.LabelSelector{MatchLabels: drawApp(t)}
}

func someSelector(t *rapid.T) metav1.LabelSelector {
	if s := drawSelector(t); s != nil {
		return *s
	}
	return metav1.LabelSelector{}
}

// insideAddr is the node's, in the pod network. Pods do not have it, nor the node's own.
func insideAddr() netip.Addr { return addr(0) }

func drawRule(t *rapid.T) (peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) {
	for range rapid.IntRange(0, 2).Draw(t, "peers") {
		p := networkingv1.NetworkPolicyPeer{NamespaceSelector: drawSelector(t), PodSelector: drawSelector(t)}
		if p.NamespaceSelector == nil && p.PodSelector == nil {
			p.IPBlock = &networkingv1.IPBlock{CIDR: rapid.SampledFrom([]string{
				"10.128.0.2/32", "10.128.0.2/31", "0.0.0.0/0", "10.128.0.0/32", "10.128.0.6/32",
			}).Draw(t, "block")}
		}
		peers = append(peers, p)
	}
	for range rapid.IntRange(0, 2).Draw(t, "ports") {
		port := intstr.FromInt32(rapid.Int32Range(80, 81).Draw(t, "number"))
		if rapid.Bool().Draw(t, "named") {
			port = intstr.FromString(drawPortName(t))
		}
		ports = append(ports, networkingv1.NetworkPolicyPort{Port: &port})
	}
	return peers, ports
}

func drawAction(t *rapid.T) policyv1alpha2.ClusterNetworkPolicyRuleAction {
	return rapid.SampledFrom([]policyv1alpha2.ClusterNetworkPolicyRuleAction{
		policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, policyv1alpha2.ClusterNetworkPolicyRuleActionPass,
	}).Draw(t, "action")
}

func drawProtocols(t *rapid.T) []policyv1alpha2.ClusterNetworkPolicyProtocol {
	switch rapid.IntRange(0, 2).Draw(t, "protocols") {
	case 0:
		return nil
	case 1:
		return []policyv1alpha2.ClusterNetworkPolicyProtocol{{DestinationNamedPort: drawPortName(t)}}
	}
	port := &policyv1alpha2.Port{Number: rapid.Int32Range(80, 81).Draw(t, "number")}
	return []policyv1alpha2.ClusterNetworkPolicyProtocol{{TCP: &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}}}
}

func drawClusterName(t *rapid.T) string {
	return rapid.SampledFrom([]string{"cnp1", "cnp2"}).Draw(t, "policy")
}
