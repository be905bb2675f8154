package native_test

import (
	"context"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestTrace(t *testing.T) {
	tier.Parallel(t)
	sw := ovstest.Start(t)
	sw.VSCtl(t, "add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "fail_mode=secure",
		"--", "add-port", ovstest.Bridge, "p7", "--", "set", "interface", "p7", "type=internal", "ofport_request=7")
	sw.OFCtl(t, "add-flow", ovstest.Bridge, "table=0,priority=7,cookie=0x1234,ip,in_port=3,actions=ct(table=9,zone=5)")
	sw.OFCtl(t, "add-flow", ovstest.Bridge, "table=9,ct_state=+rpl+est+trk,ip,nw_dst=10.128.0.4,actions=output:7")
	n := newNative(t, sw)
	mac := net.HardwareAddr{0x0a, 0x58, 10, 128, 0, 3}
	packet := ovs.TracePacket{
		InPort: 3, EthSource: mac, EthDest: mac, Protocol: ovs.ProtocolNumberTCP, Source: netip.MustParseAddr("10.128.0.3"), Dest: netip.MustParseAddr("10.128.0.4"),
		SourcePort: 40000, DestPort: 80, Hash: 1, Lookup: ovs.LookupReply,
	}
	report, err := n.Trace(t.Context(), packet)
	if err != nil {
		t.Fatal(err)
	}
	trace, err := ovs.NewTraceParser(nil).Parse(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, report)
	}
	if len(trace.Passes) != 2 || len(trace.Passes[1].Flows) != 1 || trace.Passes[0].Flows[0].Cookie != 0x1234 {
		t.Fatalf("got %+v", trace)
	}
	if port, ok := trace.Passes[1].Flows[0].Actions[0].Output(&trace.Passes[1]); !ok || port != 7 {
		t.Errorf("got an output to port %d, %v, want 7\n%s", port, ok, report)
	}
	packet.Protocol = 2
	if _, err := n.Trace(t.Context(), packet); err == nil {
		t.Error("got no error for IGMP")
	}

	wantReports(t, n, packet, report)

	packet.Protocol = ovs.ProtocolNumberUDP
	resume := sw.PauseVSwitchd(t)
	defer resume()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := n.Trace(ctx, packet); ctx.Err() == nil || err == nil {
		t.Errorf("got error %v from a vswitchd that does not answer, want that of the deadline", err)
	}
}

// wantReports: of several packets each has its own report or error.
func wantReports(t *testing.T, n *native.Native, invalid ovs.TracePacket, want string) {
	t.Helper()
	valid := invalid
	valid.Protocol = ovs.ProtocolNumberTCP
	packets := append(slices.Repeat([]ovs.TracePacket{valid}, 20), invalid, valid)
	got, err := n.Traces(t.Context(), packets)
	if err != nil || len(got) != len(packets) {
		t.Fatalf("got %d reports, %v, want %d", len(got), err, len(packets))
	}
	recirculation := regexp.MustCompile(`recirc\S*0x[0-9a-f]+`) // numbers of the trace
	for i, p := range packets {
		if p.Protocol == invalid.Protocol {
			if got[i].Err == nil {
				t.Errorf("packet %d: got no error for IGMP", i)
			}
		} else if got[i].Err != nil || recirculation.ReplaceAllString(got[i].Text, "") != recirculation.ReplaceAllString(want, "") {
			t.Errorf("packet %d: got %v and\n%swant\n%s", i, got[i].Err, got[i].Text, want)
		}
	}
}
