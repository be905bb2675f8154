package flowstore

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// TestEvaluators checks that each evaluator is asked about connections of its zones only, and that one that reports a connection suffices.
func TestEvaluators(t *testing.T) {
	reports := func(port uint16) Evaluator {
		return func(bool) func(ovs.Connection) bool {
			return func(c ovs.Connection) bool { return c.Original.DstPort == port }
		}
	}
	none := func(bool) func(ovs.Connection) bool { return nil }
	low, high := ovs.Zones{First: 0x4000, Last: 0x5fff}, ovs.Zones{First: 0x6000, Last: 0x8fff}
	evaluators := []zonesEvaluator{{high, reports(80)}, {low, reports(53)}, {high, reports(443)}, {low, none}}
	if got, want := allZones(evaluators), (ovs.Zones{First: 0x4000, Last: 0x8fff}); got != want {
		t.Errorf("zones: got %v, want %v", got, want)
	}
	invalid := invalidOf(evaluators, false)
	for _, tc := range []struct {
		zone uint16
		to   string
		want bool
	}{
		{0x4002, "10.128.0.3:53", true}, {0x4002, "10.128.0.3:80", false}, {0x6002, "10.128.0.3:80", true}, {0x6002, "10.128.0.3:443", true}, {0x6002, "10.128.0.3:53", false},
	} {
		if got := invalid(tracked(tc.zone, protoTCP, "10.128.0.2:4000", tc.to)); got != tc.want {
			t.Errorf("zone %#x, to %s: invalid: got %v, want %v", tc.zone, tc.to, got, tc.want)
		}
	}
	if invalidOf([]zonesEvaluator{{low, none}}, true) != nil {
		t.Error("evaluators without invalid connections: got a function, want nil")
	}
}
