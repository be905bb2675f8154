package flowstore

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"k8s.io/apimachinery/pkg/util/wait"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/seed"
)

// loseMeter deletes a meter, and with it the flows that use it, as another program does.
func loseMeter(t testing.TB, f *ovs.Fake, id uint32) {
	t.Helper()
	foreign := f.NewTransaction()
	foreign.DeleteMeter(id)
	if err := f.Run(context.Background(), foreign); err != nil {
		t.Fatal(err)
	}
}

// startRetrying runs the store's writer with short pauses between attempts to install rejected states.
func startRetrying(t *testing.T, bridge ovs.Interface) *Store {
	t.Helper()
	s := New(bridge)
	s.retryBackoff = wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: 4, Cap: 10 * time.Millisecond}
	run(t, s)
	return s
}

// eventually waits until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("timeout; want %s", what)
		}
	}
}

// A change needs a meter that another program deleted, of which the store does not know.
func TestSet_lostMeterIsRestored(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53")))
	loseMeter(t, f, 1)
	wanted := balanced(1, "10.1.0.1:53")
	wanted.Flows = append(wanted.Flows, flow(2, ovs.ThroughMeter(1), goovs.Output(2)))
	must(t, s.Set(pod("a"), wanted))
	if len(f.Flows()) != 2 || len(f.Meters()) != 1 {
		t.Errorf("got flows %q and meters %q, want two flows and one meter", f.Flows(), f.Meters())
	}
	if got := s.Drift().Missing; got != 2 {
		t.Errorf("got drift of %d, want 2: the meter and the flow that used it", got)
	}
}

// Another program deletes all meters while the store replaces all flows.
func TestResync_metersLostDuringReplacement(t *testing.T) {
	f := newFake(t)
	var replacements atomic.Int32
	s := startRetrying(t, f)
	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53")))
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(2)))))
	want := f.Flows()
	foreign := f.NewTransaction()
	foreign.Delete(flow(1))
	if err := f.Run(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	f.BeforeBundle = func(context.Context) error {
		if replacements.Add(1) == 1 {
			f.Restart() // after the comparison, which found the meter
		}
		return nil
	}
	s.Resync()
	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53")))
	if n := replacements.Load(); n != 2 {
		t.Errorf("got %d replacements, want 2: no owner is evicted", n)
	}
	wantFlows(t, f, want...)
}

func TestHealthy_rejectedOwnerIsInstalledLater(t *testing.T) {
	for name, lost := range map[string]bool{"evicted owner": true, "rejected change": false} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			var strict atomic.Bool
			strict.Store(!lost)
			f.RefuseFlow = func(fl *ovs.Flow) string {
				if strict.Load() {
					return rejectPort(13)(fl)
				}
				return ""
			}
			s := startRetrying(t, f)
			must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
			commit := s.Set(pod("b"), flows(flow(2, goovs.Output(13)), flow(3, goovs.Output(3))))
			if lost {
				must(t, commit)
				strict.Store(true)
				f.Restart()
				s.Resync()
			} else if err := await(t, commit); err == nil {
				t.Fatal("got no error of the rejected change")
			}
			eventually(t, "an error with the owner and the switch's error", func() bool {
				err := s.Healthy()
				return err != nil && strings.Contains(err.Error(), pod("b").String()) && strings.Contains(err.Error(), "OFPBAC_BAD_OUT_PORT")
			})
			eventually(t, "the flows of the other owner", func() bool { return len(f.Flows()) == 1 })
			strict.Store(false)
			eventually(t, "the flows of both owners", func() bool { return len(f.Flows()) == 3 })
			eventually(t, "no error", func() bool { return s.Healthy() == nil })
		})
	}
}

// A later change of the owner replaces the rejected one.
func TestHealthy_rejectedStateIsWithdrawn(t *testing.T) {
	for name, next := range map[string]pipeline.State{
		"deleted":      {},
		"other flows":  flows(flow(2, goovs.Output(2))),
		"as installed": flows(flow(1, goovs.Output(1))),
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.RefuseFlow = rejectPort(13)
			s := startRetrying(t, f)
			must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
			if err := await(t, s.Set(pod("a"), flows(flow(2, goovs.Output(13))))); err == nil {
				t.Fatal("got no error of the rejected change")
			}
			must(t, s.Set(pod("a"), next))
			if err := s.Healthy(); err != nil {
				t.Errorf("got error %v, want none", err)
			}
			if got := len(f.Flows()); got != len(next.Flows) {
				t.Errorf("got %d flows, want %d", got, len(next.Flows))
			}
		})
	}
}

// auditor requests a comparison while the results of a write are not yet recorded, as an event of a change by another program may do.
type auditor struct {
	*Store
	active *atomic.Bool
}

func (auditor) Committed(time.Duration, error) {}

func (a auditor) Written(w Write, _ time.Duration, _ error) {
	if w == WriteChanges && a.active.Load() {
		a.Audit()
	}
}

// A comparison that is requested during the write of a change does not try the rejected state again that the change replaces.
func TestAudit_duringTheWriteOfAChange(t *testing.T) {
	for name, next := range map[string]pipeline.State{"deleted": {}, "other flows": flows(flow(1, goovs.Output(2)))} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			var accepted atomic.Bool
			reject := rejectPort(13)
			f.RefuseFlow = func(flow *ovs.Flow) string {
				if accepted.Load() {
					return ""
				}
				return reject(flow)
			}
			s := New(f)
			s.retryBackoff = wait.Backoff{Duration: time.Hour}
			s.Observe(auditor{s, &accepted})
			run(t, s)
			must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
			if err := await(t, s.Set(pod("a"), flows(flow(1, goovs.Output(13))))); err == nil {
				t.Fatal("got no error of the rejected change")
			}
			accepted.Store(true)
			must(t, s.Set(pod("a"), next))
			must(t, s.Set(pod("b"), flows(flow(3, goovs.Output(3)))))
			if got := f.Flows(); len(got) != len(next.Flows)+1 || strings.Contains(strings.Join(got, " "), "output:13") {
				t.Errorf("got flows %q, want %d of a, other than the rejected one, and one of b", got, len(next.Flows))
			}
		})
	}
}

// The deletion of an owner installs nothing: no connection is evaluated again, also if the store writes the deletion because a comparison is due.
func TestDelete_rejectedOwnerDuringAComparison(t *testing.T) {
	inBubble(t, func(t *testing.T, tr *tracker, s *Store) {
		tr.RefuseFlow = rejectPort(13)
		if err := await(t, s.Set(pod("a"), flows(flow(1, goovs.Output(13))))); err == nil {
			t.Fatal("got no error of the rejected change")
		}
		before := tr.count("list")
		s.Resync()
		must(t, s.Delete(pod("a")))
		pass(2 * flushInterval)
		if got := tr.count("list") - before; got != 0 {
			t.Errorf("got %d lists of connections, want 0", got)
		}
		if err := s.Healthy(); err != nil {
			t.Errorf("got error %v, want none", err)
		}
	})
}

// An invalid change does not replace the last valid one: the owner gets that state even if the switch rejected it at first, as without the rejection.
func TestSet_invalidChangeAfterARejectedOne(t *testing.T) {
	f := newFake(t)
	var lenient atomic.Bool
	f.RefuseFlow = func(fl *ovs.Flow) string {
		if lenient.Load() {
			return ""
		}
		return rejectPort(13)(fl)
	}
	s := startRetrying(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	if err := await(t, s.Set(pod("a"), flows(flow(2, goovs.Output(13))))); err == nil {
		t.Fatal("got no error of the rejected change")
	}
	if err := await(t, s.Set(pod("a"), flows(flow(3)))); err == nil {
		t.Fatal("got no error of the invalid change")
	}
	if err := s.Healthy(); err == nil {
		t.Error("got no error, want that of the rejected change")
	}
	lenient.Store(true)
	want := text(t, pod("a").Cookie(), flow(2, goovs.Output(13)))
	eventually(t, "the flow of the last valid change", func() bool { return slices.Equal(f.Flows(), []string{want}) })
}

// The owner of a rejected change is evicted by the comparison that follows the rejection: neither its previous nor its new flows remain.
func TestSet_rejectedChangeOfAnEvictedOwner(t *testing.T) {
	f := newFake(t)
	var strict atomic.Bool
	f.RefuseFlow = func(fl *ovs.Flow) string {
		if strict.Load() {
			return rejectPort(13)(fl)
		}
		return ""
	}
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(13)))))
	strict.Store(true)
	f.Restart()
	if err := await(t, s.Set(pod("b"), flows(flow(2, goovs.Output(13)), flow(3, goovs.Output(13))))); err == nil {
		t.Fatal("got no error of the rejected change")
	}
	s.Audit()
	must(t, s.Set(pod("c"), flows(flow(4, goovs.Output(4)))))
	wantFlows(t, f, text(t, pod("a").Cookie(), flow(1, goovs.Output(1))), text(t, pod("c").Cookie(), flow(4, goovs.Output(4))))
	strict.Store(false)
	must(t, s.Set(pod("b"), flows(flow(3, goovs.Output(13)))))
	if got := len(f.Flows()); got != 3 {
		t.Errorf("got flows %q, want one of each owner", f.Flows())
	}
}

// A change in conflict is installed when the other owner is deleted.
func TestSet_conflictIsInstalledLater(t *testing.T) {
	f := newFake(t)
	s := startRetrying(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	if err := await(t, s.Set(pod("b"), flows(flow(1, goovs.Output(2))))); err == nil {
		t.Fatal("got no conflict")
	}
	if err := s.Healthy(); err != nil {
		t.Errorf("got error %v, want none: the switch has rejected nothing", err)
	}
	must(t, s.Delete(pod("a")))
	want := text(t, pod("b").Cookie(), flow(1, goovs.Output(2)))
	eventually(t, "the flow of the other owner", func() bool { return slices.Equal(f.Flows(), []string{want}) })
}

// loss is a set of flows, groups and meters that another program deletes, and flows that it adds.
type loss struct {
	meters, groups, flows []int
	restart, foreign      bool
	duringBundle          bool
}

func drawLoss(t *rapid.T) loss {
	some := func(what string) []int { return rapid.SliceOfN(rapid.IntRange(1, 4), 0, 3).Draw(t, what) }
	return loss{
		meters: some("meters"), groups: some("groups"), flows: some("flows"),
		restart: rapid.Bool().Draw(t, "restart"), foreign: rapid.Bool().Draw(t, "foreign"), duringBundle: rapid.Bool().Draw(t, "during a bundle"),
	}
}

func (l loss) apply(t *rapid.T, f *ovs.Fake, s *Store) {
	if l.restart {
		f.Restart()
	}
	tx := f.NewTransaction()
	for _, n := range l.meters {
		tx.DeleteMeter(uint32(n))
	}
	for _, n := range l.groups {
		if e := s.table.entries[groupKey(pod(string(rune('a'+n))), "web")]; e != nil {
			tx.DeleteGroup(e.number)
		}
	}
	for _, n := range l.flows {
		tx.Delete(flow(n))
	}
	if l.foreign {
		tx.Add(flow(100, goovs.Drop()))
	}
	if err := f.Run(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
}

// Whatever another program deletes, before or during a write, the switch has everything after the next audits, and nothing of another program.
func TestStoreProperties_foreignLosses(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		f := ovs.NewFake("br0")
		if err := f.EnsureBridge(t.Context(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
			t.Fatal(err)
		}
		s := New(f)
		s.Resync()
		wanted := map[int]pipeline.State{}
		set := func() {
			n := rapid.IntRange(1, 4).Draw(t, "owner")
			wanted[n] = balanced(n, "10.1.0.1:53", "10.1.0."+string(rune('2'+rapid.IntRange(0, 3).Draw(t, "endpoint")))+":53")
			s.Set(pod(string(rune('a'+n))), wanted[n])
		}
		write := func() {
			if err := s.write(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		for range rapid.IntRange(1, 10).Draw(t, "steps") {
			set()
			l := drawLoss(t)
			if l.duringBundle {
				f.BeforeBundle = func(context.Context) error {
					f.BeforeBundle = nil
					l.apply(t, f, s)
					return nil
				}
				write()
				f.BeforeBundle = nil
				continue
			}
			l.apply(t, f, s)
			if rapid.Bool().Draw(t, "audit") {
				s.Audit()
			}
			write()
		}
		for range 2 {
			s.Audit()
			write()
		}
		if got, want := []int{len(f.Flows()), len(f.Groups()), len(f.Meters())}, []int{len(wanted), len(wanted), len(wanted)}; !slices.Equal(got, want) {
			t.Fatalf("got numbers of flows, groups and meters %v, want %v: %q", got, want, f.Flows())
		}
		if err := s.Healthy(); err != nil {
			t.Fatalf("got error %v, want none", err)
		}
		before := f.Changes()
		s.Audit()
		write()
		if n := f.Changes() - before; n != 0 {
			t.Fatalf("got %d changes of an unchanged switch, want none", n)
		}
	})
}
