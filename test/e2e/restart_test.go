package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/test/lab"
)

// Pods do not notice that the agent of their node is killed and started again, and new ones come up.
func TestAgentKilled(t *testing.T) {
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, node1, node2)
	began := time.Now()
	x.losesNothing(t, func() {
		for range 3 {
			x.killAgent(t, node1)
			x.observed(t, node1)
		}
	}, streamOf(x.a, x.c), streamOf(x.b, x.a))
	x.notWarned(t, began, "Node", node1, agentService)
	x.returnsTo(t, before)

	later := x.run(t, x.namespace, netexec("later", node1))[0]
	meet(t, later.netns, x.c.addr)
	if err := x.deletePod(t.Context(), x.namespace, later.name); err != nil {
		t.Fatal(err)
	}
	x.returnsTo(t, before)
}

// killAgent kills a node's agent without warning and returns when it runs again.
func (c *cluster) killAgent(t *testing.T, node string) {
	t.Helper()
	s, err := c.Service(node, agentService)
	if err != nil {
		t.Fatal(err)
	}
	status, err := s.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.service(t, node, agentService, (*lab.Service).Kill)
	eventually(t, programTime, "the agent is started again", func(ctx context.Context) error {
		now, err := s.Status(ctx)
		if err != nil {
			return err
		}
		if now.Starts == status.Starts || now.PID == 0 {
			return fmt.Errorf("it is %s: %s", now.State, now.LastEnd)
		}
		return nil
	})
}

// An agent that is killed while it sets pods up and takes them down leaves nothing behind in the end.
func TestAgentKilledAtWork(t *testing.T) {
	const pods, kills = 30, 3
	c := newCluster(t)
	c.settle(t)
	m := c.machine(t, node1)
	before := c.footprints(t, node1, node2)
	d := c.deploy(t, c.namespace(t))
	for _, wanted := range []int{pods, 0} {
		leases := len(c.footprints(t, node1)[node1].Leases)
		d.scale(t, wanted)
		for kill := range kills {
			eventually(t, waveTime, "the agent is at work", func(ctx context.Context) error {
				now, err := c.footprint(ctx, m)
				if err != nil {
					return err
				}
				if moved := max(leases-len(now.Leases), len(now.Leases)-leases); moved < 2*(kill+1) {
					return fmt.Errorf("it has done %d pods", moved)
				}
				return nil
			})
			c.killAgent(t, node1)
		}
		d.reaches(t, wanted)
	}
	c.returnsTo(t, before)
}

// What happened to nodes while an agent was down it learns when it starts.
func TestAgentMissesNodes(t *testing.T) {
	x := newTrio(t)
	x.settle(t)
	known := func(node string, want bool, addr, subnet string) func(context.Context) error {
		return func(ctx context.Context) error {
			flows, err := x.dumpFlows(ctx, node, "-O", "OpenFlow13")
			if err != nil {
				return err
			}
			for table, text := range map[string]string{"10": "tun_src=" + addr + " ", "50": "arp_tpa=" + subnet + " ", "90": "nw_dst=" + subnet + " ", "111": addr + "->tun_dst"} {
				has := slices.ContainsFunc(tableOf(flows, table), func(f string) bool { return strings.Contains(f, text) })
				if has != want {
					err = errors.Join(err, fmt.Errorf("a flow with %q in table %s: %v, want %v", text, table, has, want))
				}
			}
			return err
		}
	}

	x.service(t, node1, agentService, (*lab.Service).Stop)
	t.Cleanup(func() { x.service(t, node1, agentService, (*lab.Service).Start) })
	before := x.footprints(t, node1)[node1]
	added := x.addNode(t)
	addr, subnet := x.addr(t, added).String(), x.subnet(t, added).String()
	eventually(t, syncTime, node2+" knows "+added, known(node2, true, addr, subnet))
	if diff := cmp.Diff(before, x.footprints(t, node1)[node1]); diff != "" {
		t.Errorf("%s, whose agent is stopped, changed:\n%s", node1, diff)
	}

	x.service(t, node1, agentService, (*lab.Service).Start)
	eventually(t, syncTime, node1+" knows "+added, known(node1, true, addr, subnet))
	d := x.run(t, x.namespace, netexec("d", added))[0]
	meet(t, x.a.netns, d.addr)

	x.service(t, node1, agentService, (*lab.Service).Stop)
	x.leave(t, d, added)
	eventually(t, syncTime, node2+" forgets "+added, known(node2, false, addr, subnet))
	x.service(t, node1, agentService, (*lab.Service).Start)
	eventually(t, syncTime, node1+" forgets "+added, known(node1, false, addr, subnet))
	if diff := cmp.Diff(before, x.footprints(t, node1)[node1]); diff != "" {
		t.Errorf("%s is not as before (-before +now):\n%s", node1, diff)
	}
}
