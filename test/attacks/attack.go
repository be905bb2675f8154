package attacks

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// Positions of attackers.
const (
	aPod      = "pod"
	aTenant   = "tenant"
	aNode     = "node"
	underlay  = "underlay"
	apiClient = "API"
)

// marker begins the text by which captures recognize the packets of these tests.
const marker = "ovsdn-attack:"

// attack is what an attacker sends, and what must be true then.
type attack struct {
	position string
	sent     string
	packets  int // how many packets one call of send sends, and counters must count at least; 0: one
	send     func(token []byte) error
	at       []receiver
	counters []counter

	// lossy is for fragments of a new connection from pod a1, which conntrack of the userspace datapath may lose (docs/decisions/0001-conntrack.md): that
	// they are not counted as drops is no failure if the switch admitted them, so that the machine did not lose them before.
	lossy bool
}

// receiver is a place where the attack must not arrive.
type receiver struct {
	name    string
	listen  func() (listener, error)
	control func(token []byte) error // sends a legitimate packet that arrives here
}

// listener reports the packets that arrived at a receiver.
type listener interface {
	// Frames returns the packets with the text.
	Frames(text []byte) [][]byte
	Close() error
}

// attempts makes tokens unique in a lab that is used again.
type attempts struct{ count atomic.Uint64 }

func (a *attempts) token(what string) []byte {
	return fmt.Appendf(nil, "%s%d-%d-%s;", marker, time.Now().UnixNano(), a.count.Add(1), what)
}

// id returns an identifier for an IP packet in fragments.
func (a *attempts) id() uint16 { return uint16(a.count.Add(1)) }

// try makes the attack, and fails the test if it arrives, if no counter counts it, or if the control does not arrive.
func (w *world) try(t *testing.T, a attack) {
	t.Helper()
	attacking, legitimate := w.token("attack"), w.token("control")
	listeners := make([]listener, len(a.at))
	for i, at := range a.at {
		l, err := at.listen()
		if err != nil {
			t.Fatal(err)
		}
		listeners[i] = l
	}
	moved, uncounted := w.count(t, a, attacking, func() bool { return arrived(listeners, attacking) })
	for i, at := range a.at {
		if at.control != nil {
			arrives(t, at, listeners[i], legitimate)
		}
	}
	count := 0
	for i, l := range listeners {
		frames := l.Frames(attacking)
		count += len(frames)
		if len(frames) > 0 {
			fixture.Arrived(t, "%d packets arrive at %s, want 0; for example %x", len(frames), a.at[i].name, frames[0])
		}
		if err := l.Close(); err != nil {
			t.Errorf("listen at %s: %v", a.at[i].name, err)
		}
	}
	report(t, a, count, moved)
	if uncounted != nil {
		t.Errorf("the drops are not counted: %v", uncounted)
	}
}

// arrived reports whether any of the listeners has a packet with the text.
func arrived(listeners []listener, text []byte) bool {
	return slices.ContainsFunc(listeners, func(l listener) bool { return len(l.Frames(text)) > 0 })
}

// report prints what became of an attack.
func report(t *testing.T, a attack, arrived int, moved []string) {
	t.Helper()
	t.Logf("position: %s; sent: %s; arrived: %d; counted by: %s", a.position, a.sent, arrived, strings.Join(moved, " | "))
}

// firstRound is how long the first packets of an attack may take until they are counted.
const firstRound = 5 * time.Second

// count sends until the counters have counted a whole round, since a busy machine may lose a lone packet. Each round lasts twice as long as the one
// before, since reading the counters takes long on such a machine, too. It ends when the attack has arrived, which fails the test anyway.
func (w *world) count(t *testing.T, a attack, token []byte, arrived func() bool) (moved []string, err error) {
	t.Helper()
	want := uint64(max(a.packets, 1))
	rounds, patience, growth := 4, firstRound, time.Duration(2)
	if a.lossy {
		rounds, patience, growth = lossyRounds, time.Second, 1
	}
	admitted := w.admitted(t, a)
	for ; rounds > 0; rounds-- {
		before := w.read(t, a.counters)
		if err := a.send(token); errors.Is(err, unix.ENOBUFS) && rounds > 1 {
			continue // the machine dropped a packet
		} else if err != nil {
			t.Fatalf("send: %v", err)
		}
		if len(a.counters) == 0 {
			return nil, nil
		}
		var grown uint64
		err = poll(t, patience, func() error {
			moved, grown = difference(before, w.read(t, a.counters))
			if grown < want && !arrived() {
				return fmt.Errorf("%d of %d are counted", grown, want)
			}
			return nil
		})
		if err == nil {
			return moved, nil
		}
		patience *= growth
	}
	if a.lossy {
		return admitted()
	}
	return moved, err
}

const (
	// lossyRounds is how often a lossy attack is made.
	lossyRounds = 5
	// lossyAdmitted is how many fragments of them the switch must admit: two of an attack, which has three or more, in three rounds.
	lossyAdmitted = 2 * 3
)

// admitted returns a function that returns the flows that have admitted the fragments of a lossy attack since this call. It fails if they are too few.
func (w *world) admitted(t *testing.T, a attack) func() (moved []string, err error) {
	t.Helper()
	if !a.lossy {
		return nil
	}
	flows := []counter{w.flows(fixture.Node1, "20", "dl_src="+w.a1.MAC.String(), "nw_src=")}
	before := w.read(t, flows)
	return func() (moved []string, err error) {
		t.Helper()
		err = poll(t, firstRound, func() error {
			var grown uint64
			if moved, grown = difference(before, w.read(t, flows)); grown < lossyAdmitted {
				return fmt.Errorf("the switch admitted %d fragments of %d attacks, want at least %d: the machine lost the others", grown, lossyRounds, lossyAdmitted)
			}
			return nil
		})
		return append([]string{"no drop, the switch lost the fragments that it admitted"}, moved...), err
	}
}

// lookInterval is between two looks at counters, each of which runs programs on nodes. OVS updates its counters twice a second.
const lookInterval = 200 * time.Millisecond

// poll returns the last error of look, nil as soon as there is none.
func poll(t *testing.T, within time.Duration, look func() error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		err := look()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// arrives sends the control until the receiver has it.
func arrives(t *testing.T, at receiver, l listener, token []byte) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, "a legitimate packet to "+at.name, func(context.Context) error {
		if err := at.control(token); err != nil {
			return err
		}
		return poll(t, time.Second, func() error {
			if len(l.Frames(token)) == 0 {
				return errors.New("it does not arrive")
			}
			return nil
		})
	})
}

// captures returns a function that records frames of an interface.
func captures(n wire.NetNS, iface string) func() (listener, error) {
	return func() (listener, error) { return n.Capture(iface, []byte(marker)) }
}
