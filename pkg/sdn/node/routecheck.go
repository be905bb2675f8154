package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
)

// newRouteCheck returns the check for routes that other programs add while the network runs, and that take packets of pods. Wider ones take none: only an agent that
// starts refuses them. It lists all routes, of which a router may have a hundred thousand that change all the time.
func newRouteCheck(network *config.Network, warn func(reason string, err error)) *problemCheck {
	return routeCheck(func() error { return hostnet.CheckMoreSpecific(prefixesOf(network), network.ServiceNetwork) }, warn)
}

// routeCheck returns the check by a function that returns a *hostnet.OverlapError, or why the routes can't be read.
func routeCheck(overlap func() error, warn func(reason string, err error)) *problemCheck {
	find := func(context.Context) (problem, failure error) {
		err := overlap()
		if _, overlaps := errors.AsType[*hostnet.OverlapError](err); !overlaps {
			return nil, err
		}
		return fmt.Errorf("a route of another program takes packets of pods or services: %w", err), nil
	}
	return &problemCheck{subject: "routes", find: find, reason: eventreason.RouteOverlap, warn: warn}
}
