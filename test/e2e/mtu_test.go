package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// mtu is what interfaces take and what is sent, in bytes; 0: not set.
type mtu struct{ link, routable int }

// lowMTU is what the tests go down to.
const lowMTU = 1400

// setMTU edits the ClusterNetwork as in docs/mtu.md.
func (c *cluster) setMTU(ctx context.Context, m mtu) error {
	routable := any(nil)
	if m.routable != 0 {
		routable = strconv.Itoa(m.routable)
	}
	return c.patchMTU(ctx, m.link, routable)
}

func (c *cluster) patchMTU(ctx context.Context, link int, routable any) error {
	spec := map[string]any{"mtu": nil, "metadata": map[string]any{"annotations": map[string]any{"ovsdn.io/routable-mtu": routable}}}
	if link != 0 {
		spec["mtu"] = link
	}
	patch, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	_, err = c.Network.NetworkV1().ClusterNetworks().Patch(ctx, "default", apitypes.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// restoreMTU undoes at the test's end what it has done to the MTU, and waits until the nodes follow.
func (x *trio) restoreMTU(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
		defer cancel()
		err := x.setMTU(ctx, mtu{})
		ticker := time.NewTicker(fixture.PollInterval)
		defer ticker.Stop()
		for err == nil {
			if err = errors.Join(hasMTU(fixture.Node1, x.node1.NetNS, "tun0", mtu{podMTU, 0}), hasMTU(fixture.Node2, x.node2.NetNS, "tun0", mtu{podMTU, 0})); err == nil {
				return
			}
			select {
			case <-ctx.Done():
				err = errors.Join(err, ctx.Err())
			case <-ticker.C:
				err = nil
			}
		}
		t.Errorf("restore the MTU: %v", err)
	})
}

// haveMTU edits the ClusterNetwork and returns when nodes and pods follow it.
func (x *trio) haveMTU(t *testing.T, m mtu, pods ...pod) {
	t.Helper()
	if err := x.setMTU(t.Context(), m); err != nil {
		t.Fatal(err)
	}
	want := m
	if want.link == 0 {
		want.link = podMTU
	}
	fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("nodes and pods have MTU %+v", m), func(context.Context) error {
		var errs []error
		for _, machine := range []machine{x.node1, x.node2} {
			errs = append(errs, hasMTU(machine.Name, machine.NetNS, "tun0", want))
		}
		for _, p := range pods {
			errs = append(errs, hasMTU("pod "+p.Name, p.NetNS, "eth0", want))
		}
		return errors.Join(errs...)
	})
	// Pods' ends follow last, except upwards.
	for _, machine := range []machine{x.node1, x.node2} {
		fixture.Eventually(t, fixture.SyncTime, "the veths of "+machine.Name, func(context.Context) error { return haveVethMTU(machine.NetNS, want.link) })
	}
}

func hasMTU(name string, netns wire.NetNS, iface string, want mtu) error {
	return netns.Do(func() error {
		link, err := netlinksafe.LinkByName(iface)
		if err != nil {
			return err
		}
		routes, err := netlinksafe.RouteList(link, netlink.FAMILY_V4)
		if err != nil {
			return err
		}
		if got := link.Attrs().MTU; got != want.link {
			return fmt.Errorf("%s of %s has %d, want %d", iface, name, got, want.link)
		}
		for _, r := range routes {
			if r.MTU != want.routable {
				return fmt.Errorf("route %s of %s has MTU %d, want %d", r.Dst, name, r.MTU, want.routable)
			}
		}
		return nil
	})
}

func haveVethMTU(netns wire.NetNS, want int) error {
	return netns.Do(func() error {
		links, err := netlinksafe.LinkList()
		if err != nil {
			return err
		}
		for _, l := range links {
			if a := l.Attrs(); strings.HasPrefix(a.Name, "veth") && a.MTU != want {
				return fmt.Errorf("%s has %d, want %d", a.Name, a.MTU, want)
			}
		}
		return nil
	})
}

// wantSize pings with the largest packet that may be sent, and with one that is too large.
func wantSize(t *testing.T, from, to pod, most int) {
	t.Helper()
	fixture.Echoed(t, from.NetNS, to.Addr, wire.Echo{Bytes: most, DontFragment: true})
	fixture.Within(t, fixture.PacketTime, fmt.Sprintf("%d bytes from %s to %s", most+1, from.Name, to.Name), func(ctx context.Context) error {
		if err := from.NetNS.Ping(ctx, to.Addr, wire.Echo{Bytes: most + 1, DontFragment: true}); !errors.Is(err, unix.EMSGSIZE) {
			return fmt.Errorf("%w, want %w", err, unix.EMSGSIZE)
		}
		return nil
	})
}

// The MTU of a cluster is lowered and raised under traffic by the steps of docs/mtu.md. No packet is lost, and connections continue.
func TestMTUChangesUnderTraffic(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no ping is lost")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	x.restoreMTU(t)
	fixture.Meet(t, x.c.NetNS, x.a.Addr)
	there, back := talk(t, x.a.End(), x.c.End()), talk(t, x.c.End(), x.b.End())
	const changes = 2 * 3 // down and up, of the switch's ends of three veths
	x.losesNothingLasting(t, changes, func() {
		for _, step := range []struct {
			mtu  mtu
			sent int
		}{
			{mtu{}, podMTU},
			{mtu{podMTU, lowMTU}, lowMTU},
			{mtu{lowMTU, 0}, lowMTU},
			{mtu{podMTU, lowMTU}, lowMTU},
			{mtu{podMTU, 0}, podMTU},
		} {
			x.haveMTU(t, step.mtu, x.a, x.b, x.c)
			for _, path := range [][2]pod{{x.a, x.b}, {x.a, x.c}, {x.c, x.a}} {
				wantSize(t, path[0], path[1], step.sent)
			}
			there.goesOn(t)
			back.goesOn(t)
		}
	}, streamOf(x.a, x.c), streamOf(x.b, x.a))
	there.ends(t)
	back.ends(t)
	x.haveMTU(t, mtu{}, x.a, x.b, x.c)
	x.returnsTo(t, before)
}

// Pods that start after a change of the MTU have it, and follow further changes, also if their node's agent did not run at that time.
func TestMTUOfNewPods(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab, and changes the MTU of all nodes")
	}
	x := newTrio(t)
	x.restoreMTU(t)
	x.haveMTU(t, mtu{podMTU, lowMTU}, x.a, x.b, x.c)
	d := x.Run(t, x.namespace, fixture.Netexec("d", fixture.Node2))[0]
	fixture.Meet(t, d.NetNS, x.a.Addr)
	x.haveMTU(t, mtu{podMTU, lowMTU}, d)
	wantSize(t, d, x.a, lowMTU)

	x.haveMTU(t, mtu{lowMTU, 0}, x.a, x.b, x.c, d)
	e := x.Run(t, x.namespace, fixture.Netexec("e", fixture.Node1))[0]
	fixture.Meet(t, e.NetNS, d.Addr)
	x.killAgent(t, fixture.Node1)
	x.haveMTU(t, mtu{1300, 0}, x.a, x.b, x.c, d, e)
	wantSize(t, d, e, 1300)
	wantSize(t, e, d, 1300)
}

// An invalid MTU is reported on the ClusterNetwork, one that a node's underlay can't carry on the Node. The MTU does not change, and the node
// starts new pods.
func TestMTURefused(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: needs the shared lab; a pod is started for each of several refused edits")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	x.restoreMTU(t)
	for i, tc := range []struct {
		link     int
		routable any
		about    string
		words    []string
	}{
		{1500, nil, "Node", []string{"MTU 1500 is too large", "VXLAN needs 50", "at most 1450"}},
		{0, "1451", "Node", []string{"routable MTU 1451 is too large", "have MTU 1450"}},
		{podMTU, "1451", "ClusterNetwork", []string{"ovsdn.io/routable-mtu", "1451 bytes is more than the mtu, 1450"}},
		{podMTU, "small", "ClusterNetwork", []string{"ovsdn.io/routable-mtu", `"small" is not a number of bytes`}},
	} {
		t.Run(fmt.Sprintf("%d and %v", tc.link, tc.routable), func(t *testing.T) {
			began := time.Now()
			if err := x.patchMTU(t.Context(), tc.link, tc.routable); err != nil {
				t.Fatal(err)
			}
			names := []string{fixture.Node1, fixture.Node2}
			if tc.about == "ClusterNetwork" {
				names = []string{"default"}
				x.accepted(t, metav1.ConditionFalse, tc.words...)
			}
			for _, name := range names {
				x.Warned(t, began, tc.about, name, tc.words...)
			}
			x.returnsTo(t, before)
			for _, p := range []pod{x.a, x.c} {
				if err := hasMTU("pod "+p.Name, p.NetNS, "eth0", mtu{podMTU, 0}); err != nil {
					t.Error(err)
				}
			}
			name := fmt.Sprintf("later-%d", i)
			later := x.Run(t, x.namespace, fixture.Netexec(name, fixture.Node1))[0]
			fixture.Meet(t, later.NetNS, x.c.Addr)
			if err := x.DeletePod(t.Context(), x.namespace, name); err != nil {
				t.Fatal(err)
			}
			x.returnsTo(t, before)
		})
	}
}
