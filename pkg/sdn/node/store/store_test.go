package store

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

func pod(name string) pipeline.Owner {
	return pipeline.Owner{Kind: pipeline.KindPod, Key: name}
}

// flow matches the n-th address.
func flow(n int, actions ...ovs.Action) *ovs.Flow {
	source := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 32)
	return &ovs.Flow{Table: 20, Priority: 100, Protocol: goovs.ProtocolIPv4, Matches: []ovs.Match{ovs.IPSource(source)}, Actions: actions}
}

func flows(fs ...*ovs.Flow) pipeline.State {
	return pipeline.State{Flows: fs}
}

// text is the flow as it is on the switch.
func text(t testing.TB, cookie uint64, f *ovs.Flow) string {
	t.Helper()
	with := *f
	with.Cookie = cookie
	s, err := ovs.FlowText(&with)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func newFake(t testing.TB) *ovs.Fake {
	t.Helper()
	f := ovs.NewFake("br0")
	if err := f.EnsureBridge(context.Background(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	return f
}

// start runs the store's writer until the test ends.
func start(t *testing.T, bridge ovs.Interface) *Store {
	t.Helper()
	s := New(bridge)
	s.backoff = wait.Backoff{Duration: time.Millisecond, Factor: 2, Steps: 5, Cap: 20 * time.Millisecond}
	run(t, s)
	return s
}

// run runs the writer; the returned function ends it.
func run(t *testing.T, s *Store) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	ended := false
	stop = func() {
		cancel()
		if ended {
			return
		}
		ended = true
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	}
	t.Cleanup(stop)
	return stop
}

func await(t *testing.T, c *Commit) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := c.Wait(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	return err
}

func must(t *testing.T, c *Commit) {
	t.Helper()
	if err := await(t, c); err != nil {
		t.Fatal(err)
	}
}

func wantFlows(t *testing.T, f *ovs.Fake, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, f.Flows(), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
}

func TestFirstActIsAReplacement(t *testing.T) {
	f := newFake(t)
	tx := f.NewTransaction()
	tx.Add(flow(9, goovs.Drop())) // left by somebody
	if err := f.Run(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	s := New(f)
	a := s.Set(pod("a"), flows(flow(1, goovs.Output(1))))
	b := s.Set(pod("b"), flows(flow(2, goovs.Output(2))))
	gone := s.Delete(pod("gone"))
	before := f.Bundles()
	run(t, s)
	must(t, a)
	must(t, b)
	must(t, gone)
	if n := f.Bundles() - before; n != 1 {
		t.Errorf("%d bundles, want 1", n)
	}
	wantFlows(t, f, text(t, pod("a").Cookie(), flow(1, goovs.Output(1))), text(t, pod("b").Cookie(), flow(2, goovs.Output(2))))
}

func TestSetReplacesAndDeleteRemoves(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, other := pod("a"), pod("other")
	must(t, s.Set(other, flows(flow(9, goovs.Drop()))))
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)), flow(2, goovs.Output(1)))))
	changes := f.Changes()
	must(t, s.Set(a, flows(flow(2, goovs.Output(1)), flow(3, goovs.Output(1)))))
	if n := f.Changes() - changes; n != 2 {
		t.Errorf("%d flows written, want one deleted and one added", n)
	}
	wantFlows(t, f, text(t, a.Cookie(), flow(2, goovs.Output(1))), text(t, a.Cookie(), flow(3, goovs.Output(1))), text(t, other.Cookie(), flow(9, goovs.Drop())))
	must(t, s.Delete(a))
	must(t, s.Delete(a))
	wantFlows(t, f, text(t, other.Cookie(), flow(9, goovs.Drop())))
	if len(s.current) != 1 || len(s.table.entries) != 1 {
		t.Errorf("the store remembers %d owners and %d keys, want 1 and 1", len(s.current), len(s.table.entries))
	}
}

func TestEqualSetSendsNothing(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	bundles := 0
	f.BeforeBundle = func(context.Context) error { bundles++; return nil }
	again := s.Set(pod("a"), flows(flow(1, goovs.Output(1))))
	select {
	case <-again.done:
	default:
		t.Error("not complete at once")
	}
	must(t, again)
	must(t, s.Delete(pod("nobody")))
	if bundles != 0 {
		t.Errorf("%d bundles", bundles)
	}
}

func TestSharedFlowStaysUntilTheLastOwnerGoes(t *testing.T) {
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

func TestConjunctionsUnite(t *testing.T) {
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
		t.Errorf("conjunction and drop on one key: got %v", err)
	}
}

func TestConflict(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, b := pod("a"), pod("b")
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(b, flows(flow(2, goovs.Output(2)))))
	before := f.Flows()
	err := await(t, s.Set(b, flows(flow(3, goovs.Output(2)), flow(1, goovs.Output(2)))))
	var conflict *ConflictError
	if !errors.As(err, &conflict) || conflict.Rival != a {
		t.Fatalf("got %v, want a conflict with %s", err, a)
	}
	for _, name := range []string{a.String(), b.String(), "nw_src=10.0.0.1", "output:1", "output:2"} {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%q does not name %q", err, name)
		}
	}
	wantFlows(t, f, before...)
	must(t, s.Delete(a))
	must(t, s.Set(b, flows(flow(3, goovs.Output(2)), flow(1, goovs.Output(2)))))
}

func TestBadFlowsAreRefusedAtOnce(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	before := f.Flows()
	for name, st := range map[string]pipeline.State{
		"no actions":          flows(flow(1)),
		"no protocol":         flows(&ovs.Flow{Matches: flow(1).Matches, Actions: []ovs.Action{goovs.Drop()}}),
		"one key, two bodies": flows(flow(1, goovs.Output(1)), flow(1, goovs.Output(2))),
	} {
		err := await(t, s.Set(pod("a"), st))
		if err == nil || !strings.Contains(err.Error(), pod("a").String()) {
			t.Errorf("%s: got %v, want an error that names the owner", name, err)
		}
	}
	wantFlows(t, f, before...)
}

// Two owners may swap their flows in one bundle.
func TestSwapInOneBundle(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, b := pod("a"), pod("b")
	must(t, s.Set(a, flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(b, flows(flow(2, goovs.Output(2)))))
	entered, release := hold(f)
	busy := s.Set(pod("busy"), flows(flow(9, goovs.Drop())))
	<-entered // while this is under way, the swap is queued
	swap := []*Commit{s.Set(a, flows(flow(2, goovs.Output(1)))), s.Set(b, flows(flow(1, goovs.Output(2))))}
	release()
	must(t, busy)
	for _, c := range swap {
		must(t, c)
	}
	wantFlows(t, f, text(t, b.Cookie(), flow(1, goovs.Output(2))), text(t, a.Cookie(), flow(2, goovs.Output(1))), text(t, pod("busy").Cookie(), flow(9, goovs.Drop())))
}

// hold makes bundles wait until release is called; entered says that one does.
func hold(f *ovs.Fake) (entered <-chan struct{}, release func()) {
	gate, waiting := make(chan struct{}), make(chan struct{}, 100)
	f.BeforeBundle = func(ctx context.Context) error {
		waiting <- struct{}{}
		select {
		case <-gate:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return waiting, func() { close(gate) }
}

func TestGroupCommit(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	entered, release := hold(f)
	before := f.Bundles()
	commits := []*Commit{s.Set(pod("b"), flows(flow(2, goovs.Output(2))))}
	<-entered // b's bundle is under way
	for n := range 50 {
		commits = append(commits, s.Set(pod(fmt.Sprint(n)), flows(flow(100+n, goovs.Output(n)))))
	}
	overtaken := s.Set(pod("49"), flows(flow(149, goovs.Output(1000))))
	release()
	for _, c := range append(commits, overtaken) {
		must(t, c)
	}
	if n := f.Bundles() - before; n != 2 {
		t.Errorf("%d bundles, want 2", n)
	}
	if want := text(t, pod("49").Cookie(), flow(149, goovs.Output(1000))); !slices.Contains(f.Flows(), want) {
		t.Errorf("the overtaking flow is missing: %s", want)
	}
}

// refusePort makes the switch refuse flows that send to the port.
func refusePort(port int) func(*ovs.Flow) string {
	return func(f *ovs.Flow) string {
		for _, a := range f.Actions {
			if b, err := a.MarshalText(); err == nil && string(b) == fmt.Sprintf("output:%d", port) {
				return "OFPBAC_BAD_OUT_PORT"
			}
		}
		return ""
	}
}

func TestOnlyTheRefusedChangeFails(t *testing.T) {
	f := newFake(t)
	f.RefuseFlow = refusePort(13)
	s := start(t, f)
	good, bad, late := pod("good"), pod("bad"), pod("late")
	for n, owner := range []pipeline.Owner{good, bad, late} {
		must(t, s.Set(owner, flows(flow(n+1, goovs.Output(n+1)))))
	}
	entered, release := hold(f)
	busy := s.Set(pod("busy"), flows(flow(9, goovs.Drop())))
	<-entered
	commits := []*Commit{s.Set(good, flows(flow(1, goovs.Output(11)))), s.Set(bad, flows(flow(20, goovs.Output(2)), flow(2, goovs.Output(13)))), s.Set(late, flows(flow(4, goovs.Output(4))))}
	release()
	must(t, busy)
	must(t, commits[0])
	must(t, commits[2])
	err := await(t, commits[1])
	var refused *ovs.FlowError
	if !errors.As(err, &refused) || !strings.Contains(err.Error(), bad.String()) || !strings.Contains(err.Error(), "output:13") {
		t.Errorf("got %v, want a refusal that names the owner and the flow", err)
	}
	want := []string{
		text(t, good.Cookie(), flow(1, goovs.Output(11))), text(t, bad.Cookie(), flow(2, goovs.Output(2))), text(t, late.Cookie(), flow(4, goovs.Output(4))),
		text(t, pod("busy").Cookie(), flow(9, goovs.Drop())),
	}
	wantFlows(t, f, want...)
	// The former state is the present one again: it needs no bundle.
	must(t, s.Set(bad, flows(flow(2, goovs.Output(2)))))
	wantFlows(t, f, want...)
}

// A bridge that does not say which flow it refused.
type mute struct{ ovs.Interface }

func (m mute) Run(ctx context.Context, tx *ovs.Transaction) error {
	return m.hide(m.Interface.Run(ctx, tx))
}

func (m mute) Replace(ctx context.Context, want ovs.State) (ovs.Difference, error) {
	found, err := m.Interface.Replace(ctx, want)
	return found, m.hide(err)
}

func (mute) hide(err error) error {
	var refused *ovs.FlowError
	if errors.As(err, &refused) {
		return &ovs.FlowError{Reason: "something is wrong"}
	}
	return err
}

func TestCulpritIsFoundWithoutAName(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("in the first replacement %t", first), func(t *testing.T) {
			f := newFake(t)
			f.RefuseFlow = refusePort(13)
			entered, release := hold(f)
			s := New(mute{f})
			if !first {
				s.Set(pod("busy"), flows(flow(9, goovs.Drop())))
				run(t, s)
				<-entered
			}
			good, bad, late := s.Set(pod("good"), flows(flow(1, goovs.Output(1)))), s.Set(pod("bad"), flows(flow(2, goovs.Output(13)))), s.Set(pod("late"), flows(flow(3, goovs.Output(3))))
			if first {
				run(t, s)
			}
			release()
			must(t, good)
			must(t, late)
			if err := await(t, bad); err == nil {
				t.Error("the bad one did not fail")
			}
			must(t, s.Delete(pod("busy")))
			wantFlows(t, f, text(t, pod("good").Cookie(), flow(1, goovs.Output(1))), text(t, pod("late").Cookie(), flow(3, goovs.Output(3))))
		})
	}
}

func TestUnavailable(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(2)))))
	f.SetUnavailable(true)
	waiting := s.Set(pod("a"), flows(flow(3, goovs.Output(1))))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := waiting.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	f.Restart() // its flows are gone
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
	deadline := time.After(10 * time.Second)
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

// A flow that was accepted once and is refused after a restart takes only its owner with it.
func TestRefusedAfterRestart(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(13)), flow(3, goovs.Output(1)))))
	must(t, s.Delete(pod("c")))
	f.Restart()
	f.RefuseFlow = refusePort(13)
	s.Resync()
	commit := s.Set(pod("b"), flows(flow(2, goovs.Output(13)), flow(4, goovs.Output(1))))
	if err := await(t, commit); err == nil {
		t.Error("the refused change did not fail")
	}
	must(t, s.Set(pod("c"), flows(flow(5, goovs.Output(5)))))
	wantFlows(t, f, text(t, pod("a").Cookie(), flow(1, goovs.Output(1))), text(t, pod("c").Cookie(), flow(5, goovs.Output(5))))
	f.RefuseFlow = nil
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(13)))))
}

func TestRunAgain(t *testing.T) {
	f := newFake(t)
	s := New(f)
	stop := run(t, s)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	if err := s.Run(t.Context()); err == nil {
		t.Error("a second writer was let in")
	}
	stop()
	commit := s.Set(pod("b"), flows(flow(2, goovs.Output(2))))
	changes := f.Changes()
	run(t, s)
	must(t, commit)
	if n := f.Changes() - changes; n != 1 {
		t.Errorf("%d flows written, want 1", n)
	}
}

// The run's end while a bundle is under way leaves nothing half-done.
func TestRunEndsInABundle(t *testing.T) {
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

// What is set together is never seen apart, not even by a writer that is about to begin.
func TestSetAllInOneBundle(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	before := f.Bundles()
	var changes []Change
	for n := range 50 {
		changes = append(changes, Change{pod(fmt.Sprint(n)), flows(flow(100+n, goovs.Output(n+1)))})
	}
	bad := flow(200, goovs.Drop())
	bad.Table = -1
	commits := s.SetAll(append(changes, Change{pod("a"), pipeline.State{}}, Change{pod("bad"), flows(bad)})...)
	for _, c := range commits[:51] {
		must(t, c)
	}
	if err := await(t, commits[51]); err == nil {
		t.Error("a flow in table -1 was taken")
	}
	if n := f.Bundles() - before; n != 1 {
		t.Errorf("%d bundles, want 1", n)
	}
	if n := len(f.Flows()); n != 50 {
		t.Errorf("%d flows, want 50", n)
	}
}
