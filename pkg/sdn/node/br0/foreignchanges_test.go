package br0

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/linkmtu"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/zonelimits"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// contents returns the bridge's flows, groups and meters, and its settings; an error if vswitchd does not answer.
func contents(ctx context.Context, sw *ovstest.Switch) (string, error) {
	var lines []string
	for _, args := range [][]string{
		{"ovs-ofctl", "-O", "OpenFlow14", "--no-stats", "--no-names", "dump-flows", Name},
		{"ovs-ofctl", "-O", "OpenFlow14", "dump-groups", Name},
		{"ovs-ofctl", "-O", "OpenFlow14", "dump-meters", Name},
		{"ovs-vsctl", "--columns=fail_mode,protocols", "list", "bridge", Name},
	} {
		out, err := sw.Command(ctx, args[0], args[1:]...).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%q: %w: %s", args, err, out)
		}
		for line := range strings.Lines(string(out)) {
			if !strings.Contains(line, "(xid=") {
				lines = append(lines, line)
			}
		}
	}
	slices.Sort(lines) // groups have no order
	return strings.Join(lines, ""), nil
}

// repairedHost is a bridge with the flows, groups and meters of three services, which is repaired after events only.
type repairedHost struct {
	*host
	store *flowstore.Store
	want  string // contents
	group string // one of the groups
}

func newRepairedHost(t *testing.T) *repairedHost {
	t.Helper()
	h := &repairedHost{host: newHost(t)}
	h.bridge.MonitorTables(MonitoredTables())
	hostSubnet := &config.HostSubnet{Node: "node1", Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.2.0/23")}}
	f := New(h.bridge, ovs.DatapathNetdev, &config.Network{VXLANPort: config.DefaultVXLANPort}, hostSubnet, hostnet.NewTun0(hostnet.Tun0Config{}), linkmtu.MTU{Link: 1450})
	must(t, f.Ensure(t.Context()))
	h.store = flowstore.New(h.bridge)
	var written []*flowstore.Commit
	for n := range 3 {
		written = append(written, h.store.Set(pipeline.Owner{Kind: pipeline.KindService, Key: fmt.Sprint(n)}, pipeline.State{
			Flows: []*ovs.Flow{
				{Table: 60, Priority: 10 + n, Actions: []ovs.Action{ovs.ThroughMeter(uint32(n + 1)), pipeline.ToGroup("web")}},
				{Table: 0, Priority: 10 + n, Actions: []ovs.Action{ovs.ThroughMeter(uint32(n + 1)), ovs.GotoTable(60)}},
			},
			Groups: []pipeline.Group{{Name: "web", Buckets: []ovs.Bucket{{Weight: n + 1, Actions: []ovs.Action{goovs.Output(7)}}}}},
			Meters: []ovs.Meter{{ID: uint32(n + 1), Unit: ovs.Packets, Rate: 100}},
		}))
	}
	runRepair(t, f, h.store)
	must(t, flowstore.WaitAll(t.Context(), written))
	var err error
	h.want, err = contents(t.Context(), h.Switch)
	must(t, err)
	h.group = groupOf(h.want)
	return h
}

// runRepair runs what an agent does to have the store's flows on the bridge, until the test ends. Only events cause a repair.
func runRepair(t *testing.T, f *Bridge, st *flowstore.Store) {
	t.Helper()
	reconciler := NewReconciler(f, nil, func(err error) { t.Error(err) }, func(message string) { t.Error(message) })
	reconciler.period = time.Hour
	repair := NewFlowRepair(st)
	ctx, stop := context.WithCancel(t.Context())
	var parts sync.WaitGroup
	t.Cleanup(func() { stop(); parts.Wait() })
	parts.Go(func() { _ = st.Run(ctx) })
	parts.Go(func() { reconciler.Run(ctx) })
	parts.Go(func() { repair.Run(ctx) })
	parts.Go(func() {
		f.bridge.Watch(ctx, OnEvent(st, reconciler, repair, zonelimits.New(f.bridge, pipeline.Node{}).Reset))
	})
}

// groupOf returns the number of a group in the contents of a bridge.
func groupOf(text string) string {
	_, rest, _ := strings.Cut(text, "group_id=")
	number, _, _ := strings.Cut(rest, ",")
	return number
}

// awaitRepair waits until the bridge has all of the desired state and nothing else.
func (h *repairedHost) awaitRepair(t *testing.T) {
	t.Helper()
	await.OK(t, await.SyncTime, func(ctx context.Context) error {
		got, err := contents(ctx, h.Switch)
		if err == nil && got != h.want {
			err = fmt.Errorf("got\n%s\nwant\n%s", got, h.want)
		}
		return err
	})
}

// foreignChange is a series of commands of another program.
type foreignChange struct {
	name     string
	complete bool // of the complete tier
	commands [][]string
}

func foreignChanges(group string) []foreignChange {
	flows := func(args ...string) []string { return append([]string{"ovs-ofctl", "-O", "OpenFlow15"}, args...) }
	settings := func(args ...string) []string { return append([]string{"ovs-vsctl", "--timeout=30"}, args...) }
	return []foreignChange{
		{name: "meters and fail mode", commands: [][]string{flows("del-meters", Name), settings("set-fail-mode", Name, "standalone")}},
		{name: "flows", commands: [][]string{flows("del-flows", Name)}},
		{name: "groups", commands: [][]string{flows("del-groups", Name)}},
		{name: "all", complete: true, commands: [][]string{flows("del-flows", Name), flows("del-groups", Name), flows("del-meters", Name)}},
		{name: "a changed flow", complete: true, commands: [][]string{flows("mod-flows", Name, "table=0,actions=drop")}},
		{name: "another flow", complete: true, commands: [][]string{flows("add-flow", Name, "table=0,priority=60000,actions=drop")}},
		{name: "a changed group", commands: [][]string{flows("mod-group", Name, "group_id="+group+",type=select,bucket=actions=drop")}},
		{name: "another bucket", commands: [][]string{flows("insert-buckets", Name, "group_id="+group+",command_bucket_id=last,bucket=bucket_id:9,actions=drop")}},
		{name: "another group", complete: true, commands: [][]string{flows("add-group", Name, "group_id=77,type=all,bucket=actions=drop")}},
		{name: "a changed meter", commands: [][]string{flows("mod-meter", Name, "meter=1,pktps,band=type=drop,rate=5")}},
		{name: "another meter", complete: true, commands: [][]string{flows("add-meter", Name, "meter=77,pktps,band=type=drop,rate=5")}},
		{name: "protocols", commands: [][]string{settings("set", "bridge", Name, "protocols=OpenFlow10,OpenFlow13")}},
		{name: "all protocols", complete: true, commands: [][]string{settings("clear", "bridge", Name, "protocols")}},
		{name: "a controller", complete: true, commands: [][]string{settings("set-controller", Name, "tcp:127.0.0.1:1")}},
		{name: "no controller", complete: true, commands: [][]string{settings("del-controller", Name)}},
	}
}

// Whatever another program deletes, changes or adds, the bridge has all of the desired state again.
func TestBridgeRepaired_foreignChanges(t *testing.T) {
	tier.Parallel(t)
	h := newRepairedHost(t)
	for _, change := range foreignChanges(h.group) {
		t.Run(change.name, func(t *testing.T) {
			if change.complete && testing.Short() {
				t.Skip("complete tier: the short one has one change of each kind")
			}
			for _, command := range change.commands {
				if out, err := h.Command(t.Context(), command[0], command[1:]...).CombinedOutput(); err != nil {
					t.Fatalf("%q: %v: %s", command, err, out)
				}
			}
			h.awaitRepair(t)
		})
	}
	if err := h.store.Healthy(); err != nil {
		t.Errorf("got error %v, want none", err)
	}
}
