package linkmtu

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
)

// kernel is a fake interface with routes. It calls check after each write.
type kernel struct {
	link   *netlink.Dummy
	routes map[string]int // MTU by destination; 0: none of its own
	writes int
	check  func()
	failAt int // the write that fails, counted from 1; 0: none
}

type writeError struct{}

func (writeError) Error() string { return "write failed" }

func newKernel(m MTU, routes ...int) *kernel {
	k := &kernel{link: &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "eth0", MTU: m.Link}}, routes: map[string]int{}, check: func() {}}
	for i, r := range routes {
		k.routes[fmt.Sprintf("10.%d.0.0/16", i)] = r
	}
	return k
}

func (k *kernel) write(do func()) error {
	k.writes++
	if k.writes == k.failAt {
		return writeError{}
	}
	do()
	k.check()
	return nil
}

func (k *kernel) LinkSetMTU(_ netlink.Link, mtu int) error {
	return k.write(func() { k.link.MTU = mtu })
}

func (k *kernel) RouteReplace(r *netlink.Route) error {
	return k.write(func() { k.routes[r.Dst.String()] = r.MTU })
}

func (k *kernel) RouteList(netlink.Link, int) ([]netlink.Route, error) {
	var all []netlink.Route
	for dst, mtu := range k.routes {
		_, ipNet, err := net.ParseCIDR(dst)
		if err != nil {
			return nil, err
		}
		all = append(all, netlink.Route{Dst: ipNet, MTU: mtu})
	}
	return all, nil
}

func (k *kernel) change(want MTU) Change {
	copied := *k.link // callers have attributes from before the change
	return Change{Netlink: k, Link: &copied, Want: want, Selects: func(netlink.Route) bool { return true }}
}

func genMTU(t *rapid.T, name string) MTU {
	m := MTU{Link: rapid.IntRange(576, 600).Draw(t, name)}
	if rapid.Bool().Draw(t, name+" has routes'") {
		m.Routes = rapid.IntRange(576, m.Link).Draw(t, name+" of routes")
	}
	return m
}

// After each write, no route sends packets larger than the MTU of the interface, nor larger or smaller than both before and after the change.
func TestApply_order(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		from, to := genMTU(t, "from"), genMTU(t, "to")
		starts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) int {
			if rapid.Bool().Draw(t, "explicit") {
				return rapid.IntRange(576, from.Link).Draw(t, "route")
			}
			return 0
		}), 0, 4).Draw(t, "routes")
		k := newKernel(from, starts...)
		before := map[string]int{}
		for dst, r := range k.routes {
			before[dst] = MTU{from.Link, r}.Sent()
		}
		k.check = func() {
			for dst, r := range k.routes {
				sent := MTU{k.link.MTU, r}.Sent()
				if sent > k.link.MTU {
					t.Fatalf("%s: got packets of %d bytes, interface has MTU %d", dst, sent, k.link.MTU)
				}
				if sent > max(before[dst], to.Sent()) || sent < min(before[dst], to.Sent()) {
					t.Fatalf("%s: got packets of %d bytes during the change from %d to %d", dst, sent, before[dst], to.Sent())
				}
			}
		}
		if rapid.Bool().Draw(t, "another program sets the interface") {
			if _, err := k.change(to).Prepare(); err != nil {
				t.Fatal(err)
			}
			k.link.MTU = to.Link
			k.check()
		}
		// Apply fails, and is repeated.
		if k.failAt = rapid.IntRange(0, 6).Draw(t, "fails at"); k.failAt > 0 {
			if _, err := k.change(to).Apply(); err != nil && !errors.Is(err, writeError{}) {
				t.Fatal(err)
			}
			k.failAt = 0
		}
		if _, err := k.change(to).Apply(); err != nil {
			t.Fatal(err)
		}
		if k.link.MTU != to.Link {
			t.Fatalf("interface: got MTU %d, want %d", k.link.MTU, to.Link)
		}
		for dst, r := range k.routes {
			if r != to.Routes {
				t.Fatalf("route %s: got MTU %d, want %d", dst, r, to.Routes)
			}
		}
		writes := k.writes
		if changes, err := k.change(to).Apply(); err != nil || len(changes) > 0 || k.writes != writes {
			t.Fatalf("Apply without a difference: got changes %q, error %v", changes, err)
		}
	})
}

func TestString(t *testing.T) {
	for want, m := range map[string]MTU{"1450": {1450, 0}, "1400": {1400, 1400}, "1450, packets sent of at most 1400": {1450, 1400}} {
		if got := m.String(); got != want {
			t.Errorf("%#v: got %q, want %q", m, got, want)
		}
	}
}

// The kernel accepts the changes, and other attributes of routes do not change.
func TestApply_kernel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	netns, err := ns.TempNetNS()
	if err != nil {
		t.Fatal(err)
	}
	defer netns.Close()
	err = netns.Do(func(ns.NetNS) error {
		sh(t, `ip link add eth0 mtu 1450 type veth peer name eth1; ip link set eth1 up; ip addr add 10.128.2.5/23 dev eth0 noprefixroute
			ip link set eth0 up; ip route add 10.128.0.0/14 dev eth0; ip route add 172.30.0.0/16 via 10.128.2.1 dev eth0
			ip route add default via 10.128.2.1 dev eth0 onlink; ip -6 route add fd00::/16 dev eth0; ip route add 192.0.2.0/24 dev eth0 proto static metric 7`)
		h, err := netlinksafe.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		shape := routes(t, "")
		for _, step := range []struct {
			want      MTU
			unplugged bool
		}{
			{want: MTU{1450, 1400}},
			{want: MTU{1400, 0}},
			{want: MTU{8950, 1400}},
			{want: MTU{8950, 0}},
			{want: MTU{1400, 1300}, unplugged: true},
			{want: MTU{1300, 0}, unplugged: true},
			{want: MTU{1450, 1450}},
		} {
			state := "up"
			if step.unplugged {
				state = "down"
			}
			sh(t, "ip link set eth1 "+state)
			wantApplied(t, h, step.want, shape)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// wantApplied applies the MTU to eth0 twice, and compares routes and link.
func wantApplied(t *testing.T, h netlinksafe.Handle, want MTU, shape []string) {
	t.Helper()
	link, err := h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	c := Change{Netlink: h, Link: link, Want: want, Selects: func(r netlink.Route) bool { return r.Protocol != unix.RTPROT_KERNEL }}
	changes, err := c.Apply()
	if err != nil || len(changes) == 0 {
		t.Fatalf("%v: got changes %q, error %v, want changes", want, changes, err)
	}
	mtu := ""
	if want.Routes != 0 {
		mtu = fmt.Sprintf("mtu %d", want.Routes)
	}
	if diff := cmp.Diff(shape, routes(t, mtu)); diff != "" {
		t.Errorf("%v (-want +got):\n%s", want, diff)
	}
	if got := sh(t, "ip link show eth0"); !strings.Contains(got, fmt.Sprintf("mtu %d ", want.Link)) {
		t.Errorf("%v: got link %s", want, got)
	}
	if c.Link, err = h.LinkByName("eth0"); err != nil {
		t.Fatal(err)
	}
	if changes, err := c.Apply(); err != nil || len(changes) > 0 {
		t.Errorf("%v: second Apply: got changes %q, error %v, want none", want, changes, err)
	}
}

// routes returns the interface's routes without their MTU, and checks that each has that MTU.
func routes(t *testing.T, mtu string) []string {
	t.Helper()
	var all []string
	for line := range strings.Lines(sh(t, "ip route show dev eth0; ip -6 route show dev eth0 | grep -v fe80")) {
		line = strings.ReplaceAll(line, "linkdown", "")
		if mtu != "" && !strings.Contains(line, mtu+" ") {
			t.Errorf("got route %q, want %s", line, mtu)
		}
		all = append(all, strings.Join(strings.Fields(strings.ReplaceAll(line, mtu, "")), " "))
	}
	slices.Sort(all)
	return all
}

func sh(t *testing.T, command string) string {
	t.Helper()
	out, err := exec.Command("sh", "-ec", command).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", command, err, out)
	}
	return string(out)
}
