package e2e

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// testHairpins: a pod reaches itself through a service of kube-proxy unless a ClusterNetworkPolicy denies it. One UDP packet that passed would be answered.
func testHairpins(t *testing.T, c *cluster) {
	ns := c.Namespace(t)
	p := c.Run(t, ns, fixture.Netexec("itself", fixture.Node1))[0]
	tcp := c.Expose(t, ns, "tcp", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, p)
	udp := c.Expose(t, ns, "udp", servicePort{Protocol: "UDP", Port: 53, Target: fixture.UDPPort}, p)
	asks := map[string]func(context.Context) error{
		"TCP": fixture.AsksHTTP(p.NetNS, tcp, 80),
		"UDP": func(ctx context.Context) error {
			_, err := fixture.HostnameUDP(ctx, p.NetNS, udp, 53)
			return err
		},
	}
	briefly := func(ctx context.Context, ask func(context.Context) error) error {
		ctx, cancel := context.WithTimeout(ctx, fixture.RefusedTime)
		defer cancel()
		return ask(ctx)
	}
	reaches := func() {
		t.Helper()
		for protocol, ask := range asks {
			fixture.Eventually(t, fixture.SyncTime, protocol+" to itself", func(ctx context.Context) error { return briefly(ctx, ask) })
		}
	}
	reaches()
	allow := c.denyItself(t, ns)
	fixture.Eventually(t, fixture.SyncTime, "the policy denies TCP", func(ctx context.Context) error {
		if briefly(ctx, asks["TCP"]) == nil {
			return errors.New("the pod reaches itself")
		}
		return nil
	})
	control := fixture.AsksHTTP(c.Machine(t, fixture.Node1).NetNS, p.Addr, fixture.HTTPPort)
	for protocol, ask := range asks {
		fixture.MustNotReach(t, protocol+" to itself", ask, control)
	}
	allow(t)
	reaches()
}

// denyItself denies a namespace to itself, until the test calls the function or ends.
func (c *cluster) denyItself(t *testing.T, namespace string) (allow func(*testing.T)) {
	t.Helper()
	config, err := c.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := policyclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	itself := &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}}
	policies := client.PolicyV1alpha2().ClusterNetworkPolicies()
	if _, err := policies.Create(t.Context(), &policyv1alpha2.ClusterNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Spec: policyv1alpha2.ClusterNetworkPolicySpec{
			Tier: policyv1alpha2.AdminTier, Priority: 10,
			Subject: policyv1alpha2.ClusterNetworkPolicySubject{Namespaces: itself},
			Ingress: []policyv1alpha2.ClusterNetworkPolicyIngressRule{{
				Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
				From:   []policyv1alpha2.ClusterNetworkPolicyIngressPeer{{Namespaces: itself}},
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	allow = func(t *testing.T) {
		t.Helper()
		if err := policies.Delete(context.WithoutCancel(t.Context()), namespace, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	t.Cleanup(func() { allow(t) })
	return allow
}
