package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/seed"
)

// fineInterval is how finely a gap shows in what must have none.
const fineInterval = time.Millisecond

// restartsVariable sets how often TestAgentRestartIsHitless restarts an agent, and how often it kills one. restartsDefault is for make test.
const (
	restartsVariable = "OVSDN_TEST_RESTARTS"
	restartsDefault  = 8
)

func fineStreamOf(from, to pod) stream {
	s := streamOf(from, to)
	s.every = fineInterval
	return s
}

// While the agent of one node is restarted, killed at any time, or replaced by one with other tables, no packet between pods on two nodes is lost or
// duplicated, and connections continue.
func TestAgentRestartIsHitless(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: asserts that no packet of a ping each millisecond is lost")
	}
	restarts := fixture.Repetitions(t, restartsVariable, restartsDefault)
	x := newTrio(t)
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	talks := []*conversation{talk(t, x.a.End(), x.c.End()), talk(t, x.a.End(), x.b.End())}

	t.Run("restart", func(t *testing.T) {
		const together = 2 // a short stretch is one that the machine gets through without a drop
		for range restarts / together {
			x.losesNothing(t, func() {
				for range together {
					x.service(t, fixture.Node1, agentService, (*lab.Service).Restart)
					x.serves(t, fixture.Node1)
				}
			}, fineStreamOf(x.a, x.c))
		}
	})
	t.Run("kill", func(t *testing.T) {
		const together = 2
		const startTime = 1500 * time.Millisecond // the agent's start on a busy machine
		rng := seed.Rand(t)
		for range restarts / together {
			x.losesNothing(t, func() {
				for range together {
					x.killAgent(t, fixture.Node1)
					after := time.Duration(rng.Int64N(int64(startTime)))
					pause(t, after)
				}
			}, fineStreamOf(x.a, x.c))
		}
		x.serves(t, fixture.Node1)
	})
	t.Run("other tables", func(t *testing.T) {
		changed := buildChanged(t, toTaken())
		x.losesNothing(t, func() {
			restore := x.replaceAgent(t, fixture.Node1, changed)
			x.serves(t, fixture.Node1)
			x.hasTable(t, fixture.Node1, addedTable, true)
			restore()
			x.serves(t, fixture.Node1)
			x.hasTable(t, fixture.Node1, addedTable, false)
		}, fineStreamOf(x.a, x.c))
	})
	for _, c := range talks {
		c.goesOn(t)
		c.ends(t)
	}
	x.returnsTo(t, before)
}

// pause returns after a while, or when the test ends.
func pause(t *testing.T, d time.Duration) {
	t.Helper()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-t.Context().Done():
		t.Fatal(t.Context().Err())
	}
}

// serves waits until the agent that runs now serves pods.
func (c *cluster) serves(t *testing.T, node string) {
	t.Helper()
	fixture.Eventually(t, fixture.ProgramTime, "the agent of "+node+" serves", func(ctx context.Context) error {
		_, err := c.TryOutput(ctx, node, "sh", "-c", cniStatus)
		return err
	})
}

// cniStatus asks the agent as the container runtime does.
const cniStatus = `echo '{"cniVersion":"1.1.0","name":"ovsdn","type":"ovsdn-cni"}' | CNI_COMMAND=STATUS CNI_PATH=/opt/cni/bin /opt/cni/bin/ovsdn-cni`
