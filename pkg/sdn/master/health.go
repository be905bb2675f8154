package master

import (
	"errors"
	"sync"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/ovsdn/ovsdn/pkg/sdn/probes"
)

// leaseGrace is how long after the end of its lease a leader may still think that it leads before it is taken for
// stuck: it should have stopped before the end.
const leaseGrace = 2 * leaseDuration

// health is what probes ask: /healthz fails when the process is stuck and a restart helps, /readyz as long as it neither
// works nor stands by for a leader that does. Both answer from memory.
type health struct {
	mu      sync.Mutex
	elector *leaderelection.LeaderElector // of now; nil: no leader election
	leading bool
	missing string // what the leader waits for
}

func (h *health) follow(e *leaderelection.LeaderElector) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.elector = e
}

// lead notes that this controller leads but waits for something; "": for nothing.
func (h *health) lead(missing string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.leading, h.missing = true, missing
}

func (h *health) resign() {
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
