package native_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func exporter() *ovs.Exporter {
	return &ovs.Exporter{
		CollectorSet: 4739, ActiveTimeout: time.Minute, MaxFlows: 100,
		Collectors: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.10:4739"), netip.MustParseAddrPort("192.0.2.9:4740")},
	}
}

// exporterRows returns the rows of both tables, without UUIDs.
func exporterRows(t *testing.T, s *ovstest.Switch) []string {
	t.Helper()
	csv := []string{"--format=csv", "--no-headings"}
	rows := strings.Split(s.VSCtl(t, append(csv, "--columns=id,external_ids", "list", "Flow_Sample_Collector_Set")...)+
		s.VSCtl(t, append(csv, "--columns=targets,cache_active_timeout,cache_max_flows,other_config,external_ids", "list", "IPFIX")...), "\n")
	rows = slices.DeleteFunc(rows, func(row string) bool { return row == "" })
	slices.Sort(rows)
	return rows
}

// ownRow returns the UUID of the agent's row, and that of its exporter.
func ownRow(t *testing.T, s *ovstest.Switch) (row, exporter string) {
	t.Helper()
	ids := strings.Fields(s.VSCtl(t, "--bare", "--columns=_uuid,ipfix", "find", "Flow_Sample_Collector_Set", `external_ids:"ovsdn.io/owner"=ovsdn-node`))
	if len(ids) != 2 {
		t.Fatalf("got rows %q of the agent, want one", ids)
	}
	return ids[0], ids[1]
}

func TestNative_exporter(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	s.VSCtl(t, "--id=@bridge", "get", "bridge", ovstest.Bridge, "--", "--id=@other", "create", "IPFIX", `targets="192.0.2.1:1"`, "--",
		"create", "Flow_Sample_Collector_Set", "id=1", "bridge=@bridge", "ipfix=@other")
	ensure := func(want *ovs.Exporter, changes bool) {
		t.Helper()
		if changed, err := n.EnsureExporter(t.Context(), want); err != nil || changed != changes {
			t.Errorf("got changed %t, error %v, want %t", changed, err, changes)
		}
	}
	rows := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, exporterRows(t, s), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("rows (-want +got):\n%s", diff)
		}
	}
	const (
		others, other = `"[""192.0.2.1:1""]",[],[],{},{}`, "1,{}"
		set           = `4739,"{""ovsdn.io/owner""=ovsdn-node}"`
		both          = `"[""192.0.2.10:4739"", ""192.0.2.9:4740""]",60,100,{},"{""ovsdn.io/owner""=ovsdn-node}"`
		one           = `"[""192.0.2.10:4739""]",60,100,{},"{""ovsdn.io/owner""=ovsdn-node}"`
	)
	ensure(nil, false)
	ensure(exporter(), true)
	ensure(exporter(), false)
	rows(both, others, other, set)
	row, ipfix := ownRow(t, s)
	for _, change := range [][]string{
		{"set", "IPFIX", ipfix, "cache_max_flows=7"},
		{"set", "Flow_Sample_Collector_Set", row, "id=5"},
		{"clear", "Flow_Sample_Collector_Set", row, "ipfix"},
		{"destroy", "Flow_Sample_Collector_Set", row},
	} {
		s.VSCtl(t, change...)
		poll(t, "restored after "+strings.Join(change, " "), func() bool {
			changed, err := n.EnsureExporter(t.Context(), exporter())
			must(t, err)
			return changed
		})
		rows(both, others, other, set)
	}
	later := exporter()
	later.Collectors = later.Collectors[:1]
	ensure(later, true)
	rows(one, others, other, set)
	ensure(nil, true)
	rows(others, other)

	ensure(exporter(), true)
	must(t, n.DeleteBridge(t.Context(), bridge()))
	rows()
	if got := s.VSCtl(t, "--bare", "--columns=name", "list", "Bridge"); got != "" {
		t.Errorf("got bridges %q, want none: a row of samples refers to them", got)
	}
	if _, err := n.EnsureExporter(t.Context(), exporter()); !ovs.IsNoBridge(err) {
		t.Errorf("without the bridge: got %v, want that it does not exist", err)
	}
}

// Addresses that vswitchd would refuse, or interpret as something else.
func TestNative_invalidExporter(t *testing.T) {
	for name, change := range map[string]func(*ovs.Exporter){
		"no collectors":    func(e *ovs.Exporter) { e.Collectors = nil },
		"port 0":           func(e *ovs.Exporter) { e.Collectors[0] = netip.AddrPortFrom(e.Collectors[0].Addr(), 0) },
		"unspecified":      func(e *ovs.Exporter) { e.Collectors[0] = netip.MustParseAddrPort("0.0.0.0:4739") },
		"too long":         func(e *ovs.Exporter) { e.ActiveTimeout = ovs.MaxActiveTimeout + time.Second },
		"part of a second": func(e *ovs.Exporter) { e.ActiveTimeout = 1500 * time.Millisecond },
	} {
		e := exporter()
		change(e)
		if err := e.Validate(); err == nil {
			t.Errorf("%s: got no error", name)
		}
	}
}
