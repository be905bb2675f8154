package reachability

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// network is the nodes that answer, in a synctest bubble.
type network struct {
	mu      sync.Mutex
	answers map[netip.Addr]bool
	ready   map[string]bool
	changes int
	most    int // probes in progress at once
	open    int
}

func (n *network) dial(ctx context.Context, addr netip.Addr) error {
	n.mu.Lock()
	answers := n.answers[addr]
	n.open++
	n.most = max(n.most, n.open)
	n.mu.Unlock()
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.open--
	}()
	if answers {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (n *network) set(answers bool, addrs ...netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, a := range addrs {
		n.answers[a] = answers
	}
}

func (n *network) setReady(name string, ready bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready[name] = ready
}

func (n *network) changed() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	changes := n.changes
	n.changes = 0
	return changes
}

func newNetwork() (*network, *Prober) {
	n := &network{answers: map[netip.Addr]bool{}, ready: map[string]bool{}}
	isReady := func(name string) bool {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.ready[name]
	}
	return n, New(n.dial, isReady, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.changes++
	})
}

var (
	a1 = netip.MustParseAddr("192.0.2.1") //nolint:gochecknoglobals // constants
	a2 = netip.MustParseAddr("192.0.2.2") //nolint:gochecknoglobals // constants
	a3 = netip.MustParseAddr("192.0.2.3") //nolint:gochecknoglobals // constants
)

func run(t *testing.T, p *Prober) {
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
}

func after(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // of the bubble
	synctest.Wait()
}

func want(t *testing.T, p *Prober, states map[string]State) {
	t.Helper()
	for name, w := range states {
		if got := p.State(name); got != w {
			t.Errorf("%s: got %+v, want %+v", name, got, w)
		}
	}
}

// From the death of a node to the change at most 2 s pass, whenever it dies.
func TestProber_deadNode(t *testing.T) {
	for offset := time.Duration(0); offset < interval; offset += 50 * time.Millisecond {
		synctest.Test(t, func(t *testing.T) {
			n, p := newNetwork()
			n.set(true, a1, a2)
			p.Set("n1", a1, State{})
			p.Set("n2", a2, State{})
			run(t, p)
			after(3*interval + offset + time.Millisecond)
			want(t, p, map[string]State{"n1": {Answered: true}, "n2": {Answered: true}})
			n.changed()
			n.set(false, a1)
			after(2 * interval)
			want(t, p, map[string]State{"n1": {Answered: true}})
			after(2 * interval)
			want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}, "n2": {Answered: true}})
			if got := n.changed(); got != 1 {
				t.Errorf("got %d changes, want 1", got)
			}
			n.set(true, a1)
			after(interval + time.Millisecond)
			want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}})
			after(3 * interval)
			want(t, p, map[string]State{"n1": {Answered: true}})
		})
	}
}

// Sporadic failures do not add up, nor do sporadic answers of a dead node.
func TestProber_consecutive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		n.set(true, a1, a2)
		p.Set("n1", a1, State{})
		p.Set("n2", a2, State{})
		run(t, p)
		after(interval / 2)
		for range 10 {
			n.set(false, a1)
			after(2 * interval)
			n.set(true, a1)
			after(interval)
		}
		want(t, p, map[string]State{"n1": {Answered: true}})
		n.set(false, a1)
		after(5 * interval)
		for range 10 {
			n.set(true, a1)
			after(2 * interval)
			n.set(false, a1)
			after(interval)
		}
		want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}})
	})
}

// A node that fails again soon needs twice as many answers each time, and three after ten minutes without a failure.
func TestProber_flapping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		n.set(true, a1, a2)
		p.Set("n1", a1, State{})
		p.Set("n2", a2, State{})
		run(t, p)
		after(time.Minute + time.Millisecond)
		fails := func(wantAnswers int) {
			t.Helper()
			n.set(false, a1)
			after(6 * interval)
			want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}, "n2": {Answered: true}})
			n.set(true, a1)
			after(time.Duration(wantAnswers-1) * interval)
			want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}})
			after(3 * interval)
			want(t, p, map[string]State{"n1": {Answered: true}})
		}
		for _, answers := range []int{3, 6, 12, 24, 48, 96, 120, 120} {
			fails(answers)
		}
		after(stable * interval)
		fails(3)
		fails(6)
	})
}

// If no node answers, the controller is cut off, and nothing changes.
func TestProber_cutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		n.set(true, a1, a2)
		n.setReady("n1", true)
		p.Set("n1", a1, State{})
		p.Set("n2", a2, State{})
		p.Set("n3", a3, State{Answered: true, Unreachable: true}) // by an earlier leader
		run(t, p)
		after(5 * interval)
		n.changed()
		n.set(false, a1, a2)
		after(time.Minute)
		before := map[string]State{"n1": {Answered: true}, "n2": {Answered: true}, "n3": {Answered: true, Unreachable: true}}
		want(t, p, before)
		n.set(true, a1, a2)
		after(time.Minute)
		want(t, p, before)
		if got := n.changed(); got != 0 {
			t.Errorf("got %d changes, want none", got)
		}
		n.set(false, a1)
		after(5 * interval)
		want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}, "n2": {Answered: true}})
		n.set(false, a2) // the last one
		after(5 * interval)
		want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}, "n2": {Answered: true}})
	})
}

// The condition Ready of its Node decides about a node that has never answered. An earlier leader may have recorded an answer.
func TestProber_neverAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		n.set(true, a1)
		n.setReady("n2", true)
		p.Set("n1", a1, State{})
		p.Set("n2", a2, State{})
		p.Set("n3", a3, State{Answered: true})
		run(t, p)
		after(4 * interval)
		want(t, p, map[string]State{"n1": {Answered: true}, "n2": {Unanswered: true}, "n3": {Answered: true, Unreachable: true}})
		n.setReady("n2", false)
		after(interval)
		want(t, p, map[string]State{"n2": {Unanswered: true, Unreachable: true}})
		n.setReady("n2", true)
		after(interval)
		want(t, p, map[string]State{"n2": {Unanswered: true}})
		n.set(true, a2) // the firewall allows it now
		after(2 * interval)
		want(t, p, map[string]State{"n2": {Answered: true}})
	})
}

// Behind a firewall that drops all probes, the Nodes decide. Not all become unreachable.
func TestProber_allFirewalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		for i, addr := range []netip.Addr{a1, a2} {
			name := fmt.Sprint("n", i+1)
			n.setReady(name, true)
			p.Set(name, addr, State{})
		}
		run(t, p)
		after(5 * interval)
		want(t, p, map[string]State{"n1": {Unanswered: true}, "n2": {Unanswered: true}})
		n.setReady("n1", false)
		after(interval)
		want(t, p, map[string]State{"n1": {Unanswered: true, Unreachable: true}, "n2": {Unanswered: true}})
		n.setReady("n2", false)
		after(interval)
		want(t, p, map[string]State{"n1": {Unanswered: true, Unreachable: true}, "n2": {Unanswered: true}})
	})
}

// A firewall that begins to drop the probes of nodes which have answered: after two minutes in which their Nodes are Ready, the Nodes decide.
func TestProber_blocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		n.set(true, a1, a2, a3)
		for i, addr := range []netip.Addr{a1, a2, a3} {
			name := fmt.Sprint("n", i+1)
			n.setReady(name, true)
			p.Set(name, addr, State{})
		}
		run(t, p)
		after(3*interval + time.Millisecond)
		n.set(false, a2, a3)
		after(4 * interval)
		want(t, p, map[string]State{"n1": {Answered: true}, "n2": {Answered: true, Unreachable: true}, "n3": {Answered: true, Unreachable: true}})
		after(time.Minute)
		n.setReady("n3", false) // it is dead
		after(time.Minute - 4*interval)
		want(t, p, map[string]State{"n2": {Answered: true, Unreachable: true}, "n3": {Answered: true, Unreachable: true}})
		after(8 * interval)
		want(t, p, map[string]State{"n1": {Answered: true}, "n2": {Unanswered: true}, "n3": {Answered: true, Unreachable: true}})
		n.setReady("n2", false) // now it dies
		n.setReady("n3", true)  // it starts again, behind the firewall
		after(interval)
		want(t, p, map[string]State{"n2": {Unanswered: true, Unreachable: true}})
		after(2*time.Minute + 2*interval)
		want(t, p, map[string]State{"n1": {Answered: true}, "n2": {Unanswered: true, Unreachable: true}, "n3": {Unanswered: true}})
		n.set(true, a2, a3)
		after(7 * interval)
		want(t, p, map[string]State{"n1": {Answered: true}, "n2": {Answered: true}, "n3": {Answered: true}})
	})
}

// While no node answers, nothing changes, whatever Nodes report and however long it takes.
func TestProber_allBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		n.set(true, a1, a2)
		n.setReady("n1", true)
		n.setReady("n3", true)
		p.Set("n1", a1, State{})
		p.Set("n2", a2, State{})
		p.Set("n3", a3, State{Answered: true})
		run(t, p)
		after(5 * interval)
		n.changed()
		n.set(false, a1, a2)
		after(5 * time.Minute)
		want(t, p, map[string]State{"n1": {Answered: true}, "n2": {Answered: true}, "n3": {Answered: true, Unreachable: true}})
		if got := n.changed(); got != 0 {
			t.Errorf("got %d changes, want none", got)
		}
	})
}

// Hundreds of dead nodes do not delay the others.
func TestProber_manyNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		n.set(true, a1, a2)
		p.Set("n1", a1, State{})
		p.Set("n2", a2, State{})
		for i := range 400 {
			p.Set(fmt.Sprint("dead", i), netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), State{Answered: true})
		}
		run(t, p)
		after(5 * interval)
		want(t, p, map[string]State{"n1": {Answered: true}, "dead7": {Answered: true, Unreachable: true}})
		n.set(false, a1)
		after(4 * interval)
		want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}})
		p.Remove("n1")
		want(t, p, map[string]State{"n1": {}})
		if n.most > maxParallel {
			t.Errorf("got %d probes at once, want at most %d", n.most, maxParallel)
		}
	})
}

// An address that changes begins to count again.
func TestProber_address(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, p := newNetwork()
		n.set(true, a1, a2)
		p.Set("n1", a1, State{})
		p.Set("n2", a2, State{})
		run(t, p)
		after(3 * interval)
		n.set(false, a1)
		after(2 * interval)
		p.Set("n1", a3, State{})
		after(2 * interval)
		want(t, p, map[string]State{"n1": {Answered: true}})
		after(3 * interval)
		want(t, p, map[string]State{"n1": {Answered: true, Unreachable: true}})
	})
}

func TestDialTCP(t *testing.T) {
	local := netip.MustParseAddr("127.0.0.1")
	var l net.ListenConfig
	listener, err := l.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	opened := listener.Addr().(*net.TCPAddr).AddrPort()
	if err := dialPort(t.Context(), opened); err != nil {
		t.Errorf("open port: %v", err)
	}
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	if err := dialPort(t.Context(), opened); err != nil {
		t.Errorf("closed port: %v", err)
	}
	if err := DialTCP(t.Context(), local); err != nil {
		t.Errorf("port %d of this machine: %v", port, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := DialTCP(ctx, local); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want no answer", err)
	}
}
