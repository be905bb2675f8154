package servicehealth

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// maxPending is how long a change may wait for the switch while the node is in sync. A restart of Open vSwitch takes less.
const maxPending = 2 * time.Minute

// nodeSync evaluates whether the node is in sync with the services. All flows count: one writer sends those of services in the order of all changes.
type nodeSync struct {
	flows Flows
	rules Rules // nil: the host translates no external addresses
	now   func() time.Time

	last reconcile.LastError // that was logged
}

func newNodeSync(flows Flows, rules Rules) *nodeSync {
	return &nodeSync{flows: flows, rules: rules, now: time.Now}
}

// syncState is the state at a time.
type syncState struct {
	err     error // why the node is not healthy, for the log; nil: it is
	at      time.Time
	updated time.Time // the last successful write to the switch; zero: none
}

// The causes for which a node is not healthy.
var (
	errNoRules      = errors.New("the host does not support service rules: see Event ServiceLimited, and log line \"Host does not support service rules\"")
	errRulesPending = errors.New("the nftables rules of services are not written yet")
	errFlowsPending = errors.New("the initial flows are not written yet")
)

// state returns the current state, and logs it if it has changed. The node is healthy once the initial flows and the host's rules are installed, while no
// change waits for the switch for maxPending. Flows that the switch rejected are not pending, and rules that the kernel refuses after the first ones do not
// count: a Service of a tenant must not take the node from all load balancers. A comparison of the flows each minute finds a vswitchd that does not answer.
func (s *nodeSync) state(ctx context.Context) syncState {
	statistics, now := s.flows.Statistics(), s.now()
	state := syncState{at: now, updated: statistics.LastWrite}
	switch pending := statistics.PendingSince; {
	case s.rules == nil: // the node serves pods only
		state.err = errNoRules
	case !s.rules.Synced():
		state.err = errRulesPending
	case statistics.LastWrite.IsZero():
		state.err = errFlowsPending
	case !pending.IsZero() && now.Sub(pending) >= maxPending:
		state.err = fmt.Errorf("changes of flows have been waiting for Open vSwitch since %s", pending.UTC().Format(time.RFC3339))
	}
	if previous := s.last.Get(); s.last.Set(state.err) {
		klog.FromContext(ctx).Info("Node is not in sync: health checks of load balancers get 503", "reason", state.err)
	} else if previous != nil && state.err == nil {
		klog.FromContext(ctx).Info("Node is in sync again")
	}
	return state
}
