package node

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
)

// A route that is added while the agent runs makes the node unhealthy and causes one Event, until it is deleted. Routes that can't be read change nothing.
func TestRouteCheck(t *testing.T) {
	overlap, unread := errors.Join(&hostnet.OverlapError{What: "cluster network", Route: "10.130.4.0/24 dev eth0"}), errors.New("list the host's routes: no buffer space")
	var events []string
	var routes error
	c := routeCheck(func() error { return routes }, func(reason string, err error) { events = append(events, reason+" "+err.Error()) })
	event := eventreason.RouteOverlap + " a route of another program takes packets of pods or services: " + overlap.Error()
	for _, step := range []struct {
		name      string
		routes    error
		isHealthy bool
		events    []string
	}{
		{"none", nil, true, nil},
		{"unread at first", unread, true, nil},
		{"added", overlap, false, []string{event}},
		{"remains", overlap, false, []string{event}},
		{"unread", unread, false, []string{event}},
		{"deleted", nil, true, []string{event}},
		{"added again", overlap, false, []string{event, event}},
	} {
		routes = step.routes
		c.check(t.Context())
		if err := c.healthy(); (err == nil) != step.isHealthy {
			t.Errorf("%s: got %v, want healthy %v", step.name, err, step.isHealthy)
		}
		if diff := cmp.Diff(step.events, events); diff != "" {
			t.Errorf("%s: Events (-want +got):\n%s", step.name, diff)
		}
	}
}

// The routes are listed once in the interval, however often the health is asked for.
func TestRouteCheck_interval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lists := 0
		c := routeCheck(func() error { lists++; return nil }, nil)
		go c.run(t.Context())
		for range 100 {
			time.Sleep(problemCheckInterval / 10) //nolint:forbidigo // the bubble's clock
			_ = c.healthy()
		}
		synctest.Wait()
		if lists != 11 {
			t.Errorf("got %d lists of the routes in 10 intervals, want 11", lists)
		}
	})
}
