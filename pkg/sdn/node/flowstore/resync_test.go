package flowstore

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"k8s.io/apimachinery/pkg/util/wait"
)

func TestRun_openVSwitchUnavailable(t *testing.T) {
	f := newFake(t)
	attempted := make(chan struct{}, 1)
	f.BeforeBundle = func(context.Context) error { signal(attempted); return nil }
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(2)))))
	f.SetUnavailable(true)
	f.Restart() // without flows
	<-attempted // of the changes above
	waiting := s.Set(pod("a"), flows(flow(3, goovs.Output(1))))
	for range 2 { // the second attempt follows the failure of the first
		<-attempted
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := waiting.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got error %v, want context.Canceled", err)
	}
	replacing := s.Set(pod("a"), flows(flow(4, goovs.Output(1))))
	f.SetUnavailable(false)
	must(t, waiting)
	must(t, replacing)
	wantFlows(t, f, text(t, pod("b").Cookie(), flow(2, goovs.Output(2))), text(t, pod("a").Cookie(), flow(4, goovs.Output(1))))
}

func TestResync_restoresFlows(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a := pod("a")
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)))))
	f.Restart()
	s.Resync()
	// The change is equal to the state in the store, but not on the switch: it waits for the replacement.
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)))))
	wantFlows(t, f, text(t, a.Cookie(), flow(1, goovs.Output(1))))
}

// Flows that other programs add or delete are repaired.
func TestAudit_removesForeignFlows(t *testing.T) {
	bridge := newFake(t)
	s := New(bridge)
	s.auditInterval = time.Millisecond
	run(t, s)
	own := flow(1, goovs.Output(1))
	if err := s.Set(pod("a"), flows(own)).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := bridge.Flows()

	foreign := bridge.NewTransaction()
	foreign.Delete(own)
	foreign.Add(flow(2, goovs.Drop()))
	if err := bridge.Run(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(90 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !slices.Equal(bridge.Flows(), want) {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("got flows %v, want %v", bridge.Flows(), want)
		}
	}
}

func TestResync_endsBackoff(t *testing.T) {
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
