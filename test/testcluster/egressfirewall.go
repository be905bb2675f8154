package testcluster

import (
	"math/rand/v2"
	"net/netip"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
)

// DrawFirewalls replaces all EgressNetworkPolicies by random ones, whose rules overlap.
func (w *World) DrawFirewalls(r *rand.Rand) {
	w.EgressPolicies = nil
	var addrs []netip.Addr
	for _, e := range w.Endpoints() {
		if e.Pod == nil {
			addrs = append(addrs, e.Addr)
		}
	}
	for _, ns := range w.Namespaces {
		for i := range r.IntN(3) {
			p := &networkv1.EgressNetworkPolicy{}
			p.Namespace, p.Name = ns.Name, strings.Repeat("a", 2-i)
			for range 1 + r.IntN(4) {
				to := netip.PrefixFrom(addrs[r.IntN(len(addrs))], []int{0, 8, 24, 30, 32, 32}[r.IntN(6)]).Masked()
				action := networkv1.EgressNetworkPolicyRuleAllow
				if r.IntN(2) == 0 {
					action = networkv1.EgressNetworkPolicyRuleDeny
				}
				p.Spec.Egress = append(p.Spec.Egress, networkv1.EgressNetworkPolicyRule{Type: action, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: to.String()}})
			}
			w.EgressPolicies = append(w.EgressPolicies, p)
		}
	}
}
