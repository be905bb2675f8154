package policy

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// lines returns the texts of the faults.
func lines(faults []error) (list []string) {
	for _, err := range faults {
		list = append(list, err.Error())
	}
	return list
}

// sameAsSet fails the test unless the error of the engine has the same faults.
func sameAsSet(t *testing.T, faults []error, set error) {
	t.Helper()
	if len(faults) == 0 {
		if set != nil {
			t.Errorf("error of the engine: got %v, want none", set)
		}
		return
	}
	if want := ": " + errors.Join(faults...).Error(); set == nil || !strings.HasSuffix(set.Error(), want) {
		t.Errorf("error of the engine: got %v, want one that ends with %q", set, want)
	}
}

func TestFaultsOfNetworkPolicies(t *testing.T) {
	last := int32(79)
	for name, tc := range map[string]struct {
		spec networkingv1.NetworkPolicySpec
		want []string
	}{
		"none": {spec: networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: from("192.0.2.99/24")}}}},
		"pods that can't be selected": {
			spec: networkingv1.NetworkPolicySpec{PodSelector: *unknown(), Ingress: []networkingv1.NetworkPolicyIngressRule{{From: from("none")}}},
			want: []string{`selector: "Near" is not a valid label selector operator`, "the policy has no effect"},
		},
		"in rules of both directions": {
			spec: networkingv1.NetworkPolicySpec{
				Ingress: []networkingv1.NetworkPolicyIngressRule{
					{}, {From: pods(nil, unknown()), Ports: []networkingv1.NetworkPolicyPort{{Port: number(80), EndPort: &last}, {Port: number(80)}}},
				},
				Egress: []networkingv1.NetworkPolicyEgressRule{{To: from("192.0.2.0/33")}},
			},
			want: []string{
				`ingress/1: selector: "Near" is not a valid label selector operator`,
				"ingress/1: ports 80 to 79: want numbers from 1 to 65535, in order",
				`egress/0: ipBlock "192.0.2.0/33": netip.ParsePrefix("192.0.2.0/33"): prefix length out of range`,
			},
		},
		"in a direction that the policy does not isolate": {
			spec: networkingv1.NetworkPolicySpec{
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Egress:      []networkingv1.NetworkPolicyEgressRule{{To: from("none")}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			np := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "np"}, Spec: tc.spec}
			faults := CheckNetworkPolicy(np)
			if diff := cmp.Diff(tc.want, lines(faults)); diff != "" {
				t.Error(diff)
			}
			sameAsSet(t, faults, small(t).engine.SetNetworkPolicy(np))
		})
	}
}

func TestFaultsOfClusterNetworkPolicies(t *testing.T) {
	const accept, deny, pass = policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
		policyv1alpha2.ClusterNetworkPolicyRuleActionPass
	type (
		spec     = policyv1alpha2.ClusterNetworkPolicySpec
		action   = policyv1alpha2.ClusterNetworkPolicyRuleAction
		peer     = policyv1alpha2.ClusterNetworkPolicyEgressPeer
		protocol = policyv1alpha2.ClusterNetworkPolicyProtocol
	)
	all := &metav1.LabelSelector{}
	to := func(a action, peers []peer, protocols ...protocol) func(*spec) {
		return func(s *spec) {
			s.Egress = append(s.Egress, policyv1alpha2.ClusterNetworkPolicyEgressRule{Action: a, To: peers, Protocols: protocols})
		}
	}
	anyPod := []peer{{Namespaces: all}}
	names := []peer{{Namespaces: all}, {DomainNames: []policyv1alpha2.DomainName{"example.com."}}, {DomainNames: []policyv1alpha2.DomainName{"example.net."}}}
	const withoutEffect = "the policy has no effect"
	for name, tc := range map[string]struct {
		edit func(*spec)
		want []string
	}{
		"none":                            {edit: to(deny, anyPod)},
		"an unknown tier":                 {edit: func(s *spec) { s.Tier = "Middle" }, want: []string{`tier "Middle": want Admin or Baseline`, withoutEffect}},
		"an invalid priority":             {edit: func(s *spec) { s.Priority = 1001 }, want: []string{"priority 1001: want 0 to 1000", withoutEffect}},
		"too many rules":                  {edit: func(s *spec) { s.Ingress = make([]policyv1alpha2.ClusterNetworkPolicyIngressRule, 26) }, want: []string{"26 ingress and 0 egress rules: want at most 25 of each", withoutEffect}},
		"a subject of an unknown kind":    {edit: func(s *spec) { s.Subject.Namespaces = nil }, want: []string{"neither namespaces nor pods are selected, nor anything else that is known", withoutEffect}},
		"a subject with a bad selector":   {edit: func(s *spec) { s.Subject.Namespaces = unknown() }, want: []string{`selector: "Near" is not a valid label selector operator`, withoutEffect}},
		"domain names that are accepted":  {edit: to(accept, names), want: []string{"egress/0: domain names can't be peers", "egress/0: the rule matches nothing"}},
		"domain names that are denied":    {edit: to(deny, names), want: []string{"egress/0: domain names can't be peers", "egress/0: the rule denies all"}},
		"domain names that are passed on": {edit: to(pass, names), want: []string{"egress/0: domain names can't be peers", "egress/0: the rule denies all"}},
		"a peer of an unknown kind":       {edit: to(accept, []peer{{}}), want: []string{"egress/0: neither namespaces nor pods are selected, nor anything else that is known", "egress/0: the rule matches nothing"}},
		"no peers":                        {edit: to(deny, nil), want: []string{"egress/0: no peers", "egress/0: the rule denies all"}},
		"an unknown action":               {edit: to("Log", anyPod), want: []string{`egress/0: action "Log": not known`, "egress/0: the rule denies all"}},
		"an unknown protocol":             {edit: to(accept, anyPod, protocol{}), want: []string{"egress/0: a protocol that is not known", "egress/0: the rule matches nothing"}},
		"an invalid network":              {edit: to(deny, []peer{{Networks: []policyv1alpha2.CIDR{"192.0.2.0"}}}), want: []string{`egress/0: network "192.0.2.0": netip.ParsePrefix("192.0.2.0"): no '/'`, "egress/0: the rule denies all"}},
		"ports out of order": {
			edit: to(deny, anyPod, protocol{TCP: &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{
				DestinationPort: &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: 80, End: 79}},
			}}),
			want: []string{"egress/0: ports 80 to 79: want numbers from 1 to 65535, in order", "egress/0: the rule denies all"},
		},
		"one rule of two": {
			edit: func(s *spec) {
				s.Ingress = []policyv1alpha2.ClusterNetworkPolicyIngressRule{
					{Action: accept, From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: all}}},
					{Action: accept, From: []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: unknown()}}},
				}
			},
			want: []string{`ingress/1: selector: "Near" is not a valid label selector operator`, "ingress/1: the rule matches nothing"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			cnp := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cnp"}}
			cnp.Spec.Tier, cnp.Spec.Subject.Namespaces = policyv1alpha2.AdminTier, all
			tc.edit(&cnp.Spec)
			faults := CheckClusterNetworkPolicy(cnp)
			if diff := cmp.Diff(tc.want, lines(faults)); diff != "" {
				t.Error(diff)
			}
			sameAsSet(t, faults, small(t).engine.SetClusterNetworkPolicy(cnp))
		})
	}
}

// However large a policy is, each of its rules has few faults.
func TestFaultsOfALargeClusterNetworkPolicy(t *testing.T) {
	cnp := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "cnp"}}
	cnp.Spec.Tier, cnp.Spec.Subject.Namespaces = policyv1alpha2.AdminTier, &metav1.LabelSelector{}
	for range maxRules {
		r := policyv1alpha2.ClusterNetworkPolicyEgressRule{Action: policyv1alpha2.ClusterNetworkPolicyRuleActionAccept}
		for i := range 25 {
			r.To = append(r.To, policyv1alpha2.ClusterNetworkPolicyEgressPeer{Networks: []policyv1alpha2.CIDR{policyv1alpha2.CIDR(fmt.Sprint("network ", i))}})
		}
		cnp.Spec.Egress = append(cnp.Spec.Egress, r)
	}
	if n := len(CheckClusterNetworkPolicy(cnp)); n != 2*maxRules {
		t.Errorf("faults: got %d, want %d, two of each rule", n, 2*maxRules)
	}
}
