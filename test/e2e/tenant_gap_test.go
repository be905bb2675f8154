package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// gapLimit is how long pods of a namespace on different nodes may be apart while its VNID changes.
const gapLimit = time.Second

// testTenantGap: pods of a namespace on two nodes reach each other again soon after its VNID has changed. Between two nodes a change fails closed:
// while only one has applied it, their pods do not reach each other.
func testTenantGap(t *testing.T, c *cluster) {
	const changes = 12
	namespace, other := c.Namespace(t), c.Namespace(t)
	pods := c.Run(t, namespace, fixture.Netexec("a", fixture.Node1), fixture.Netexec("b", fixture.Node2))
	fixture.Meet(t, pods[0].NetNS, pods[1].Addr)
	var gaps []time.Duration
	for n := range changes {
		change := []string{"join:" + other, "isolate"}[n%2]
		gaps = append(gaps, c.tenantGap(t, namespace, change, pods[0], pods[1]))
	}
	slices.Sort(gaps)
	longest := gaps[changes-1]
	t.Logf("of %d changes; pods of the namespace on two nodes are apart for %v median, %v at most", changes, gaps[changes/2], longest)
	if longest > gapLimit {
		t.Errorf("pods of one namespace were apart for %v, %v is allowed: %v", longest, gapLimit, gaps)
	}
}

// tenantGap makes a change while one pod pings the other, and returns how long no ping came through, but for those that the machine lost. The VNID must be
// one that no pod has.
func (c *cluster) tenantGap(t *testing.T, namespace, change string, from, to pod) time.Duration {
	t.Helper()
	var vnid uint32
	pings := streamOf(from, to)
	pings.every = fineInterval
	lost := c.measure(t, func() {
		c.ChangeNetwork(t, namespace, change)
		var err error
		if vnid, err = c.VNID(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
		for _, node := range []string{from.Node, to.Node} {
			c.isolates(t, node, vnid)
		}
		fixture.Meet(t, from.NetNS, to.Addr)
	}, []stream{pings})[0]
	if len(lost.times) == 0 {
		return 0
	}
	gap := lost.times[len(lost.times)-1].Sub(lost.times[0]) + fineInterval
	t.Logf("%s: VNID %d; apart for %v: %v", change, vnid, gap, lost)
	return gap
}

// isolates waits until a node has pods of the VNID, which is not 0.
func (c *cluster) isolates(t *testing.T, node string, vnid uint32) {
	t.Helper()
	want := fmt.Sprintf("priority=100,reg0=%#x,reg1=%#x ", vnid, vnid)
	fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("%s has pods of VNID %d", node, vnid), func(ctx context.Context) error {
		flows, err := c.DumpFlows(ctx, node, "-O", "OpenFlow13")
		if err != nil {
			return err
		}
		return hasFlow(flows, "80", want)
	})
}
