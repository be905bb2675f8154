package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	networkv1 "github.com/openshift/api/network/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// A changed policy costs the flow-mods of the floor, one for a changed rule, and both lead to the same flows on the switch.
func TestEgress_flowMods(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	b := &B{tb: newTB(t.Context(), t.Name(), t.Logf)}
	if err := b.do(func() { b.compareEgress() }); err != nil {
		t.Fatal(err)
	}
}

func (b *B) compareEgress() {
	policy := egressPolicy(0)
	s, _ := b.newBridge()
	counter := b.newCounter(s)
	backend := native.New(ovstest.Bridge, counter.dir)
	b.Cleanup(backend.Close)
	ours, floor := b.newEgressNode(backend, policy), b.newEgressFloor(s, policy)
	defer floor.of.conn.Close()
	b.compareFlows(s)
	previous := policy
	for _, step := range []struct {
		what string
		to   *networkv1.EgressNetworkPolicy
		want int
	}{
		{"one rule", withOtherVerdict(policy), 1},
		{"the same rule again", policy, 1},
		{"all but the last rule", egressPolicy(1), 2 * (egressRules - 1)},
		{"one rule of the new policy", withOtherVerdict(egressPolicy(1)), 1},
	} {
		counter.reset()
		b.must(ours.set(step.to))
		if got := counter.flowMods(b); got != int64(step.want) {
			b.Errorf("change %s: got %d flow-mods, want %d", step.what, got, step.want)
		}
		mods := floor.leading(previous, step.to)
		if len(mods) != step.want {
			b.Errorf("change %s: got %d flow-mods of the floor, want %d", step.what, len(mods), step.want)
		}
		b.must(floor.of.apply(mods))
		b.compareFlows(s)
		previous = step.to
	}
}

// compareFlows compares the flows of the firewalls on the two bridges.
func (b *B) compareFlows(s *ovstest.Switch) {
	b.Helper()
	dump := func(bridge string) []string {
		flows := strings.Split(strings.TrimSpace(s.OFCtl(b, "--no-stats", "dump-flows", bridge, "table=100")), "\n")
		slices.Sort(flows)
		return flows
	}
	ours, floor := dump(ovstest.Bridge), dump(floorBridge)
	if len(ours) != egressPolicies*egressRules || !slices.Equal(ours, floor) {
		b.Errorf("got %d flows, and %d of the floor, want the same %d", len(ours), len(floor), egressPolicies*egressRules)
	}
}
