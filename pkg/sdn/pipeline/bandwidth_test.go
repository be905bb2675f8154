package pipeline

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func TestBandwidthMeter(t *testing.T) {
	const second = 1000 // kilobits at 1 Mbit/s
	for limit, want := range map[uint64]struct{ rate, burst uint32 }{
		1e3:  {1, 525},
		1001: {2, 525},
		1e6:  {second, 525},
		1e7:  {10 * second, 5 * second},
		1e9:  {1e6, 5e5},
		2e9:  {2e6, 1e6},
		1e10: {1e7, 1e6},
		1e12: {1e8, 1e6},
		1e15: {1e8, 1e6},
	} {
		m := bandwidthMeter(7, limit)
		if m.Rate != want.rate || m.Burst != want.burst || m.Unit != ovs.Kilobits || m.ID != 7 {
			t.Errorf("limit %d: got meter %+v, want rate %d and burst %d", limit, m, want.rate, want.burst)
		}
		if m.Burst*1000/m.Rate == 0 {
			t.Errorf("limit %d: the bucket of meter %+v is never filled again", limit, m)
		}
	}
}

func TestBandwidthOf(t *testing.T) {
	n := balancing(inMode(config.ModeMultitenant))
	var meters []ovs.Meter
	want := map[int]config.Bandwidth{3: {Ingress: 1e6, Egress: 2e6}, 4: {Egress: 5e9}, 5: {}, 0xffff: {Ingress: 1e3}}
	for port, limits := range want {
		meters = append(meters, n.Pod(Pod{OFPort: port, MAC: config.MAC(hairpinPod()), Bandwidth: limits, Policies: PodPolicies{Evaluated: true, Logged: true}}).Meters...)
	}
	for port, limits := range want {
		if got := BandwidthOf(meters, port); got != limits {
			t.Errorf("port %d: got %+v, want %+v", port, got, limits)
		}
	}
}
