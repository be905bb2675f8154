package netid

import (
	"context"
	"fmt"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// A namespace with an invalid netid retains its VNID after restarts and deletion, whatever other clients write to the annotation.
func testInvalidNetID(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeMultitenant)
	c.create(t, "invalid-1", "invalid-2")
	vnid := c.vnid(t, "invalid-1")
	wantAssigned := func() {
		t.Helper()
		eventually(t, func(context.Context) error {
			if got, _ := l.vnids.VNID("invalid-1"); uint32(got) != vnid {
				return fmt.Errorf("VNID of invalid-1 in the allocator: got %s, want %d", got, vnid)
			}
			return nil
		})
		nn := c.await(t, "invalid-1", func(nn *networkv1.NetNamespace) error {
			if n, err := config.ParseNetNamespace(nn); err != nil || uint32(n.VNID) != vnid {
				return fmt.Errorf("effective VNID of invalid-1: got %+v, %w, want %d", n, err, vnid)
			}
			return nil
		})
		if nn.NetID != 5 {
			t.Errorf("got netid %d, want 5 as written", nn.NetID)
		}
	}
	c.edit(t, "invalid-1", func(nn *networkv1.NetNamespace) { nn.NetID = 5 })
	l.await(t, "Warning InvalidNetNamespace invalid-1: netid: 5 is not a VNID")
	wantAssigned()
	for _, value := range []string{"0", "7", "", fmt.Sprint(c.vnid(t, "invalid-2"))} {
		c.edit(t, "invalid-1", func(nn *networkv1.NetNamespace) { nn.Annotations[config.AssignedVNIDAnnotation] = value })
		wantAssigned()
	}
	c.edit(t, "invalid-1", func(nn *networkv1.NetNamespace) { delete(nn.Annotations, config.AssignedVNIDAnnotation) })
	wantAssigned()
	l.stop()

	l = c.lead(t, config.ModeMultitenant)
	l.await(t, fmt.Sprintf("Warning InvalidNetNamespace invalid-1: netid: 5 is not a VNID: write 0 (global), or a number from 10 to 16777215, or set the annotation "+
		"pod.network.openshift.io/multitenant.change-network to isolate; until then the assigned VNID %d stays in use", vnid))
	wantAssigned()
	// isolate restores the netid. A deleted NetNamespace is re-created with the VNID.
	if nn := c.request(t, "invalid-1", "isolate"); nn.NetID != vnid {
		t.Errorf("isolated: got VNID %d, want %d", nn.NetID, vnid)
	}
	c.edit(t, "invalid-1", func(nn *networkv1.NetNamespace) { nn.NetID = 5 })
	wantAssigned()
	if err := c.network.NetworkV1().NetNamespaces().Delete(t.Context(), "invalid-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if now := c.vnid(t, "invalid-1"); now != vnid {
		t.Errorf("re-created: got VNID %d, want %d", now, vnid)
	}
}

// The next leader does not retry a refused change, nor does a change of the mode. The same request written again is a new request.
func testStaysRefused(t *testing.T, c *cluster) {
	c.create(t, "refused-1")
	l := c.lead(t, config.ModeNetworkPolicy)
	vnid := c.vnid(t, "refused-1")
	nn := c.request(t, "refused-1", "global")
	if got := nn.Annotations[networkv1.ChangePodNetworkAnnotation]; got != "refused:global" {
		t.Errorf("got %q, want refused:global", got)
	}
	l.stop()

	l = c.lead(t, config.ModeMultitenant)
	synced := func(l *leader) { // twice, so that at least one sync began after the call
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
	l.SetMode(t.Context(), config.ModeSubnet)
	synced(l)
	l.SetMode(t.Context(), config.ModeMultitenant)
	synced(l)
	l.none(t, "refused-1")
	if now := c.await(t, "refused-1", nil); now.NetID != vnid || now.Annotations[networkv1.ChangePodNetworkAnnotation] != "refused:global" {
		t.Errorf("got %+v, want VNID %d and an unchanged annotation", now, vnid)
	}
	if now := c.request(t, "refused-1", "global"); now.NetID != 0 || len(now.Annotations) != 2 {
		t.Errorf("requested again: got %+v, want VNID 0 and no annotation of the refusal", now)
	}
}
