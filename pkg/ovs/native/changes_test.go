package native_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func foreign(table int) func(native.Event) bool {
	return func(e native.Event) bool { return e.Kind == native.ForeignChange && e.Table == table }
}

// Changes of flows, groups and meters by other clients cause events, and those by the backend do not.
func TestNativeReportsForeignChanges(t *testing.T) {
	tier.Parallel(t)
	s, n := startNative(t)
	events := watch(t, n)
	_, err := n.Missing(t.Context(), nil) // begins a session
	must(t, err)
	session := n.Session()
	own := func() {
		added := flow(20, 1, "10.0.0.1/32", ovs.ThroughMeter(1), ovs.ToGroup(5))
		tx := n.NewTransaction()
		tx.SetMeter(ovs.Meter{ID: 1, Unit: ovs.Packets, Rate: 100})
		tx.SetGroup(ovs.Group{ID: 5, Buckets: []ovs.Bucket{{Actions: []ovs.Action{goovs.Output(1)}}}})
		tx.Add(added)
		must(t, n.Run(t.Context(), tx))
		tx = n.NewTransaction()
		tx.Delete(added)
		tx.DeleteGroup(5)
		tx.DeleteMeter(1)
		must(t, n.Run(t.Context(), tx))
	}
	for _, tc := range []struct {
		change []string
		table  int
	}{
		{[]string{"add-flow", ovstest.Bridge, "table=30,actions=drop"}, 30},
		{[]string{"mod-flows", ovstest.Bridge, "table=30,actions=output:1"}, 30},
		{[]string{"del-flows", ovstest.Bridge, "table=30"}, 30},
		{[]string{"add-meter", ovstest.Bridge, "meter=7,pktps,band=type=drop,rate=5"}, native.NoTable},
		{[]string{"mod-meter", ovstest.Bridge, "meter=7,pktps,band=type=drop,rate=6"}, native.NoTable},
		{[]string{"del-meters", ovstest.Bridge}, native.NoTable},
		{[]string{"add-group", ovstest.Bridge, "group_id=7,type=all,bucket=actions=drop"}, native.NoTable},
		{[]string{"mod-group", ovstest.Bridge, "group_id=7,type=select,bucket=actions=drop"}, native.NoTable},
		{[]string{"-O", "OpenFlow15", "insert-buckets", ovstest.Bridge, "group_id=7,command_bucket_id=last,bucket=bucket_id:9,actions=drop"}, native.NoTable},
		{[]string{"del-groups", ovstest.Bridge}, native.NoTable},
	} {
		s.OFCtl(t, tc.change...)
		e := next(t, events)
		if !foreign(tc.table)(e) {
			t.Errorf("%q: got event %+v, want a foreign change of table %d", tc.change, e, tc.table)
		}
		own()
	}
	s.OFCtl(t, "add-flow", ovstest.Bridge, "table=31,actions=drop")
	if e := next(t, events); !foreign(31)(e) {
		t.Errorf("got event %+v, want none of the backend's own changes", e)
	}
	if got := n.Session(); got != session {
		t.Errorf("got session %d, want the same session %d: vswitchd may have ended", got, session)
	}
}

// next returns the next foreign change.
func next(t *testing.T, events <-chan native.Event) (event native.Event) {
	t.Helper()
	expect(t, events, "a foreign change", func(e native.Event) bool { event = e; return e.Kind == native.ForeignChange })
	return event
}

// A switch that pauses the monitor because its output is not read may report too little.
func TestNativeReportsForeignChanges_paused(t *testing.T) {
	sent := false
	n, _ := playSwitch(t, func(m openflow.Message) ([]openflow.Message, bool) {
		answers, goOn := emptySwitch(m)
		if _, ok := m.(*openflow.FlowStatsRequest); ok && !sent {
			sent = true
			return append(answers, &openflow.FlowMonitorReply{Updates: []openflow.FlowUpdate{
				{Event: openflow.FlowAbbreviated, XID: 1}, {Event: openflow.FlowAdded, Table: 3}, {Event: openflow.FlowRemoved, Table: 3}, {Event: openflow.MonitorPaused},
			}}), goOn
		}
		return answers, goOn
	})
	events := watch(t, n)
	if _, err := n.DumpFlows(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, table := range []int{3, native.NoTable} {
		if e := next(t, events); !foreign(table)(e) {
			t.Errorf("got event %+v, want a foreign change of table %d", e, table)
		}
	}
}

// writeFlows writes a file of many flows of the table. Their reports exceed what vswitchd queues for a client that does not read. In one bundle: ovs-ofctl would
// wait for an answer to each flow, which takes longer than its time limit on a loaded machine.
func writeFlows(t *testing.T, table int) (file string) {
	t.Helper()
	var b strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&b, "table=%d,priority=%d,ip,nw_src=10.0.%d.%d,actions=load:%d->NXM_NX_REG0[],load:1->NXM_NX_REG1[],output:1\n", table, i+1, i>>8, i&255, i)
	}
	file = filepath.Join(t.TempDir(), "flows")
	must(t, os.WriteFile(file, []byte(b.String()), 0o600))
	return file
}

// Open vSwitch pauses the monitor of a client that does not read fast enough. Flows of a table without a monitor cause neither an event nor a pause.
func TestNativeReportsForeignChanges_monitoredTables(t *testing.T) {
	tier.Parallel(t)
	s := ovstest.Start(t)
	n := newNative(t, s)
	n.MonitorTables([]int{30, 31})
	connected, release, changes := make(chan struct{}, 1), make(chan struct{}), make(chan int, 1<<16)
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	t.Cleanup(func() { cancel(); watching.Wait() })
	watching.Go(func() {
		n.Watch(ctx, func(e native.Event) {
			switch e.Kind {
			case native.SwitchConnected:
				connected <- struct{}{}
			case native.ForeignChange:
				changes <- e.Table
				select {
				case <-release:
				case <-ctx.Done():
				}
			}
		})
	})
	must(t, n.EnsureBridge(t.Context(), bridge()))
	<-connected
	s.OFCtl(t, "--bundle", "add-flows", ovstest.Bridge, writeFlows(t, 64))
	s.OFCtl(t, "add-flow", ovstest.Bridge, "table=31,actions=drop")
	if table := <-changes; table != 31 { // from now on nothing is read
		t.Errorf("got a change of table %d, want 31", table)
	}
	s.OFCtl(t, "--bundle", "add-flows", ovstest.Bridge, writeFlows(t, 30))
	close(release)
	deadline := time.After(patience)
	for table := 30; table != native.NoTable; {
		select {
		case table = <-changes:
		case <-deadline:
			t.Fatalf("got no event of the paused monitor in %v", patience)
		}
	}
}
