package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// verification asks the diagnostics API as the administrator, for the pairs with a pod of the namespace.
func (c *cluster) verification(ctx context.Context, namespace string) (*diagnostics.VerificationStatus, error) {
	raw, err := c.Kube.Discovery().RESTClient().Post().AbsPath("/apis", diagnostics.Group, diagnostics.Version, "namespaces", namespace, "verifications").
		SetHeader("Content-Type", "application/json").Body([]byte("{}")).Do(ctx).Raw()
	if err != nil {
		return nil, fmt.Errorf("verify namespace %s: %w: %s", namespace, err, raw)
	}
	answer := &diagnostics.Verification{}
	return &answer.Status, json.Unmarshal(raw, answer)
}

// testVerification is a part of TestCapabilities: the flows of all nodes do what policies of two namespaces allow, for pods on both nodes. Faults of flows are
// injected below this layer (TestVerification_faults): here the agents repair them at once.
func testVerification(t *testing.T, x *trio) {
	ns, other := x.Namespace(t), x.Namespace(t)
	x.Run(t, ns, fixture.Netexec("web", fixture.Node1), fixture.Netexec("db", fixture.Node2))
	x.Run(t, other, fixture.Netexec("web", fixture.Node2))
	port, tcp := intstr.FromInt32(8080), corev1.ProtocolTCP
	x.SetPolicy(t, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "own"}, Spec: networkingv1.NetworkPolicySpec{
		Ingress: []networkingv1.NetworkPolicyIngressRule{{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}, Ports: []networkingv1.NetworkPolicyPort{{Port: &port, Protocol: &tcp}},
		}},
	}})
	x.SetPolicy(t, &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "closed"}, Spec: networkingv1.NetworkPolicySpec{
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
	}})
	const pairs = 2 // between the pods of the namespace, and more with those of others
	fixture.Eventually(t, fixture.SyncTime, "verify the flows of all nodes", func(ctx context.Context) error {
		got, err := x.verification(ctx, ns)
		if err != nil {
			return err
		}
		// Pods that start or end beside it have no answers.
		if len(got.Differences) > 0 || got.Continue != "" || got.Questions < 2*pairs || got.Unknown == got.Questions {
			return fmt.Errorf("got %+v, want no differences", *got)
		}
		return nil
	})
	fixture.Eventually(t, fixture.SyncTime, "kubectl ovsdn verify", func(ctx context.Context) error {
		return x.kubectlOVSDN(ctx, nil, "verify", "--sample=20")
	})
}
