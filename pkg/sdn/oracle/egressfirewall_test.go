package oracle

import (
	"net/netip"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A namespace with VNID 0 has no egress firewall. In mode subnet, which has no VNIDs, each namespace has its own.
func TestEvaluate_egressFirewall(t *testing.T) {
	policy := func(namespace string) *networkv1.EgressNetworkPolicy {
		rule := func(action networkv1.EgressNetworkPolicyRuleType, to string) networkv1.EgressNetworkPolicyRule {
			return networkv1.EgressNetworkPolicyRule{Type: action, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: to}}
		}
		return &networkv1.EgressNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}, Spec: networkv1.EgressNetworkPolicySpec{
			Egress: []networkv1.EgressNetworkPolicyRule{rule("Allow", "192.0.2.0/24"), rule("Deny", "0.0.0.0/0")},
		}}
	}
	endpoint := func(namespace, addr string) Endpoint {
		return Endpoint{Addr: netip.MustParseAddr(addr), Pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: corev1.PodSpec{NodeName: "n1"}}}
	}
	nodeIP, tun0 := netip.MustParseAddr("172.31.0.11"), netip.MustParseAddr("10.128.0.1")
	allowed, denied := Endpoint{Addr: netip.MustParseAddr("192.0.2.7")}, Endpoint{Addr: netip.MustParseAddr("198.51.100.9")}
	node := Endpoint{Addr: nodeIP, Node: "n1"}
	modes := map[string]map[string]uint32{"subnet": nil, "with VNIDs": {"global": 0, "shop": 10, "open": 11}}
	for _, tc := range []struct {
		name      string
		namespace string
		to        Endpoint
		port      int32
		want      map[string]bool // by mode
	}{
		{"an allowed destination", "shop", allowed, 443, map[string]bool{"subnet": true, "with VNIDs": true}},
		{"a denied destination", "shop", denied, 443, map[string]bool{"subnet": false, "with VNIDs": false}},
		{"a global namespace", "global", denied, 443, map[string]bool{"subnet": false, "with VNIDs": true}},
		{"no policy", "open", denied, 443, map[string]bool{"subnet": true, "with VNIDs": true}},
		{"a pod", "shop", endpoint("open", "10.128.0.6"), 443, map[string]bool{"subnet": true, "with VNIDs": true}},
		{"DNS of the own node", "shop", node, 53, map[string]bool{"subnet": true, "with VNIDs": true}},
		{"another port of the own node", "shop", node, 54, map[string]bool{"subnet": false, "with VNIDs": false}},
		{"tun0", "shop", Endpoint{Addr: tun0, Node: "n1"}, 443, map[string]bool{"subnet": true, "with VNIDs": true}},
	} {
		for mode, vnids := range modes {
			c := &Cluster{
				NodeAddrs: map[string][]netip.Addr{"n1": {nodeIP, tun0}}, FirewallVNIDs: vnids,
				EgressPolicies: []*networkv1.EgressNetworkPolicy{policy("shop"), policy("global")},
			}
			v := c.Evaluate(Connection{From: endpoint(tc.namespace, "10.128.0.5"), To: tc.to, Protocol: corev1.ProtocolTCP, Port: tc.port})
			if v.Allowed != tc.want[mode] {
				t.Errorf("%s, mode %s: got %+v, want allowed %v", tc.name, mode, v, tc.want[mode])
			}
		}
	}
}
