// Package apihealth observes whether the API server answers a client.
package apihealth

import (
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// failureThreshold is the time for which reads must fail before the API server counts as unreachable: a restart of it takes less.
const failureThreshold = 10 * time.Second

// Monitor records the results of a client's reads; informers repeat a failed read until it succeeds. An unreachable API server can be reported
// neither on the Node nor in an Event, and kubelet may still reach it, by another address and with other permissions.
type Monitor struct {
	mu       sync.Mutex
	failures int // failed reads since the last success
	since    time.Time
	err      error // of the last failed read
}

// Wrap returns a round tripper that records the results of reads. It is a transport.WrapperFunc.
func (m *Monitor) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{next, m} }

// Err returns since when and why the API server does not answer, nil if it answers.
func (m *Monitor) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	// A single failed read may be one that is not repeated.
	if m.failures < 2 || time.Since(m.since) < failureThreshold {
		return nil
	}
	return fmt.Errorf("the API server has not answered since %s (--kube-apiserver); this node does not get changes of the cluster, "+
		"and its existing flows stay: %w", m.since.UTC().Format(time.RFC3339), m.err)
}

func (m *Monitor) record(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.failures, m.err = 0, nil
		return
	}
	if m.failures == 0 {
		m.since = time.Now()
	}
	m.failures++
	m.err = err
}

// transport records the results of reads.
type transport struct {
	http.RoundTripper

	monitor *Monitor
}

// RoundTrip implements http.RoundTripper.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.RoundTripper.RoundTrip(req)
	switch {
	case req.Method != http.MethodGet || req.Context().Err() != nil: // writes may not be repeated; the agent itself ended the others
	case err != nil:
		t.monitor.record(err)
	case resp.StatusCode == http.StatusUnauthorized || resp.StatusCode >= http.StatusInternalServerError:
		t.monitor.record(errors.New(resp.Status))
	default:
		t.monitor.record(nil)
	}
	return resp, err
}

// WrappedRoundTripper returns the inner round tripper, whose connections client-go closes.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }
