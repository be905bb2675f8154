package datapath_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/tier"
)

const (
	floodPayload  = 1300
	floodFrame    = floodPayload + 42 // UDP, IPv4, Ethernet
	floodTime     = 2 * time.Second
	floodPatience = 2 * time.Minute
)

// TestBandwidth: a limit is that of the pod: all that it sends, or gets, on the node, through the tunnel and through a service, is limited together.
func TestBandwidth(t *testing.T) {
	tier.Parallel(t)
	const limit, burst = 2_000_000, 1_000_000 // bits per second, bits
	c := newCluster(t, 2, 2)
	c.routeServices(t)
	pod, local, remote, endpoint := c.pod(0, 0), c.pod(0, 1), c.pod(1, 0), c.pod(1, 1)
	b := &balanced{cluster: c, mode: config.ModeNetworkPolicy, endpoints: []netip.AddrPort{netip.AddrPortFrom(endpoint.Addr, 8080)}}
	for _, test := range []struct {
		name   string
		limits config.Bandwidth
		flows  []flood
	}{
		{"egress", config.Bandwidth{Egress: limit}, []flood{
			{pod, netip.AddrPortFrom(local.Addr, 8080), local}, {pod, netip.AddrPortFrom(remote.Addr, 8080), remote}, {pod, vip(53), endpoint},
		}},
		{"ingress", config.Bandwidth{Ingress: limit}, []flood{
			{local, netip.AddrPortFrom(pod.Addr, 8080), pod}, {remote, netip.AddrPortFrom(pod.Addr, 8080), pod},
		}},
		{"no limit", config.Bandwidth{}, []flood{{pod, netip.AddrPortFrom(local.Addr, 8080), local}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if testing.Short() && test.limits == (config.Bandwidth{}) {
				t.Skip("complete tier: compares a rate")
			}
			b.bandwidth = map[*datapath.Pod]config.Bandwidth{pod: test.limits}
			b.install(t)
			got := runFloods(t, test.flows, limit, burst)
			allowed := 1.1 * (burst + limit*got.took.Seconds())
			t.Logf("in %v: sent %.1f Mbit, received %.1f Mbit (%v frames of each), the limit allows %.1f Mbit", got.took, mbit(got.sent), mbit(got.received), got.each, allowed/1e6)
			isLimited := got.received <= allowed
			if wantLimited := test.limits != (config.Bandwidth{}); isLimited != wantLimited {
				t.Errorf("got %.1f Mbit, limited to %.1f Mbit: %t, want %t", mbit(got.received), allowed/1e6, isLimited, wantLimited)
			}
			for i, frames := range got.each {
				if frames == 0 {
					t.Errorf("no packet from %s to %s arrived", test.flows[i].from.Addr, test.flows[i].to)
				}
			}
		})
	}
}

func mbit(bits float64) float64 { return bits / 1e6 }

// flood is a flow of UDP.
type flood struct {
	from     *datapath.Pod
	to       netip.AddrPort
	receiver *datapath.Pod
}

// flooded is the result of floods, in bits of frames.
type flooded struct {
	sent, received float64
	each           []int64 // received frames by flood
	took           time.Duration
}

// runFloods sends all floods at the same time, for floodTime or until they have sent three times what a limit of all together allows. The sockets of floods to
// one pod are one.
func runFloods(t *testing.T, floods []flood, limit, burst float64) flooded {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), floodPatience)
	defer stop()
	var sent atomic.Int64
	counts := make([]atomic.Int64, len(floods))
	var receivers, senders sync.WaitGroup
	sockets := map[*datapath.Pod]*datapath.Socket{}
	sources := map[netip.AddrPort]int{}
	clients := make([]*datapath.Socket, len(floods))
	for i, f := range floods {
		clients[i] = f.from.UDP(t, 0)
		sources[clients[i].Addr()] = i
		if sockets[f.receiver] == nil {
			sockets[f.receiver] = f.receiver.UDP(t, 8080)
		}
	}
	for _, s := range sockets {
		receivers.Go(func() { countFrames(s, sources, counts) })
	}
	started := time.Now()
	for i, f := range floods {
		senders.Go(func() {
			payload := make([]byte, floodPayload)
			for {
				elapsed := time.Since(started)
				share := float64(sent.Load()*floodFrame*8) / (burst + limit*elapsed.Seconds())
				if ctx.Err() != nil || elapsed > floodTime && share > 3 {
					return
				}
				if share > 4 {
					pause(clients[i])
					continue
				}
				if _, err := clients[i].WriteTo(payload, net.UDPAddrFromAddrPort(f.to)); err == nil {
					sent.Add(1)
				}
			}
		})
	}
	senders.Wait()
	if ctx.Err() != nil {
		t.Fatalf("sent only %d frames in %v: nothing was flooded", sent.Load(), floodPatience)
	}
	result := flooded{sent: float64(sent.Load() * floodFrame * 8), took: time.Since(started)}
	for _, s := range sockets {
		s.Close()
	}
	receivers.Wait()
	for i := range counts {
		result.each = append(result.each, counts[i].Load())
		result.received += float64(counts[i].Load() * floodFrame * 8)
	}
	return result
}

// pause waits a millisecond: no packet arrives at the socket of a sender.
func pause(s *datapath.Socket) {
	if s.SetReadDeadline(time.Now().Add(time.Millisecond)) == nil {
		_, _, _ = s.ReadFrom(make([]byte, 1))
	}
}

// countFrames counts received packets by the flood of their source, until the socket is closed.
func countFrames(s *datapath.Socket, sources map[netip.AddrPort]int, counts []atomic.Int64) {
	buf := make([]byte, 2*floodPayload)
	for {
		n, from, err := s.ReadFrom(buf)
		if err != nil {
			return
		}
		udp, ok := from.(*net.UDPAddr)
		if !ok || n != floodPayload {
			continue
		}
		source := udp.AddrPort()
		if i, known := sources[netip.AddrPortFrom(source.Addr().Unmap(), source.Port())]; known {
			counts[i].Add(1)
		}
	}
}

// TestBandwidthIsPrecise: TCP and UDP reach a limit within 10 %, in both directions.
func TestBandwidthIsPrecise(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: measures throughput")
	}
	c := newCluster(t, 2)
	b := &balanced{cluster: c, mode: config.ModeNetworkPolicy}
	client, server := c.pod(0, 0), c.pod(0, 1)
	b.install(t)
	measures := map[string]func(*testing.T, *datapath.Pod, *datapath.Pod, float64) float64{"TCP": measureTCP, "UDP": measureUDP}
	surplus := map[string]float64{"TCP": 1.2, "UDP": 1.5} // of the limit, without which a limit shows nothing
	unlimited := map[string]float64{}
	for name, measure := range measures {
		unlimited[name] = measure(t, client, server, 2e9)
		t.Logf("%s without a limit: %.0f Mbit/s", name, unlimited[name]/1e6)
	}
	for _, limit := range []uint64{1e6, 1e7, 1e8, 5e8, 1e9} {
		for direction, limits := range map[string]map[*datapath.Pod]config.Bandwidth{"egress": {client: {Egress: limit}}, "ingress": {server: {Ingress: limit}}} {
			for name, measure := range measures {
				if unlimited[name] < surplus[name]*float64(limit) {
					t.Logf("%d Mbit/s of %s by %s is not measured: this machine reaches %.0f Mbit/s", limit/1e6, direction, name, unlimited[name]/1e6)
					continue
				}
				t.Run(fmt.Sprintf("%d Mbit/%s/%s", limit/1e6, direction, name), func(t *testing.T) {
					b.bandwidth = limits
					b.install(t)
					got := measure(t, client, server, 1.5*float64(limit)) / float64(limit)
					t.Logf("got %.3f of the limit", got)
					if got < 0.9 || got > 1.1 {
						t.Errorf("got %.3f of the limit, want 0.9 to 1.1", got)
					}
				})
			}
		}
	}
}

// measureTime is how long throughput is measured, with the first burst.
const measureTime = 10 * time.Second

// measureTCP returns the payload in bits per second of one connection that sends as much as it can.
func measureTCP(t *testing.T, client, server *datapath.Pod, _ float64) float64 {
	t.Helper()
	listener := server.ListenTCP(t, 0)
	defer listener.Close()
	addr, ok := listener.Addr().(*net.TCPAddr)
	if !ok {
		t.Fatalf("got address %T, want TCP", listener.Addr())
	}
	s := client.Dial(t, addr.AddrPort(), listener)
	useCubic(t, s.Client)
	var sender sync.WaitGroup
	sender.Go(func() {
		for buf := make([]byte, 128<<10); ; {
			if _, err := s.Client.Write(buf); err != nil {
				return
			}
		}
	})
	received, buf := 0, make([]byte, 128<<10)
	started := time.Now()
	if err := s.Server.SetReadDeadline(started.Add(measureTime)); err != nil {
		t.Fatal(err)
	}
	for {
		n, err := s.Server.Read(buf)
		received += n
		if err != nil {
			break
		}
	}
	took := time.Since(started)
	s.Client.Close()
	s.Server.Close()
	sender.Wait()
	return float64(received) * 8 / took.Seconds()
}

// useCubic sets the congestion control that is the kernel's default, whatever this machine's is.
func useCubic(t *testing.T, conn net.Conn) {
	t.Helper()
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("got connection %T, want TCP", conn)
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var set error
	err = raw.Control(func(fd uintptr) { set = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "cubic") })
	if err = errors.Join(err, set); err != nil {
		t.Fatal(err)
	}
}

// measureUDP returns the frames in bits per second of which the client sends so many.
func measureUDP(t *testing.T, client, server *datapath.Pod, rate float64) float64 {
	t.Helper()
	from, to := client.UDP(t, 0), server.UDP(t, 0)
	defer from.Close()
	defer to.Close()
	var received sync.WaitGroup
	counts := make([]atomic.Int64, 1)
	received.Go(func() { countFrames(to, map[netip.AddrPort]int{from.Addr(): 0}, counts) })
	payload, started := make([]byte, floodPayload), time.Now()
	for sent := 0; ; {
		elapsed := time.Since(started)
		if elapsed >= measureTime {
			break
		}
		if float64(sent*floodFrame*8) > rate*elapsed.Seconds() {
			pause(from)
			continue
		}
		if _, err := from.WriteTo(payload, net.UDPAddrFromAddrPort(to.Addr())); err == nil {
			sent++
		}
	}
	took := time.Since(started)
	to.Close()
	received.Wait()
	return float64(counts[0].Load()*floodFrame*8) / took.Seconds()
}
