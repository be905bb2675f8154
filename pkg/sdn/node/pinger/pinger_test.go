package pinger

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// network answers requests after a millisecond, unless the path drops them.
type network struct {
	drops func(to netip.Addr, size int) bool

	mu      sync.Mutex
	sent    []time.Time
	replies chan reply
	closed  chan struct{}
	close   func()
}

type reply struct {
	from   netip.Addr
	number uint64
}

func newNetwork(drops func(netip.Addr, int) bool) *network {
	n := &network{drops: drops, replies: make(chan reply, 1000), closed: make(chan struct{})}
	n.close = sync.OnceFunc(func() { close(n.closed) })
	return n
}

func (n *network) Send(to netip.Addr, size int, number uint64) error {
	n.mu.Lock()
	n.sent = append(n.sent, time.Now())
	n.mu.Unlock()
	if n.drops(to, size) {
		return errors.New("dropped")
	}
	time.AfterFunc(time.Millisecond, func() { n.replies <- reply{to, number} })
	return nil
}

func (n *network) Receive() (netip.Addr, uint64, error) {
	select {
	case r := <-n.replies:
		return r.from, r.number, nil
	case <-n.closed:
		return netip.Addr{}, 0, net.ErrClosed
	}
}

func (n *network) Close() error { n.close(); return nil }

func remote(i int) *inputs.RemoteNode {
	vtep, gateway := [4]byte{192, 0}, [4]byte{10, 128, 0, 1}
	binary.BigEndian.PutUint16(vtep[2:], uint16(i))
	binary.BigEndian.PutUint16(gateway[1:], uint16(128<<8+i))
	return &inputs.RemoteNode{VTEP: netip.AddrFrom4(vtep), Gateway: netip.AddrFrom4(gateway), IsNode: true}
}

// run runs a pinger of some nodes in a bubble for a time.
func run(t *testing.T, n *network, nodes int, d time.Duration) (p *Pinger, observed map[string]int, problems []diagnostics.PeerProblem, probed, answering int) {
	t.Helper()
	observed = map[string]int{}
	var mu sync.Mutex
	p = New(Options{
		Rate: MaxRate, MTU: 1450, Open: func() (Socket, error) { return n, nil },
		Observe: func(path Path, rtt time.Duration, answered bool) {
			mu.Lock()
			defer mu.Unlock()
			observed[fmt.Sprintf("%s %v", path, answered)]++
			if answered && rtt != time.Millisecond {
				t.Errorf("%s: got a round-trip time of %v, want 1ms", path, rtt)
			}
		},
	})
	for i := range nodes {
		p.SetRemoteNode(fmt.Sprintf("node%d", i+1), remote(i+1))
	}
	deleted := remote(200)
	deleted.IsRetained = true
	p.SetRemoteNode("deleted", deleted)
	p.SetRemoteNode("outside", &inputs.RemoteNode{VTEP: netip.MustParseAddr("198.51.100.1"), Gateway: netip.MustParseAddr("10.200.0.1")})
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { p.Run(ctx) })
	time.Sleep(d) //nolint:forbidigo // of the bubble
	problems, probed, answering = p.Problems(20)
	stop()
	n.close()
	running.Wait()
	return p, observed, problems, probed, answering
}

// Each kind of fault has its sentence; nodes that answer nothing since the start have none.
func TestPinger_problems(t *testing.T) {
	overlayOf := func(i int) netip.Addr { return remote(i).Gateway }
	underlayOf := func(i int) netip.Addr { return remote(i).VTEP }
	var began time.Time
	for _, tc := range []struct {
		name  string
		drops func(to netip.Addr, size int) bool
		want  []diagnostics.PeerProblem
	}{
		{"nothing lost", func(netip.Addr, int) bool { return false }, nil},
		{"overlay", func(to netip.Addr, _ int) bool { return to == overlayOf(2) }, nil}, // as while the agent of a new node starts
		{"overlay, later", func(to netip.Addr, _ int) bool { return to == overlayOf(2) && time.Since(began) > time.Minute }, []diagnostics.PeerProblem{
			{Node: "node2", Problem: "the overlay does not answer, the underlay does: check that firewalls admit VXLAN between the nodes, and br0 of both"}}},
		{"large packets", func(to netip.Addr, size int) bool { return to == overlayOf(2) && size > 1400 }, []diagnostics.PeerProblem{
			{Node: "node2", Problem: "the overlay loses packets of 1450 bytes, and not small ones: the MTU of the underlay is too small (docs/mtu.md)"}}},
		{"never answered", func(to netip.Addr, _ int) bool { return to == overlayOf(2) || to == underlayOf(2) }, nil},
		{"both, later", func(to netip.Addr, _ int) bool {
			return (to == overlayOf(2) || to == underlayOf(2)) && time.Since(began) > time.Minute
		}, []diagnostics.PeerProblem{
			{Node: "node2", Problem: "neither the overlay nor the underlay answers: the node is down or unreachable or, with the userspace datapath, its ovs-vswitchd does not run: check both"}}},
		{"overlay, later, ICMP to hosts is blocked", func(to netip.Addr, _ int) bool {
			return to == underlayOf(2) || to == overlayOf(2) && time.Since(began) > time.Minute
		}, []diagnostics.PeerProblem{{Node: "node2", Problem: "the overlay does not answer any longer, and the underlay has never answered: check VXLAN between the nodes, and the node"}}},
		{"ICMP to hosts is blocked", func(to netip.Addr, _ int) bool { return to == underlayOf(1) || to == underlayOf(2) }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began = time.Now()
				p, _, got, nodes, answering := run(t, newNetwork(tc.drops), 2, 3*time.Minute)
				if _, after, answering := p.Problems(20); after != 0 || answering != 0 {
					t.Errorf("got %d nodes after the end, %d of them answering, want 0", after, answering)
				}
				wantAnswering := 2
				if tc.drops(overlayOf(2), smallProbe) {
					wantAnswering = 1
				}
				if diff := cmp.Diff(tc.want, got); diff != "" || nodes != 2 || answering != wantAnswering {
					t.Errorf("%d nodes, want 2, %d answer, want %d; problems (-want +got):\n%s", nodes, answering, wantAnswering, diff)
				}
			})
		})
	}
}

// The rate is at most 50 per second with any number of nodes, and three paths of each node are probed within ten seconds if that allows it.
func TestPinger_rate(t *testing.T) {
	for nodes, want := range map[int]int{0: 0, 1: 90, 10: 900, 2000: 300 * MaxRate} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := newNetwork(func(netip.Addr, int) bool { return false })
				_, observed, _, _, _ := run(t, n, nodes, 300*time.Second)
				if got := len(n.sent); math.Abs(float64(got-want)) > 3 {
					t.Errorf("got %d probes in 300 s, want %d", got, want)
				}
				for i := MaxRate + 1; i < len(n.sent); i++ {
					if n.sent[i].Sub(n.sent[i-MaxRate-1]) < time.Second {
						t.Fatalf("more than %d probes in a second", MaxRate)
					}
				}
				if nodes > 0 && (observed["overlay true"] == 0 || observed["overlay-mtu true"] == 0 || observed["underlay true"] == 0) {
					t.Errorf("got %v, want answers of all paths", observed)
				}
			})
		})
	}
}

// The worst paths come first, and no more than asked for.
func TestPinger_worst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(func(to netip.Addr, _ int) bool { return to == remote(3).VTEP })
		p, observed, _, _, _ := run(t, n, 5, time.Minute)
		got := p.Worst(2)
		if len(got) != 2 || got[0] != (PathStats{"node3", Underlay, 1, 0}) || got[1].Loss != 0 || got[1].RTT != time.Millisecond {
			t.Errorf("got %+v", got)
		}
		if observed["underlay false"] == 0 || observed["overlay false"] > 0 {
			t.Errorf("got %v, want losses of the underlay only", observed)
		}
		p.SetRemoteNode("node3", nil)
		if got := p.Worst(100); len(got) != 12 || got[0].Loss != 0 {
			t.Errorf("after node3 was deleted: got %+v", got)
		}
	})
}

// A reply of another address, or to a probe that was not sent, is ignored.
func TestPinger_forgedReplies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := New(Options{Rate: MaxRate, MTU: 1450, Observe: func(Path, time.Duration, bool) { t.Error("observed") }})
		p.SetRemoteNode("node1", remote(1))
		chosen, number, size, ok := p.choose(time.Now())
		if !ok || chosen.path != Overlay || size != smallProbe {
			t.Fatalf("got %+v, %d bytes", chosen, size)
		}
		p.answer(remote(2).Gateway, number, time.Now())
		p.answer(chosen.to, number+1, time.Now())
		if len(p.pending) != 1 {
			t.Error("a forged reply answered the probe")
		}
	})
}

// The real socket: this host answers on its loopback interface.
func TestOpenICMP(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	socket, err := OpenICMP()
	if err != nil {
		t.Fatal(err)
	}
	other, err := OpenICMP()
	if err != nil {
		t.Fatal(err)
	}
	replies := make(chan reply)
	var receiving sync.WaitGroup
	for _, s := range []Socket{socket, other} {
		receiving.Go(func() {
			for {
				from, number, err := s.Receive()
				if err != nil {
					return
				}
				replies <- reply{from, number}
			}
		})
	}
	to := netip.MustParseAddr("127.0.0.1")
	for i, size := range []int{smallProbe, 1450} {
		number := uint64(i) + 1<<40
		if err := socket.Send(to, size, number); err != nil {
			t.Fatal(err)
		}
		if got := <-replies; got != (reply{to, number}) {
			t.Errorf("%d bytes: got %v, want %v", size, got, reply{to, number})
		}
	}
	if err := errors.Join(socket.Close(), other.Close()); err != nil {
		t.Error(err)
	}
	receiving.Wait()
	if len(replies) > 0 {
		t.Error("a socket received the replies to another one")
	}
}

// FuzzParse: replies are of the network, and any pod may send one.
func FuzzParse(f *testing.F) {
	f.Add([]byte{echoReply, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9})
	f.Fuzz(func(t *testing.T, message []byte) {
		s := &icmpSocket{nonce: [nonceSize]byte{1, 2, 3, 4, 5, 6, 7, 8}}
		if _, ok := s.parse(message); ok && (message[0] != echoReply || len(message) < messageSize) {
			t.Errorf("accepted %x", message)
		}
	})
}
