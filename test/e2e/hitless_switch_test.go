package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
	labmachine "github.com/ovsdn/ovsdn/test/lab/machine"
)

// The processes of Open vSwitch on a node, and the task that gives the node its address on the underlay.
const (
	vswitchdService = "ovs-vswitchd"
	databaseService = "ovsdb-server"
	underlayTask    = "underlay"
)

// Flows and ports are restored after a restart of ovs-vswitchd, without a restart of the agent; connections continue. It takes no longer than a bare
// Open vSwitch that saves its flows and restores them as ovs-ctl does: both are measured alternately on the same node, with the same flows and pods.
func TestVSwitchdRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: compares gaps with those of a bare Open vSwitch")
	}
	const turns, limit = 5, 1.2
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	starts := x.starts(t, fixture.Node1, agentService)
	talks := []*conversation{talk(t, x.a.End(), x.c.End()), talk(t, x.a.End(), x.b.End())}
	bare := x.newBare(t, fixture.Node1)
	var ours, its []time.Duration
	for range turns {
		ours = append(ours, x.gap(t, func() { x.service(t, fixture.Node1, vswitchdService, (*lab.Service).Restart) }))
		x.restoreUnderlay(t, fixture.Node1)
		x.returnsTo(t, before)
	}
	if now := x.starts(t, fixture.Node1, agentService); now != starts {
		t.Errorf("the agent was started %d times in the meantime", now-starts)
	}
	bare.takeOver(t)
	for range turns {
		its = append(its, x.gap(t, func() { bare.restart(t) }))
	}
	bare.handBack(t)
	x.restoreUnderlay(t, fixture.Node1)
	x.returnsTo(t, before)
	for _, c := range talks {
		c.goesOn(t)
		c.ends(t)
	}
	// Other load of the machine can only increase a gap.
	least, floor := slices.Min(ours), slices.Min(its)
	t.Logf("gap while ovs-vswitchd restarts: %v; of a bare Open vSwitch with ovs-save: %v; least %v and %v, ratio %.2f", ours, its, least, floor,
		float64(least)/float64(floor))
	if float64(least) > limit*float64(floor) {
		t.Errorf("the gap is %v, more than %v times the bare one of %v", least, limit, floor)
	}
}

// A switch without flows forwards no packet wrongly: packets of a pod with a forged address arrive nowhere, however often ovs-vswitchd restarts or
// is killed.
func TestVSwitchdForwardsNothingWrong(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities restarts ovs-vswitchd")
	}
	testForwardsNothingWrong(t, newTrio(t), (*lab.Service).Restart, (*lab.Service).Kill, (*lab.Service).Restart)
}

// testForwardsNothingWrong sends forged packets while ovs-vswitchd is restarted in these ways.
func testForwardsNothingWrong(t *testing.T, x *trio, restarts ...func(*lab.Service, context.Context) error) {
	x.settle(t)
	before := x.footprints(t, fixture.Node1)
	all := watchers(t, []pod{x.b, x.c}, []machine{x.node1, x.node2, x.outside})
	inject, err := x.a.NetNS.Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer inject.Close()
	var frames [][]byte
	for _, to := range []pod{x.b, x.c} {
		frames = append(frames, wire.Ethernet(to.MAC, x.a.MAC, wire.TypeIPv4,
			wire.UDPPacket(netip.AddrPortFrom(netip.MustParseAddr("10.128.99.99"), 7), netip.AddrPortFrom(to.Addr, 7), token("false address"))))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var sender sync.WaitGroup
	sender.Go(func() {
		tick := time.NewTicker(fineInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			for _, f := range frames {
				if err := inject.Resend(f); err != nil && !errors.Is(err, os.ErrClosed) {
					t.Error(err)
					return
				}
			}
			<-tick.C
		}
	})
	for _, restart := range restarts {
		x.service(t, fixture.Node1, vswitchdService, restart)
		x.reconnected(t, fixture.Node1)
		x.restoreUnderlay(t, fixture.Node1)
	}
	cancel()
	sender.Wait()
	for _, to := range []pod{x.b, x.c} {
		legitimate := wire.Ethernet(to.MAC, x.a.MAC, wire.TypeIPv4,
			wire.UDPPacket(netip.AddrPortFrom(x.a.Addr, 7), netip.AddrPortFrom(to.Addr, 7), token("legitimate")))
		saw(t, all, "pod "+to.Name, "legitimate", func() error { return inject.Resend(legitimate) })
	}
	noneSaw(t, all, []string{"false address"})
	x.returnsTo(t, map[string]footprint{fixture.Node1: before[fixture.Node1]})
}

// ovsdb-server restarts or is killed, and afterwards the agent sets up pods as before. On the kernel datapath no packet is lost. A vswitchd with
// the userspace datapath processes no packets without a database, also without ovsdn: only connections continue.
func TestDatabaseRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities restarts ovs-vswitchd only")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	starts := x.starts(t, fixture.Node1, agentService)
	talks := []*conversation{talk(t, x.a.End(), x.c.End())}
	for i, do := range []func(*lab.Service, context.Context) error{(*lab.Service).Restart, (*lab.Service).Kill} {
		restart := func() {
			x.service(t, fixture.Node1, databaseService, do)
			x.reconnected(t, fixture.Node1)
			x.serves(t, fixture.Node1)
		}
		if x.Shape().Datapath == lab.Netdev {
			x.gap(t, restart)
		} else {
			x.losesNothing(t, restart, fineStreamOf(x.a, x.c))
		}
		name := fmt.Sprintf("later-%d", i)
		later := x.Run(t, x.namespace, fixture.Netexec(name, fixture.Node1))[0]
		fixture.Meet(t, later.NetNS, x.c.Addr)
		if err := x.DeletePod(t.Context(), x.namespace, name); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range talks {
		c.goesOn(t)
		c.ends(t)
	}
	if now := x.starts(t, fixture.Node1, agentService); now != starts {
		t.Errorf("the agent was started %d times in the meantime", now-starts)
	}
	x.returnsTo(t, before)
}

// Changes of the bridge's ports by another program are repaired without another change: the node is not set up again.
func TestPortsComeBack(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities deletes the bridge and a port")
	}
	x := newTrio(t)
	x.settle(t)
	veth := x.port(t, x.a)
	for _, tc := range []struct {
		name    string
		command []string
	}{
		{"vxlan0 deleted", []string{"del-port", "vxlan0"}},
		{"vxlan0 of another type", []string{"set", "Interface", "vxlan0", "options:remote_ip=192.0.2.77"}},
		{"tun0 deleted", []string{"del-port", "tun0"}},
		{"a pod's port deleted", []string{"del-port", veth}},
		{"a pod's port has another number", []string{"set", "Interface", veth, "ofport_request=4242"}},
		{"the bridge deleted", []string{"del-br", "br0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := x.setUps(t, fixture.Node1)
			x.Output(t, fixture.Node1, append([]string{"ovs-vsctl", "--timeout=20"}, tc.command...)...)
			for _, to := range []end{x.b.End(), x.c.End(), {Name: "the node itself", NetNS: x.a.NetNS, Addr: x.a.Gateway()}} {
				fixture.Eventually(t, fixture.PodTime, "reach "+to.Name, func(ctx context.Context) error {
					ctx, cancel := context.WithTimeout(ctx, time.Second)
					defer cancel()
					return x.a.NetNS.Ping(ctx, to.Addr, wire.Echo{})
				})
			}
			if diff := cmp.Diff(before, x.setUps(t, fixture.Node1)); diff != "" {
				t.Errorf("the node was set up again (-before +now):\n%s", diff)
			}
		})
	}
}

// setUps returns how often each Event has reported that a node's network is ready, by the Event's UID.
func (c *cluster) setUps(t *testing.T, node string) map[types.UID]int32 {
	t.Helper()
	events, err := c.Kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + node + ",reason=NetworkReady"})
	if err != nil {
		t.Fatal(err)
	}
	counts := map[types.UID]int32{}
	for _, e := range events.Items {
		counts[e.UID] = e.Count
	}
	return counts
}

// port is the name of a pod's port.
func (c *cluster) port(t *testing.T, p pod) string {
	t.Helper()
	name := strings.TrimSpace(c.Output(t, p.Node, "ovs-vsctl", "--bare", "--columns=name", "find", "Interface", "external_ids:ip="+p.Addr.String()))
	if name == "" {
		t.Fatalf("pod %s has no port", p.Name)
	}
	return name
}

// starts is how often a process of a machine has been started.
func (c *cluster) starts(t *testing.T, machine, name string) int {
	t.Helper()
	s, err := c.Service(machine, name)
	if err != nil {
		t.Fatal(err)
	}
	status, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return status.Starts
}

// gap runs the function while pings flow between two nodes, and returns how long none came through.
func (x *trio) gap(t *testing.T, do func()) time.Duration {
	t.Helper()
	pings, err := x.a.NetNS.PingEvery(t.Context(), fineInterval, x.c.Addr)
	if err != nil {
		t.Fatal(err)
	}
	do()
	fixture.Eventually(t, fixture.SyncTime, "pings pass again", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return x.a.NetNS.Ping(ctx, x.c.Addr, wire.Echo{})
	})
	sent, lost, err := pings.Stop()
	if err != nil {
		t.Fatal(err)
	}
	gap := longest(lost)
	t.Logf("of %d pings %d were lost, the gap was %v", sent, len(lost), gap)
	return gap
}

// longest is the longest time in which pings were lost. Single ones that got through do not end it.
func longest(lost []time.Time) (gap time.Duration) {
	const together = 100 * time.Millisecond
	for i := 0; i < len(lost); {
		j := i
		for j+1 < len(lost) && lost[j+1].Sub(lost[j]) < together {
			j++
		}
		gap = max(gap, lost[j].Sub(lost[i])+fineInterval)
		i = j + 1
	}
	return gap
}

// reconnected waits until the node's Open vSwitch answers and has the agent's flows.
func (c *cluster) reconnected(t *testing.T, node string) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, "the switch of "+node+" has flows", func(ctx context.Context) error {
		flows, err := c.DumpFlows(ctx, node, "-O", "OpenFlow13")
		if err == nil && len(flows) == 0 {
			err = errors.New("it has none")
		}
		return err
	})
}

// restoreUnderlay adds the lab's route to the other nodes to a restarted vswitchd, which stores it in memory.
func (c *cluster) restoreUnderlay(t *testing.T, node string) {
	t.Helper()
	c.runTask(t, node, underlayTask)
}

// runTask runs a task of a node's machine again and waits for its end.
func (c *cluster) runTask(t *testing.T, node, task string) {
	t.Helper()
	s, err := c.Service(node, task)
	if err != nil {
		t.Fatal(err)
	}
	c.service(t, node, task, (*lab.Service).Restart)
	fixture.Eventually(t, fixture.SyncTime, "task "+task+" of "+node+" has run", func(ctx context.Context) error {
		status, err := s.Status(ctx)
		if err == nil && status.State != labmachine.Up {
			err = fmt.Errorf("it is %s: %s", status.State, status.LastEnd)
		}
		return err
	})
}

// bare is a node's Open vSwitch without an agent, restarted in the way of ovs-ctl's restart: ovs-save writes a script that restores the
// flows, and vswitchd waits for that to have run.
type bare struct {
	*cluster
	node string
}

// Where the scripts are, on Debian and on Fedora, and where they work.
const (
	ovsScripts = "/usr/share/openvswitch/scripts"
	bareDir    = "/run/bare"
)

func (x *trio) newBare(t *testing.T, node string) *bare {
	t.Helper()
	if _, err := os.Stat(filepath.Join(ovsScripts, "ovs-save")); err != nil {
		t.Fatal(err)
	}
	return &bare{x.cluster, node}
}

// takeOver stops the agent and replaces vswitchd with a daemon without a supervisor, with the same flows.
func (b *bare) takeOver(t *testing.T) {
	t.Helper()
	b.service(t, b.node, agentService, (*lab.Service).Stop)
	t.Cleanup(func() { b.handBack(t) })
	b.Output(t, b.node, "sh", "-ec", bareSave)
	b.service(t, b.node, vswitchdService, (*lab.Service).Stop)
	b.Output(t, b.node, "sh", "-ec", bareStart)
}

func (b *bare) restart(t *testing.T) {
	t.Helper()
	b.Output(t, b.node, "sh", "-ec", bareSave+bareStop+bareStart)
}

// handBack starts the node's own processes again. It may be called twice.
func (b *bare) handBack(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.ProgramTime)
	defer cancel()
	s, err := b.Service(b.node, vswitchdService)
	if err != nil {
		t.Fatal(err)
	}
	status, err := s.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if status.State == labmachine.Stopped {
		if _, err := b.TryOutput(ctx, b.node, "sh", "-ec", bareStop); err != nil {
			t.Error(err)
		}
	}
	b.service(t, b.node, vswitchdService, (*lab.Service).Start)
	b.service(t, b.node, agentService, (*lab.Service).Start)
}

// The steps of ovs-ctl's restart, without its waits of a tenth of a second and more. ovs-save does not save meters, without which flows are refused.
const (
	bareSave = `
mkdir -p ` + bareDir + `
ovs-ofctl -O OpenFlow13 dump-meters br0 | sed -n '/^meter=/{s/ stats//;s/bands=$//;s/ /,/g;N;s/,*\n/,bands=/;s/bands= */bands=/;s/ /,/g;p}' |
  sed 's/^/ovs-ofctl -O OpenFlow13 add-meter br0 /' > ` + bareDir + `/meters
TMPDIR=` + bareDir + ` ` + ovsScripts + `/ovs-save save-flows $(ovs-vsctl --real list-br) > ` + bareDir + `/restore
`
	bareStop = `
pid=$(cat /var/run/openvswitch/ovs-vswitchd.pid)
kill $pid
while kill -0 $pid 2>/dev/null; do sleep 0.005; done
`
	bareStart = `
ovs-vsctl --no-wait set open_vswitch . other_config:flow-restore-wait=true
ovs-vswitchd unix:/var/run/openvswitch/db.sock --pidfile --detach --no-chdir -vconsole:off -vsyslog:off -vfile:off
sh ` + bareDir + `/meters
sh ` + bareDir + `/restore
ovs-vsctl --no-wait --if-exists remove open_vswitch . other_config flow-restore-wait=true
`
)
