package oracle

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// namespaceTier: "a pod cannot block access to itself" (Network Policies, kubernetes.io), also through a service. The policies of a type that select the target
// "are combined additively", and "If no policies select a pod in a direction, all is allowed" by them: the next tier decides.
func (c *Cluster) namespaceTier(conn Connection, target Endpoint, direction networkingv1.PolicyType) (v Verdict, decided bool) {
	for _, p := range c.Policies {
		if p.Namespace != target.Pod.Namespace || !selects(p.Spec.PodSelector, target.Pod.Labels) || !slices.Contains(types(p), direction) {
			continue
		}
		if conn.Hairpin || c.allows(p, conn, direction) {
			return Verdict{true, fmt.Sprintf("%s of %s/%s", direction, p.Namespace, p.Name)}, true
		}
		v, decided = Verdict{false, fmt.Sprintf("%s/%s isolates its %s", p.Namespace, p.Name, direction)}, true
	}
	return v, decided
}

// allows: the other end must be a peer of a rule, and the port, which is the destination's, one of the same rule.
func (c *Cluster) allows(p *networkingv1.NetworkPolicy, conn Connection, direction networkingv1.PolicyType) bool {
	if direction == networkingv1.PolicyTypeIngress {
		return slices.ContainsFunc(p.Spec.Ingress, func(r networkingv1.NetworkPolicyIngressRule) bool {
			return c.anySource(p.Namespace, r.From, conn.From) && anyPort(r.Ports, conn)
		})
	}
	return slices.ContainsFunc(p.Spec.Egress, func(r networkingv1.NetworkPolicyEgressRule) bool {
		return c.anyPeer(p.Namespace, r.To, conn.To) && anyPort(r.Ports, conn)
	})
}

// types: "If no policyTypes are specified then by default Ingress will always be set and Egress will be set if the
// NetworkPolicy has any egress rules."
func types(p *networkingv1.NetworkPolicy) []networkingv1.PolicyType {
	switch {
	case len(p.Spec.PolicyTypes) > 0:
		return p.Spec.PolicyTypes
	case len(p.Spec.Egress) > 0:
		return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress}
	}
	return []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
}

func (c *Cluster) anySource(namespace string, peers []networkingv1.NetworkPolicyPeer, e Endpoint) bool {
	if e.Node != "" {
		return c.allowsNode(peers, e.Node)
	}
	return c.anyPeer(namespace, peers, e)
}

// anyPeer: "If this field is empty or missing, this rule matches all sources"; else the items are "combined using a logical
// OR operation".
func (c *Cluster) anyPeer(namespace string, peers []networkingv1.NetworkPolicyPeer, e Endpoint) bool {
	return len(peers) == 0 || slices.ContainsFunc(peers, func(p networkingv1.NetworkPolicyPeer) bool {
		if p.IPBlock != nil {
			return inBlock(p.IPBlock, e.Addr)
		}
		return c.selectedPod(namespace, p, e.Pod)
	})
}

// inBlock compares addresses only; "except" are "values that should not be included within an IP Block". A block with an invalid CIDR is nothing: the API server
// lets none through.
func inBlock(b *networkingv1.IPBlock, addr netip.Addr) bool {
	for _, cidr := range b.Except {
		if _, err := netip.ParsePrefix(cidr); err != nil || contains(cidr, addr) {
			return false
		}
	}
	return contains(b.CIDR, addr)
}

// contains reports whether the CIDR is valid and has the address.
func contains(cidr string, addr netip.Addr) bool {
	prefix, err := netip.ParsePrefix(cidr)
	return err == nil && prefix.Contains(addr)
}

// selectedPod: a selector of namespaces alone is all their pods, one of pods alone those of the policy's own namespace, and
// both the pods "in the namespaces selected".
func (c *Cluster) selectedPod(namespace string, p networkingv1.NetworkPolicyPeer, pod *corev1.Pod) bool {
	switch {
	case !IsSubject(pod):
		return false
	case p.NamespaceSelector == nil && pod.Namespace != namespace:
		return false
	case p.NamespaceSelector != nil && !selects(*p.NamespaceSelector, c.namespaceLabels(pod.Namespace)):
		return false
	}
	return p.PodSelector == nil || selects(*p.PodSelector, pod.Labels)
}

func (c *Cluster) namespaceLabels(name string) map[string]string {
	for _, ns := range c.Namespaces {
		if ns.Name == name {
			return ns.Labels
		}
	}
	return nil
}

// anyPort: "If this field is empty or missing, this rule matches all ports". What has no ports is matched by no port.
func anyPort(ports []networkingv1.NetworkPolicyPort, conn Connection) bool {
	return len(ports) == 0 || slices.ContainsFunc(ports, func(p networkingv1.NetworkPolicyPort) bool { return onPort(p, conn) })
}

// onPort: the protocol defaults to TCP; no port means all of the protocol; endPort makes a range of a number.
func onPort(p networkingv1.NetworkPolicyPort, conn Connection) bool {
	protocol := corev1.ProtocolTCP
	if p.Protocol != nil {
		protocol = *p.Protocol
	}
	switch {
	case conn.Protocol != protocol:
		return false
	case p.Port == nil:
		return true
	case p.Port.Type == intstr.String:
		return hasPort(conn.To.Pod, p.Port.StrVal, protocol, conn.Port)
	case p.EndPort != nil:
		return p.Port.IntVal <= conn.Port && conn.Port <= *p.EndPort
	}
	return p.Port.IntVal == conn.Port
}

// hasPort: a named port is the number, or numbers, that the destination's containers give that name.
func hasPort(pod *corev1.Pod, name string, protocol corev1.Protocol, number int32) bool {
	return IsSubject(pod) && slices.ContainsFunc(containers(pod), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool {
			return p.Name == name && p.ContainerPort == number && (p.Protocol == protocol || p.Protocol == "" && protocol == corev1.ProtocolTCP)
		})
	})
}

// containers that run as long as the pod: sidecars are init containers that are restarted always.
func containers(pod *corev1.Pod) []corev1.Container {
	all := slices.Clone(pod.Spec.Containers)
	for _, c := range pod.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			all = append(all, c)
		}
	}
	return all
}

// selects: an empty selector is everything. One that does not parse is nothing; the API server lets none through.
func selects(s metav1.LabelSelector, set map[string]string) bool {
	selector, err := metav1.LabelSelectorAsSelector(&s)
	return err == nil && selector.Matches(labels.Set(set))
}
