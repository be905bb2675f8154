package oracle

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

const maxPort = 65535

// Port is a destination port. 0 is any port of the protocol.
type Port struct {
	Protocol corev1.Protocol
	Number   int32
}

// Ports returns the ports that policies for the direction name for the pod, and for ingress those of its containers, sorted. Of a range it returns the first and
// the last port, and those next to it; of a rule for a whole protocol the port 0. The ports of named ports are those of containers.
func (c *Cluster) Ports(pod *corev1.Pod, direction networkingv1.PolicyType) []Port {
	var all portSet
	if direction == networkingv1.PolicyTypeIngress {
		for _, container := range containers(pod) {
			for _, p := range container.Ports {
				all.add(p.Protocol, p.ContainerPort)
			}
		}
	}
	for _, p := range c.Policies {
		if p.Namespace == pod.Namespace && selects(p.Spec.PodSelector, pod.Labels) && slices.Contains(types(p), direction) {
			all.addPolicy(p, direction)
		}
	}
	for _, p := range c.ClusterPolicies {
		if c.selected(p.Spec.Subject.Namespaces, p.Spec.Subject.Pods, pod) {
			all.addClusterPolicy(p, direction)
		}
	}
	slices.SortFunc(all, func(a, b Port) int {
		return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
	})
	return slices.Compact(all)
}

type portSet []Port

func (s *portSet) add(protocol corev1.Protocol, numbers ...int32) {
	for _, n := range numbers {
		if n >= 0 && n <= maxPort {
			*s = append(*s, Port{cmp.Or(protocol, corev1.ProtocolTCP), n})
		}
	}
}

// addRange adds the ends of a range and the ports next to it.
func (s *portSet) addRange(protocol corev1.Protocol, first, last int32) {
	s.add(protocol, first, last, last+1)
	if first > 1 {
		s.add(protocol, first-1)
	}
}

func (s *portSet) addPolicy(p *networkingv1.NetworkPolicy, direction networkingv1.PolicyType) {
	var ports []networkingv1.NetworkPolicyPort
	if direction == networkingv1.PolicyTypeIngress {
		for _, r := range p.Spec.Ingress {
			ports = append(ports, r.Ports...)
		}
	} else {
		for _, r := range p.Spec.Egress {
			ports = append(ports, r.Ports...)
		}
	}
	for _, port := range ports {
		protocol := corev1.ProtocolTCP
		if port.Protocol != nil {
			protocol = *port.Protocol
		}
		switch {
		case port.Port == nil:
			s.add(protocol, 0)
		case port.Port.Type == intstr.String:
		case port.EndPort != nil:
			s.addRange(protocol, port.Port.IntVal, *port.EndPort)
		default:
			s.add(protocol, port.Port.IntVal)
		}
	}
}

func (s *portSet) addClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy, direction networkingv1.PolicyType) {
	var protocols []policyv1alpha2.ClusterNetworkPolicyProtocol
	if direction == networkingv1.PolicyTypeIngress {
		for _, r := range p.Spec.Ingress {
			protocols = append(protocols, r.Protocols...)
		}
	} else {
		for _, r := range p.Spec.Egress {
			protocols = append(protocols, r.Protocols...)
		}
	}
	for _, protocol := range protocols {
		switch {
		case protocol.TCP != nil:
			s.addClusterPort(corev1.ProtocolTCP, protocol.TCP.DestinationPort)
		case protocol.UDP != nil:
			s.addClusterPort(corev1.ProtocolUDP, protocol.UDP.DestinationPort)
		case protocol.SCTP != nil:
			s.addClusterPort(corev1.ProtocolSCTP, protocol.SCTP.DestinationPort)
		}
	}
}

func (s *portSet) addClusterPort(protocol corev1.Protocol, p *policyv1alpha2.Port) {
	switch {
	case p == nil:
		s.add(protocol, 0)
	case p.Range != nil:
		s.addRange(protocol, p.Range.Start, p.Range.End)
	default:
		s.add(protocol, p.Number)
	}
}
