package netid

import (
	"context"
	"fmt"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// A namespace whose netid is invalid retains its VNID over restarts and deletion, whatever others write into the record.
func testInvalidNetID(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeMultitenant)
	c.create(t, "invalid-1", "invalid-2")
	vnid := c.vnid(t, "invalid-1")
	held := func() {
		t.Helper()
		eventually(t, func(context.Context) error {
			if got, _ := l.vnids.HeldBy("invalid-1"); uint32(got) != vnid {
				return fmt.Errorf("invalid-1 holds VNID %s, want %d", got, vnid)
			}
			return nil
		})
		nn := c.await(t, "invalid-1", func(nn *networkv1.NetNamespace) error {
			if n, err := config.ParseNetNamespace(nn); err != nil || uint32(n.VNID) != vnid {
				return fmt.Errorf("nodes use %+v, %w, want VNID %d", n, err, vnid)
			}
			return nil
		})
		if nn.NetID != 5 {
			t.Errorf("netid %d, want 5 as written", nn.NetID)
		}
	}
	c.edit(t, "invalid-1", func(nn *networkv1.NetNamespace) { nn.NetID = 5 })
	l.await(t, "Warning InvalidNetNamespace invalid-1: netid: 5 is no VNID")
	held()
	for _, hostile := range []string{"0", "7", "", fmt.Sprint(c.vnid(t, "invalid-2"))} {
		c.edit(t, "invalid-1", func(nn *networkv1.NetNamespace) { nn.Annotations[config.AssignedVNIDAnnotation] = hostile })
		held()
	}
	c.edit(t, "invalid-1", func(nn *networkv1.NetNamespace) { delete(nn.Annotations, config.AssignedVNIDAnnotation) })
	held()
	l.stop()

	l = c.lead(t, config.ModeMultitenant)
	l.await(t, fmt.Sprintf("Warning InvalidNetNamespace invalid-1: netid: 5 is no VNID: write 0 (global), or a number from 10 to 16777215, or set the annotation "+
		"pod.network.openshift.io/multitenant.change-network to isolate; until then the assigned VNID %d stays in use", vnid))
	held()
	// isolate writes the VNID into the netid again; a deleted NetNamespace is created again with it.
	if nn := c.ask(t, "invalid-1", "isolate"); nn.NetID != vnid {
		t.Errorf("isolated with VNID %d, want its own, %d", nn.NetID, vnid)
	}
	c.edit(t, "invalid-1", func(nn *networkv1.NetNamespace) { nn.NetID = 5 })
	held()
	if err := c.network.NetworkV1().NetNamespaces().Delete(t.Context(), "invalid-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if now := c.vnid(t, "invalid-1"); now != vnid {
		t.Errorf("re-created with VNID %d, want %d", now, vnid)
	}
}

// A refused change is no request for the next leader, nor in another mode. The same request written again is one.
func testStaysRefused(t *testing.T, c *cluster) {
	c.create(t, "refused-1")
	l := c.lead(t, config.ModeNetworkPolicy)
	vnid := c.vnid(t, "refused-1")
	nn := c.ask(t, "refused-1", "global")
	if got := nn.Annotations[networkv1.ChangePodNetworkAnnotation]; got != "refused:global" {
		t.Errorf("got %q, want refused:global", got)
	}
	l.stop()

	l = c.lead(t, config.ModeMultitenant)
	synced := func(l *leader) { // twice by the one worker of its key
		t.Helper()
		for range 2 {
			c.edit(t, "refused-1", func(nn *networkv1.NetNamespace) { nn.NetName = "other" })
			c.await(t, "refused-1", func(nn *networkv1.NetNamespace) error {
				if nn.NetName != "refused-1" {
					return fmt.Errorf("netname is %s", nn.NetName)
				}
				return nil
			})
		}
	}
	synced(l)
	l.Follow(t.Context(), config.ModeSubnet)
	synced(l)
	l.Follow(t.Context(), config.ModeMultitenant)
	synced(l)
	l.none(t, "refused-1")
	if now := c.await(t, "refused-1", nil); now.NetID != vnid || now.Annotations[networkv1.ChangePodNetworkAnnotation] != "refused:global" {
		t.Errorf("got %+v, want VNID %d and the annotation as it was", now, vnid)
	}
	if now := c.ask(t, "refused-1", "global"); now.NetID != 0 || len(now.Annotations) != 2 {
		t.Errorf("asked again: got %+v, want VNID 0 and nothing left of the refusal", now)
	}
}
