package master

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/klog/v2"
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

// serve answers probes at the address until the context ends and stop returns. The address "0" is for nobody.
func (h *health) serve(ctx context.Context, address string) (stop func(), err error) {
	if address == "0" {
		return func() {}, nil
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("--healthz-bind-address: %w (give another, or 0 for none)", err)
	}
	mux := http.NewServeMux()
	for path, check := range map[string]func() error{"/healthz": h.healthy, "/readyz": h.ready} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) {
			if err := check(); err != nil {
				http.Error(w, err.Error(), http.StatusServiceUnavailable)
				return
			}
			fmt.Fprintln(w, "ok")
		})
	}
	server := &http.Server{Handler: mux, ReadTimeout: 5 * time.Second, WriteTimeout: 5 * time.Second}
	var running sync.WaitGroup
	running.Go(func() {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			klog.FromContext(ctx).Error(err, "Probes are not answered any more")
		}
	})
	return func() {
		_ = server.Close() // probes don't mind
		running.Wait()
	}, nil
}
