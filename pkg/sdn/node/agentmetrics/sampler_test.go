package agentmetrics

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Counters of flows that were removed, replaced or lost with a restart of vswitchd never decrease the sums.
func TestSampler_monotonic(t *testing.T) {
	from := &switchStatistics{}
	s := newSampler(from, nil, testNode(), "node1", &sampleTotals{})
	peer := func(addr string, packets uint64) native.Drop {
		return native.Drop{Key: ovs.Key{Table: 10, Priority: 50, Match: "tun_src=" + addr}, Packets: packets}
	}
	for i, step := range []struct {
		peers []native.Drop
		want  uint64
	}{
		{nil, 0}, {[]native.Drop{peer("a", 5), peer("b", 7)}, 12}, {[]native.Drop{peer("a", 6)}, 13}, {[]native.Drop{peer("a", 6), peer("b", 1)}, 14},
		{[]native.Drop{peer("a", 2), peer("b", 1)}, 16}, {nil, 16},
	} {
		from.peers = step.peers
		s.sample(t.Context(), true)
		if got := s.get().drops[drop{10, pipeline.DropForeignSource}]; got != step.want {
			t.Errorf("step %d: got %d packets, want %d", i, got, step.want)
		}
	}
}

// Counters of the host's rules are added up by comment, and do not decrease when a rule is replaced.
func TestSampler_hostDrops(t *testing.T) {
	var rules []hostnet.RuleDrops
	var failure error
	s := newSampler(&switchStatistics{}, func(context.Context) ([]hostnet.RuleDrops, error) { return rules, failure }, testNode(), "node1", &sampleTotals{})
	rule := func(name string, packets uint64) hostnet.RuleDrops {
		return hostnet.RuleDrops{Rule: name, Comment: "VXLAN of an unknown VTEP", Packets: packets}
	}
	for i, step := range []struct {
		rules   []hostnet.RuleDrops
		failure error
		want    uint64
	}{
		{[]hostnet.RuleDrops{rule("a", 5)}, nil, 0},
		{[]hostnet.RuleDrops{rule("a", 6), rule("b", 2)}, nil, 3},
		{nil, errors.New("iptables is locked"), 3},
		{[]hostnet.RuleDrops{rule("a", 1), rule("b", 2)}, nil, 4},
		{[]hostnet.RuleDrops{rule("a", 0), rule("a", 1), rule("b", 2)}, nil, 4}, // a is being replaced
	} {
		rules, failure = step.rules, step.failure
		s.sample(t.Context(), true)
		if got := s.get().hostDrops["VXLAN of an unknown VTEP"]; got != step.want {
			t.Errorf("step %d: got %d packets, want %d", i, got, step.want)
		}
	}
	want := diagnostics.NodeDrop{Table: diagnostics.HostFirewall, Reason: "VXLAN of an unknown VTEP", Packets: 4}
	if got := s.Drops(); !slices.Contains(got, want) {
		t.Errorf("got drops %v, want %v", got, want)
	}
}

// What the switch did not answer is absent, except for the sums.
func TestSampler_unavailable(t *testing.T) {
	from := &switchStatistics{static: []native.Drop{{Key: ovs.Key{Table: 20}, Packets: 11}}}
	s := newSampler(from, nil, testNode(), "node1", &sampleTotals{})
	s.sample(t.Context(), true)
	from.static = []native.Drop{{Key: ovs.Key{Table: 20}, Packets: 22}}
	s.sample(t.Context(), true)
	if got := s.get(); len(got.tables) == 0 || got.datapath == nil || got.conntrack == nil {
		t.Fatalf("got %+v, want all parts", got)
	}
	from.err = ovs.NewUnavailable(os.ErrNotExist)
	s.sample(t.Context(), false)
	if got := s.get(); got.tables != nil || got.datapath == nil || got.drops[drop{20, pipeline.DropSpoofedSource}] != 11 {
		t.Errorf("got %+v, want no tables, the previous datapath and the sum of drops", got)
	}
	s.sample(t.Context(), true)
	if got := s.get(); got.datapath != nil || got.conntrack != nil {
		t.Errorf("got %+v, want no datapath and no conntrack", got)
	}
}

// The flows outlive the agent: counts from before its start are no increase. Those of a new set-up of the network continue.
func TestSampler_restart(t *testing.T) {
	peer := func(packets uint64) []native.Drop {
		return []native.Drop{{Key: ovs.Key{Table: 10, Priority: 50, Match: "tun_src=a"}, Packets: packets}}
	}
	from := &switchStatistics{static: []native.Drop{{Key: ovs.Key{Table: 20}, Packets: 11}}, peers: peer(1000)}
	var totals sampleTotals
	forged, spoofed := drop{10, pipeline.DropForeignSource}, drop{20, pipeline.DropSpoofedSource}
	for i, step := range []struct {
		peers []native.Drop
		want  uint64
	}{{peer(1000), 0}, {peer(1003), 3}, {peer(1004), 4}} {
		from.peers = step.peers
		s := newSampler(from, nil, testNode(), "node1", &totals) // of a new set-up
		s.sample(t.Context(), true)
		got := s.get().drops
		if packets, ok := got[forged]; !ok || packets != step.want || got[spoofed] != 0 {
			t.Errorf("step %d: got drops %v, want %d of peers and none of static flows", i, got, step.want)
		}
	}
}

// The entries of the tracker are reported without those of zones, which a node without limits does not have.
func TestSampler_zones(t *testing.T) {
	from := &switchStatistics{zonesErr: errors.New("no such zone")}
	s := newSampler(from, nil, testNode(), "node1", &sampleTotals{})
	s.sample(t.Context(), true)
	if got := s.get().conntrack; got == nil || got.tracker.Used != 400 || len(got.zones) > 0 {
		t.Errorf("zones can't be read: got %+v, want 400 entries without zones", got)
	}
	unlimited := testNode()
	unlimited.Mode, unlimited.BalancesServices = config.ModeSubnet, false
	from.zonesErr = nil
	s = newSampler(from, nil, unlimited, "node1", &sampleTotals{})
	s.sample(t.Context(), true)
	if got := s.get().conntrack; got == nil || got.tracker.Used != 400 || len(got.zones) > 0 {
		t.Errorf("zones have no limits: got %+v, want 400 entries without zones", got)
	}
}

// Failures are counted. The first one of a part and its end are logged.
func TestSampler_reportsFailures(t *testing.T) {
	from := &switchStatistics{}
	var totals sampleTotals
	s := newSampler(from, nil, testNode(), "node1", &totals)
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(0)))
	ctx := klog.NewContext(t.Context(), logger)
	for _, err := range []error{nil, ovs.NewUnavailable(os.ErrNotExist), ovs.NewUnavailable(os.ErrNotExist), nil, nil} {
		from.err = err
		s.sample(ctx, false)
	}
	log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
	if failed, ended := strings.Count(log, "Failed to read"), strings.Count(log, "Read statistics of the switch again"); failed != 2 || ended != 2 {
		t.Errorf("got %d failures and %d ends in log %q, want one of tables and one of drops each", failed, ended, log)
	}
	if got := totals.failures.Load(); got != 4 {
		t.Errorf("got %d failures, want 4", got)
	}
}
