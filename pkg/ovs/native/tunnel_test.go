package native_test

import (
	"context"
	"net"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestTunnelNeighbours(t *testing.T) {
	tier.Parallel(t)
	sw := ovstest.Start(t)
	sw.VSCtl(t, "add-br", "br-ex", "--", "set", "bridge", "br-ex", "datapath_type=netdev")
	err := sw.NS.Do(func(ns.NetNS) error {
		out, err := exec.CommandContext(t.Context(), "sh", "-ec", `
			ip link set br-ex up
			ip addr add 192.0.2.1/24 dev br-ex
			ip link add eth1 type veth peer name eth2
			ip link set eth1 up; ip link set eth2 up
			ip addr add 198.51.100.1/24 dev eth1
			ip route add 203.0.113.0/24 via 192.0.2.254`).CombinedOutput()
		if err != nil {
			t.Logf("%s", out)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n := newNative(t, sw)
	for vtep, want := range map[string]ovs.TunnelHop{
		"192.0.2.2":   {Bridge: "br-ex", Device: "br-ex", Addr: netip.MustParseAddr("192.0.2.2")},
		"203.0.113.2": {Bridge: "br-ex", Device: "br-ex", Addr: netip.MustParseAddr("192.0.2.254")},
	} {
		await.OK(t, await.SyncTime, func(ctx context.Context) error { // vswitchd reads the routes asynchronously
			_, err := n.TunnelHop(ctx, netip.MustParseAddr(vtep))
			return err
		})
		if got, err := n.TunnelHop(t.Context(), netip.MustParseAddr(vtep)); err != nil || got != want {
			t.Errorf("next hop to %s: got %v, error %v, want %v", vtep, got, err, want)
		}
	}
	for _, vtep := range []string{"198.51.100.2", "100.64.0.1"} {
		if got, err := n.TunnelHop(t.Context(), netip.MustParseAddr(vtep)); !ovs.IsNoTunnelRoute(err) {
			t.Errorf("next hop to %s: got %v, error %v, want that there is no route by a bridge", vtep, got, err)
		}
	}

	want := ovs.TunnelNeighbour{Bridge: "br-ex", Addr: netip.MustParseAddr("192.0.2.2"), MAC: net.HardwareAddr{0x0a, 0, 0, 0, 0, 2}}
	for range 2 {
		if err := n.SetTunnelNeighbour(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		got, err := n.ListTunnelNeighbours(t.Context())
		if diff := cmp.Diff([]ovs.TunnelNeighbour{want}, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" || err != nil {
			t.Errorf("neighbours: error %v (-want +got):\n%s", err, diff)
		}
		want.MAC = net.HardwareAddr{0x0a, 0, 0, 0, 0, 3}
	}
	if got, err := n.TunnelNeighbourAging(t.Context()); err != nil || got != 15*time.Minute {
		t.Errorf("aging: got %v, error %v, want 15m", got, err)
	}
	sw.StopVSwitchd(t)
	if err := n.SetTunnelNeighbour(t.Context(), want); !ovs.IsUnavailable(err) {
		t.Errorf("set without vswitchd: got error %v, want that Open vSwitch does not answer", err)
	}
}
