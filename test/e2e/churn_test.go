package e2e

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// Deleted pods leave nothing behind: no flow, port, device or address.
func TestChurn(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: 200 pods")
	}
	const waves, pods = 2, 100
	c := newCluster(t)
	c.settle(t)
	before := c.footprints(t, fixture.Node1, fixture.Node2)
	d := c.deploy(t, c.Namespace(t))
	for range waves {
		d.scale(t, pods)
		d.reaches(t, pods)
		// A sandbox that failed at first may still be on its way out.
		fixture.Eventually(t, fixture.PodTime, "each pod has one address and one port", func(context.Context) error {
			grown := 0
			for node, now := range c.footprints(t, fixture.Node1, fixture.Node2) {
				more := len(now.Leases) - len(before[node].Leases)
				if ports := len(now.Ports) - len(before[node].Ports); ports != more {
					return fmt.Errorf("%s has %d addresses more in use, but %d ports", node, more, ports)
				}
				grown += more
			}
			if grown != pods {
				return fmt.Errorf("%d pods use %d addresses", pods, grown)
			}
			return nil
		})
		d.scale(t, 0)
		d.reaches(t, 0)
		began := time.Now()
		c.returnsTo(t, before)
		t.Logf("the nodes are as before %.1fs later", time.Since(began).Seconds())
	}
}
