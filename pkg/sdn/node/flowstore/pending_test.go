package flowstore

import (
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
)

// wantPending waits until changes are pending, and returns since when; want false: until none are.
func (s *Store) wantPending(t *testing.T, when string, want bool) (since time.Time) {
	t.Helper()
	eventually(t, when, func() bool {
		since = s.Statistics().PendingSince
		return since.IsZero() != want
	})
	return since
}

// Later changes and failed attempts do not change since when the store is behind; a success of all does.
func TestStatistics_pendingSince(t *testing.T) {
	f := newFake(t)
	entered, release := hold(f)
	s := start(t, f)
	<-entered
	first := s.wantPending(t, "the first replacement is pending", true)
	queued := s.Set(pod("a"), flows(flow(1, goovs.Output(1))))
	if got := s.wantPending(t, "with a change", true); !got.Equal(first) {
		t.Errorf("with a later change: got pending since %v, want %v", got, first)
	}
	release()
	must(t, queued)
	s.wantPending(t, "all is written", false)

	f.SetUnavailable(true)
	before := time.Now()
	s.Set(pod("b"), flows(flow(2, goovs.Output(1))))
	since := s.wantPending(t, "Open vSwitch does not answer", true)
	if since.Before(before) {
		t.Errorf("got pending since %v, before the change at %v", since, before)
	}
	eventually(t, "a failed write", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.failure != nil })
	if got := s.wantPending(t, "after a failed write", true); !got.Equal(since) {
		t.Errorf("after a failed write: got pending since %v, want %v", got, since)
	}
	f.SetUnavailable(false)
	s.Resync() // ends the pause
	s.wantPending(t, "Open vSwitch answers again", false)
}

// pendingAudits receives since when changes are pending, at the end of each audit that succeeds, before the store records that.
type pendingAudits struct {
	noObserver
	store *Store
	since chan time.Time
}

func (p *pendingAudits) Written(w Write, _ time.Duration, err error) {
	if w == WriteAudit && err == nil {
		p.since <- p.store.Statistics().PendingSince
	}
}

// An audit is not pending; one that fails is, since the state of the switch is unknown then.
func TestStatistics_pendingAudit(t *testing.T) {
	f := newFake(t)
	s := New(f)
	audits := &pendingAudits{store: s, since: make(chan time.Time, 100)}
	s.Observe(audits)
	run(t, s)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	s.wantPending(t, "all is written", false)
	s.Audit()
	if since := <-audits.since; !since.IsZero() {
		t.Errorf("during an audit: got pending since %v, want none", since)
	}
	s.wantPending(t, "an audit succeeded", false)
	s.FlowsLost()
	s.wantPending(t, "flows lost", true)
	s.Resync()
	s.wantPending(t, "flows restored", false)
	f.SetUnavailable(true)
	s.Audit()
	s.wantPending(t, "an audit failed", true)
	f.SetUnavailable(false)
	s.Resync()
	s.wantPending(t, "flows compared", false)
}

// The switch answers: a flow that it rejects is not pending.
func TestStatistics_rejectedIsNotPending(t *testing.T) {
	f := newFake(t)
	f.RefuseFlow = rejectPort(13)
	s := start(t, f)
	if err := await(t, s.Set(pod("a"), flows(flow(1, goovs.Output(13))))); err == nil {
		t.Error("got no error, want the rejection")
	}
	s.wantPending(t, "the flow was rejected", false)
}

func TestPending_end(t *testing.T) {
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	for name, tc := range map[string]struct {
		before                      pending
		again, unknown, replacement bool
		want                        time.Time
	}{
		"all written":                            {before: pending{writing: at(1), replaced: at(2)}, replacement: true},
		"a change arrived during the write":      {before: pending{writing: at(1), queued: at(20)}, want: at(20)},
		"changes are queued again":               {before: pending{writing: at(1), queued: at(20)}, again: true, unknown: true, want: at(1)},
		"a failure without changes":              {unknown: true, want: at(10)},
		"a failed replacement":                   {before: pending{replaced: at(2)}, unknown: true, want: at(2)},
		"a request during a replacement":         {before: pending{replaced: at(2)}, unknown: true, replacement: true, want: at(10)},
		"a request during the write of a change": {before: pending{writing: at(1), replaced: at(12)}, unknown: true, want: at(12)},
	} {
		p := tc.before
		if p.end(at(10), tc.again, tc.unknown, tc.replacement); !p.since().Equal(tc.want) {
			t.Errorf("%s: got pending since %v, want %v", name, p.since(), tc.want)
		}
	}
}
