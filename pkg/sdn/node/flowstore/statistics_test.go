package flowstore

import (
	"fmt"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// wantStatistics waits for the statistics: a commit may end before its write is counted.
func (s *Store) wantStatistics(t *testing.T, when string, want Statistics) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s: %+v", when, want), func() bool {
		return cmp.Equal(want, s.Statistics(), cmpopts.IgnoreFields(ovs.Difference{}, "Examples"), cmpopts.IgnoreFields(Statistics{}, "LastWrite", "LastAudit"))
	})
}

func TestStatistics(t *testing.T) {
	f := newFake(t)
	f.RefuseFlow = rejectPort(13)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)), flow(2, goovs.Output(1)))))
	must(t, s.Set(pod("b"), flows(flow(1, goovs.Output(1)), flow(3, goovs.Output(1))))) // shares a flow
	must(t, s.Set(pod("c"), pipeline.State{Meters: []ovs.Meter{{ID: 7, Unit: ovs.Packets, Rate: 1}}}))
	must(t, s.Set(pod("d"), balanced(9, "10.0.0.1")))
	s.wantStatistics(t, "installed", Statistics{Flows: 4, Groups: 1, Meters: 2})

	if err := await(t, s.Set(pod("e"), flows(flow(4, goovs.Output(13))))); err == nil {
		t.Error("rejected flow: got no error, want one")
	}
	if err := await(t, s.Set(pod("f"), flows(flow(3, goovs.Output(2))))); err == nil {
		t.Error("conflict: got no error, want one")
	}
	s.wantStatistics(t, "after failures", Statistics{Flows: 4, Groups: 1, Meters: 2, Refused: 2, Conflicts: 1, Rejections: 1})

	must(t, s.Delete(pod("a")))
	must(t, s.Delete(pod("d")))
	must(t, s.Delete(pod("e")))
	s.wantStatistics(t, "after deletions", Statistics{Flows: 2, Meters: 1, Refused: 1, Conflicts: 1, Rejections: 1})
}

func TestStatistics_drift(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	tx := f.NewTransaction()
	tx.Delete(flow(1))
	tx.Add(flow(5, goovs.Drop()))
	if err := f.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	s.Audit()
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(1)))))
	s.wantStatistics(t, "after an audit", Statistics{Flows: 2, Repairs: 1, Drift: ovs.Difference{Missing: 1, Foreign: 1}})
}

// durations counts the calls of an Observer.
type durations struct {
	mu    sync.Mutex
	calls map[string]int
}

func (d *durations) count(what string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		what += " failed"
	}
	d.calls[what]++
}

func (d *durations) Committed(_ time.Duration, err error)        { d.count("commit", err) }
func (d *durations) Written(w Write, _ time.Duration, err error) { d.count(string(w), err) }

func TestObserve(t *testing.T) {
	f := newFake(t)
	f.RefuseFlow = rejectPort(13)
	s := New(f)
	seen := &durations{calls: map[string]int{}}
	s.Observe(seen)
	first := s.Set(pod("a"), flows(flow(1, goovs.Output(1))))
	stop := run(t, s)
	must(t, first)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1))))) // changes nothing
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(1)))))
	s.Audit()
	must(t, s.Set(pod("d"), flows(flow(5, goovs.Output(1)))))
	if err := await(t, s.Set(pod("c"), flows(flow(4, goovs.Output(13))))); err == nil {
		t.Error("rejected flow: got no error, want one")
	}
	stop()
	if n := seen.calls["changes"]; n != 2 && n != 3 { // d is written by the audit, or before it
		t.Errorf("observed %d writes of changes, want 2 or 3", n)
	}
	delete(seen.calls, "changes")
	want := map[string]int{"commit": 3, "commit failed": 1, "all": 1, "audit": 1}
	if diff := cmp.Diff(want, seen.calls); diff != "" {
		t.Errorf("observed calls (-want +got):\n%s", diff)
	}
}
