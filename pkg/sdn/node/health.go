package node

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/nodestatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// healthPeriod is the interval of health checks. The Node's condition reports an error that two checks found: a restart of Open vSwitch takes less time.
const healthPeriod = 5 * time.Second

// watchHealth writes the health of the node's parts to the Node's condition until the context ends. The message of a healthy node can change.
func (a *agent) watchHealth(ctx context.Context, healthy func() error, message func() string) {
	failures := 2 // report the result of the first check
	reported := ""
	wait.UntilWithContext(ctx, func(context.Context) {
		if err := healthy(); err != nil {
			if failures++; failures > 1 {
				a.condition.Set(nodestatus.Unavailable(err))
			}
			return
		}
		if now := message(); failures > 1 || now != reported {
			a.condition.Set(nodestatus.Available(now))
			reported = now
		}
		failures = 0
	}, healthPeriod)
}

// awaitFlows waits until the initial flows are installed. In the meantime it reports the error that delays them: else the Node's condition
// would still be that of the previous agent while vswitchd hangs.
func (a *agent) awaitFlows(ctx context.Context, flows *flowstore.Commit, healthy func() error) error {
	waiting, stop := context.WithCancel(ctx)
	var reporting sync.WaitGroup
	reporting.Go(func() {
		reported := false
		wait.UntilWithContext(waiting, func(context.Context) {
			err := healthy()
			if err == nil {
				return
			}
			a.cni.SetReason(err)
			a.condition.Set(nodestatus.Unavailable(err))
			if !reported {
				a.reporter.Warn(eventreason.NetworkWaiting, err)
				reported = true
			}
		}, healthPeriod)
	})
	err := flows.Wait(ctx)
	stop()
	reporting.Wait()
	return err
}

// flowsHealthy returns a function that returns the reason for which flows are not on the switch, and reports each new reason in an Event.
func (a *agent) flowsHealthy(st *flowstore.Store) func() error {
	var last reconcile.LastError
	return func() error {
		err := st.Healthy()
		if last.Set(err) {
			a.reporter.Warn(eventreason.NetworkFlowsRefused, err)
		}
		return err
	}
}

// joinErrors joins the errors of the node's parts. It omits that of tun0 if the bridge has one, which is its cause.
func joinErrors(bridge, tun error, others ...error) error {
	if bridge == nil {
		bridge = tun
	}
	return errors.Join(append([]error{bridge}, others...)...)
}
