package nodeports

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// fixture is a Checker of a host with sockets of TCP.
type fixture struct {
	*Checker
	mu      sync.Mutex
	sockets []listeners.Listener
	err     error
	lookups []string
	events  []string
}

func newFixture(ranges ...netip.Prefix) *fixture {
	f := &fixture{}
	f.Checker = New(Options{Addresses: ranges, WarnNode: func(reason, message string) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.events = append(f.events, reason+" "+message)
	}})
	f.list = func(protocol uint8, port uint16) (found []listeners.Listener, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.lookups = append(f.lookups, fmt.Sprintf("%d:%d", protocol, port))
		for _, l := range f.sockets {
			if protocol == unix.IPPROTO_TCP && (port == 0 || port == l.Port) {
				found = append(found, l)
			}
		}
		return found, f.err
	}
	return f
}

// start runs the Checker until the test ends. The test is in a bubble of synctest.
func (f *fixture) start(t *testing.T) {
	t.Helper()
	var running sync.WaitGroup
	running.Go(func() { f.Run(t.Context()) })
	t.Cleanup(running.Wait)
	synctest.Wait()
}

func (f *fixture) listen(addrs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sockets = nil
	for _, a := range addrs {
		at := netip.MustParseAddrPort(a)
		f.sockets = append(f.sockets, listeners.Listener{Addr: at.Addr(), Port: at.Port(), UID: 7})
	}
}

func (f *fixture) set(service string, ports ...uint16) {
	var frontends []servicenat.Frontend
	for _, p := range ports {
		frontends = append(frontends, servicenat.Frontend{Protocol: corev1.ProtocolTCP, Port: p})
	}
	f.Set(service, frontends)
	synctest.Wait()
}

// want checks the Events and lookups since the last call, after some time.
func (f *fixture) want(t *testing.T, after time.Duration, lookups string, events ...string) {
	t.Helper()
	time.Sleep(after) //nolint:forbidigo // in a bubble of synctest
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := strings.Join(f.lookups, " "); got != lookups {
		t.Errorf("got lookups %q, want %q", got, lookups)
	}
	if len(f.events) != len(events) {
		t.Fatalf("got Events %q, want %q", f.events, events)
	}
	for i, want := range events {
		if got := f.events[i]; !strings.HasPrefix(got, eventreason.NodePortConflict+" ") || !strings.Contains(got, want) {
			t.Errorf("got Event %q, want %s with %q", got, eventreason.NodePortConflict, want)
		}
	}
	f.lookups, f.events = nil, nil
}

// A program that listens at a new node port is reported once after two lookups of this port; one that appears later after a check of all.
func TestChecker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.start(t)
		f.want(t, 0, "")
		f.listen("0.0.0.0:30080", "127.0.0.1:30081", "192.0.2.1:22")
		f.set("a/web", 30080, 30081)
		first := "node port 30080/TCP of Service a/web is also used by a process of the host's user 7, on 0.0.0.0: "
		f.want(t, 0, "6:30080 6:30081")
		f.want(t, confirmTime, "6:30080", first)
		f.set("a/web", 30080, 30081)
		f.want(t, confirmTime, "")
		f.listen("0.0.0.0:30080", "192.0.2.1:30082", "0.0.0.0:30083")
		f.set("a/web", 30080, 30082)
		f.want(t, 0, "6:30082")
		f.listen("0.0.0.0:30080", "0.0.0.0:30083") // the program has ended
		f.want(t, confirmTime, "6:30082")
		f.set("b/web", 30083)
		f.set("b/web") // deleted
		f.want(t, confirmTime, "6:30083")
		f.set("b/web", 30090)
		f.want(t, 0, "6:30090")
		f.listen("0.0.0.0:30080", "192.0.2.1:30090")
		f.want(t, checkPeriod, "6:30080 6:30082 6:30090 6:30090", "node port 30090/TCP of Service b/web is also used by a process of the host's user 7, on 192.0.2.1: ")
		f.listen()
		f.want(t, checkPeriod, "6:30080 6:30082 6:30090")
		f.listen("0.0.0.0:30080")
		f.want(t, checkPeriod+confirmTime, "6:30080 6:30082 6:30090 6:30080", first)
	})
}

// All sockets are listed once for many node ports.
func TestChecker_many(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		var sockets []string
		for i := range 2*maxFiltered + 1 {
			f.set(fmt.Sprintf("a/%d", i), uint16(30000+i)) //nolint:gosec // small
			sockets = append(sockets, fmt.Sprintf("0.0.0.0:%d", 30000+i))
		}
		f.listen(sockets...)
		f.start(t)
		f.want(t, confirmTime, "6:0 17:0 6:0 17:0", "; and 9 more: packets")
	})
}

// The message of an Event has what to do, and fits into 1,024 bytes, also if names are long.
func TestChecker_longNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		var sockets []string
		for i := range maxNames {
			f.set(fmt.Sprintf("%s/%d", strings.Repeat("x", 200), i), uint16(30000+i)) //nolint:gosec // small
			sockets = append(sockets, fmt.Sprintf("0.0.0.0:%d", 30000+i))
		}
		f.listen(sockets...)
		f.start(t)
		time.Sleep(confirmTime) //nolint:forbidigo // in a bubble of synctest
		synctest.Wait()
		f.mu.Lock()
		defer f.mu.Unlock()
		_, message, _ := strings.Cut(strings.Join(f.events, "\n"), " ")
		if len(message) > 1024 || !strings.HasSuffix(message, "or let it use another port") {
			t.Errorf("got %d bytes: %q", len(message), message)
		}
	})
}

// After a failure, all node ports are looked up at the next check of all.
func TestChecker_failure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.listen("0.0.0.0:30080")
		f.err = errors.New("no sock_diag")
		f.set("a/web", 30080)
		f.start(t)
		f.want(t, confirmTime, "6:30080")
		f.mu.Lock()
		f.err = nil
		f.mu.Unlock()
		f.want(t, checkPeriod+confirmTime, "6:30080 6:30080", "node port 30080/TCP")
	})
}

func TestChecker_loses(t *testing.T) {
	ranges := []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	for _, tc := range []struct {
		addr   string
		ranges []netip.Prefix
		want   bool
	}{
		{"0.0.0.0", nil, true}, {"198.51.100.1", nil, true}, {"127.0.0.1", nil, false},
		{"0.0.0.0", ranges, true}, {"192.0.2.1", ranges, true}, {"198.51.100.1", ranges, false}, {"127.0.0.1", ranges, false},
	} {
		if got := newFixture(tc.ranges...).loses(listeners.Listener{Addr: netip.MustParseAddr(tc.addr)}); got != tc.want {
			t.Errorf("%s, ranges %v: got %t, want %t", tc.addr, tc.ranges, got, tc.want)
		}
	}
}

// A node port moves from one service to another in either order, and SCTP and external addresses are ignored.
func TestChecker_Set(t *testing.T) {
	f := newFixture()
	of := func(protocol corev1.Protocol) []servicenat.Frontend {
		return []servicenat.Frontend{{Protocol: protocol, Port: 30080}, {Addr: netip.MustParseAddr("192.0.2.1"), Protocol: protocol, Port: 80}}
	}
	want := func(want string) {
		t.Helper()
		if got := fmt.Sprint(f.take(true)); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
	f.Set("a/web", of(corev1.ProtocolTCP))
	f.Set("b/web", of(corev1.ProtocolSCTP))
	want("map[{TCP 30080}:a/web]")
	f.Set("b/web", of(corev1.ProtocolTCP))
	f.Set("a/web", nil)
	want("map[{TCP 30080}:b/web]")
	f.Set("b/web", of(corev1.ProtocolUDP))
	want("map[{UDP 30080}:b/web]")
	f.Set("b/web", nil)
	if len(f.services)+len(f.ports)+len(f.pending) > 0 {
		t.Errorf("after the deletion: got %v, %v and %v, want nothing", f.services, f.ports, f.pending)
	}
}

// The kernel's sockets are found.
func TestChecker_kernel(t *testing.T) {
	tcp, err := net.Listen("tcp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	udp, err := net.ListenPacket("udp4", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	f := newFixture()
	f.list = listeners.List
	f.Set("a/web", []servicenat.Frontend{
		{Protocol: corev1.ProtocolTCP, Port: netip.MustParseAddrPort(tcp.Addr().String()).Port()},
		{Protocol: corev1.ProtocolUDP, Port: netip.MustParseAddrPort(udp.LocalAddr().String()).Port()},
	})
	r := &checks{Checker: f.Checker, found: map[port]bool{}}
	for _, events := range []int{0, 1, 1} {
		if _, err := r.check(r.take(true)); err != nil || len(f.events) != events {
			t.Fatalf("got Events %q (%v), want %d", f.events, err, events)
		}
	}
	if !slices.ContainsFunc(f.events, func(e string) bool { return strings.Contains(e, "/TCP of") && strings.Contains(e, "/UDP of") }) {
		t.Errorf("got Events %q, want one with both ports", f.events)
	}
}
