package master

import (
	"errors"
	"sync"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/ovsdn/ovsdn/pkg/sdn/probes"
)

// leaseGrace is how long a leader may work beyond the end of its lease until /healthz fails: it must have stopped before that end.
const leaseGrace = 2 * leaseDuration

// health serves the probes: /healthz fails if the process is stuck and a restart helps. /readyz fails unless this controller leads with
// an accepted ClusterNetwork, or knows the leader. Both answer without I/O.
type health struct {
	mu      sync.Mutex
	elector *leaderelection.LeaderElector // current; nil: no leader election
	leading bool
	missing string // the dependency that the leader waits for; "": none
}

func (h *health) setElector(e *leaderelection.LeaderElector) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.elector = e
}

// setLeading records that this controller leads, and the dependency that it waits for; "": none.
func (h *health) setLeading(missing string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading, h.missing = true, missing
}

func (h *health) stopLeading() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading, h.missing = false, ""
}

func (h *health) healthy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.elector == nil {
		return nil
	}
	return h.elector.Check(leaseGrace)
}

func (h *health) ready() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.leading && h.missing != "":
		return errors.New("waiting for " + h.missing)
	case h.leading:
		return nil
	case h.elector == nil || h.elector.GetLeader() == "":
		return errors.New("waiting for the API server and a leader")
	}
	return nil
}

func (h *health) checks() probes.Checks {
	return probes.Checks{"/healthz": h.healthy, "/readyz": h.ready}
}
