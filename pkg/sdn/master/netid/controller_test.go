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
		{"gives namespaces their VNIDs and takes them back", testGives},
		{"renumbers none when it starts again", testRestart},
		{"gives a namespace that was made anew a VNID anew", testReborn},
		{"takes over what OpenShift has made", testTakesOver},
		{"changes networks as they are asked for", testChanges},
		{"refuses what can't be", testRefuses},
		{"changes nothing outside of mode multitenant", testOtherModes},
		{"joins each other, in a circle and in a row", testCircles},
		{"reports what was written by hand", testByHand},
		{"keeps the assigned VNID of an invalid netid", testInvalidNetID},
		{"a refused change stays refused", testStaysRefused},
		{"says which global namespace is isolated", testNotGlobal},
		{"a late leader's writes do no harm", testLateLeader},
	} {
		t.Run(tc.name, func(t *testing.T) { tc.test(t, c) })
	}
}

func testGives(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeSubnet) // VNIDs are there in all modes
	c.create(t, "gives-1", "gives-2")
	first := c.await(t, "gives-1", nil)
	ns, err := c.kube.CoreV1().Namespaces().Get(t.Context(), "gives-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := &networkv1.NetNamespace{ObjectMeta: metav1.ObjectMeta{Name: first.Name, Annotations: first.Annotations}, NetName: first.NetName, NetID: first.NetID}
	if diff := cmp.Diff(&networkv1.NetNamespace{
		ObjectMeta: metav1.ObjectMeta{Name: "gives-1", Annotations: map[string]string{
			"ovsdn.io/namespace-uid": string(ns.UID), "ovsdn.io/assigned-netid": fmt.Sprint(first.NetID),
		}},
		NetName: "gives-1", NetID: first.NetID,
	}, got); diff != "" {
		t.Error(diff)
	}
	if second := c.vnid(t, "gives-2"); first.NetID < 10 || second < 10 || first.NetID == second {
		t.Errorf("VNIDs %d and %d", first.NetID, second)
	}
	for name, global := range map[string]bool{"default": true, "kube-system": true, "kube-public": false} {
		if vnid := c.vnid(t, name); (vnid == 0) != global {
			t.Errorf("%s has VNID %d", name, vnid)
		}
	}
	c.delete(t, "gives-1")
	c.gone(t, "gives-1")
	eventually(t, func(context.Context) error {
		l.vnids.mu.Lock()
		defer l.vnids.mu.Unlock()
		if _, resting := l.vnids.resting[config.VNID(first.NetID)]; !resting {
			return fmt.Errorf("%d is not in quarantine", first.NetID)
		}
		return nil
	})
}

func testRestart(t *testing.T, c *cluster) {
	first := c.lead(t, config.ModeMultitenant)
	c.create(t, "restart-1", "restart-2", "restart-3")
	c.vnid(t, "restart-1")
	c.ask(t, "restart-2", "join:restart-1")
	c.ask(t, "restart-3", "global")
	before := c.all(t)
	first.stop()

	c.lead(t, config.ModeMultitenant)
	c.create(t, "restart-4")
	c.vnid(t, "restart-4")
	after := c.all(t)
	delete(after, "restart-4")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
}

func testReborn(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeMultitenant)
	c.create(t, "reborn-1", "reborn-2")
	first := c.vnid(t, "reborn-1")
	c.vnid(t, "reborn-2")
	c.edit(t, "reborn-1", func(nn *networkv1.NetNamespace) {
		metav1.SetMetaDataAnnotation(&nn.ObjectMeta, networkv1.MulticastEnabledAnnotation, "true")
	})
	c.ask(t, "reborn-2", "global")
	reborn := func(name string, former uint32) {
		t.Helper()
		nn := c.await(t, name, func(nn *networkv1.NetNamespace) error {
			if nn.NetID == former || nn.NetID == 0 {
				return fmt.Errorf("has what its namesake had: %+v", nn)
			}
			return nil
		})
		if _, ok := nn.Annotations[networkv1.MulticastEnabledAnnotation]; ok {
			t.Error("multicast is on, as in its namesake")
		}
	}
	c.delete(t, "reborn-1")
	c.create(t, "reborn-1")
	reborn("reborn-1", first)
	l.stop()

	// Nobody looks while the next one goes and comes.
	c.delete(t, "reborn-2")
	c.create(t, "reborn-2")
	c.lead(t, config.ModeMultitenant)
	reborn("reborn-2", 0)
}

// NetNamespaces that are there before the controller keep their VNIDs, shared ones too: OpenShift says nowhere who joined whom.
func testTakesOver(t *testing.T, c *cluster) {
	c.create(t, "takes-1", "takes-2", "takes-3")
	for name, vnid := range map[string]uint32{"takes-1": 4242, "takes-2": 4242, "takes-3": 0, "takes-later": 4343} {
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
				return fmt.Errorf("%s is not taken over: %+v", name, nn)
			}
			return nil
		})
	}
	assigned("takes-1", "4242")
	assigned("takes-2", "4242")
	assigned("takes-3", "0")
	if later := c.await(t, "takes-later", nil); len(later.Annotations) > 0 {
		t.Errorf("one for a namespace that is still to come is written to: %+v", later)
	}
	c.create(t, "takes-later")
	assigned("takes-later", "4343")
	l.none(t, "takes-")
}

func testChanges(t *testing.T, c *cluster) {
	l := c.lead(t, config.ModeMultitenant)
	c.create(t, "red", "green", "blue")
	red, green := c.vnid(t, "red"), c.vnid(t, "green")

	if nn := c.ask(t, "green", "join:red"); nn.NetID != red {
		t.Errorf("green joined red: %d, not %d", nn.NetID, red)
	}
	l.await(t, fmt.Sprintf("Normal NetworkChanged green: join:red: its VNID is %d, and was %d", red, green))

	// Isolated, the one that leaves has a new VNID; the one that stays, alone, keeps its.
	if nn := c.ask(t, "red", "isolate"); nn.NetID == red || nn.NetID == green || nn.NetID == 0 {
		t.Errorf("red left green with %d", nn.NetID)
	}
	if nn := c.ask(t, "green", "isolate:"); nn.NetID != red {
		t.Errorf("green is alone and isolated, and has %d instead of %d", nn.NetID, red)
	}
	// Global, and back; also as the only one that is.
	if nn := c.ask(t, "blue", "global:"); nn.NetID != 0 {
		t.Errorf("blue is global with %d", nn.NetID)
	}
	if nn := c.ask(t, "blue", "isolate"); nn.NetID < 10 {
		t.Errorf("blue is isolated with %d", nn.NetID)
	}
	// Whoever joins a global one is global. Whoever joins itself is as before.
	if nn := c.ask(t, "blue", "join:default"); nn.NetID != 0 {
		t.Errorf("blue joined default: %d", nn.NetID)
	}
	if nn := c.ask(t, "green", "join:green"); nn.NetID != red {
		t.Errorf("green joined green: %d", nn.NetID)
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
		{"refuses", "leave", `"leave" is no change of a network`},
		{"refuses", "", `"" is no change of a network`},
		{"default", "isolate", "isolate is refused: Namespace default has the API server's service"},
		{"default", "join:refuses", "join:refuses is refused: Namespace default has the API server's service"},
	} {
		before := c.vnid(t, tc.name)
		nn := c.ask(t, tc.name, tc.change)
		if nn.NetID != before {
			t.Errorf("%s: the VNID of %s is %d, and was %d", tc.change, tc.name, nn.NetID, before)
		}
		if got := nn.Annotations["ovsdn.io/change-refused"]; !strings.Contains(got, tc.why) {
			t.Errorf("%s is refused because %q", tc.change, got)
		}
		l.await(t, "Warning NetworkChangeRefused "+tc.name+": ")
		l.await(t, tc.why)
	}
	nn := c.ask(t, "refuses", "isolate")
	if why, refused := nn.Annotations["ovsdn.io/change-refused"]; refused || nn.NetID != vnid {
		t.Errorf("after a change that is made: %q, VNID %d", why, nn.NetID)
	}
}

func testOtherModes(t *testing.T, c *cluster) {
	for i, mode := range []config.Mode{config.ModeSubnet, config.ModeNetworkPolicy} {
		l := c.lead(t, mode)
		name := fmt.Sprint("other-mode-", i)
		c.create(t, name)
		before := c.vnid(t, name)
		if nn := c.ask(t, name, "global"); nn.NetID != before {
			t.Errorf("mode %s: %d, was %d", mode, nn.NetID, before)
		}
		l.await(t, fmt.Sprintf("global is refused: in mode %s VNIDs isolate nobody", mode))
		l.stop()
	}
}

// Whatever the order in which they are seen to, it is one of those that are possible one after the other.
func testCircles(t *testing.T, c *cluster) {
	c.create(t, "circle-1", "circle-2", "row-1", "row-2", "row-3")
	first := c.lead(t, config.ModeMultitenant)
	circle1, circle2 := c.vnid(t, "circle-1"), c.vnid(t, "circle-2")
	row1, row2, row3 := c.vnid(t, "row-1"), c.vnid(t, "row-2"), c.vnid(t, "row-3")
	first.stop()
	for name, to := range map[string]string{"circle-1": "circle-2", "circle-2": "circle-1", "row-1": "row-2", "row-2": "row-3"} {
		c.edit(t, name, func(nn *networkv1.NetNamespace) {
			nn.Annotations[networkv1.ChangePodNetworkAnnotation] = "join:" + to
		})
	}
	c.lead(t, config.ModeMultitenant)
	now := map[string]uint32{}
	for _, name := range []string{"circle-1", "circle-2", "row-1", "row-2", "row-3"} {
		now[name] = c.await(t, name, func(nn *networkv1.NetNamespace) error {
			if _, asked, _ := config.RequestedChange(nn); asked {
				return fmt.Errorf("%s is not seen to", name)
			}
			return nil
		}).NetID
	}
	if now["circle-1"] != now["circle-2"] || now["circle-1"] != circle1 && now["circle-1"] != circle2 {
		t.Errorf("the circle: %v, was %d, %d", now, circle1, circle2)
	}
	if now["row-3"] != row3 || now["row-2"] != row3 || now["row-1"] != row2 && now["row-1"] != row3 {
		t.Errorf("the row: %v, was %d, %d, %d", now, row1, row2, row3)
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
	// A VNID that nobody has is as good as any.
	write("hand-3", 5555)
	c.await(t, "hand-3", func(nn *networkv1.NetNamespace) error {
		if nn.Annotations[config.AssignedVNIDAnnotation] != "5555" {
			return fmt.Errorf("not taken over: %+v", nn)
		}
		return nil
	})
	// One that another has is reported, and left.
	write("hand-2", one)
	l.await(t, fmt.Sprintf("Warning VNIDWrittenByHand hand-2: netid %d was written by hand, and makes one network with hand-1: "+
		"set the annotation pod.network.openshift.io/multitenant.change-network to join:hand-1 if that is wanted, or else to isolate", one))
	if now := c.vnid(t, "hand-2"); now != one {
		t.Errorf("what was written by hand is overwritten with %d", now)
	}
	// Deleted, it is made anew with another. The one of before may be taken.
	if err := c.network.NetworkV1().NetNamespaces().Delete(t.Context(), "hand-2", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await(t, "hand-2", func(nn *networkv1.NetNamespace) error {
		if slices.Contains([]uint32{one, two, three}, nn.NetID) {
			return fmt.Errorf("hand-2 has %d", nn.NetID)
		}
		return nil
	})
	// No VNID at all.
	write("hand-1", 5)
	l.await(t, "Warning InvalidNetNamespace hand-1: netid: 5 is no VNID: write 0 (global), or a number from 10 to 16777215, or set the annotation "+
		fmt.Sprintf("pod.network.openshift.io/multitenant.change-network to isolate; until then the assigned VNID %d stays in use", one))
	nn := c.ask(t, "hand-2", "join:hand-1")
	if why := nn.Annotations[config.ChangeRefusedAnnotation]; !strings.Contains(why, "NetNamespace hand-1 is not in order: netid: 5 is no VNID") {
		t.Errorf("joining it is refused because %q", why)
	}
	if nn := c.ask(t, "hand-1", "isolate"); nn.NetID < 10 {
		t.Errorf("isolated, it has %d", nn.NetID)
	}
	// Another name is corrected.
	c.edit(t, "hand-1", func(nn *networkv1.NetNamespace) { nn.NetName = "hand-2" })
	c.await(t, "hand-1", func(nn *networkv1.NetNamespace) error {
		if nn.NetName != "hand-1" {
			return fmt.Errorf("netname is %s", nn.NetName)
		}
		return nil
	})
	// Deleted without need, it is made anew with what it had.
	had := c.vnid(t, "hand-1")
	if err := c.network.NetworkV1().NetNamespaces().Delete(t.Context(), "hand-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if now := c.vnid(t, "hand-1"); now != had {
		t.Errorf("made anew with %d instead of %d", now, had)
	}
}

func testNotGlobal(t *testing.T, c *cluster) {
	first := c.lead(t, config.ModeMultitenant)
	nn := c.ask(t, "kube-system", "isolate")
	if nn.NetID < 10 {
		t.Fatalf("kube-system is isolated with %d", nn.NetID)
	}
	first.stop()
	l := c.lead(t, config.ModeMultitenant)
	l.await(t, fmt.Sprintf("Warning GlobalNamespaceIsolated kube-system: --global-namespaces names kube-system, but it has VNID %d", nn.NetID))
	if now := c.vnid(t, "kube-system"); now != nn.NetID {
		t.Errorf("it has %d by now", now)
	}
	l.stop()

	// In another mode that isolates nobody; it is said when it does, and once.
	l = c.lead(t, config.ModeSubnet)
	l.none(t, "")
	for range 2 {
		l.Follow(t.Context(), config.ModeMultitenant)
		if said := l.warnings("GlobalNamespaceIsolated kube-system"); len(said) != 1 {
			t.Errorf("said: %q", said)
		}
	}
	l.Follow(t.Context(), config.ModeSubnet)
	l.Follow(t.Context(), config.ModeMultitenant)
	if said := l.warnings("GlobalNamespaceIsolated kube-system"); len(said) != 2 {
		t.Errorf("said after the mode was another: %q", said)
	}
}

// Two that lead at once, one of which hears of nothing: what it writes conflicts, or is of VNIDs that the other does not give.
func testLateLeader(t *testing.T, c *cluster) {
	late, next := c.lead(t, config.ModeMultitenant), c.lead(t, config.ModeMultitenant)
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprint("late-", i))
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
		if other, twice := owner[nn.NetID]; twice && strings.HasPrefix(name, "late-") {
			t.Errorf("%s and %s both have %d", name, other, nn.NetID)
		}
		owner[nn.NetID] = name
	}
	eventually(t, func(context.Context) error {
		for name, nn := range c.all(t) {
			for _, l := range []*leader{late, next} {
				if vnid, ok := l.vnids.HeldBy(name); !ok || uint32(vnid) != nn.NetID {
					return fmt.Errorf("a leader takes %s to have %d, and it has %d", name, vnid, nn.NetID)
				}
			}
		}
		return nil
	})
}
