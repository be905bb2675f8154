package netid

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// TestController runs controllers against a real API server.
func TestController(t *testing.T) {
	c := newCluster(t)
	for _, tc := range []struct {
		name string
		test func(*testing.T, *cluster)
	}{
		{"create and delete", testCreate},
		{"restart", testRestart},
		{"re-created Namespace", testRecreated},
		{"NetNamespaces of OpenShift", testPreexisting},
		{"change requests", testChanges},
		{"invalid change requests", testRefuses},
		{"change requests in other modes", testOtherModes},
		{"concurrent joins", testConcurrentJoins},
		{"netid written by hand", testByHand},
		{"invalid netid", testInvalidNetID},
		{"refused change is not retried", testStaysRefused},
		{"isolated global namespace", testNotGlobal},
		{"two leaders", testTwoLeaders},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, c) })
	}
}

func testCreate(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeSubnet) // VNIDs are allocated in all modes
	c.create(t, "create-1", "create-2")
	first := c.await(t, "create-1", nil)
	ns, err := c.kube.CoreV1().Namespaces().Get(t.Context(), "create-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: first.Name, Annotations: first.Annotations}, NetName: first.NetName, NetID: first.NetID}
	if diff := cmp.Diff(&networkv1.NetNamespace{
		ObjectMeta: metav1.ObjectMeta{Name: "create-1", Annotations: map[string]string{
			"ovsdn.io/namespace-uid": string(ns.UID), "ovsdn.io/assigned-netid": fmt.Sprint(first.NetID),
		}},
		NetName: "create-1", NetID: first.NetID,
	}, got); diff != "" {
		t.Errorf("NetNamespace (-want +got): %s", diff)
	}
	if second := c.vnid(t, "create-2"); first.NetID < 10 || second < 10 || first.NetID == second {
		t.Errorf("got VNIDs %d and %d, want two different ones from 10", first.NetID, second)
	}
	for name, global := range map[string]bool{"default": true, "kube-system": true, "kube-public": false} {
		if vnid := c.vnid(t, name); (vnid == 0) != global {
			t.Errorf("got VNID %d of %s, want it global: %t", vnid, name, global)
		}
	}
	c.delete(t, "create-1")
	c.awaitDeleted(t, "create-1")
	eventually(t, func(context.Context) error {
		l.vnids.mu.Lock()
		defer l.vnids.mu.Unlock()
		if _, quarantined := l.vnids.quarantined[config.VNID(first.NetID)]; !quarantined {
			return fmt.Errorf("VNID %d is not in quarantine", first.NetID)
		}
		return nil
	})
}

func testRestart(t *testing.T, c *cluster) {
	first := c.lead(t, config.ModeMultitenant)
	c.create(t, "restart-1", "restart-2", "restart-3")
	c.vnid(t, "restart-1")
	c.request(t, "restart-2", "join:restart-1")
	c.request(t, "restart-3", "global")
	before := c.all(t)
	first.stop()

	c.lead(t, config.ModeMultitenant)
	c.create(t, "restart-4")
	c.vnid(t, "restart-4")
	after := c.all(t)
	delete(after, "restart-4")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("NetNamespaces after the restart (-want +got): %s", diff)
	}
}

func testRecreated(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeMultitenant)
	c.create(t, "recreated-1", "recreated-2")
	first := c.vnid(t, "recreated-1")
	c.vnid(t, "recreated-2")
	c.edit(t, "recreated-1", func(nn *networkv1.NetNamespace) {
		metav1.SetMetaDataAnnotation(&nn.ObjectMeta, networkv1.MulticastEnabledAnnotation, "true")
	})
	c.request(t, "recreated-2", "global")
	awaitNew := func(name string, previous uint32) {
		t.Helper()
		nn := c.await(t, name, func(nn *networkv1.NetNamespace) error {
			if nn.NetID == previous || nn.NetID == 0 {
				return fmt.Errorf("got the VNID of the deleted Namespace: %+v", nn)
			}
			return nil
		})
		if _, ok := nn.Annotations[networkv1.MulticastEnabledAnnotation]; ok {
			t.Error("got multicast enabled, as in the deleted Namespace")
		}
	}
	c.delete(t, "recreated-1")
	c.create(t, "recreated-1")
	awaitNew("recreated-1", first)
	l.stop()

	// The next one is deleted and re-created while no controller runs.
	c.delete(t, "recreated-2")
	c.create(t, "recreated-2")
	c.lead(t, config.ModeMultitenant)
	awaitNew("recreated-2", 0)
}

// NetNamespaces of OpenShift retain their VNIDs, shared ones too: OpenShift does not record joins.
func testPreexisting(t *testing.T, c *cluster) {
	c.create(t, "preexisting-1", "preexisting-2", "preexisting-3")
	for name, vnid := range map[string]uint32{"preexisting-1": 4242, "preexisting-2": 4242, "preexisting-3": 0, "preexisting-early": 4343} {
		nn := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: name}, NetName: name, NetID: vnid}
		if _, err := c.network.NetworkV1().NetNamespaces().Create(t.Context(), nn, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	l := c.lead(t, config.ModeMultitenant)
	assigned := func(name, vnid string) {
		t.Helper()
		c.await(t, name, func(nn *networkv1.NetNamespace) error {
			if nn.Annotations[config.AssignedVNIDAnnotation] != vnid || nn.Annotations[config.NamespaceUIDAnnotation] == "" || fmt.Sprint(nn.NetID) != vnid {
				return fmt.Errorf("got NetNamespace %s %+v, want VNID %s assigned", name, nn, vnid)
			}
			return nil
		})
	}
	assigned("preexisting-1", "4242")
	assigned("preexisting-2", "4242")
	assigned("preexisting-3", "0")
	if early := c.await(t, "preexisting-early", nil); len(early.Annotations) > 0 {
		t.Errorf("got %+v, want no write to a NetNamespace without a Namespace", early)
	}
	c.create(t, "preexisting-early")
	assigned("preexisting-early", "4343")
	l.none(t, "preexisting-")
}

func testChanges(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeMultitenant)
	c.create(t, "red", "green", "blue")
	red, green := c.vnid(t, "red"), c.vnid(t, "green")

	if nn := c.request(t, "green", "join:red"); nn.NetID != red {
		t.Errorf("green joined red: got VNID %d, want %d", nn.NetID, red)
	}
	l.await(t, fmt.Sprintf("Normal NetworkChanged green: join:red: its VNID is %d, and was %d", red, green))

	// isolate allocates a new VNID if another namespace has the current one, and does not change it otherwise.
	if nn := c.request(t, "red", "isolate"); nn.NetID == red || nn.NetID == green || nn.NetID == 0 {
		t.Errorf("red isolated from green: got VNID %d, want another than %d and %d", nn.NetID, red, green)
	}
	if nn := c.request(t, "green", "isolate:"); nn.NetID != red {
		t.Errorf("green isolated: got VNID %d, want %d", nn.NetID, red)
	}
	// global and back.
	if nn := c.request(t, "blue", "global:"); nn.NetID != 0 {
		t.Errorf("blue global: got VNID %d, want 0", nn.NetID)
	}
	if nn := c.request(t, "blue", "isolate"); nn.NetID < 10 {
		t.Errorf("blue isolated: got VNID %d, want one from 10", nn.NetID)
	}
	// Joins of a global namespace, and of itself.
	if nn := c.request(t, "blue", "join:default"); nn.NetID != 0 {
		t.Errorf("blue joined default: got VNID %d, want 0", nn.NetID)
	}
	if nn := c.request(t, "green", "join:green"); nn.NetID != red {
		t.Errorf("green joined green: got VNID %d, want %d", nn.NetID, red)
	}
	l.none(t, "")
}

func testRefuses(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeMultitenant)
	c.create(t, "refuses")
	vnid := c.vnid(t, "refuses")
	for _, tc := range []struct{ name, change, why string }{
		{"refuses", "join:nowhere", "join:nowhere is refused: there is no Namespace nowhere"},
		{"refuses", "join:", `"join:" names no namespace: write join:NAMESPACE`},
		{"refuses", "leave", `"leave" is not a change of a network`},
		{"refuses", "", `"" is not a change of a network`},
		{"default", "isolate", "isolate is refused: Namespace default has the API server's service"},
		{"default", "join:refuses", "join:refuses is refused: Namespace default has the API server's service"},
	} {
		before := c.vnid(t, tc.name)
		nn := c.request(t, tc.name, tc.change)
		if nn.NetID != before {
			t.Errorf("%s: got VNID %d of %s, want %d", tc.change, nn.NetID, tc.name, before)
		}
		if got := nn.Annotations["ovsdn.io/change-refused"]; !strings.Contains(got, tc.why) {
			t.Errorf("%s: got refusal %q, want %q in it", tc.change, got, tc.why)
		}
		l.await(t, "Warning NetworkChangeRefused "+tc.name+": ")
		l.await(t, tc.why)
	}
	nn := c.request(t, "refuses", "isolate")
	if why, refused := nn.Annotations["ovsdn.io/change-refused"]; refused || nn.NetID != vnid {
		t.Errorf("after an accepted change: got refusal %q and VNID %d, want none and %d", why, nn.NetID, vnid)
	}
}

func testOtherModes(t *testing.T, c *cluster) {
	for i, mode := range []config.Mode{config.ModeSubnet, config.ModeNetworkPolicy} {
		l := c.lead(t, mode)
		name := fmt.Sprint("other-mode-", i)
		c.create(t, name)
		before := c.vnid(t, name)
		if nn := c.request(t, name, "global"); nn.NetID != before {
			t.Errorf("mode %s: got VNID %d, want %d", mode, nn.NetID, before)
		}
		l.await(t, fmt.Sprintf("global is refused: in mode %s VNIDs do not isolate namespaces", mode))
		l.stop()
	}
}

// The result is one that is possible if the changes are made one after the other, in any order.
func testConcurrentJoins(t *testing.T, c *cluster) {
	c.create(t, "cycle-1", "cycle-2", "row-1", "row-2", "row-3")
	first := c.lead(t, config.ModeMultitenant)
	cycle1, cycle2 := c.vnid(t, "cycle-1"), c.vnid(t, "cycle-2")
	row1, row2, row3 := c.vnid(t, "row-1"), c.vnid(t, "row-2"), c.vnid(t, "row-3")
	first.stop()
	for name, to := range map[string]string{"cycle-1": "cycle-2", "cycle-2": "cycle-1", "row-1": "row-2", "row-2": "row-3"} {
		c.edit(t, name, func(nn *networkv1.NetNamespace) {
			nn.Annotations[networkv1.ChangePodNetworkAnnotation] = "join:" + to
		})
	}
	c.lead(t, config.ModeMultitenant)
	now := map[string]uint32{}
	for _, name := range []string{"cycle-1", "cycle-2", "row-1", "row-2", "row-3"} {
		now[name] = c.await(t, name, func(nn *networkv1.NetNamespace) error {
			if _, requested, _ := config.RequestedChange(nn); requested {
				return fmt.Errorf("got a pending change of %s", name)
			}
			return nil
		}).NetID
	}
	if now["cycle-1"] != now["cycle-2"] || now["cycle-1"] != cycle1 && now["cycle-1"] != cycle2 {
		t.Errorf("cycle: got %v, want one of %d and %d for both", now, cycle1, cycle2)
	}
	if now["row-3"] != row3 || now["row-2"] != row3 || now["row-1"] != row2 && now["row-1"] != row3 {
		t.Errorf("row: got %v, previous VNIDs %d, %d, %d", now, row1, row2, row3)
	}
}

func (c *cluster) deleteNetNamespace(t *testing.T, name string) {
	t.Helper()
	if err := c.network.NetworkV1().NetNamespaces().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func testByHand(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeMultitenant)
	c.create(t, "hand-1", "hand-2", "hand-3")
	one, two, three := c.vnid(t, "hand-1"), c.vnid(t, "hand-2"), c.vnid(t, "hand-3")
	write := func(name string, vnid uint32) {
		t.Helper()
		c.edit(t, name, func(nn *networkv1.NetNamespace) { nn.NetID = vnid })
	}
	// A VNID that no other namespace has is accepted.
	write("hand-3", 5555)
	c.await(t, "hand-3", func(nn *networkv1.NetNamespace) error {
		if nn.Annotations[config.AssignedVNIDAnnotation] != "5555" {
			return fmt.Errorf("got %+v, want VNID 5555 assigned", nn)
		}
		return nil
	})
	// One that another namespace has is reported and not overwritten.
	write("hand-2", one)
	l.await(t, fmt.Sprintf("Warning VNIDWrittenByHand hand-2: netid %d was written by hand, and makes one network with hand-1: "+
		"set the annotation pod.network.openshift.io/multitenant.change-network to join:hand-1 if that is wanted, or else to isolate", one))
	if now := c.vnid(t, "hand-2"); now != one {
		t.Errorf("got netid %d, want %d as written", now, one)
	}
	// It is re-created with a new VNID: another namespace may have the previous one.
	c.deleteNetNamespace(t, "hand-2")
	c.await(t, "hand-2", func(nn *networkv1.NetNamespace) error {
		if slices.Contains([]uint32{one, two, three}, nn.NetID) {
			return fmt.Errorf("got VNID %d of hand-2, want a new one", nn.NetID)
		}
		return nil
	})
	// An invalid netid.
	write("hand-1", 5)
	l.await(t, "Warning InvalidNetNamespace hand-1: netid: 5 is not a VNID: write 0 (global), or a number from 10 to 16777215, or set the annotation "+
		fmt.Sprintf("pod.network.openshift.io/multitenant.change-network to isolate; until then the assigned VNID %d stays in use", one))
	nn := c.request(t, "hand-2", "join:hand-1")
	if why := nn.Annotations[config.ChangeRefusedAnnotation]; !strings.Contains(why, "NetNamespace hand-1 is invalid: netid: 5 is not a VNID") {
		t.Errorf("join of an invalid netid: got refusal %q", why)
	}
	if nn := c.request(t, "hand-1", "isolate"); nn.NetID < 10 {
		t.Errorf("isolated: got VNID %d, want one from 10", nn.NetID)
	}
	// A wrong netname is corrected.
	c.edit(t, "hand-1", func(nn *networkv1.NetNamespace) { nn.NetName = "hand-2" })
	c.await(t, "hand-1", func(nn *networkv1.NetNamespace) error {
		if nn.NetName != "hand-1" {
			return fmt.Errorf("netname is %s", nn.NetName)
		}
		return nil
	})
	// A deleted NetNamespace with a valid VNID is re-created with it.
	previous := c.vnid(t, "hand-1")
	c.deleteNetNamespace(t, "hand-1")
	if now := c.vnid(t, "hand-1"); now != previous {
		t.Errorf("re-created with VNID %d, want %d", now, previous)
	}
}

func testNotGlobal(t *testing.T, c *cluster) {
	first := c.lead(t, config.ModeMultitenant)
	nn := c.request(t, "kube-system", "isolate")
	if nn.NetID < 10 {
		t.Fatalf("kube-system isolated: got VNID %d, want one from 10", nn.NetID)
	}
	first.stop()
	l := c.lead(t, config.ModeMultitenant)
	l.await(t, fmt.Sprintf("Warning GlobalNamespaceIsolated kube-system: --global-namespaces names kube-system, but it has VNID %d", nn.NetID))
	if now := c.vnid(t, "kube-system"); now != nn.NetID {
		t.Errorf("got VNID %d, want %d", now, nn.NetID)
	}
	l.stop()

	// In other modes it is not isolated. It is reported once when the mode becomes multitenant.
	l = c.lead(t, config.ModeSubnet)
	l.none(t, "")
	for range 2 {
		l.SetMode(t.Context(), config.ModeMultitenant)
		if got := l.warnings("GlobalNamespaceIsolated kube-system"); len(got) != 1 {
			t.Errorf("got Events %q, want one", got)
		}
	}
	l.SetMode(t.Context(), config.ModeSubnet)
	l.SetMode(t.Context(), config.ModeMultitenant)
	if got := l.warnings("GlobalNamespaceIsolated kube-system"); len(got) != 2 {
		t.Errorf("got Events %q after the second change of the mode, want two", got)
	}
}

// Two leaders at the same time: their writes conflict, or are of VNIDs in different partitions.
func testTwoLeaders(t *testing.T, c *cluster) {
	first, second := c.lead(t, config.ModeMultitenant), c.lead(t, config.ModeMultitenant)
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprint("leaders-", i))
	}
	c.create(t, names...)
	for i, name := range names {
		c.vnid(t, name)
		if i%4 == 1 {
			c.edit(t, name, func(nn *networkv1.NetNamespace) {
				metav1.SetMetaDataAnnotation(&nn.ObjectMeta, networkv1.ChangePodNetworkAnnotation, "isolate")
			})
		}
	}
	owner := map[uint32]string{}
	for name, nn := range c.all(t) {
		if other, twice := owner[nn.NetID]; twice && strings.HasPrefix(name, "leaders-") {
			t.Errorf("got VNID %d of %s and of %s", nn.NetID, name, other)
		}
		owner[nn.NetID] = name
	}
	eventually(t, func(context.Context) error {
		for name, nn := range c.all(t) {
			for _, l := range []*leader{first, second} {
				if vnid, ok := l.vnids.VNID(name); !ok || uint32(vnid) != nn.NetID {
					return fmt.Errorf("VNID of %s in the allocator: got %d, want %d", name, vnid, nn.NetID)
				}
			}
		}
		return nil
	})
}
