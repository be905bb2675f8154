package oracle

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

func TestPorts(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", Labels: map[string]string{"app": "x"}}}
	pod.Spec.Containers = []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 8080}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP}}}}
	policy := func(namespace string) *networkingv1.NetworkPolicy {
		number, first, last, name, sctp := intstr.FromInt32(80), intstr.FromInt32(100), int32(200), intstr.FromString("web"), corev1.ProtocolSCTP
		return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: networkingv1.NetworkPolicySpec{
			Ingress: []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: &number}, {Port: &first, EndPort: &last}, {Port: &name}, {Protocol: &sctp}}}, {}},
			Egress:  []networkingv1.NetworkPolicyEgressRule{{Ports: []networkingv1.NetworkPolicyPort{{Port: &number, Protocol: &sctp}}}},
		}}
	}
	other := policy("b")
	other.Spec.Ingress[0].Ports[0].Port.IntVal = 7
	admin := &policyv1alpha2.ClusterNetworkPolicy{}
	admin.Spec.Subject.Namespaces = &metav1.LabelSelector{}
	admin.Spec.Ingress = []policyv1alpha2.ClusterNetworkPolicyIngressRule{{Protocols: []policyv1alpha2.ClusterNetworkPolicyProtocol{
		{UDP: &policyv1alpha2.ClusterNetworkPolicyProtocolUDP{DestinationPort: &policyv1alpha2.Port{Range: &policyv1alpha2.PortRange{Start: 1, End: 65535}}}},
	}}}
	c := &Cluster{Policies: []*networkingv1.NetworkPolicy{policy("a"), other}, ClusterPolicies: []*policyv1alpha2.ClusterNetworkPolicy{admin}}
	tcp, udp, sctp := corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP
	want := []Port{{sctp, 0}, {tcp, 80}, {tcp, 99}, {tcp, 100}, {tcp, 200}, {tcp, 201}, {tcp, 8080}, {udp, 1}, {udp, 53}, {udp, 65535}}
	if diff := cmp.Diff(want, c.Ports(pod, networkingv1.PolicyTypeIngress)); diff != "" {
		t.Errorf("ingress (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Port{{sctp, 80}}, c.Ports(pod, networkingv1.PolicyTypeEgress)); diff != "" {
		t.Errorf("egress (-want +got):\n%s", diff)
	}
}

func addr10() netip.Addr { return netip.AddrFrom4([4]byte{10, 2, 3, 4}) }

func TestInBlock_invalid(t *testing.T) {
	for cidr, except := range map[string]string{"010.0.0.0/8": "", "10.0.0.0/8": "010.1.0.0/16"} {
		b := &networkingv1.IPBlock{CIDR: cidr}
		if except != "" {
			b.Except = []string{except}
		}
		if inBlock(b, addr10()) {
			t.Errorf("block %+v has an address, want none: its CIDR is invalid", b)
		}
	}
}
