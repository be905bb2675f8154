package flowstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func TestRun_replacesAllFlowsFirst(t *testing.T) {
	f := newFake(t)
	tx := f.NewTransaction()
	tx.Add(flow(9, goovs.Drop())) // of an earlier program
	if err := f.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	s := New(f)
	a := s.Set(pod("a"), flows(flow(1, goovs.Output(1))))
	b := s.Set(pod("b"), flows(flow(2, goovs.Output(2))))
	deleted := s.Delete(pod("deleted"))
	before := f.Bundles()
	run(t, s)
	must(t, a)
	must(t, b)
	must(t, deleted)
	if n := f.Bundles() - before; n != 1 {
		t.Errorf("got %d bundles, want 1", n)
	}
	wantFlows(t, f, text(t, pod("a").Cookie(), flow(1, goovs.Output(1))), text(t, pod("b").Cookie(), flow(2, goovs.Output(2))))
}

func TestSet_replacesAndDeleteRemoves(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, other := pod("a"), pod("other")
	must(t, s.Set(other, flows(flow(9, goovs.Drop()))))
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)), flow(2, goovs.Output(1)))))
	changes := f.Changes()
	must(t, s.Set(a, flows(flow(2, goovs.Output(1)), flow(3, goovs.Output(1)))))
	if n := f.Changes() - changes; n != 2 {
		t.Errorf("got %d written flows, want one deleted and one added", n)
	}
	wantFlows(t, f, text(t, a.Cookie(), flow(2, goovs.Output(1))), text(t, a.Cookie(), flow(3, goovs.Output(1))), text(t, other.Cookie(), flow(9, goovs.Drop())))
	must(t, s.Delete(a))
	must(t, s.Delete(a))
	wantFlows(t, f, text(t, other.Cookie(), flow(9, goovs.Drop())))
	if len(s.current) != 1 || len(s.table.entries) != 1 {
		t.Errorf("got %d owners and %d keys in the store, want 1 and 1", len(s.current), len(s.table.entries))
	}
}

func TestSet_equalStateSendsNothing(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	bundles := 0
	f.BeforeBundle = func(context.Context) error { bundles++; return nil }
	again := s.Set(pod("a"), flows(flow(1, goovs.Output(1))))
	select {
	case <-again.done:
	default:
		t.Error("the commit is not complete")
	}
	must(t, again)
	must(t, s.Delete(pod("unknown")))
	if bundles != 0 {
		t.Errorf("got %d bundles, want 0", bundles)
	}
}

func TestDelete_sharedFlowRemainsUntilItsLastOwner(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, b := pod("a"), pod("b")
	shared := func() *ovs.Flow { return flow(1, goovs.Output(7)) }
	must(t, s.Set(a, flows(shared())))
	wantFlows(t, f, text(t, a.Cookie(), shared()))
	must(t, s.Set(b, flows(shared(), flow(2, goovs.Output(2)))))
	wantFlows(t, f, text(t, pipeline.SharedCookie(), shared()), text(t, b.Cookie(), flow(2, goovs.Output(2))))
	must(t, s.Delete(a))
	wantFlows(t, f, text(t, b.Cookie(), shared()), text(t, b.Cookie(), flow(2, goovs.Output(2))))
	must(t, s.Delete(b))
	wantFlows(t, f)
}

func TestSet_mergesConjunctions(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, b := pod("a"), pod("b")
	must(t, s.Set(a, flows(flow(1, goovs.Conjunction(7, 1, 2)), flow(1, goovs.Conjunction(5, 1, 2)))))
	must(t, s.Set(b, flows(flow(1, goovs.Conjunction(9, 2, 2), goovs.Conjunction(7, 1, 2)))))
	wantFlows(t, f, text(t, pipeline.SharedCookie(), flow(1, goovs.Conjunction(5, 1, 2), goovs.Conjunction(7, 1, 2), goovs.Conjunction(9, 2, 2))))
	must(t, s.Delete(a))
	wantFlows(t, f, text(t, b.Cookie(), flow(1, goovs.Conjunction(7, 1, 2), goovs.Conjunction(9, 2, 2))))
	var conflict *ConflictError
	if err := await(t, s.Set(a, flows(flow(1, goovs.Drop())))); !errors.As(err, &conflict) {
		t.Errorf("conjunction and drop on one key: got error %v, want a conflict", err)
	}
}

func TestSet_conflict(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, b := pod("a"), pod("b")
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(b, flows(flow(2, goovs.Output(2)))))
	before := f.Flows()
	err := await(t, s.Set(b, flows(flow(3, goovs.Output(2)), flow(1, goovs.Output(2)))))
	var conflict *ConflictError
	if !errors.As(err, &conflict) || conflict.Rival != a {
		t.Fatalf("got error %v, want a conflict with %s", err, a)
	}
	for _, name := range []string{a.String(), b.String(), "nw_src=10.0.0.1", "output:1", "output:2"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("got error %q, want one with %q", err, name)
		}
	}
	wantFlows(t, f, before...)
	must(t, s.Delete(a))
	must(t, s.Set(b, flows(flow(3, goovs.Output(2)), flow(1, goovs.Output(2)))))
}

// Two owners may swap their flows in one bundle.
func TestSet_ownersSwapFlows(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, b := pod("a"), pod("b")
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(b, flows(flow(2, goovs.Output(2)))))
	entered, release := hold(f)
	busy := s.Set(pod("busy"), flows(flow(9, goovs.Drop())))
	<-entered // the swap is queued during this bundle
	swap := []*Commit{s.Set(a, flows(flow(2, goovs.Output(1)))), s.Set(b, flows(flow(1, goovs.Output(2))))}
	release()
	must(t, busy)
	for _, c := range swap {
		must(t, c)
	}
	wantFlows(t, f, text(t, b.Cookie(), flow(1, goovs.Output(2))), text(t, a.Cookie(), flow(2, goovs.Output(1))), text(t, pod("busy").Cookie(), flow(9, goovs.Drop())))
}

func TestSet_queuedChangesShareABundle(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	entered, release := hold(f)
	before := f.Bundles()
	commits := []*Commit{s.Set(pod("b"), flows(flow(2, goovs.Output(2))))}
	<-entered // b's bundle is being written
	for n := range 50 {
		commits = append(commits, s.Set(pod(fmt.Sprint(n)), flows(flow(100+n, goovs.Output(n)))))
	}
	last := s.Set(pod("49"), flows(flow(149, goovs.Output(1000))))
	release()
	for _, c := range append(commits, last) {
		must(t, c)
	}
	if n := f.Bundles() - before; n != 2 {
		t.Errorf("got %d bundles, want 2", n)
	}
	if want := text(t, pod("49").Cookie(), flow(149, goovs.Output(1000))); !slices.Contains(f.Flows(), want) {
		t.Errorf("the last flow is missing: %s", want)
	}
}

func TestRun_again(t *testing.T) {
	f := newFake(t)
	s := New(f)
	stop := run(t, s)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	if err := s.Run(t.Context()); err == nil {
		t.Error("a second Run returned no error")
	}
	stop()
	commit := s.Set(pod("b"), flows(flow(2, goovs.Output(2))))
	changes := f.Changes()
	run(t, s)
	must(t, commit)
	if n := f.Changes() - changes; n != 1 {
		t.Errorf("got %d written flows, want 1", n)
	}
}

// If Run ends during a bundle, the change is written by the next Run.
func TestRun_endsDuringABundle(t *testing.T) {
	f := newFake(t)
	s := New(f)
	stop := run(t, s)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	entered := make(chan struct{})
	f.BeforeBundle = func(ctx context.Context) error {
		close(entered)
		<-ctx.Done()
		return ctx.Err()
	}
	commit := s.Set(pod("a"), flows(flow(2, goovs.Output(1))))
	<-entered
	stop()
	f.BeforeBundle = nil
	run(t, s)
	must(t, commit)
	wantFlows(t, f, text(t, pod("a").Cookie(), flow(2, goovs.Output(1))))
}

// Changes that are set together are written in one bundle.
func TestSetAll_oneBundle(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	before := f.Bundles()
	var changes []Change
	for n := range 50 {
		changes = append(changes, Change{Owner: pod(fmt.Sprint(n)), State: flows(flow(100+n, goovs.Output(n+1)))})
	}
	bad := flow(200, goovs.Drop())
	bad.Table = -1
	commits := s.SetAll(append(changes, Change{Owner: pod("a")}, Change{Owner: pod("bad"), State: flows(bad)})...)
	for _, c := range commits[:51] {
		must(t, c)
	}
	if err := await(t, commits[51]); err == nil {
		t.Error("a flow in table -1 was accepted")
	}
	if n := f.Bundles() - before; n != 1 {
		t.Errorf("got %d bundles, want 1", n)
	}
	if n := len(f.Flows()); n != 50 {
		t.Errorf("got %d flows, want 50", n)
	}
}
