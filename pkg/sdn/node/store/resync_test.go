package store

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"k8s.io/apimachinery/pkg/util/wait"
)

func TestUnavailable(t *testing.T) {
	f := newFake(t)
	tried := make(chan struct{}, 1)
	f.BeforeBundle = func(context.Context) error { signal(tried); return nil }
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(2)))))
	f.SetUnavailable(true)
	f.Restart() // its flows are gone
	<-tried     // by those that are written
	waiting := s.Set(pod("a"), flows(flow(3, goovs.Output(1))))
	for range 2 { // the second try says that the first has failed
		<-tried
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waiting.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	overtaking := s.Set(pod("a"), flows(flow(4, goovs.Output(1))))
	f.SetUnavailable(false)
	must(t, waiting)
	must(t, overtaking)
	wantFlows(t, f, text(t, pod("b").Cookie(), flow(2, goovs.Output(2))), text(t, pod("a").Cookie(), flow(4, goovs.Output(1))))
}

func TestResync(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a := pod("a")
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)))))
	f.Restart()
	s.Resync()
	// Equal to what the store has, but not to what the switch has: it waits for the replacement.
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)))))
	wantFlows(t, f, text(t, a.Cookie(), flow(1, goovs.Output(1))))
}

// What others write to the bridge, or take from it, does not last.
func TestAudit(t *testing.T) {
	bridge := newFake(t)
	s := New(bridge)
	s.auditEvery = time.Millisecond
	run(t, s)
	ours := flow(1, goovs.Output(1))
	if err := s.Set(pod("a"), flows(ours)).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := bridge.Flows()

	meddle := bridge.NewTransaction()
	meddle.Delete(ours)
	meddle.Add(flow(2, goovs.Drop()))
	if err := bridge.Run(t.Context(), meddle); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !slices.Equal(bridge.Flows(), want) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("the bridge still has %v, want %v", bridge.Flows(), want)
		}
	}
}

func TestResyncEndsThePause(t *testing.T) {
	f := newFake(t)
	f.SetUnavailable(true)
	failed := make(chan struct{}, 100)
	f.BeforeBundle = func(context.Context) error { failed <- struct{}{}; return nil }
	s := New(f)
	s.backoff = wait.Backoff{Duration: time.Hour}
	run(t, s)
	commit := s.Set(pod("a"), flows(flow(1, goovs.Output(1))))
	<-failed
	f.SetUnavailable(false)
	s.Resync()
	must(t, commit)
}
