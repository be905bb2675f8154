package store

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// auditInterval is the time between two comparisons of the switch with the desired state, without which changes by other programs would remain. On an
// unchanged bridge a comparison is one dump and no write.
const auditInterval = time.Minute

// Drift returns the total of the differences that audits found and repaired: changes of the bridge by other programs. It does not count changes while Open
// vSwitch is unavailable, which has no flows when it starts.
func (s *Store) Drift() ovs.Difference {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drift
}

func (s *Store) requestAudit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resyncs++
	s.audited = s.resyncs
	signal(s.resync)
}

// auditing reports whether an audit is the only reason for the replacement: then the switch should equal the table.
func (s *Store) auditing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began == s.audited && s.synced == s.began-1
}

// audit applies the changes first, so that all further differences are changes by other programs.
func (s *Store) audit(ctx context.Context, changes []*change) (rest []*change, err error) {
	if len(changes) > 0 {
		if rest, err = s.apply(ctx, changes); err != nil {
			return rest, err
		}
	}
	_, found, err := s.replace(ctx, nil)
	if err != nil || found.Changes() == 0 {
		return rest, err
	}
	klog.FromContext(ctx).Info("Repaired flows that another program changed",
		"missing", found.Missing, "altered", found.Altered, "foreign", found.Foreign, "examples", found.Examples)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drift.Missing += found.Missing
	s.drift.Altered += found.Altered
	s.drift.Foreign += found.Foreign
	s.drift.Examples = found.Examples
	return rest, nil
}
