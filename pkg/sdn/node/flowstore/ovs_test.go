package flowstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func newSwitch(t *testing.T) (*ovstest.Switch, *native.Native) {
	t.Helper()
	sw := ovstest.Start(t)
	bridge := native.New(ovstest.Bridge, sw.RunDir)
	t.Cleanup(bridge.Close)
	if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: ovstest.Bridge, DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	return sw, bridge
}

func TestRun_switchEqualsStore(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := newSwitch(t)
	s := New(bridge)
	stop := run(t, s)
	seed := churn(t, s, 10, 20)

	err := await(t, s.Set(pod("bad"), flows(flow(1, goovs.Output(1)), flow(2, ovs.GotoTable(3)))))
	var rejected *ovs.FlowError
	if !errors.As(err, &rejected) || !strings.Contains(err.Error(), "goto_table:3") {
		t.Errorf("got error %v, want a rejection with the flow", err)
	}
	stop()
	if diff := sw.Diff(t, allFlows(s.table.state())); diff != "" {
		t.Errorf("seed %d: switch and store differ:\n%s", seed, diff)
	}
}

func TestRun_restartOfTheAgentSendsNothing(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := newSwitch(t)
	desire := func(s *Store) (commits []*Commit) {
		for n := range 20 {
			commits = append(commits, s.Set(pod(fmt.Sprint(n)), flows(flow(n, goovs.Output(1)), flow(1000, goovs.Output(2)))))
		}
		return append(commits, s.Set(pod("first"), flows(&ovs.Flow{Actions: []ovs.Action{ovs.Note([]byte{1, 2}), ovs.GotoTable(20)}})))
	}
	first := New(bridge)
	stop := run(t, first)
	for _, c := range desire(first) {
		must(t, c)
	}
	stop()
	sw.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=LOCAL packet=ffffffffffff0a580a8000010806 actions=resubmit(,0)")
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(sw.OFCtl(t, "dump-flows", ovstest.Bridge), "n_packets=1,") {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatal("the packet was not counted")
		}
	}
	before := stats(t, sw)

	second := New(bridge)
	commits := desire(second)
	commits = append(commits, second.Set(pod("new"), flows(flow(2000, goovs.Drop()))))
	run(t, second)
	for _, c := range commits {
		must(t, c)
	}
	after := stats(t, sw)
	if len(before) != 22 || len(after) != 23 {
		t.Fatalf("got %d flows before and %d after, want 22 and 23", len(before), len(after))
	}
	for flow, age := range before {
		if after[flow] < age {
			t.Errorf("%s was added again: got age %s, want at least %s", flow, after[flow], age)
		}
	}
}

// stats returns the age of each flow, by its text with the packet counter.
func stats(t *testing.T, sw *ovstest.Switch) map[string]time.Duration {
	t.Helper()
	ages := map[string]time.Duration{}
	for line := range strings.Lines(sw.OFCtl(t, "dump-flows", ovstest.Bridge)) {
		head, rest, ok := strings.Cut(strings.TrimSpace(line), " duration=")
		if !ok {
			continue
		}
		age, rest, _ := strings.Cut(rest, ",")
		d, err := time.ParseDuration(age)
		if err != nil {
			t.Fatal(err)
		}
		ages[head+rest] = d
	}
	return ages
}

func TestRun_restartOfOpenVSwitch(t *testing.T) {
	tier.Parallel(t)
	sw, bridge := newSwitch(t)
	s := start(t, bridge)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	sw.StopVSwitchd(t)
	waiting := s.Set(pod("b"), flows(flow(2, goovs.Output(2))))
	sw.StartVSwitchd(t)
	s.Resync()
	must(t, waiting)
	if diff := sw.Diff(t, allFlows(s.table.state())); diff != "" {
		t.Errorf("switch and store differ:\n%s", diff)
	}
	if n := len(sw.Dump(t)); n != 2 {
		t.Errorf("got %d flows, want 2", n)
	}
}
