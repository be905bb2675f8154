package unidling

import (
	"testing"
	"time"
)

// A leader ended after it had scaled a service, or a user scaled it by hand: the next leader ends that it is idled, without an Event and without another scale.
func TestController_leftovers(t *testing.T) {
	run(t, func(_ *testing.T, c *cluster) {
		c.idle("services", "shop", "web", web)
		c.idle("endpoints", "shop", "web", web)
		c.idle("services", "shop", "starts", web)
		c.ready("shop", "starts", false)
		c.idle("services", "shop", "sleeps", web)
		time.Sleep(maxWait) //nolint:forbidigo // of the bubble
		c.idle("services", "shop", "ends", web)
		c.ready("shop", "ends", true)
		c.conflict = true
		defer c.lead()()
		time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble
		c.wantTargets("services", "shop", "web")
		c.wantTargets("endpoints", "shop", "web")
		for _, service := range []string{"starts", "sleeps", "ends"} {
			c.wantTargets("services", "shop", service, "web")
		}
		c.wantReplicas(map[string]int32{"shop/deployments/web": 0, "shop/statefulsets/db": 0})
		c.wantEvents()
	})
}

// Services are read page by page.
func TestController_leftoverPages(t *testing.T) {
	run(t, func(_ *testing.T, c *cluster) {
		services := []string{"a", "b", "c"}
		for _, name := range services {
			c.idle("services", "shop", name, web)
			c.ready("shop", name, true)
		}
		c.paged = true
		time.Sleep(maxWait) //nolint:forbidigo // of the bubble
		defer c.lead()()
		for _, name := range services {
			c.wantTargets("services", "shop", name)
		}
	})
}
