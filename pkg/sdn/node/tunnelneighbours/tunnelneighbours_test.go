package tunnelneighbours

import (
	"context"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2/ktesting"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

const timeout = 90 * time.Second

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// fakeSwitch is the neighbour cache of an Open vSwitch.
type fakeSwitch struct {
	mu      sync.Mutex
	gateway netip.Addr // if it is valid, the next hop to all VTEPs
	noRoute int        // lookups that fail
	macs    map[string]string
	aging   time.Duration
	sets    map[string]int // calls of SetTunnelNeighbour by address
	down    bool

	commands, comparisons int // calls of TunnelHop and SetTunnelNeighbour, of ListTunnelNeighbours
}

func newFakeSwitch() *fakeSwitch {
	return &fakeSwitch{macs: map[string]string{}, sets: map[string]int{}, aging: defaultAging}
}

func (s *fakeSwitch) err() error {
	if s.down {
		return ovs.NewUnavailable(os.ErrNotExist)
	}
	return nil
}

func (s *fakeSwitch) TunnelHop(_ context.Context, vtep netip.Addr) (ovs.TunnelHop, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands++
	if s.noRoute > 0 {
		s.noRoute--
		return ovs.TunnelHop{}, ovs.NewNoTunnelRoute(vtep, "no route of the host matches")
	}
	if s.gateway.IsValid() {
		vtep = s.gateway
	}
	return ovs.TunnelHop{Bridge: "br-ex", Device: "br-ex", Addr: vtep}, s.err()
}

func (s *fakeSwitch) ListTunnelNeighbours(context.Context) (all []ovs.TunnelNeighbour, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.comparisons++
	for addr, mac := range s.macs {
		hardware, err := net.ParseMAC(mac)
		if err != nil {
			return nil, err
		}
		all = append(all, ovs.TunnelNeighbour{Bridge: "br-ex", Addr: netip.MustParseAddr(addr), MAC: hardware})
	}
	return all, s.err()
}

func (s *fakeSwitch) SetTunnelNeighbour(_ context.Context, n ovs.TunnelNeighbour) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.commands++
	if err := s.err(); err != nil {
		return err
	}
	s.macs[n.Addr.String()] = n.MAC.String()
	s.sets[n.Addr.String()]++
	return nil
}

func (s *fakeSwitch) TunnelNeighbourAging(context.Context) (time.Duration, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.aging, s.err()
}

func (s *fakeSwitch) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// host is a network namespace with br-ex, a veth whose peer is another host with the addresses 192.0.2.2 to 192.0.2.4.
type host struct {
	testing.TB
	here, peer ns.NetNS
	ovs        *fakeSwitch
	neighbours *Neighbours
}

func start(t *testing.T) *host {
	t.Helper()
	h := newHost(t)
	h.run(t)
	return h
}

func newHost(t *testing.T) *host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	h := &host{TB: t, ovs: newFakeSwitch()}
	for _, netns := range []*ns.NetNS{&h.here, &h.peer} {
		created, err := ns.TempNetNS()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { created.Close() })
		*netns = created
	}
	h.sh(h.here, fmt.Sprintf("ip link add br-ex type veth peer name eth0 netns /proc/%d/fd/%d", os.Getpid(), h.peer.Fd()),
		"ip addr add 192.0.2.1/24 dev br-ex", "ip link set br-ex up")
	h.sh(h.peer, "ip link set eth0 address 0a:00:00:00:00:02 up", "sysctl -qw net.ipv4.conf.eth0.arp_notify=1",
		"ip addr add 192.0.2.2/24 dev eth0", "ip addr add 192.0.2.3/24 dev eth0", "ip addr add 192.0.2.4/24 dev eth0")
	h.neighbours = New(h.ovs, time.Millisecond)
	return h
}

// run retains the host's neighbours until the test ends.
func (h *host) run(t *testing.T) {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		err := h.here.Set()
		if err == nil {
			h.neighbours.Run(ctx)
		}
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func (h *host) sh(netns ns.NetNS, commands ...string) {
	h.Helper()
	err := netns.Do(func(ns.NetNS) error {
		out, err := exec.CommandContext(h.Context(), "sh", "-ec", strings.Join(commands, "\n")).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	})
	if err != nil {
		h.Fatalf("%v: %v", commands, err)
	}
}

// want waits until the cache has the neighbours.
func (h *host) want(what string, macs map[string]string) {
	h.Helper()
	await.OK(h, timeout, func(context.Context) error {
		h.ovs.mu.Lock()
		defer h.ovs.mu.Unlock()
		if diff := cmp.Diff(macs, h.ovs.macs); diff != "" {
			return fmt.Errorf("%s: neighbours (-want +got):\n%s", what, diff)
		}
		return nil
	})
}

func vtep(addr string) *inputs.RemoteNode {
	return &inputs.RemoteNode{VTEP: netip.MustParseAddr(addr), IsNode: true}
}

func TestNeighbours(t *testing.T) {
	h := start(t)
	macs := map[string]string{"192.0.2.2": "0a:00:00:00:00:02", "192.0.2.3": "0a:00:00:00:00:02"}
	h.neighbours.SetRemoteNode("node2", vtep("192.0.2.2"))
	h.neighbours.SetRemoteNode("node3", vtep("192.0.2.3"))
	h.neighbours.SetRemoteNode("down", vtep("192.0.2.99"))
	h.want("added nodes", macs)

	h.ovs.change(func() { clear(h.ovs.macs) })
	h.want("cache flushed", macs)
	h.ovs.change(func() { h.ovs.macs["192.0.2.2"] = "0a:00:00:00:00:99" })
	h.want("another MAC in the cache", macs)
	h.sh(h.here, "ip neigh flush dev br-ex")
	h.ovs.change(func() { clear(h.ovs.macs) })
	h.want("cache and host's neighbours flushed", macs)

	macs = map[string]string{"192.0.2.2": "0a:00:00:00:00:22", "192.0.2.3": "0a:00:00:00:00:22"}
	h.sh(h.peer, "ip link set eth0 address 0a:00:00:00:00:22")
	h.want("the nodes have another MAC", macs)

	h.ovs.change(func() { h.ovs.down = true; clear(h.ovs.macs) })
	h.neighbours.SetRemoteNode("node4", vtep("192.0.2.4"))
	h.ovs.change(func() { h.ovs.down = false })
	h.neighbours.Resync()
	macs["192.0.2.4"] = "0a:00:00:00:00:22"
	h.want("vswitchd restarted", macs)

	h.neighbours.SetRemoteNode("node2", nil)
	h.neighbours.SetRemoteNode("node3", vtep("192.0.2.4"))
	await.OK(t, timeout, func(context.Context) error {
		h.neighbours.mu.Lock()
		defer h.neighbours.mu.Unlock()
		want := []string{"br-ex br-ex 192.0.2.4", "br-ex br-ex 192.0.2.99"}
		if got := slices.Sorted(maps.Keys(h.neighbours.hops)); !slices.Equal(got, want) {
			return fmt.Errorf("next hops after deletions: got %q, want %q", got, want)
		}
		return nil
	})
}

// What was set while the list was on its way is not set again.
func TestHop_isLost(t *testing.T) {
	began := time.Now()
	mac, other := net.HardwareAddr{10, 0, 0, 0, 0, 1}, net.HardwareAddr{10, 0, 0, 0, 0, 2}
	for name, tc := range map[string]struct {
		mac, listed net.HardwareAddr
		set         time.Time
		want        bool
	}{
		"never set":                    {nil, nil, time.Time{}, false},
		"listed":                       {mac, mac, began.Add(-time.Second), false},
		"missing":                      {mac, nil, began.Add(-time.Second), true},
		"another MAC":                  {mac, other, began.Add(-time.Second), true},
		"missing, set since the list":  {mac, nil, began.Add(time.Millisecond), false},
		"another MAC, set at its time": {mac, other, began, false},
	} {
		if got := (&hop{mac: tc.mac, set: tc.set}).isLost(tc.listed, began); got != tc.want {
			t.Errorf("%s: got %t, want %t", name, got, tc.want)
		}
	}
}

// A permanent neighbour stays permanent: a probe would make it expire.
func TestNeighbours_permanent(t *testing.T) {
	h := start(t)
	h.sh(h.here, "ip neigh replace 192.0.2.50 lladdr 0a:00:00:00:00:50 dev br-ex nud permanent")
	h.neighbours.SetRemoteNode("node", vtep("192.0.2.50"))
	h.want("permanent", map[string]string{"192.0.2.50": "0a:00:00:00:00:50"})
	h.sh(h.here, "ip neigh show 192.0.2.50 dev br-ex nud permanent | grep -q 192.0.2.50")
}

// Unused entries are set again before they expire, also after their time to expiry was shortened.
func TestNeighbours_refreshed(t *testing.T) {
	tier.Parallel(t)
	h := start(t)
	h.neighbours.SetRemoteNode("node2", vtep("192.0.2.2"))
	h.want("added node", map[string]string{"192.0.2.2": "0a:00:00:00:00:02"})
	h.ovs.change(func() { h.ovs.aging = 100 * time.Millisecond })
	await.OK(t, timeout, func(context.Context) error {
		h.ovs.mu.Lock()
		defer h.ovs.mu.Unlock()
		if got := h.ovs.sets["192.0.2.2"]; got < 10 {
			return fmt.Errorf("got %d refreshes, want 10", got)
		}
		return nil
	})
}

// Nodes behind a gateway need one entry. A changed route is followed.
func TestNeighbours_gateway(t *testing.T) {
	tier.Parallel(t)
	h := start(t)
	h.ovs.change(func() { h.ovs.gateway = netip.MustParseAddr("192.0.2.2") })
	for i := range 200 {
		h.neighbours.SetRemoteNode(fmt.Sprintf("node%d", i), vtep(fmt.Sprintf("198.51.100.%d", i)))
	}
	h.want("one gateway", map[string]string{"192.0.2.2": "0a:00:00:00:00:02"})
	h.ovs.change(func() { h.ovs.gateway = netip.MustParseAddr("192.0.2.3") })
	h.sh(h.here, "ip route add 198.51.100.0/24 via 192.0.2.3")
	h.want("another gateway", map[string]string{"192.0.2.2": "0a:00:00:00:00:02", "192.0.2.3": "0a:00:00:00:00:02"})
}

// vswitchd has no routes for a moment, whenever an interface is added.
func TestNeighbours_routesMissing(t *testing.T) {
	tier.Parallel(t)
	h := start(t)
	h.ovs.change(func() { h.ovs.noRoute = 1 })
	h.neighbours.SetRemoteNode("node2", vtep("192.0.2.2"))
	h.want("route missing at first", map[string]string{"192.0.2.2": "0a:00:00:00:00:02"})
	h.ovs.change(func() { h.ovs.noRoute = 1 })
	h.neighbours.Resync()
	await.OK(t, timeout, func(context.Context) error {
		h.ovs.mu.Lock()
		defer h.ovs.mu.Unlock()
		if h.ovs.noRoute > 0 {
			return fmt.Errorf("the route was not looked up")
		}
		return nil
	})
	h.ovs.change(func() { clear(h.ovs.macs) })
	h.want("cache flushed without routes", map[string]string{"192.0.2.2": "0a:00:00:00:00:02"})
}
