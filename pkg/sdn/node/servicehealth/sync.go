package servicehealth

import "time"

// maxPending is how long a change may wait for the switch while the node is in sync. A restart of Open vSwitch takes less.
const maxPending = 2 * time.Minute

// nodeSync evaluates whether the node is in sync with the services. All flows count: one writer sends those of services in the order of all changes.
type nodeSync struct {
	flows Flows
	rules Rules // nil: the host translates no external addresses
	now   func() time.Time
}

// syncState is the state at a time.
type syncState struct {
	healthy bool
	at      time.Time
	updated time.Time // the last successful write to the switch; zero: none
}

// state returns the current state. The node is healthy once the initial flows and the host's rules are installed, while no change waits for the switch for
// maxPending. Flows that the switch rejected are not pending, and rules that the kernel refuses after the first ones do not count: a Service of a tenant must not take
// the node from all load balancers. A comparison of the flows each minute finds a vswitchd that does not answer.
func (s nodeSync) state() syncState {
	statistics, now := s.flows.Statistics(), s.now()
	pending := statistics.PendingSince
	return syncState{
		healthy: s.translates() && !statistics.LastWrite.IsZero() && (pending.IsZero() || now.Sub(pending) < maxPending),
		at:      now,
		updated: statistics.LastWrite,
	}
}

// translates reports whether the host sends packets to external addresses to the switch. Without that, the node serves pods only.
func (s nodeSync) translates() bool { return s.rules != nil && s.rules.Synced() }
