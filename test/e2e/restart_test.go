package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// A killed and restarted agent does not affect running pods, and starts new ones.
func TestAgentKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities kills an agent under a TCP conversation")
	}
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	began := time.Now()
	x.losesNothing(t, func() {
		for range 3 {
			x.killAgent(t, fixture.Node1)
			x.observed(t, fixture.Node1)
		}
	}, streamOf(x.a, x.c), streamOf(x.b, x.a))
	x.notWarned(t, began, "Node", fixture.Node1, agentService)
	x.returnsTo(t, before)

	later := x.Run(t, x.namespace, fixture.Netexec("later", fixture.Node1))[0]
	fixture.Meet(t, later.NetNS, x.c.Addr)
	if err := x.DeletePod(t.Context(), x.namespace, later.Name); err != nil {
		t.Fatal(err)
	}
	x.returnsTo(t, before)
}

// killAgent kills a node's agent without warning and returns when it runs again.
func (c *cluster) killAgent(t *testing.T, node string) {
	t.Helper()
	c.killAgents(t, node)
}

// killAgents kills the agents of the nodes at once, and returns when all run again.
func (c *cluster) killAgents(t *testing.T, nodes ...string) {
	t.Helper()
	before := map[string]int{}
	for _, node := range nodes {
		starts, err := c.agentStarts(t.Context(), node)
		if err != nil {
			t.Fatal(err)
		}
		before[node] = starts
		c.service(t, node, agentService, (*lab.Service).Kill)
	}
	for _, node := range nodes {
		fixture.Eventually(t, fixture.ProgramTime, "the agent of "+node+" is started again", func(ctx context.Context) error {
			starts, err := c.agentStarts(ctx, node)
			if err == nil && starts == before[node] {
				err = errors.New("it has not ended")
			}
			return err
		})
	}
}

// agentStarts returns how often a node's agent was started. The agent must run.
func (c *cluster) agentStarts(ctx context.Context, node string) (int, error) {
	s, err := c.Service(node, agentService)
	if err != nil {
		return 0, err
	}
	status, err := s.Status(ctx)
	if err == nil && status.PID == 0 {
		err = fmt.Errorf("the agent of %s is %s: %s", node, status.State, status.LastEnd)
	}
	return status.Starts, err
}

// An agent that is killed while it attaches and detaches pods leaves nothing behind in the end.
func TestAgentKilledAtWork(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: 30 pods, and an agent that is killed 6 times")
	}
	const pods, kills = 30, 3
	c := newCluster(t)
	c.settle(t)
	m := c.Machine(t, fixture.Node1)
	before := c.footprints(t, fixture.Node1, fixture.Node2)
	d := c.deploy(t, c.Namespace(t))
	for _, wanted := range []int{pods, 0} {
		leases := len(c.footprints(t, fixture.Node1)[fixture.Node1].Leases)
		d.scale(t, wanted)
		for kill := range kills {
			fixture.Eventually(t, waveTime, "the agent is at work", func(ctx context.Context) error {
				now, err := c.footprint(ctx, m)
				if err != nil {
					return err
				}
				if moved := max(leases-len(now.Leases), len(now.Leases)-leases); moved < 2*(kill+1) {
					return fmt.Errorf("it has done %d pods", moved)
				}
				return nil
			})
			c.killAgent(t, fixture.Node1)
		}
		d.reaches(t, wanted)
	}
	c.returnsTo(t, before)
}

// An agent that starts applies the changes of nodes that it missed.
func TestAgentMissesNodes(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: a node is added and removed; TestCapabilities does so while all agents run")
	}
	x := newTrio(t)
	x.settle(t)
	known := func(node string, want bool, addr, subnet string) func(context.Context) error {
		return func(ctx context.Context) error {
			flows, err := x.DumpFlows(ctx, node, "-O", "OpenFlow13")
			if err != nil {
				return err
			}
			for table, text := range map[string]string{"10": "tun_src=" + addr + ",nw_src=" + subnet + " ", "50": "arp_tpa=" + subnet + ",", "90": "nw_dst=" + subnet + " ", "111": addr + "->tun_dst"} {
				has := slices.ContainsFunc(fixture.TableOf(flows, table), func(f string) bool { return strings.Contains(f, text) })
				if has != want {
					err = errors.Join(err, fmt.Errorf("a flow with %q in table %s: %v, want %v", text, table, has, want))
				}
			}
			return err
		}
	}

	x.service(t, fixture.Node1, agentService, (*lab.Service).Stop)
	t.Cleanup(func() { x.service(t, fixture.Node1, agentService, (*lab.Service).Start) })
	before := x.footprints(t, fixture.Node1)
	added := x.addNode(t)
	addr, subnet := x.Addr(t, added).String(), x.Subnet(t, added).String()
	fixture.Eventually(t, fixture.SyncTime, fixture.Node2+" knows "+added, known(fixture.Node2, true, addr, subnet))
	x.returnsTo(t, before) // its agent is stopped

	x.service(t, fixture.Node1, agentService, (*lab.Service).Start)
	fixture.Eventually(t, fixture.SyncTime, fixture.Node1+" knows "+added, known(fixture.Node1, true, addr, subnet))
	d := x.Run(t, x.namespace, fixture.Netexec("d", added))[0]
	fixture.Meet(t, x.a.NetNS, d.Addr)

	x.service(t, fixture.Node1, agentService, (*lab.Service).Stop)
	x.leave(t, d, added)
	fixture.Eventually(t, fixture.SyncTime, fixture.Node2+" deletes the flows of "+added, known(fixture.Node2, false, addr, subnet))
	x.service(t, fixture.Node1, agentService, (*lab.Service).Start)
	fixture.Eventually(t, fixture.SyncTime, fixture.Node1+" deletes the flows of "+added, known(fixture.Node1, false, addr, subnet))
	x.returnsTo(t, before)
}
