package flowstore

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
// vSwitch or its database is unavailable, and those found after Open vSwitch deleted flows by itself: when it starts, and when its fail mode changes.
func (s *Store) Drift() ovs.Difference {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.drift
}

// OnDrift has report called, by the goroutine of Run, with each difference that is added to Drift. It must be called before Run; report must not block.
func (s *Store) OnDrift(report func(ovs.Difference)) { s.onDrift = report }

// Audit requests a comparison of the switch with the desired state, whose differences are repaired, and another attempt to install rejected states. It is
// called after a change by another program.
func (s *Store) Audit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tryRefused()
	s.resyncs++
	signal(s.resync)
}

// auditing reports whether audits are the only reason for the replacement: then the switch should equal the table.
func (s *Store) auditing() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.synced >= s.required
}

// audit compares the switch with the table, and then applies the changes: flows may need groups and meters that another program deleted.
func (s *Store) audit(ctx context.Context, changes []*change) (rest []*change, err error) {
	if err := s.repair(ctx); err != nil {
		return changes, err
	}
	return s.applyRepaired(ctx, changes)
}

// repair makes the switch equal to the table, and counts the differences.
func (s *Store) repair(ctx context.Context) error {
	_, found, err := s.replace(ctx, nil)
	if err == nil && found.Changes() > 0 && s.countDrift(ctx, found) && s.onDrift != nil {
		s.onDrift(found)
	}
	return err
}

// countDrift adds differences to the total if they are changes by other programs, and reports whether they are. OpenFlow and OVSDB are two connections: the
// event of a flush that caused the differences may arrive after them.
func (s *Store) countDrift(ctx context.Context, found ovs.Difference) (isDrift bool) {
	err := s.bridge.AwaitEvents(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	log := klog.FromContext(ctx).WithValues("missing", found.Missing, "altered", found.Altered, "foreign", found.Foreign, "examples", found.Examples)
	switch {
	case err != nil:
		log.Info("Repaired flows that Open vSwitch or another program changed", "err", err)
		return false
	case s.required > s.began:
		log.Info("Restored flows that Open vSwitch deleted")
		return false
	}
	log.Info("Repaired flows that another program changed")
	s.counters.Repairs++
	s.drift.Add(found)
	return true
}
