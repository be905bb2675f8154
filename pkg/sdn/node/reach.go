package node

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// unheardTime is how long reads from the API server must have failed before it counts: a restart of it takes less.
const unheardTime = 10 * time.Second

// reach knows whether the API server answers this agent, by how the agent's own reads end: caches read again until they can. That it does not
// can be said neither on the Node nor in an Event, and kubelet may still reach it, by another address and with other rights.
type reach struct {
	mu       sync.Mutex
	failures int // reads since the last that was answered
	since    time.Time
	why      error // of the last
}

// through has the reads of a client noted. It is a transport.WrapperFunc.
func (r *reach) through(next http.RoundTripper) http.RoundTripper { return &reader{next, r} }

// failing returns since when the API server has answered nothing, and why, nil if it answers.
func (r *reach) failing() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	// One read may have been of something that nobody reads again.
	if r.failures < 2 || time.Since(r.since) < unheardTime {
		return nil
	}
	return fmt.Errorf("the API server has answered nothing since %s (--kube-apiserver): what changes in the cluster does not get to this node, "+
		"and what is on the node goes on: %w", r.since.UTC().Format(time.RFC3339), r.why)
}

func (r *reach) note(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.failures, r.why = 0, nil
		return
	}
	if r.failures == 0 {
		r.since = time.Now()
	}
	r.failures++
	r.why = err
}

// reader notes how reads end.
type reader struct {
	http.RoundTripper

	reach *reach
}

// RoundTrip implements http.RoundTripper.
func (r *reader) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := r.RoundTripper.RoundTrip(req)
	switch {
	case req.Method != http.MethodGet || req.Context().Err() != nil: // writes may be given up, and so is what this agent has ended
	case err != nil:
		r.reach.note(err)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode >= http.StatusInternalServerError:
		r.reach.note(errors.New(resp.Status))
	default:
		r.reach.note(nil)
	}
	return resp, err
}

// WrappedRoundTripper lets client-go get at what is inside, to close its connections.
func (r *reader) WrappedRoundTripper() http.RoundTripper { return r.RoundTripper }
