package zonelimits

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// A restarted vswitchd has lost the limits of its userspace datapath.
func TestZoneLimits_restart(t *testing.T) {
	sw := ovstest.Start(t)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathNetdev}); err != nil {
		t.Fatal(err)
	}
	limits := New(bridge, pipeline.Node{Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.2.0/23")}})
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { limits.Run(ctx); close(stopped) }()
	t.Cleanup(func() { stop(); <-stopped })

	limited := func() bool {
		for zone, limit := range map[int]int{0x6200: 187_500, 0x63ff: 187_500, 0x8200: 375_000, 0x83ff: 375_000} { // of 3,000,000
			name := fmt.Sprintf("zone=%d", zone)
			out, err := sw.Command(t.Context(), "ovs-appctl", "--target="+sw.RunDir+"/ovs-vswitchd.ctl", "dpctl/ct-get-limits", name).CombinedOutput()
			if err != nil || !strings.Contains(string(out), fmt.Sprintf("%s,limit=%d,", name, limit)) {
				return false
			}
		}
		return true
	}
	for range 2 {
		deadline := time.After(90 * time.Second)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for !limited() {
			select {
			case <-tick.C:
			case <-deadline:
				t.Fatal("the zones have no limit")
			}
		}
		sw.StopVSwitchd(t)
		sw.StartVSwitchd(t)
		limits.Reset()
	}
}

// An agent that starts leaves the limits that vswitchd has, unless some are lost, of another version or out of date.
func TestZoneLimits_unchanged(t *testing.T) {
	sw := ovstest.Start(t)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	must := func(t *testing.T, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(t, bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathNetdev}))
	node := pipeline.Node{Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.2.0/23")}}
	tracker, err := bridge.Tracker(t.Context())
	must(t, err)
	const marked, marker = 0x6301, 5 // not one of those that are read
	for name, test := range map[string]struct {
		before func(t *testing.T)
		leaves bool
	}{
		"all": {func(*testing.T) {}, true},
		"first zone lost": {func(t *testing.T) {
			must(t, bridge.LimitZones(t.Context(), ovs.Zones{First: 0x6200, Last: 0x6200}, marker))
		}, false},
		"last zone lost": {func(t *testing.T) {
			must(t, bridge.LimitZones(t.Context(), ovs.Zones{First: 0x83ff, Last: 0x83ff}, marker))
		}, false},
		"zones within lost": {func(t *testing.T) {
			must(t, bridge.LimitZones(t.Context(), ovs.Zones{First: 0x6280, Last: 0x62ff}, marker))
		}, false},
		"other share of a class": {func(t *testing.T) {
			must(t, bridge.LimitZones(t.Context(), ovs.Zones{First: 0x6200, Last: 0x63ff}, tracker.Free()/12))
		}, false},
		"few more free entries": {func(t *testing.T) {
			for _, z := range node.ZoneLimits(tracker.Free() * 9 / 10) {
				must(t, bridge.LimitZones(t.Context(), z.Zones, z.Limit))
			}
		}, true},
		"many more free entries": {func(t *testing.T) {
			for _, z := range node.ZoneLimits(tracker.Free() * 8 / 10) {
				must(t, bridge.LimitZones(t.Context(), z.Zones, z.Limit))
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, z := range node.ZoneLimits(tracker.Free()) { // whatever was before
				must(t, bridge.LimitZones(t.Context(), z.Zones, z.Limit))
			}
			test.before(t)
			must(t, bridge.LimitZones(t.Context(), ovs.Zones{First: marked, Last: marked}, marker))
			must(t, New(bridge, node).update(t.Context()))
			got, err := bridge.ZoneLimits(t.Context(), []uint16{marked})
			must(t, err)
			if leaves := got[marked] == marker; leaves != test.leaves {
				t.Errorf("limit of a zone: got %d; the limits were left: %t, want %t", got[marked], leaves, test.leaves)
			}
		})
	}
}

// Sixteen pods that open connections without end leave entries free, and the next pod gets some of them.
func TestZoneLimits_manySenders(t *testing.T) {
	const size, openers, step, modest = 1600, 16, 25, 20
	if ovstest.DatapathType(t) != ovstest.DatapathNetdev {
		return // the kernel's tracker has one size for all network namespaces
	}
	node := datapath.New(t, 1).Nodes[0]
	sender := node.AddPod(t).UDP(t, 0)
	// The destination selects the zone, as the source does for a pod.
	node.SetFlows(t, "table=0,arp actions=NORMAL\n"+
		"table=0,udp actions=move:NXM_OF_IP_DST[0..12]->NXM_NX_REG3[0..12],load:0x3->NXM_NX_REG3[13..31],ct(commit,zone=NXM_NX_REG3[0..15])")
	node.AppCtl(t, "dpctl/ct-set-maxconns", "netdev@ovs-netdev", fmt.Sprint(size))
	bridge := native.New(ovstest.Bridge, node.Switch.RunDir)
	t.Cleanup(bridge.Close)
	limits := New(bridge, pipeline.Node{Subnets: []netip.Prefix{node.Subnet}})
	follow := func() native.Tracker {
		t.Helper()
		if err := limits.update(t.Context()); err != nil {
			t.Fatal(err)
		}
		tracker, err := bridge.Tracker(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return tracker
	}
	follow()

	addr := node.Addr
	open := func(count int) (got int) {
		t.Helper()
		node.Pods[0].Sh(t, fmt.Sprintf("ip neigh replace %s lladdr %s dev eth0", addr, datapath.MAC(addr)))
		for port := range count {
			sender.Send(t, netip.AddrPortFrom(addr, uint16(1000+port)), []byte("x")) //nolint:gosec // a port
			if port%step == step-1 {
				follow()
			}
		}
		b := addr.As4()
		return len(node.Connections(t, 0x6000|uint16(b[2]&0x1f)<<8|uint16(b[3])))
	}
	addr = node.Addr.Next()
	for range openers {
		addr = addr.Next()
		open(size / 8)
	}
	tracker := follow()
	t.Logf("%d openers: %+v", openers, tracker)
	t.Run("share", func(t *testing.T) {
		if testing.Short() {
			t.Skip("complete tier: compares ratios")
		}
		if tracker.Free() < size/4 {
			t.Errorf("%d openers leave room for %d of %d connections, want at least %d", openers, tracker.Free(), size, size/4)
		}
	})
	addr = addr.Next()
	await.OK(t, 45*time.Second, func(context.Context) error { // sends lost packets again; unanswered entries expire after 60 s
		if got := open(modest); got != modest {
			return fmt.Errorf("the next opener has %d connections, want %d", got, modest)
		}
		return nil
	})
}
