package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// routeCheckInterval is the interval of checks of the host's routes. Each lists all, of which a router may have a hundred thousand that change all the time: the check
// follows no events.
const routeCheckInterval = time.Minute

// routeCheck reports routes that other programs add while the network runs, and that take packets of pods. Wider ones take none: only an agent that starts refuses them.
type routeCheck struct {
	overlap func() error // a *hostnet.OverlapError, or why the routes can't be read
	warn    func(reason string, err error)

	last   reconcile.LastError // overlaps
	unread reconcile.LastError // failures to read the routes
}

func newRouteCheck(network *config.Network, warn func(reason string, err error)) *routeCheck {
	return &routeCheck{overlap: func() error { return hostnet.CheckMoreSpecific(prefixesOf(network), network.ServiceNetwork) }, warn: warn}
}

// run checks the routes until the context ends.
func (c *routeCheck) run(ctx context.Context) {
	wait.UntilWithContext(ctx, c.check, routeCheckInterval)
}

// check lists the routes, and writes an Event for each new overlap. If they can't be listed, the previous result remains.
func (c *routeCheck) check(ctx context.Context) {
	err := c.overlap()
	if _, overlaps := errors.AsType[*hostnet.OverlapError](err); err != nil && !overlaps {
		if c.unread.Set(err) {
			klog.FromContext(ctx).Error(err, "Failed to check the host's routes", "retryAfter", routeCheckInterval)
		}
		return
	}
	_ = c.unread.Set(nil)
	if err != nil {
		err = fmt.Errorf("a route of another program takes packets of pods or services: %w", err)
	}
	if c.last.Set(err) {
		c.warn(eventreason.RouteOverlap, err)
	}
}

// healthy returns the overlaps that the last check found, nil if there were none.
func (c *routeCheck) healthy() error { return c.last.Get() }
