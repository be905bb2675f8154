package node

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// problemCheckInterval is the interval of checks of what other programs change on the host, and of which the kernel reports no change, or too many.
const problemCheckInterval = time.Minute

// problemCheck looks for a problem on the host at intervals, and reports it when it appears or changes.
type problemCheck struct {
	subject string                                             // what is checked, for the log
	find    func(ctx context.Context) (problem, failure error) // failure: why it can't be found out
	reason  string                                             // of the Event
	effect  string                                             // of the problem, for the Node's condition; "": none
	warn    func(reason string, err error)

	problem reconcile.LastError
	failure reconcile.LastError
}

// run checks the host until the context ends.
func (c *problemCheck) run(ctx context.Context) {
	wait.UntilWithContext(ctx, c.check, problemCheckInterval)
}

// check writes a log line and an Event for each new problem, and a log line when the problem has ended. After a failure the previous result remains.
func (c *problemCheck) check(ctx context.Context) {
	log := klog.FromContext(ctx).WithValues("check", c.subject)
	problem, failure := c.find(ctx)
	if ctx.Err() != nil {
		return
	}
	if c.failure.Set(failure) {
		log.Error(failure, "Failed to run host check", "retryAfter", problemCheckInterval)
	}
	if failure != nil {
		return
	}
	if problem == nil && c.problem.Get() != nil {
		log.Info("Host check passed again")
	}
	if c.problem.Set(problem) {
		log.Error(problem, "Host check failed")
		c.warn(c.reason, problem)
	}
}

// healthy returns the problem that the last check found, nil if there was none.
func (c *problemCheck) healthy() error { return c.problem.Get() }

// condition returns the effect of the problem, after a comma, for the Node's condition; "" without a problem.
func (c *problemCheck) condition() string {
	if c == nil || c.effect == "" || c.problem.Get() == nil {
		return ""
	}
	return ", " + c.effect
}
