package flowstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// follow reports flushes to the store until the test ends.
func follow(t *testing.T, bridge *native.Native, s *Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var watching sync.WaitGroup
	t.Cleanup(func() { cancel(); watching.Wait() })
	began := make(chan struct{}, 1)
	watching.Go(func() {
		bridge.Watch(ctx, func(e native.Event) {
			switch e.Kind {
			case native.SwitchConnected:
				signal(began)
			case native.FlowsLost:
				s.FlowsLost()
				s.Resync()
			}
		})
	})
	<-began
}

// An audit finds vswitchd's flush before the event about it, which comes by another connection.
func TestDrift_flushBeforeItsEvent(t *testing.T) {
	tier.Parallel(t)
	sw, _ := newSwitch(t)
	runDir, hold := sw.RelayDB(t)
	bridge := native.New(ovstest.Bridge, runDir)
	t.Cleanup(bridge.Close)
	s := New(bridge)
	follow(t, bridge, s)
	run(t, s)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	if _, err := bridge.ListPorts(t.Context()); err != nil { // connects to OVSDB
		t.Fatal(err)
	}
	before := sw.Dump(t)
	release := hold()
	sw.VSCtl(t, "set-fail-mode", ovstest.Bridge, "standalone") // returns after the flush
	s.Audit()
	eventually(t, "the flows are restored", func() bool { return slices.Equal(sw.Dump(t), before) })
	release()
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(1))))) // written after the audit
	if found := s.Drift(); found.Changes() > 0 {
		t.Errorf("got drift %+v after vswitchd's flush, want none", found)
	}

	sw.OFCtl(t, "del-flows", ovstest.Bridge)
	s.Audit()
	eventually(t, "drift of both flows", func() bool { return s.Drift().Missing == 2 })
}

// lateBridge calls late when the store waits for events.
type lateBridge struct {
	*ovs.Fake
	late func() error
}

func (b *lateBridge) AwaitEvents(context.Context) error { return b.late() }

func TestDrift_cause(t *testing.T) {
	for cause, tc := range map[string]struct {
		late func(*Store) error
		want int
	}{
		"another program":        {func(*Store) error { return nil }, 2},
		"flush":                  {func(s *Store) error { s.FlowsLost(); return nil }, 0},
		"restart":                {func(s *Store) error { s.Resync(); return nil }, 0},
		"unknown, without OVSDB": {func(*Store) error { return errors.New("no database") }, 0},
	} {
		for _, rejected := range []bool{false, true} {
			found := "audit"
			if rejected {
				found = "rejected change"
			}
			t.Run(cause+" found by "+found, func(t *testing.T) {
				bridge := &lateBridge{Fake: newFake(t)}
				s := New(bridge)
				reported := 0
				s.OnDrift(func(d ovs.Difference) { reported += d.Changes() })
				bridge.late = func() error { return tc.late(s) }
				run(t, s)
				must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53")))
				want := bridge.Flows()
				loseMeter(t, bridge.Fake, 1)
				if rejected {
					must(t, s.Set(pod("b"), flows(flow(2, ovs.ThroughMeter(1), goovs.Output(2)))))
				} else {
					s.Audit()
					eventually(t, "the flows are restored", func() bool { return slices.Equal(bridge.Flows(), want) })
					must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(2))))) // written after the audit
				}
				if got := s.Drift().Changes(); got != tc.want || reported != got {
					t.Errorf("got drift of %d, and reported %d, want %d", got, reported, tc.want)
				}
			})
		}
	}
}
