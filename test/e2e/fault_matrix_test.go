package e2e

import (
	"context"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// allFaultsVariable has every fault injected both while the agent runs and while it is away; without it each fault is injected once.
const allFaultsVariable = "OVSDN_E2E_ALL_FAULTS"

// podsPerCell is how many pods come and go in a cell, for each of which the userspace datapath may lose a ping.
const podsPerCell = 2

// regainTime is the longest time that pods may have no network after the agent can repair a fault: from the fault on, or from the agent's start.
const regainTime = 60 * time.Second

// fault is a fault of node1, or of an object in the API.
type fault struct {
	name string
	away bool // without allFaultsVariable, inject it while the agent is stopped, not while it runs

	prepare func(*testing.T, *faultMatrix) // before the agent is stopped; nil: nothing
	inject  func(*testing.T, *faultMatrix)
	undo    func(*testing.T, *faultMatrix) // what the user does; nil: the agent repairs the fault by itself
	// visible returns where the user sees the fault with kubectl. No fault is silent.
	visible func(m *faultMatrix, away bool) []report
	// waits returns why a new pod does not start before undo; nil: it does.
	waits func(m *faultMatrix, away bool) *report
	// lossless: the fault costs pods no packet.
	lossless bool
}

// report is an Event or a condition with that reason, if one is given, and with all of the words in its message.
type report struct {
	kind, name string
	reason     string // "": any
	words      []string
}

// faultMatrix has the pods that run during all faults: a and b on node1, where faults are injected, and c on node2.
type faultMatrix struct {
	*cluster
	namespace string
	node      machine
	a, b, c   pod
	began     time.Time // of the current fault
	undone    time.Time // zero: not yet, or nothing to undo
	brief     bool      // pods regain their network and connections continue, but pings are not counted
	victim    string    // a pod that loses its network for good, "" if there is none

	victimVeth string
	count      int // names new pods

	subnets map[string]string // of nodes, before their HostSubnets became invalid
	netID   uint32            // of the namespace, before its NetNamespace became invalid
}

// testFaults injects one fault after the other, with the agent running and stopped. Running pods retain or regain their network, new pods start
// or report why not, nothing leaks, and an Event or a condition reports the fault.
func testFaults(t *testing.T, c *cluster) {
	m := &faultMatrix{cluster: c, namespace: c.Namespace(t), node: c.Machine(t, fixture.Node1), subnets: map[string]string{}}
	m.start(t)
	all := os.Getenv(allFaultsVariable) != ""
	for _, f := range faults() {
		for _, away := range []bool{false, true} {
			if !all && away != f.away {
				continue
			}
			name := f.name + " while the agent runs"
			if away {
				name = f.name + " while the agent is away"
			}
			if t.Run(name, func(t *testing.T) { m.test(t, f, away) }) {
				continue
			}
			if !t.Run("restart after "+name, func(t *testing.T) { m.restart(t, f) }) {
				return
			}
		}
	}
}

// start starts the pods a, b and c.
func (m *faultMatrix) start(t *testing.T) {
	t.Helper()
	// Flows of the services of an earlier test would go while a cell compares flows.
	fixture.Eventually(t, fixture.PodTime, "no namespace is terminating", func(ctx context.Context) error {
		list, err := m.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range list.Items {
			if n.DeletionTimestamp != nil {
				return fmt.Errorf("namespace %s is", n.Name)
			}
		}
		return nil
	})
	pods := m.Run(t, m.namespace, fixture.Netexec("a", fixture.Node1), fixture.Netexec("b", fixture.Node1), fixture.Netexec("c", fixture.Node2))
	m.a, m.b, m.c = pods[0], pods[1], pods[2]
	fixture.Meet(t, m.a.NetNS, m.b.Addr)
	fixture.Meet(t, m.a.NetNS, m.c.Addr)
}

// test injects a fault and checks the four outcomes.
func (m *faultMatrix) test(t *testing.T, f fault, away bool) {
	before := m.state(t)
	idle := m.connections(t)
	if m.brief {
		m.pass(t, f, away, before)
		echo(t, idle)
		return
	}
	var repairable time.Time
	pass := func() { repairable = m.pass(t, f, away, before) }
	streams := []stream{streamOf(m.a, m.c), streamOf(m.a, m.b), streamOf(m.c, m.b)}
	if f.lossless {
		m.losesNothingLasting(t, podsPerCell, pass, streams...)
	} else {
		m.losesUntil(t, pass, func() time.Time { return repairable.Add(regainTime) }, streams)
	}
	echo(t, idle)
}

// echo sends a byte in both directions of each connection.
func echo(t *testing.T, all []connection) {
	t.Helper()
	t.Run("connections", func(t *testing.T) {
		for _, c := range all {
			c.echo(t)
		}
	})
}

// pass injects the fault once and returns the time from which the agent could repair it.
func (m *faultMatrix) pass(t *testing.T, f fault, away bool, before map[string]footprint) time.Time {
	t.Helper()
	m.began, m.undone = time.Now(), time.Time{}
	m.count++
	later := fmt.Sprintf("later-%d", m.count)
	if f.prepare != nil {
		f.prepare(t, m)
	}
	if away {
		m.service(t, fixture.Node1, agentService, (*lab.Service).Stop)
	}
	f.inject(t, m)
	if away {
		m.service(t, fixture.Node1, agentService, (*lab.Service).Start)
	}
	repairable := time.Now()
	for _, r := range f.visible(m, away) {
		t.Run("visible", func(t *testing.T) { m.reported(t, r) })
	}
	t.Run("new pod", func(t *testing.T) {
		m.Create(t, m.namespace, fixture.Netexec(later, fixture.Node1))
		m.startsOrWaits(t, f, away, later)
		m.undo(t, f)
		p := m.Ready(t, m.namespace, later)
		if p.Addr == m.a.Addr || p.Addr == m.b.Addr {
			t.Errorf("pod %s has the address %s of another pod", p.Name, p.Addr)
		}
		fixture.Meet(t, p.NetNS, m.b.Addr)
		fixture.Meet(t, m.c.NetNS, p.Addr)
	})
	m.undo(t, f) // also if there was no new pod
	t.Run("running pods", func(t *testing.T) {
		fixture.Meet(t, m.a.NetNS, m.b.Addr)
		fixture.Meet(t, m.a.NetNS, m.c.Addr)
		fixture.Meet(t, m.c.NetNS, m.b.Addr)
	})
	t.Run("nothing leaks", func(t *testing.T) {
		for _, name := range []string{later, m.victim} {
			if name == "" {
				continue
			}
			if err := m.DeletePod(t.Context(), m.namespace, name); err != nil {
				t.Error(err)
			}
		}
		m.victim = ""
		m.stateReturns(t, before)
	})
	if m.undone.After(repairable) {
		return m.undone
	}
	return repairable
}

// startsOrWaits waits until the new pod is ready or, for a fault with waits, reports why it does not start. It reads the API only: on the node
// ovs-vsctl may not work.
func (m *faultMatrix) startsOrWaits(t *testing.T, f fault, away bool, name string) {
	t.Helper()
	if f.waits != nil {
		if r := f.waits(m, away); r != nil {
			r.name = name
			m.reported(t, *r)
			return
		}
	}
	fixture.Eventually(t, fixture.PodTime, "pod "+name+" is ready", func(ctx context.Context) error {
		p, err := m.Kube.CoreV1().Pods(m.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || fixture.IsReady(p) {
			return err
		}
		return m.Explain(ctx, p)
	})
}

func (m *faultMatrix) undo(t *testing.T, f fault) {
	t.Helper()
	if f.undo != nil && m.undone.IsZero() {
		f.undo(t, m)
		m.undone = time.Now()
	}
}

// restart starts the agent and new pods after a cell that failed.
func (m *faultMatrix) restart(t *testing.T, f fault) {
	t.Helper()
	m.undo(t, f)
	m.victim = ""
	m.service(t, fixture.Node1, agentService, (*lab.Service).Start)
	if err := m.DeletePods(t.Context(), m.namespace); err != nil {
		t.Fatal(err)
	}
	m.start(t)
}

// losesUntil fails if a ping that was sent after the deadline is lost, but for losses beside those of the control stream.
func (m *faultMatrix) losesUntil(t *testing.T, do func(), deadline func() time.Time, streams []stream) {
	t.Helper()
	m.unlessDropped(t, func() (losses []string) {
		for _, l := range m.measure(t, do, streams) {
			if gap := longest(l.times); gap > 0 {
				t.Logf("pings %s were lost for %v", l.name, gap)
			}
			late := slices.DeleteFunc(l.times, func(at time.Time) bool { return at.Before(deadline()) })
			if len(late) > 0 {
				losses = append(losses, fmt.Sprintf("%d pings %s were lost after %v, the last at %v", len(late), l.name, regainTime,
					late[len(late)-1].Format(time.TimeOnly+".000")))
			}
		}
		return losses
	})
}

// connection is a TCP connection that is idle while a fault lasts.
type connection struct {
	name             string
	opener, acceptor net.Conn
}

func (m *faultMatrix) connections(t *testing.T) (all []connection) {
	t.Helper()
	for _, to := range []pod{m.b, m.c} {
		opener, acceptor := connect(t, m.a.End(), to.End(), 0)
		t.Cleanup(func() { opener.Close(); acceptor.Close() })
		all = append(all, connection{m.a.Name + " to " + to.Name, opener, acceptor})
	}
	return all
}

// echo sends a byte in both directions.
func (c connection) echo(t *testing.T) {
	t.Helper()
	for _, pair := range [][2]net.Conn{{c.opener, c.acceptor}, {c.acceptor, c.opener}} {
		buffer := make([]byte, 1)
		for _, conn := range pair {
			if err := conn.SetDeadline(time.Now().Add(fixture.PacketTime)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := pair[0].Write(buffer); err != nil {
			t.Errorf("write to the connection from %s: %v", c.name, err)
		}
		if _, err := pair[1].Read(buffer); err != nil {
			t.Errorf("read from the connection from %s: %v", c.name, err)
		}
	}
}

// state returns the footprints of both nodes, with the names of ports in place of their numbers: a rebuilt port may get another number.
func (m *faultMatrix) state(t *testing.T) map[string]footprint {
	t.Helper()
	all := map[string]footprint{}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		f, err := m.named(t.Context(), m.Machine(t, node))
		if err != nil {
			t.Fatal(err)
		}
		all[node] = f
	}
	return all
}

func (m *faultMatrix) stateReturns(t *testing.T, want map[string]footprint) {
	t.Helper()
	nodes := map[string]machine{fixture.Node1: m.Machine(t, fixture.Node1), fixture.Node2: m.Machine(t, fixture.Node2)}
	fixture.Eventually(t, fixture.ProgramTime, "the nodes are as before", func(ctx context.Context) error {
		for name, node := range nodes {
			now, err := m.named(ctx, node)
			if err != nil {
				return err
			}
			if diff := cmp.Diff(want[name], now); diff != "" {
				return fmt.Errorf("%s (-before +now):\n%s", name, diff)
			}
		}
		return nil
	})
}

// numberPattern matches the places of a flow that hold a port's number.
func numberPattern() *regexp.Regexp {
	return regexp.MustCompile(`(in_port=|output:|load:)(0x[0-9a-f]+|[0-9]+)(->NXM_NX_REG2\[\]|,| |$)`)
}

func (m *faultMatrix) named(ctx context.Context, node machine) (footprint, error) {
	f, err := m.footprint(ctx, node)
	if err != nil {
		return f, err
	}
	out, err := m.TryOutput(ctx, node.Name, "ovs-vsctl", "--bare", "--no-headings", "--format=csv", "--columns=ofport,name", "list", "Interface")
	if err != nil {
		return f, err
	}
	names := map[int64]string{}
	for line := range strings.Lines(out) {
		number, name, _ := strings.Cut(strings.TrimSpace(line), ",")
		if n, err := strconv.ParseInt(number, 10, 32); err == nil && strings.HasPrefix(name, "veth") {
			names[n] = name
		}
	}
	pattern := numberPattern()
	for i, flow := range f.Flows {
		f.Flows[i] = pattern.ReplaceAllStringFunc(flow, func(match string) string {
			part := pattern.FindStringSubmatch(match)
			n, err := strconv.ParseInt(part[2], 0, 32)
			if name, ok := names[n]; ok && err == nil {
				return part[1] + name + part[3]
			}
			return match
		})
	}
	slices.Sort(f.Flows)
	return f, nil
}
