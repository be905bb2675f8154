package e2e

import (
	"context"
	"errors"
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

// The ports on which members hear each other.
const (
	memberUDP = 7000
	memberTCP = 7001
)

// chatterInterval is between two packets of one member to another one while VNIDs change.
const chatterInterval = 200 * time.Millisecond

// packet is one packet of a member: sender, receiver, and round; 0 is background traffic.
type packet struct {
	protocol string
	round    int
	from, to int
}

func (p packet) text() string { return fmt.Sprintf("ovsdn-e2e %d %d %d ", p.round, p.from, p.to) }

func parsePacket(protocol string, payload []byte) (packet, bool) {
	p := packet{protocol: protocol}
	_, err := fmt.Sscanf(string(payload), "ovsdn-e2e %d %d %d ", &p.round, &p.from, &p.to)
	return p, err == nil
}

// ears are the sockets of a member.
type ears struct {
	udp  net.PacketConn
	icmp net.PacketConn
	tcp  net.Listener
}

// recorder captures the packets of all members and evaluates those that arrive.
type recorder struct {
	*matrix
	t    *testing.T
	ears []ears

	mu       sync.Mutex
	round    int
	allowed  verdicts // nil: not known, evaluated later
	pending  []packet
	arrived  map[packet]bool // of the round
	breaches map[packet]bool
	news     chan struct{}
}

func newRecorder(t *testing.T, m *matrix) *recorder {
	t.Helper()
	r := &recorder{
		matrix: m, t: t, allowed: m.verdicts(), news: make(chan struct{}, 1),
		arrived: map[packet]bool{}, breaches: map[packet]bool{},
	}
	for i, member := range m.members {
		udp, err := member.NetNS.ListenPacket("udp4", netip.AddrPortFrom(member.Addr, memberUDP).String())
		if err != nil {
			t.Fatal(err)
		}
		icmp, err := member.NetNS.ListenPacket("ip4:icmp", member.Addr.String())
		if err != nil {
			t.Fatal(err)
		}
		tcp, err := member.NetNS.Listen("tcp4", netip.AddrPortFrom(member.Addr, memberTCP).String())
		if err != nil {
			t.Fatal(err)
		}
		r.ears = append(r.ears, ears{udp, icmp, tcp})
		var hearing sync.WaitGroup
		hearing.Go(func() { r.hear("udp", i, udp, 0) })
		hearing.Go(func() { r.hear("icmp", i, icmp, icmpHeader) })
		hearing.Go(func() { r.answer(i, tcp) })
		t.Cleanup(func() {
			if err := errors.Join(udp.Close(), icmp.Close(), tcp.Close()); err != nil {
				t.Error(err)
			}
			hearing.Wait()
		})
	}
	return r
}

const icmpHeader = 8

// hear records datagrams. Of ICMP, echo requests only: the answers are the kernel's.
func (r *recorder) hear(protocol string, to int, conn net.PacketConn, header int) {
	buffer := make([]byte, 1<<16)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n <= header || header > 0 && buffer[0] != 8 {
			continue
		}
		if p, ok := parsePacket(protocol, buffer[header:n]); ok && p.to == to {
			r.record(p)
		}
	}
}

func (r *recorder) answer(to int, l net.Listener) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(fixture.PacketTime)); err != nil {
				return
			}
			buffer := make([]byte, 64)
			n, err := conn.Read(buffer)
			if err != nil {
				return
			}
			if p, ok := parsePacket("tcp", buffer[:n]); ok && p.to == to {
				r.record(p)
			}
		}()
	}
}

func (r *recorder) record(p packet) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.arrived[p] = true
	if r.allowed == nil {
		r.pending = append(r.pending, p)
	} else if !r.allowed[p.from][p.to] {
		r.breaches[p] = true
	}
	select {
	case r.news <- struct{}{}:
	default:
	}
}

// allow sets the packets that may arrive from now on, and evaluates those since allow(nil).
func (r *recorder) allow(v verdicts) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.allowed = v
	if v == nil {
		return
	}
	for _, p := range r.pending {
		if !v[p.from][p.to] {
			r.breaches[p] = true
		}
	}
	r.pending = nil
}

// send sends one packet. What a forbidden one does to its sender is of no interest.
func (r *recorder) send(ctx context.Context, p packet) {
	from, to := r.members[p.from], r.members[p.to]
	switch p.protocol {
	case "udp":
		_, _ = r.ears[p.from].udp.WriteTo([]byte(p.text()), net.UDPAddrFromAddrPort(netip.AddrPortFrom(to.Addr, memberUDP)))
	case "icmp":
		_, _ = r.ears[p.from].icmp.WriteTo(wire.ICMPEcho([]byte(p.text())), &net.IPAddr{IP: to.Addr.AsSlice()})
	case "tcp":
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		conn, err := from.NetNS.DialContext(ctx, "tcp4", netip.AddrPortFrom(to.Addr, memberTCP).String())
		if err != nil {
			return
		}
		_, _ = conn.Write([]byte(p.text()))
		_ = conn.Close()
	}
}

// chatter makes all members send to all others until stop.
func (r *recorder) chatter(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var talking sync.WaitGroup
	for i := range r.members {
		talking.Go(func() {
			tick := time.NewTicker(chatterInterval)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				for j := range r.members {
					if i != j {
						r.send(ctx, packet{protocol: "udp", from: i, to: j})
					}
				}
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); talking.Wait() })
	t.Cleanup(stop)
	return stop
}

// next begins a round.
func (r *recorder) next() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.round++
	clear(r.arrived)
	return r.round
}

func (r *recorder) has(p packet) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.arrived[p]
}

// converge returns when the nodes do what is wanted: rounds of UDP until one is right.
func (r *recorder) converge(t *testing.T, want verdicts) {
	t.Helper()
	var arrives *packet // in the last round
	defer func() {
		if arrives != nil {
			fixture.Arrived(t, "%+v still arrives", *arrives)
		}
	}()
	fixture.Eventually(t, fixture.SyncTime, "all nodes follow", func(ctx context.Context) error {
		arrives = nil
		round := r.next()
		all := r.packets(round, want, []string{"udp"}, true)
		for _, p := range append(all, r.packets(round, want, []string{"udp"}, false)...) {
			r.send(ctx, p)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if err := r.await(ctx, all); err != nil {
			return err
		}
		for _, p := range r.packets(round, want, []string{"udp"}, false) {
			if r.has(p) {
				arrives = &p
				return fmt.Errorf("%+v still arrives", p)
			}
		}
		return nil
	})
}

// packets are those of a round that are allowed, or those that are not.
func (r *recorder) packets(round int, v verdicts, protocols []string, allowed bool) []packet {
	var all []packet
	for _, protocol := range protocols {
		for i := range v {
			for j := range v {
				if i != j && v[i][j] == allowed {
					all = append(all, packet{protocol, round, i, j})
				}
			}
		}
	}
	return all
}

// await returns when all packets have arrived.
func (r *recorder) await(ctx context.Context, all []packet) error {
	for {
		missing := slices.IndexFunc(all, func(p packet) bool { return !r.has(p) })
		if missing < 0 {
			return nil
		}
		select {
		case <-r.news:
		case <-ctx.Done():
			return fmt.Errorf("%+v does not arrive", all[missing])
		}
	}
}

// check sends a packet of every protocol from everybody to everybody. What is allowed must arrive, and nothing else. What is forbidden is
// sent first: the same ways are then taken by what arrives.
func (r *recorder) check(t *testing.T) {
	t.Helper()
	want := r.verdicts()
	protocols := []string{"udp", "icmp", "tcp"}
	round := r.next()
	forbidden := r.packets(round, want, protocols, false)
	allowed := r.packets(round, want, protocols, true)
	var dialling sync.WaitGroup
	for _, p := range slices.Concat(forbidden, allowed) {
		if p.protocol == "tcp" {
			dialling.Go(func() { r.send(t.Context(), p) })
		} else {
			r.send(t.Context(), p)
		}
	}
	dialling.Wait()
	fixture.Eventually(t, fixture.SyncTime, "what is allowed arrives", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		for _, p := range allowed {
			if !r.has(p) {
				r.send(ctx, p)
			}
		}
		return r.await(ctx, allowed)
	})
	for _, p := range forbidden {
		if r.has(p) {
			fixture.Arrived(t, "arrived, though VNID %d may not reach VNID %d: %+v from %s to %s", r.vnidOf(p.from), r.vnidOf(p.to), p, r.members[p.from].Node, r.members[p.to].Node)
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for p := range r.breaches {
		fixture.Arrived(t, "arrived, though forbidden before and after: %+v", p)
	}
	clear(r.breaches)
}

func (r *recorder) vnidOf(i int) uint32 { return r.tenants[r.members[i].tenant].vnid }

// oneGlobal reports whether another namespace than i has VNID 0 already, or i itself.
func (r *recorder) oneGlobal(i int) bool {
	global := 0
	for j, ns := range r.tenants {
		if ns.vnid == 0 && j != i {
			global++
		}
	}
	return global > 1 || r.tenants[i].vnid == 0
}
