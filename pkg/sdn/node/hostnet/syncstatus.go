package hostnet

import (
	"sync"
	"time"
)

// syncStatus is the persistent failure of Sync. A single Sync can fail because another program holds the lock of iptables, or because Open vSwitch
// re-creates tun0.
type syncStatus struct {
	mu         sync.Mutex
	since      time.Time // of the first failure in a row; zero: the last Sync succeeded
	persistent error
}

// record records the result of a Sync. A failure is persistent if Sync has failed for the threshold.
func (s *syncStatus) record(err error, threshold time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.since, s.persistent = time.Time{}, nil
	case s.since.IsZero():
		s.since = time.Now()
	case time.Since(s.since) >= threshold:
		s.persistent = err
	}
}

func (s *syncStatus) err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.persistent
}
