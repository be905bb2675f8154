package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/tier"
)

// TestEgressFirewall: an EgressNetworkPolicy in mode subnet, which has no VNIDs.
func TestEgressFirewall(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sees egress firewalls in mode networkpolicy")
	}
	seeEgressFirewall(t, newTrio(t))
}

// seeEgressFirewall: a host outside is denied to the pods of the namespace on both nodes, while they reach each other, and allowed again by a rule before that.
// Established connections to it end, in both directions.
func seeEgressFirewall(t *testing.T, x *trio) {
	outside := lab.OutsideAddr()
	host := netip.PrefixFrom(outside, outside.BitLen()).String()
	rule := func(action networkv1.EgressNetworkPolicyRuleType, to string) networkv1.EgressNetworkPolicyRule {
		return networkv1.EgressNetworkPolicyRule{Type: action, To: networkv1.EgressNetworkPolicyPeer{CIDRSelector: to}}
	}
	fixture.Meet(t, x.a.NetNS, outside)
	fixture.Meet(t, x.c.NetNS, outside)
	const port = 5380 // packets from a client's port may be those of a client outside (docs/egress.md)
	forbidden := openDuplexTo(t, x.a, end{Name: "the host outside", NetNS: x.outside.NetNS, Addr: outside}, port)
	allowed := openDuplex(t, x.a, x.c)
	for _, d := range []*duplex{forbidden, allowed} {
		d.lives(t, time.Now())
	}
	since := time.Now()
	policies := x.Network.NetworkV1().EgressNetworkPolicies(x.namespace)
	o, err := policies.Create(t.Context(), &networkv1.EgressNetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "default"},
		Spec:       networkv1.EgressNetworkPolicySpec{Egress: []networkv1.EgressNetworkPolicyRule{rule(networkv1.EgressNetworkPolicyRuleDeny, host)}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	forbidden.there.dies(t, allowed.there, since, "the host outside", fixture.SyncTime)
	forbidden.back.dies(t, allowed.there, since, "the pod at the host outside", fixture.SyncTime)
	t.Run("denied", func(t *testing.T) {
		for _, p := range []pod{x.a, x.c} {
			t.Run("to pod "+p.Name, func(t *testing.T) {
				tier.Parallel(t)
				lost(t, p, outside)
				fixture.MustNotReach(t, p.Name+" to a denied host", ping(p, outside), ping(p, x.b.Addr))
			})
		}
	})
	fixture.Eventually(t, fixture.SyncTime, "the policy is accepted", func(ctx context.Context) error {
		status, err := egressstatus.Client{Network: x.Network}.Get(ctx, x.namespace, o.Name)
		if err == nil && !meta.IsStatusConditionTrue(status.Conditions, egressstatus.ConditionAccepted) {
			err = fmt.Errorf("got conditions %v", status.Conditions)
		}
		return err
	})
	fixture.Eventually(t, fixture.SyncTime, "update the policy", func(ctx context.Context) error {
		o, err := policies.Get(ctx, "default", metav1.GetOptions{})
		if err != nil {
			return err
		}
		o.Spec.Egress = []networkv1.EgressNetworkPolicyRule{rule(networkv1.EgressNetworkPolicyRuleAllow, host), rule(networkv1.EgressNetworkPolicyRuleDeny, "0.0.0.0/0")}
		_, err = policies.Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
	fixture.Meet(t, x.a.NetNS, outside)
	fixture.Meet(t, x.c.NetNS, outside)
	if err := policies.Delete(t.Context(), "default", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func ping(from pod, to netip.Addr) func(context.Context) error {
	return func(ctx context.Context) error { return from.NetNS.Ping(ctx, to, wire.Echo{}) }
}

// lost returns when a ping gets no answer.
func lost(t *testing.T, from pod, to netip.Addr) {
	t.Helper()
	fixture.Stops(t, fixture.SyncTime, from.Name+" loses "+to.String(), func(ctx context.Context) (arrived, _ error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if ping(from, to)(ctx) == nil {
			arrived = errors.New("got an answer")
		}
		return arrived, nil
	})
}
