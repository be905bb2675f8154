package agentmetrics

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// The sampler finds the drops of the flows that the store has installed, and the zones that have limits.
func TestSampler_realSwitch(t *testing.T) {
	sw := ovstest.Start(t)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: ovstest.DatapathNetdev, TableNames: pipeline.TableNames()}); err != nil {
		t.Fatal(err)
	}
	n := pipeline.Node{
		Mode: config.ModeMultitenant, ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")}, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
		Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, VTEP: netip.MustParseAddr("192.0.2.1"), VXLANPort: config.DefaultVXLANPort,
	}
	static, err := n.Static()
	if err != nil {
		t.Fatal(err)
	}
	st := flowstore.New(bridge)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan struct{})
	go func() { defer close(ended); _ = st.Run(ctx) }()
	t.Cleanup(func() { stop(); <-ended })
	if err := st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, static).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, l := range n.ZoneLimits(1600) {
		if err := bridge.LimitZones(t.Context(), l.Zones, l.Limit); err != nil {
			t.Fatal(err)
		}
	}
	s := newSampler(bridge, nil, n, "node1", &sampleTotals{})
	s.sample(t.Context(), true)
	// A spoofed packet: the port has no flows of a pod.
	var hex strings.Builder
	for line := range strings.Lines(sw.OFCtl(t, "compose-packet", "udp,nw_src=10.128.0.9,nw_dst=10.128.0.3,udp_src=1000,udp_dst=53")) {
		_, dump, _ := strings.Cut(line, "  ")
		dump, _, _ = strings.Cut(dump, "|")
		hex.WriteString(strings.NewReplacer(" ", "", "-", "", "\n", "").Replace(dump))
	}
	for range 3 {
		sw.OFCtl(t, "packet-out", ovstest.Bridge, fmt.Sprintf("in_port=77 packet=%s actions=table", hex.String()))
	}
	s.sample(t.Context(), true)
	got := s.get()
	if packets := got.drops[drop{20, pipeline.DropSpoofedSource}]; packets != 3 {
		t.Errorf("got drops %v, want 3 packets with a spoofed source", got.drops)
	}
	if drops, want := s.Drops(), []diagnostics.NodeDrop{{Table: "pod-ingress", Reason: pipeline.DropSpoofedSource, Packets: 3}}; !slices.Equal(drops, want) {
		t.Errorf("got %v for users, want %v", drops, want)
	}
	for _, reason := range []string{pipeline.DropIsolation, pipeline.DropUnknownPeer, pipeline.DropPodTunnel, pipeline.DropNoRoute} {
		found := false
		for d := range got.drops {
			found = found || d.reason == reason
		}
		if !found {
			t.Errorf("got drops %v, want %s among them", got.drops, reason)
		}
	}
	if got.datapath == nil || got.conntrack == nil || got.conntrack.zones[pipeline.ZoneOpener] != (native.ZoneUse{}) {
		t.Errorf("got datapath %v and conntrack %v, want both, with unused zones", got.datapath, got.conntrack)
	}
	flows := 0
	for _, table := range got.tables {
		flows += int(table.Active)
	}
	if st := st.Statistics(); flows != st.Flows || flows != len(static.Flows) {
		t.Errorf("got %d flows on the switch and %d installed, want %d", flows, st.Flows, len(static.Flows))
	}
}
