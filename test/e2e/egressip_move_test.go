package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

const (
	// egressMoves is how often an egress IP moves to another node in testEgressIPMoves.
	egressMoves = 50
	// openEvery is the interval between two connections of the pods in turn: 500 per second.
	openEvery = 2 * time.Millisecond
	// firstOpenPort and lastOpenPort are the ports that pods open connections from.
	firstOpenPort, lastOpenPort = 1 << 10, 1<<16 - 1
	// openPort is the port of the host outside for connections of the first namespace; each other one has the next.
	openPort = 5300
)

// testEgressIPMoves opens connections from pods on all nodes while an egress IP moves: no packet leaves any node with another source than the namespace's.
func testEgressIPMoves(t *testing.T, w *egressWorld) {
	u := newUplinks(t, w)
	stop := w.startOpening(t)
	began := time.Now()
	for i := range egressMoves {
		node := w.nodes[(i+1)%len(w.nodes)]
		hosted := map[string][]netip.Addr{fixture.Node2: {egressIP(1)}, fixture.Node3: {egressIP(2)}}
		hosted[node] = append(hosted[node], egressIP(0))
		w.hosts(t, hosted)
		since := time.Now()
		fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("packets with egress IP %s leave %s", egressIP(0), node), func(context.Context) error {
			if last := u.last(node, egressIP(0)); last.Before(since) {
				return fmt.Errorf("the last left at %v", last)
			}
			return nil
		})
	}
	took := time.Since(began)
	opened := stop()
	t.Logf("%d moves in %v, %d connections, %.0f per second, packets by node and source: %v", egressMoves, took, opened, float64(opened)/took.Seconds(), u.counts())
	if want := took.Seconds() / openEvery.Seconds(); float64(opened) < 0.9*want {
		t.Errorf("opened %d connections, want %.0f", opened, want)
	}
}

// startOpening calls open until stop, which returns the number of connections, or until the test ends.
func (w *egressWorld) startOpening(t *testing.T) (stop func() (opened int)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var opening sync.WaitGroup
	opened := 0
	opening.Go(func() { opened = w.open(ctx, t) })
	stop = func() int { cancel(); opening.Wait(); return opened }
	t.Cleanup(func() { stop() })
	return stop
}

// open opens connections, in turn from all pods of the namespaces that can reach the host outside, until the context ends. It returns their number.
func (w *egressWorld) open(ctx context.Context, t *testing.T) (opened int) {
	at := w.places[0]
	type sender struct {
		*wire.Injector
		pod
		port uint16
	}
	var senders []sender
	for i, s := range w.spaces() {
		l, err := at.netns.Listen("tcp4", netip.AddrPortFrom(at.addr, openPort+uint16(i)).String())
		if err != nil {
			t.Error(err)
			return 0
		}
		defer l.Close() // pods answer SYN-ACK with RST
		for _, p := range s.pods {
			inject, err := p.NetNS.Inject("eth0")
			if err != nil {
				t.Error(err)
				return 0
			}
			defer inject.Close()
			senders = append(senders, sender{inject, p, openPort + uint16(i)})
		}
	}
	tick := time.NewTicker(openEvery)
	defer tick.Stop()
	for began := time.Now(); ctx.Err() == nil; {
		if opened >= int(time.Since(began)/openEvery) { // ticks may have been missed
			select {
			case <-ctx.Done():
			case <-tick.C:
			}
			continue
		}
		from := senders[opened%len(senders)]
		src := netip.AddrPortFrom(from.Addr, uint16(firstOpenPort+opened/len(senders)%(lastOpenPort-firstOpenPort)))
		segment := wire.TCP(src, netip.AddrPortFrom(at.addr, from.port), wire.TCPSYN)
		packet := wire.IPv4{Src: src.Addr(), Dst: at.addr, Protocol: wire.ProtocolTCP}.Packet(segment)
		if err := from.Resend(wire.Ethernet(fixture.MACOf(from.Gateway()), from.MAC, wire.TypeIPv4, packet)); err != nil {
			t.Error(err)
			return opened
		}
		opened++
	}
	return opened
}

// uplinks checks what leaves the nodes towards the host outside.
type uplinks struct {
	allowed map[uint16][]netip.Addr // sources by destination port; nil: the node's own address
	stops   []func()

	mu    sync.Mutex
	times map[departure]time.Time // of the last packet
	sent  map[departure]int
}

// departure is a node that packets leave, and their source.
type departure struct {
	node   string
	source netip.Addr
}

func (d departure) String() string { return d.node + " " + d.source.String() }

// newUplinks watches until stop, or until the test ends.
func newUplinks(t *testing.T, w *egressWorld) *uplinks {
	t.Helper()
	u := &uplinks{allowed: map[uint16][]netip.Addr{}, times: map[departure]time.Time{}, sent: map[departure]int{}}
	for i, s := range w.spaces() {
		port := openPort + uint16(i)
		switch {
		case len(s.ips) == 0:
			u.allowed[port] = nil
		case s == w.unhosted:
			u.allowed[port] = []netip.Addr{}
		default:
			u.allowed[port] = s.ips
		}
	}
	for _, node := range w.nodes {
		u.watch(t, w.Machine(t, node), w.Addr(t, node), w.places[0].addr)
	}
	return u
}

// watch checks the packets at a node's uplink. The bridge of the fabric may bring packets of other nodes there, too: those do not count.
func (u *uplinks) watch(t *testing.T, node machine, own, to netip.Addr) {
	t.Helper()
	var mac net.HardwareAddr
	err := node.NetNS.Do(func() error {
		link, err := net.InterfaceByName(uplinkName)
		if err == nil {
			mac = link.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := node.NetNS.Watch(uplinkName, to.AsSlice(), func(frame []byte) {
		flow, ok := wire.ParseFlow(frame)
		if !ok || flow.Dst.Addr() != to || !slices.Equal(flow.From, mac) {
			return
		}
		allowed, known := u.allowed[flow.Dst.Port()]
		switch {
		case !known:
			return
		case allowed == nil:
			allowed = []netip.Addr{own}
		}
		d := departure{node.Name, flow.Src.Addr()}
		u.mu.Lock()
		u.times[d] = time.Now()
		u.sent[d]++
		first := u.sent[d] == 1
		u.mu.Unlock()
		if first && !slices.Contains(allowed, flow.Src.Addr()) {
			fixture.Arrived(t, "a packet to %s leaves %s with source %s, want one of %v", flow.Dst, node.Name, flow.Src, allowed)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	u.stops = append(u.stops, sync.OnceFunc(func() {
		if err := c.Close(); err != nil {
			t.Errorf("watch the uplink of %s: %v", node.Name, err)
		}
	}))
	t.Cleanup(u.stops[len(u.stops)-1])
}

func (u *uplinks) stop() {
	for _, stop := range u.stops {
		stop()
	}
}

// last returns when the last packet with the source left the node.
func (u *uplinks) last(node string, source netip.Addr) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.times[departure{node, source}]
}

func (u *uplinks) counts() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return fmt.Sprint(u.sent)
}
