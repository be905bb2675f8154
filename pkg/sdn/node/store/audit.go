package store

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// auditEvery is how often the switch is compared with what is desired though nothing changed: no longer than that lasts what
// others write to the bridge or take from it. On an unchanged bridge that is one dump and no write.
const auditEvery = time.Minute

// Drift returns how much all audits so far found on the bridge that others had written or taken away, and have repaired: the health of the
// node. What changes while Open vSwitch is away is not counted, since a switch that starts has nothing.
func (s *Store) Drift() ovs.Difference {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drift
}

func (s *Store) askForAudit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	s.audited = s.asked
	signal(s.resync)
}

// auditing reports whether the full replacement has no other reason than an audit: the switch should be as the table says.
func (s *Store) auditing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.began == s.audited && s.synced == s.began-1
}

// audit first applies the changes, so that all that is found then is others' work.
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
	klog.FromContext(ctx).Info("Others have changed the bridge; it is repaired",
		"missing", found.Missing, "altered", found.Altered, "foreign", found.Foreign, "examples", found.Examples)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drift.Missing += found.Missing
	s.drift.Altered += found.Altered
	s.drift.Foreign += found.Foreign
	s.drift.Examples = found.Examples
	return rest, nil
}
