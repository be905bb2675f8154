package testcluster

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

func (w *World) policySpec() networkingv1.NetworkPolicySpec {
	s := networkingv1.NetworkPolicySpec{PodSelector: *w.selector()}
	for range w.rand.IntN(3) {
		s.Ingress = append(s.Ingress, networkingv1.NetworkPolicyIngressRule{From: w.peers(), Ports: w.ports()})
	}
	for range w.rand.IntN(3) {
		s.Egress = append(s.Egress, networkingv1.NetworkPolicyEgressRule{To: w.peers(), Ports: w.ports()})
	}
	s.PolicyTypes = pick(w, [][]networkingv1.PolicyType{
		nil, {networkingv1.PolicyTypeIngress}, {networkingv1.PolicyTypeEgress},
		{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	})
	return s
}

func (w *World) selector() *metav1.LabelSelector {
	s := &metav1.LabelSelector{}
	if w.chance(50) {
		s.MatchLabels = map[string]string{pick(w, []string{"app", "tier"}): pick(w, []string{"a", "b", "c"})}
	}
	if w.chance(20) {
		r := metav1.LabelSelectorRequirement{Key: pick(w, []string{"app", "tier"}), Operator: pick(w, []metav1.LabelSelectorOperator{
			metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
		})}
		if r.Operator == metav1.LabelSelectorOpIn || r.Operator == metav1.LabelSelectorOpNotIn {
			r.Values = []string{"a", "b"}
		}
		s.MatchExpressions = append(s.MatchExpressions, r)
	}
	return s
}

func (w *World) peers() []networkingv1.NetworkPolicyPeer {
	var peers []networkingv1.NetworkPolicyPeer
	for range w.rand.IntN(4) {
		var p networkingv1.NetworkPolicyPeer
		switch w.rand.IntN(6) {
		case 0:
			p.PodSelector = w.selector()
		case 1:
			p.NamespaceSelector = w.selector()
		case 2:
			p.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: pick(w, w.Namespaces).Name}}
		case 3:
			p.PodSelector, p.NamespaceSelector = w.selector(), w.selector()
		case 4:
			p.IPBlock = w.block()
		case 5:
			p.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{hostNetworkLabel: ""}}
			p.PodSelector = pick(w, []*metav1.LabelSelector{nil, {}, w.selector()})
		}
		peers = append(peers, p)
	}
	return peers
}

func (w *World) block() *networkingv1.IPBlock {
	b := &networkingv1.IPBlock{CIDR: pick(w, []string{
		"10.128.0.0/14", "10.128.0.0/23", "10.128.2.0/29", "0.0.0.0/0", "192.0.2.0/24", "10.128.0.4/32",
		"172.31.0.8/29", "172.31.0.11/32", "172.31.0.12/32", "10.128.0.1/32", "10.128.2.1/32", // of nodes
	})}
	if w.chance(40) {
		for _, except := range []string{"10.128.0.4/30", "10.128.2.3/32", "192.0.2.0/28", "10.128.0.1/32", "172.31.0.12/32", "172.31.0.0/24"} {
			if netip.MustParsePrefix(b.CIDR).Bits() < netip.MustParsePrefix(except).Bits() && netip.MustParsePrefix(b.CIDR).Overlaps(netip.MustParsePrefix(except)) && w.chance(60) {
				b.Except = append(b.Except, except)
			}
		}
	}
	return b
}

func (w *World) ports() []networkingv1.NetworkPolicyPort {
	var ports []networkingv1.NetworkPolicyPort
	for range w.rand.IntN(3) {
		var p networkingv1.NetworkPolicyPort
		if w.chance(80) {
			protocol := pick(w, Protocols()[:3])
			p.Protocol = &protocol
		}
		switch w.rand.IntN(5) {
		case 0, 1:
			number := intstr.FromInt32(pick(w, Ports(corev1.ProtocolTCP)))
			p.Port = &number
		case 2:
			name := intstr.FromString(pick(w, []string{"web", "admin", "none"}))
			p.Port = &name
		case 3:
			first, last := intstr.FromInt32(80), pick(w, []int32{80, 81, 8080, 65535})
			p.Port, p.EndPort = &first, &last
		}
		ports = append(ports, p)
	}
	return ports
}

func (w *World) addClusterPolicy(to Watcher) {
	p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: w.name("cnp")}, Spec: w.clusterSpec()}
	w.ClusterPolicies = append(w.ClusterPolicies, p)
	to.SetClusterPolicy(p)
}

func (w *World) changeClusterPolicy(to Watcher) {
	i := w.rand.IntN(len(w.ClusterPolicies))
	p := w.ClusterPolicies[i].DeepCopy()
	p.Spec = w.clusterSpec()
	w.ClusterPolicies[i] = p
	to.SetClusterPolicy(p)
}

func (w *World) clusterSpec() policyv1alpha2.ClusterNetworkPolicySpec {
	s := policyv1alpha2.ClusterNetworkPolicySpec{
		Tier:     pick(w, []policyv1alpha2.Tier{policyv1alpha2.AdminTier, policyv1alpha2.BaselineTier}),
		Priority: w.freePriority(), // the API does not define the order of equal priorities
	}
	s.Subject.Namespaces, s.Subject.Pods = w.clusterPeer()
	for range w.rand.IntN(4) {
		r := policyv1alpha2.ClusterNetworkPolicyIngressRule{Action: w.action(), Protocols: w.clusterPorts()}
		for range 1 + w.rand.IntN(2) {
			var peer policyv1alpha2.ClusterNetworkPolicyIngressPeer
			peer.Namespaces, peer.Pods = w.clusterPeer()
			r.From = append(r.From, peer)
		}
		s.Ingress = append(s.Ingress, r)
	}
	for range w.rand.IntN(4) {
		r := policyv1alpha2.ClusterNetworkPolicyEgressRule{Action: w.action(), Protocols: w.clusterPorts()}
		for range 1 + w.rand.IntN(2) {
			r.To = append(r.To, w.clusterEgressPeer())
		}
		s.Egress = append(s.Egress, r)
	}
	return s
}

func (w *World) removeClusterPolicy(to Watcher) {
	p := pick(w, w.ClusterPolicies)
	w.ClusterPolicies = slices.DeleteFunc(w.ClusterPolicies, func(x *policyv1alpha2.ClusterNetworkPolicy) bool { return x == p })
	to.DeleteClusterPolicy(p)
}

func (w *World) freePriority() int32 {
	for {
		n := w.rand.Int32N(1001)
		if !slices.ContainsFunc(w.ClusterPolicies, func(p *policyv1alpha2.ClusterNetworkPolicy) bool { return p.Spec.Priority == n }) {
			return n
		}
	}
}

func (w *World) action() policyv1alpha2.ClusterNetworkPolicyRuleAction {
	return pick(w, []policyv1alpha2.ClusterNetworkPolicyRuleAction{
		policyv1alpha2.ClusterNetworkPolicyRuleActionAccept, policyv1alpha2.ClusterNetworkPolicyRuleActionDeny, policyv1alpha2.ClusterNetworkPolicyRuleActionPass,
	})
}

func (w *World) clusterPeer() (*metav1.LabelSelector, *policyv1alpha2.NamespacedPod) {
	if w.chance(50) {
		return w.selector(), nil
	}
	return nil, &policyv1alpha2.NamespacedPod{NamespaceSelector: *w.selector(), PodSelector: *w.selector()}
}

func (w *World) clusterEgressPeer() (p policyv1alpha2.ClusterNetworkPolicyEgressPeer) {
	switch w.rand.IntN(4) {
	case 0:
		p.Nodes = w.selector()
	case 1:
		p.Networks = []policyv1alpha2.CIDR{policyv1alpha2.CIDR(w.block().CIDR), policyv1alpha2.CIDR(w.block().CIDR)}
	default:
		p.Namespaces, p.Pods = w.clusterPeer()
	}
	return p
}

func (w *World) clusterPorts() []policyv1alpha2.ClusterNetworkPolicyProtocol {
	var ports []policyv1alpha2.ClusterNetworkPolicyProtocol
	for range w.rand.IntN(3) {
		var port *policyv1alpha2.Port
		switch w.rand.IntN(3) {
		case 0:
			port = &policyv1alpha2.Port{Number: pick(w, Ports(corev1.ProtocolTCP))}
		case 1:
			port = &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: 80, End: pick(w, []int32{81, 8080, 65535})}}
		}
		ports = append(ports, pick(w, []policyv1alpha2.ClusterNetworkPolicyProtocol{
			{TCP: &policyv1alpha2.ClusterNetworkPolicyProtocolTCP{DestinationPort: port}},
			{UDP: &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: port}},
			{SCTP: &policyv1alpha2.ClusterNetworkPolicyProtocolSCTP{DestinationPort: port}},
			{DestinationNamedPort: "web"},
		}))
	}
	return ports
}
