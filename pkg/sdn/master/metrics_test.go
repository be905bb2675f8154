package master

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/egressassignment"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/netid"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/subnet"
	"github.com/ovsdn/ovsdn/test/metricsdoc"
)

// gather returns the value of each gauge.
func (m *controllerMetrics) gather(t *testing.T) map[string]float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, f := range families {
		values[f.GetName()] = f.GetMetric()[0].GetGauge().GetValue()
	}
	return values
}

func TestControllerMetrics(t *testing.T) {
	m := newControllerMetrics()
	if got := m.gather(t); got["ovsdn_controller_leader"] != 0 || len(got) == 0 {
		t.Errorf("got %v, want no leader", got)
	}
	if _, reported := m.gather(t)["ovsdn_controller_subnets_free"]; reported {
		t.Error("a controller that does not lead reports free subnets")
	}
	subnets := subnet.NewAllocator()
	networks := []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/20"), HostBits: 8}, {Prefix: netip.MustParsePrefix("10.129.0.0/22"), HostBits: 8}}
	if err := subnets.SetNetworks(networks, func([]subnet.Allocation) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if _, err := subnets.Allocate("node1"); err != nil {
		t.Fatal(err)
	}
	subnets.MarkAllocated("machine", netip.MustParsePrefix("10.129.0.0/23")) // two subnets
	vnids := netid.NewAllocator(0, func(uint32) uint32 { return 0 }, time.Now)
	for namespace, vnid := range map[string]config.VNID{"default": 0, "red": 100, "pink": 100, "blue": 101, "green": 102} {
		vnids.Set(namespace, vnid)
	}
	vnids.Release("green")
	m.term.Store(&termState{
		subnets: subnets.Usage, vnids: vnids.Usage,
		egressIPs: func() egressassignment.Usage {
			return egressassignment.Usage{Active: 7, Unused: 7, Conflict: 7, Unhosted: 7, Unreachable: 7}
		},
		failovers: func() uint64 { return 3 },
	})
	m.reconciles.Reconciled("hostsubnets", time.Second, errors.New("failed"))
	m.reconciles.Settled("hostsubnets", time.Second)
	got := m.gather(t)
	for name, want := range map[string]float64{
		"ovsdn_controller_leader": 1, "ovsdn_controller_subnets_free": 20 - 3, "ovsdn_controller_subnets_capacity": 20,
		"ovsdn_controller_vnids_used": 2, "ovsdn_controller_vnids_quarantined": 1, "ovsdn_controller_egress_ips": 7,
	} {
		if got[name] != want {
			t.Errorf("%s: got %v, want %v", name, got[name], want)
		}
	}
	metricsdoc.Check(t, "controller", m.registry)
}
