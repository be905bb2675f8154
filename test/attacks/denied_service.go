package attacks

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// denyEgress makes a ClusterNetworkPolicy of tier Admin that denies a namespace an address, and returns when it is active for its pod on node1.
func (w *world) denyEgress(t *testing.T, namespace string, p fixture.Pod, addr netip.Addr) {
	t.Helper()
	config, err := w.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	client, err := policyclient.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	network := policyv1alpha2.CIDR(netip.PrefixFrom(addr, addr.BitLen()).String())
	policies := client.PolicyV1alpha2().ClusterNetworkPolicies()
	made, err := policies.Create(t.Context(), &policyv1alpha2.ClusterNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "attacks-"},
		Spec: policyv1alpha2.ClusterNetworkPolicySpec{
			Tier: policyv1alpha2.AdminTier, Priority: 10,
			Subject: policyv1alpha2.ClusterNetworkPolicySubject{
				Namespaces: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			},
			Egress: []policyv1alpha2.ClusterNetworkPolicyEgressRule{{
				Action: policyv1alpha2.ClusterNetworkPolicyRuleActionDeny,
				To:     []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Networks: []policyv1alpha2.CIDR{network}}},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := policies.Delete(context.WithoutCancel(t.Context()), made.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	w.waitDenied(t, p, addr)
}

// waitDenied returns when policies drop what the pod on node1 sends to the address.
func (w *world) waitDenied(t *testing.T, p fixture.Pod, addr netip.Addr) {
	t.Helper()
	w.waitDropped(t, p, addr, w.drops(fixture.Node1, "29"))
}

// waitDropped returns when node1 drops what the pod sends to the address. The flow that drops is that of all policies, and its counter is late: so
// it must count two probes, one after the other, of which only the first may be the last probe of an earlier policy.
func (w *world) waitDropped(t *testing.T, p fixture.Pod, addr netip.Addr, drops counter) {
	t.Helper()
	dropped := []counter{drops}
	probe := fromPod(p, func([]byte) [][]byte { return [][]byte{datagram(p, to(addr), []byte("probe"))} })
	fixture.Eventually(t, fixture.SyncTime, "the policy denies "+addr.String(), func(context.Context) error {
		for range 2 {
			before := w.read(t, dropped)
			if err := probe(nil); err != nil {
				return err
			}
			if err := poll(t, 2*time.Second, func() error {
				if moved, _ := difference(before, w.read(t, dropped)); len(moved) == 0 {
					return errors.New("nothing is dropped")
				}
				return nil
			}); err != nil {
				return err
			}
		}
		return nil
	})
}

// testDeniedService has a pod reach what an administrator denies it, the world and a node, by services that lead there.
func testDeniedService(t *testing.T, w *world) {
	node2 := w.Addr(t, fixture.Node2)
	const port = 5003
	udp := fixture.ServicePort{Protocol: "UDP", Port: port, Target: controlPort}
	type place struct {
		name              string
		addr              netip.Addr
		at                receiver
		service, nodePort netip.AddrPort
	}
	places := []*place{
		{name: "world", addr: lab.OutsideAddr(), at: receiver{name: "the host outside", listen: captures(w.outside.NetNS, "eth0")}},
		{name: "node", addr: node2, at: receiver{name: fixture.Node2, listen: captures(w.node2.NetNS, "eth0")}},
	}
	for _, p := range places {
		p.at.control = sendsUDP(w.v1.NetNS, to(p.addr))
		service, nodePort := w.nodePort(t, w.attackers, "to-"+p.name, udp, p.addr)
		p.service, p.nodePort = netip.AddrPortFrom(service, port), netip.AddrPortFrom(w.Addr(t, fixture.Node1), nodePort)
	}
	w.settle(t, w.attackers, w.a1, w.a2) // before the policy denies the node port of node2
	for _, p := range places {
		w.denyEgress(t, w.attackers, w.a1, p.addr)
	}
	for _, p := range places {
		for what, dst := range map[string]netip.AddrPort{"directly": to(p.addr), "by a service": p.service, "by a node port": p.nodePort} {
			t.Run(p.name+" "+what, func(t *testing.T) {
				w.try(t, attack{
					position: aPod, sent: "UDP to " + p.addr.String() + ", which an Admin policy denies, " + what,
					send: fromPod(w.a1, func(token []byte) [][]byte { return [][]byte{datagram(w.a1, dst, token)} }), at: []receiver{p.at},
					counters: []counter{w.drops(fixture.Node1, ""), w.rules(fixture.Node1)},
				})
			})
		}
	}
}
