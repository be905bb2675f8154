package node

import (
	"context"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
)

// healthPeriod is how often the parts are asked. The Node says what was so twice: a restart of Open vSwitch takes less.
const healthPeriod = 5 * time.Second

// watchHealth keeps the Node's condition as the bridge is.
func (a *agent) watchHealth(ctx context.Context, healthy func() error, message string) {
	failures := 0
	if err := healthy(); err != nil {
		a.condition.set(unavailable(err))
		failures = 2
	} else {
		a.condition.set(available(message))
	}
	tick := time.NewTicker(healthPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch err := healthy(); {
		case err == nil && failures > 1:
			a.condition.set(available(message))
			fallthrough
		case err == nil:
			failures = 0
		default:
			if failures++; failures > 1 {
				a.condition.set(unavailable(err))
			}
		}
	}
}

// awaitFlows waits for the first flows to be on the switch, and says meanwhile what keeps them from it: a vswitchd that hangs would else
// leave a node that says what it said before the agent was started.
func (a *agent) awaitFlows(ctx context.Context, flows *store.Commit, healthy func() error) error {
	waiting, stop := context.WithCancel(ctx)
	var telling sync.WaitGroup
	telling.Go(func() {
		tick := time.NewTicker(healthPeriod)
		defer tick.Stop()
		told := false
		for {
			select {
			case <-waiting.Done():
				return
			case <-tick.C:
			}
			err := healthy()
			if err == nil {
				continue
			}
			a.door.explain(err)
			a.condition.set(unavailable(err))
			if !told {
				a.reporter.warn(reasonWaiting, err)
				told = true
			}
		}
	})
	err := flows.Wait(ctx)
	stop()
	telling.Wait()
	return err
}
