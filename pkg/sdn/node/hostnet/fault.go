package hostnet

import (
	"sync"
	"time"
)

// fault is what keeps the host's settings from being right, if it lasts: one Sync may fail because another program holds iptables' lock,
// or Open vSwitch makes tun0 anew.
type fault struct {
	mu      sync.Mutex
	since   time.Time // the first failure in a row; zero: the last Sync did not fail
	lasting error
}

// note takes note of what a Sync came to. A failure lasts if an earlier one is so long ago, and none in between succeeded.
func (f *fault) note(err error, long time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case err == nil:
		f.since, f.lasting = time.Time{}, nil
	case f.since.IsZero():
		f.since = time.Now()
	case time.Since(f.since) >= long:
		f.lasting = err
	}
}

func (f *fault) get() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lasting
}
