package flowstore

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

const (
	testZone = 0x6002
	protoTCP = 6
	protoUDP = 17
	protoGRE = 47
)

// tracked returns a conntrack entry from one address and port to another.
func tracked(zone uint16, protocol uint8, from, to string) ovs.Connection {
	src, dst := netip.MustParseAddrPort(from), netip.MustParseAddrPort(to)
	return ovs.Connection{
		Zone: zone, Protocol: protocol,
		Original: ovs.Tuple{Src: src.Addr(), Dst: dst.Addr(), SrcPort: src.Port(), DstPort: dst.Port()},
		Reply:    ovs.Tuple{Src: dst.Addr(), Dst: src.Addr(), SrcPort: dst.Port(), DstPort: src.Port()},
	}
}

// tracker records the order of bundles and of the steps of a flush.
type tracker struct {
	*ovs.Fake

	mu          sync.Mutex
	beforeFlush func(context.Context) error // may block or fail; nil: flushes succeed
	steps       []string
}

func newTracker(t *testing.T) *tracker {
	return &tracker{Fake: newFake(t)}
}

func (tr *tracker) note(step string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.steps = append(tr.steps, step)
}

// count returns the number of steps of a kind.
func (tr *tracker) count(step string) (n int) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	for _, s := range tr.steps {
		if s == step {
			n++
		}
	}
	return n
}

func (tr *tracker) AwaitDatapath(ctx context.Context) error {
	tr.note("datapath")
	return tr.Fake.AwaitDatapath(ctx)
}

func (tr *tracker) ListConnections(ctx context.Context, zones ovs.Zones, each func(ovs.Connection)) error {
	tr.note("list")
	return tr.Fake.ListConnections(ctx, zones, each)
}

func (tr *tracker) Run(ctx context.Context, tx *ovs.Transaction) error {
	step := "bundle"
	if slices.ContainsFunc(tx.Operations(), func(op ovs.Operation) bool { return op.Verb == ovs.VerbFlush }) {
		step = "flush"
		tr.mu.Lock()
		before := tr.beforeFlush
		tr.mu.Unlock()
		if before != nil {
			if err := before(ctx); err != nil {
				return err
			}
		}
	}
	tr.note(step)
	return tr.Fake.Run(ctx, tx)
}

func (tr *tracker) setBeforeFlush(f func(context.Context) error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.beforeFlush = f
}

func (tr *tracker) connect(c ovs.Connection) {
	tr.Connect(ovs.Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
}

// forbidden is an Evaluator of connections to port 81.
func forbidden(bool) func(ovs.Connection) bool {
	return func(c ovs.Connection) bool { return c.Original.DstPort == 81 }
}

func newTracking(bridge ovs.Interface) *Store {
	s := New(bridge)
	s.EvaluateConnections(ovs.Zones{First: testZone, Last: testZone + 1}, forbidden)
	return s
}

// inBubble runs a test with the clock of a bubble, and a store whose first evaluation has ended.
func inBubble(t *testing.T, test func(t *testing.T, tr *tracker, s *Store)) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t)
		s := newTracking(tr)
		run(t, s)
		pass(2 * flushInterval)
		test(t, tr, s)
	})
}

// pass waits, in the time of the bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// A revoked permission causes an evaluation at once, an address within addrInterval or with another evaluation, and other updates none.
func TestFlush_onlyRevocationsList(t *testing.T) {
	inBubble(t, func(t *testing.T, tr *tracker, s *Store) {
		before := tr.count("list")
		want := func(step string, want int) {
			t.Helper()
			if got := tr.count("list") - before; got != want {
				t.Errorf("%s: got %d lists, want %d", step, got, want)
			}
		}
		must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
		pass(addrInterval)
		want("no revocation", 0)
		s.Update(Update{Revoked: Revocation{Permission: true}})
		synctest.Wait()
		want("revoked permission", 1)
		pass(addrInterval)
		want("no further revocation", 1)
		tr.connect(tracked(testZone, protoTCP, "10.128.0.2:1000", "10.129.0.2:80"))
		s.Update(Update{Revoked: Revocation{Addrs: []netip.Addr{netip.MustParseAddr("10.129.0.2")}}})
		synctest.Wait()
		want("address of a deleted pod", 1)
		pass(addrInterval)
		want("address of a deleted pod after addrInterval", 2)
		if left := tr.Tracked(); len(left) > 0 {
			t.Errorf("got connections %v, want none", left)
		}
	})
}

// A connection that is flushed before the flows are active would be committed again.
func TestFlush_followsTheBundle(t *testing.T) {
	inBubble(t, func(t *testing.T, tr *tracker, s *Store) {
		tr.connect(tracked(testZone, protoTCP, "10.128.0.2:1000", "10.129.0.2:80"))
		tr.connect(tracked(testZone, protoTCP, "10.128.0.2:1000", "10.129.0.2:81"))
		tr.steps = nil
		entered, release := hold(tr.Fake)
		commits := s.Update(Update{Changes: []Change{{Owner: pod("a"), State: flows(flow(1, goovs.Drop()))}}, Revoked: Revocation{Permission: true}})
		<-entered
		pass(addrInterval)
		if got := tr.count("list"); got != 0 {
			t.Errorf("got %d lists before the switch has the flows, want 0", got)
		}
		tr.BeforeBundle = nil
		release()
		must(t, commits[0])
		synctest.Wait()
		if diff := cmp.Diff([]string{"bundle", "datapath", "list", "flush"}, tr.steps); diff != "" {
			t.Errorf("steps (-want +got):\n%s", diff)
		}
		if left := tr.Tracked(); len(left) != 1 || left[0].Original.DstPort != 80 {
			t.Errorf("got connections %v, want the one to port 80", left)
		}
		if evaluations, connections := s.Flushed(); connections != 1 || evaluations != 2 {
			t.Errorf("got %d evaluations and %d flushed connections, want 2 and 1", evaluations, connections)
		}
	})
}

// A revocation does not wait for flows that the switch rejects.
func TestFlush_rejectedFlows(t *testing.T) {
	inBubble(t, func(t *testing.T, tr *tracker, s *Store) {
		tr.RefuseFlow = rejectPort(13)
		tr.connect(tracked(testZone, protoTCP, "10.128.0.2:1000", "10.129.0.2:81"))
		commits := s.Update(Update{Changes: []Change{{Owner: pod("a"), State: flows(flow(1, goovs.Output(13)))}}, Revoked: Revocation{Permission: true}})
		if err := await(t, commits[0]); err == nil {
			t.Error("the rejected change did not fail")
		}
		synctest.Wait()
		if left := tr.Tracked(); len(left) > 0 {
			t.Errorf("got connections %v, want none", left)
		}
	})
}

func TestFlush_failureIsRetried(t *testing.T) {
	addr := netip.MustParseAddr("10.129.0.9")
	for name, fail := range map[string]func(tr *tracker) (repair func()){
		"the switch is unavailable": func(tr *tracker) func() {
			tr.SetUnavailable(true)
			return func() { tr.SetUnavailable(false) }
		},
		"flushes fail": func(tr *tracker) func() {
			tr.setBeforeFlush(func(context.Context) error { return errors.New("connection reset") })
			return func() { tr.setBeforeFlush(nil) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, tr *tracker, s *Store) {
				tr.connect(tracked(testZone, protoTCP, "10.128.0.2:1000", "10.129.0.2:81"))
				tr.connect(tracked(testZone, protoUDP, "10.128.0.2:1000", "10.129.0.9:53"))
				repair := fail(tr)
				commits := s.Update(Update{
					Changes: []Change{{Owner: pod("a"), State: flows(flow(1, goovs.Drop()))}},
					Revoked: Revocation{Permission: true, Addrs: []netip.Addr{addr}},
				})
				pass(10 * time.Second)
				if left := tr.Tracked(); len(left) != 2 {
					t.Errorf("got %d connections, want 2", len(left))
				}
				repair()
				must(t, commits[0])
				pass(2 * time.Minute) // the longest backoff
				if left := tr.Tracked(); len(left) > 0 {
					t.Errorf("got connections %v after the repair, want none", left)
				}
			})
		})
	}
}

// No change of flows and no reader waits while a flush does not end.
func TestUpdate_doesNotWaitForFlush(t *testing.T) {
	inBubble(t, func(t *testing.T, tr *tracker, s *Store) {
		tr.setBeforeFlush(func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
		tr.connect(tracked(testZone, protoTCP, "10.128.0.2:1000", "10.129.0.2:81"))
		start := time.Now()
		for n := range 10 {
			for _, c := range s.Update(Update{
				Changes: []Change{outputs(fmt.Sprint(n), n, input(1))}, Publish: []Published{publish(1, n)}, Revoked: Revocation{Permission: true},
			}) {
				must(t, c)
			}
			if got, _ := Get[int](s, input(1)); got != n {
				t.Errorf("got %d, want %d", got, n)
			}
		}
		if waited := time.Since(start); waited > 0 {
			t.Errorf("ten updates took %v, want no wait", waited)
		}
		if got := len(tr.Flows()); got != 10 {
			t.Errorf("got %d flows, want 10", got)
		}
		if left := tr.Tracked(); len(left) != 1 {
			t.Errorf("got connections %v, want one", left)
		}
	})
}

// An agent that is killed between the bundle and the flush flushes after its restart.
func TestFlush_afterRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t)
		first := newTracking(tr)
		stop := run(t, first)
		pass(2 * flushInterval)
		tr.connect(tracked(testZone, protoTCP, "10.128.0.2:1000", "10.129.0.2:81"))
		flushing := make(chan struct{}, 1)
		tr.setBeforeFlush(func(ctx context.Context) error { signal(flushing); <-ctx.Done(); return ctx.Err() })
		change := Change{Owner: pod("a"), State: flows(flow(1, goovs.Drop()))}
		must(t, first.Update(Update{Changes: []Change{change}, Revoked: Revocation{Permission: true}})[0])
		<-flushing
		stop()
		if left := tr.Tracked(); len(left) != 1 {
			t.Fatalf("got connections %v, want one", left)
		}
		tr.setBeforeFlush(nil)

		restarted := false
		second := New(tr)
		second.EvaluateConnections(ovs.Zones{First: testZone, Last: testZone}, func(first bool) func(ovs.Connection) bool {
			restarted = first
			return forbidden(first)
		})
		must := second.SetAll(change)[0]
		run(t, second)
		if err := must.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if left := tr.Tracked(); len(left) > 0 || !restarted {
			t.Errorf("got connections %v, want none; restarted: %t", left, restarted)
		}
		pass(2 * flushInterval)
		second.Update(Update{Revoked: Revocation{Permission: true}})
		pass(flushInterval)
		if restarted {
			t.Error("the second evaluation is reported as the first")
		}
	})
}

// A writer that is stopped and started again flushes what was due.
func TestFlush_runAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t)
		s := newTracking(tr)
		stop := run(t, s)
		pass(2 * flushInterval)
		tr.connect(tracked(testZone, protoTCP, "10.128.0.2:1000", "10.129.0.9:80"))
		tr.SetUnavailable(true)
		s.Update(Update{Revoked: Revocation{Permission: true, Addrs: []netip.Addr{netip.MustParseAddr("10.129.0.9")}}})
		pass(flushInterval)
		stop()
		tr.SetUnavailable(false)
		run(t, s)
		pass(flushInterval)
		if left := tr.Tracked(); len(left) > 0 {
			t.Errorf("got connections %v, want none", left)
		}
	})
}

// Without an evaluator there is no connection tracking.
func TestFlush_noEvaluator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t)
		s := New(tr)
		run(t, s)
		s.Update(Update{Revoked: Revocation{Permission: true, Addrs: []netip.Addr{netip.MustParseAddr("10.129.0.9")}}})
		pass(addrInterval)
		if got := tr.count("list"); got != 0 {
			t.Errorf("got %d lists, want 0", got)
		}
	})
}

// What exceeds the limits of one list is flushed by the next.
func TestFlush_severalLists(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tr := newTracker(t)
		s := New(tr)
		s.EvaluateConnections(ovs.Zones{First: testZone, Last: testZone + 2*maxZones}, func(bool) func(ovs.Connection) bool { return all })
		for zone := range uint16(2 * maxZones) {
			tr.connect(tracked(testZone+zone, protoGRE, "192.0.2.1:0", "10.128.0.2:0"))
		}
		run(t, s)
		synctest.Wait()
		if left := tr.Tracked(); len(left) != maxZones {
			t.Errorf("got %d connections after the first list, want %d", len(left), maxZones)
		}
		pass(2 * flushInterval)
		if left := tr.Tracked(); len(left) > 0 {
			t.Errorf("got %d connections after the second list, want 0", len(left))
		}
	})
}
