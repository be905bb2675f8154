package e2e

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// testBalancedFirewall: an egress firewall that denies an endpoint outside denies it by its service, on both nodes. A service with pods as its endpoints answers.
func testBalancedFirewall(t *testing.T, x *trio) {
	serveClientIP(t, x.outside)
	to, outside := x.outsideService(t, "to-denied"), lab.OutsideAddr()
	allowed := x.Expose(t, x.namespace, "to-allowed", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, x.b)
	for _, p := range []pod{x.a, x.c} {
		sees(t, p.Name+" to a service with an endpoint outside", p.NetNS, to, x.Addr(t, p.Node))
	}
	policies := x.Network.NetworkV1().EgressNetworkPolicies(x.namespace)
	_, err := policies.Create(t.Context(), &networkv1.EgressNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec: networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{{
			Type: networkv1.EgressNetworkPolicyRuleDeny,
			To:   networkv1.EgressNetworkPolicyPeer{CIDRSelector: netip.PrefixFrom(outside, outside.BitLen()).String()},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := policies.Delete(context.WithoutCancel(t.Context()), "default", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	for _, p := range []pod{x.a, x.c} {
		try := func(ctx context.Context) error {
			_, err := clientIP(ctx, p.NetNS, to)
			return err
		}
		fixture.Stops(t, fixture.SyncTime, p.Name+" loses a service with a denied endpoint", func(ctx context.Context) (answered, _ error) {
			if try(ctx) == nil {
				answered = errors.New("the service still answers")
			}
			return answered, nil
		})
		fixture.MustNotReach(t, p.Name+" to a service with a denied endpoint", try, fixture.AsksHTTP(p.NetNS, allowed, 80))
	}
}

// testBalancedEgressIP: an endpoint outside sees the egress IP of the namespace by its service, also from the node that does not host it.
func testBalancedEgressIP(t *testing.T, x *trio) {
	serveClientIP(t, x.outside)
	to, ip := x.outsideService(t, "by-egress-ip"), egressIP(0)
	x.restoreEgressIPs(t, []string{x.namespace}, fixture.Node1)
	x.hostEgressIPs(t, fixture.Node1, ip)
	x.useEgressIPs(t, x.namespace, ip)
	for _, p := range []pod{x.a, x.c} {
		sees(t, p.Name+" to a service with an endpoint outside", p.NetNS, to, ip)
	}
	x.useEgressIPs(t, x.namespace)
	for _, p := range []pod{x.a, x.c} {
		sees(t, p.Name+" without an egress IP", p.NetNS, to, x.Addr(t, p.Node))
	}
}

// testBalancedHostPorts: pods, the pod itself, nodes and a host outside reach a host port beside a service with a node port, also after the rules of either were
// deleted.
func testBalancedHostPorts(t *testing.T, x *trio) {
	addr, nodePort := x.sourceService(t, "beside-host-ports", corev1.ServiceExternalTrafficPolicyCluster, onC)
	h := x.shareHostPort(t)
	both := func() {
		h.answer(t)
		sees(t, "a to a service", x.a.NetNS, netip.AddrPortFrom(addr, 80), x.a.Addr)
		sees(t, "a to a node port", x.a.NetNS, netip.AddrPortFrom(h.addr, nodePort), x.a.Addr)
		sees(t, "outside to a node port", x.outside.NetNS, netip.AddrPortFrom(h.addr, nodePort), x.a.Gateway())
	}
	both()
	x.Output(t, fixture.Node1, "nft", "delete", "table", "ip", "cni_hostport")
	x.Output(t, fixture.Node1, "nft", "delete", "table", "ip", "ovsdn-services")
	both()
	h.end(t, "node", "loopback", "udp")
	x.hasHostPorts(t)
}
