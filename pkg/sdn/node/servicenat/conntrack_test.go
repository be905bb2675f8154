package servicenat

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostconntrack"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

func udp(f Frontend) Frontend {
	f.Protocol = corev1.ProtocolUDP
	return f
}

// Only connections of the host whose translation the change concerns are flushed.
func TestTranslator_flushUDP(t *testing.T) {
	const web, other = "172.30.0.10:80", "172.30.0.11:80"
	flowFrom := func(from, to, by string) *netlink.ConntrackFlow {
		original, reply := netip.MustParseAddrPort(to), netip.MustParseAddrPort(by)
		return &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(from), DstIP: original.Addr().AsSlice(), DstPort: original.Port()},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: reply.Addr().AsSlice(), SrcPort: reply.Port()},
		}
	}
	flow := func(to, by string) *netlink.ConntrackFlow { return flowFrom(clientIP, to, by) }
	tenants := udp(external("203.0.113.7", forward))
	tenants.TenantAddress = true
	tcp, switched := flow(nodeIP+":1", nodeIP+":1"), flow(nodeIP+":1", nodeIP+":1")
	tcp.Forward.Protocol, switched.Zone = unix.IPPROTO_TCP, 7
	for name, tc := range map[string]struct {
		flow           *netlink.ConntrackFlow
		added, deleted bool // flushed after the frontends were added, and deleted
	}{
		"node port, not translated":        {flow(nodeIP+":1", nodeIP+":1"), true, false},
		"node port, translated":            {flow(nodeIP+":1", web), false, true},
		"node port, previous cluster IP":   {flow(nodeIP+":1", other), true, true},
		"node port, by another program":    {flow(nodeIP+":1", "10.128.0.5:53"), false, false},
		"another port":                     {flow(nodeIP+":2", nodeIP+":2"), false, false},
		"port of another host":             {flow("192.0.2.11:1", "192.0.2.11:1"), false, false},
		"external address, not translated": {flow("203.0.113.5:80", "203.0.113.5:80"), true, false},
		"external address, translated":     {flow("203.0.113.5:80", web), false, true},
		"of a pod, not translated":         {flowFrom("10.128.0.5", "203.0.113.5:80", "203.0.113.5:80"), false, false},
		"tenant's address":                 {flow("203.0.113.7:80", "203.0.113.7:80"), true, false},
		"tenant's address, of the node":    {flowFrom(nodeIP, "203.0.113.7:80", "203.0.113.7:80"), false, false},
		"rejected":                         {flow("203.0.113.6:80", "203.0.113.6:80"), false, false},
		"tcp":                              {tcp, false, false},
		"in the switch":                    {switched, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				f.start(t)
				want := func(flushes int, flushed bool) {
					t.Helper()
					if len(f.flushes) != flushes {
						t.Fatalf("got %d flushes, want %d", len(f.flushes), flushes)
					}
					if got := f.flushes[flushes-1].MatchConntrackFlow(tc.flow); got != flushed {
						t.Errorf("flush %d: got %t, want %t", flushes, got, flushed)
					}
				}
				f.set("a", nodePort(1, forward)) // TCP
				frontends := []Frontend{udp(nodePort(1, forward)), udp(external("203.0.113.5", forward)), udp(external("203.0.113.6", reject)), tenants}
				f.set("b", frontends...)
				want(1, tc.added)
				f.set("b", append(frontends, nodePort(2, forward))...) // the same UDP
				want(1, tc.added)
				f.set("b")
				time.Sleep(minFlushInterval) //nolint:forbidigo // of the bubble
				synctest.Wait()
				want(2, tc.deleted)
			})
		})
	}
}

// A node port gets the connections to its port of the node's address before an external IP that is the same.
func TestTranslator_flushUDPOfNodePort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		f.start(t)
		flow := &netlink.ConntrackFlow{
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, DstIP: net.ParseIP(nodeIP), DstPort: 80},
			Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP("172.30.0.10"), SrcPort: 80}, // by the external IP
		}
		own := udp(nodePort(80, forward))
		own.To = netip.MustParseAddrPort("172.30.0.11:80")
		f.set("a", udp(external(nodeIP, forward)))
		for i, step := range []struct {
			frontends []Frontend
			flushed   bool
		}{{[]Frontend{own}, true}, {[]Frontend{udp(nodePort(80, reject))}, true}, {[]Frontend{own}, true}, {nil, false}} {
			f.set("b", step.frontends...)
			time.Sleep(minFlushInterval) //nolint:forbidigo // of the bubble
			synctest.Wait()
			if got := f.flushes[len(f.flushes)-1].MatchConntrackFlow(flow); got != step.flushed || len(f.flushes) != i+2 {
				t.Errorf("step %d: got %t in %d flushes, want %t", i, got, len(f.flushes), step.flushed)
			}
		}
	})
}

// When the agent starts, connections to an address where a node port no longer answers are flushed.
func TestTranslator_flushUDPOfNodePortElsewhere(t *testing.T) {
	for addr, want := range map[string]bool{nodeIP: true, otherIP: false} {
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			f.options.NodePortAddresses = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
			f.localAddrs = func() ([]netip.Addr, error) {
				return []netip.Addr{netip.MustParseAddr(nodeIP), netip.MustParseAddr(otherIP)}, nil
			}
			f.set("a", udp(nodePort(1, forward)))
			f.start(t)
			flow := &netlink.ConntrackFlow{
				Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(clientIP), DstIP: net.ParseIP(addr), DstPort: 1},
				Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP("172.30.0.10"), SrcPort: 80},
			}
			if got := f.flushes[0].MatchConntrackFlow(flow); got != want {
				t.Errorf("to %s: got flushed %t, want %t", addr, got, want)
			}
		})
	}
}

// Each flush lists the host's whole conntrack table: an endpoint that flaps causes few of them, and the last change counts.
func TestTranslator_flushUDPInterval(t *testing.T) {
	for took, want := range map[time.Duration]int{0: 6, 200 * time.Millisecond: 3} { // in five seconds
		synctest.Test(t, func(t *testing.T) {
			f := newFixture()
			flush := f.flush
			f.flush = func(match hostconntrack.Filter) error {
				time.Sleep(took) //nolint:forbidigo // of the bubble
				return flush(match)
			}
			f.start(t)
			for i := range 500 {
				verdict := forward
				if i%2 == 1 {
					verdict = reject
				}
				f.set("a", udp(nodePort(1, verdict)))
				time.Sleep(10 * time.Millisecond) //nolint:forbidigo // of the bubble
			}
			if len(f.flushes) > want {
				t.Errorf("flushes that take %s: got %d, want at most %d", took, len(f.flushes), want)
			}
			time.Sleep(3 * time.Second) //nolint:forbidigo // of the bubble
			synctest.Wait()
			translated := &netlink.ConntrackFlow{
				Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(clientIP), DstIP: net.ParseIP(nodeIP), DstPort: 1},
				Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP("172.30.0.10"), SrcPort: 80},
			}
			if !f.flushes[len(f.flushes)-1].MatchConntrackFlow(translated) {
				t.Error("the last flush does not match a connection of the last change")
			}
		})
	}
}

// No failure loses what is to be flushed: neither one of a write that deletes a frontend, nor one of the flush.
func TestTranslator_flushUDPAfterFailure(t *testing.T) {
	translated := &netlink.ConntrackFlow{
		Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(clientIP), DstIP: net.ParseIP(nodeIP), DstPort: 1},
		Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP("172.30.0.10"), SrcPort: 80},
	}
	for name, fail := range map[string]func(f *fixture, fails bool){
		"write": func(f *fixture, fails bool) {
			if f.table.fail(nil); fails {
				f.table.fail(errors.New("no memory"))
			}
		},
		"flush": func(f *fixture, fails bool) { f.failFlush.Store(fails) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				f.start(t)
				f.set("a", udp(nodePort(1, forward)))
				time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
				synctest.Wait()
				before := len(f.flushes)
				fail(f, true)
				f.set("a")
				if len(f.flushes) != before {
					t.Fatalf("during the failure: got %d flushes, want %d", len(f.flushes), before)
				}
				fail(f, false)
				time.Sleep(time.Minute) //nolint:forbidigo // of the bubble
				synctest.Wait()
				if len(f.flushes) != before+1 || !f.flushes[before].MatchConntrackFlow(translated) {
					t.Errorf("after the failure: got %d flushes, want %d, the last with the connection of the deleted frontend", len(f.flushes), before+1)
				}
			})
		})
	}
}

// While the node's addresses can't be listed nothing is flushed, and each failure is logged once. All changes are flushed then.
func TestTranslator_flushUDPWithoutAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		var failed atomic.Bool
		failed.Store(true)
		addrs := f.localAddrs
		f.localAddrs = func() ([]netip.Addr, error) {
			if failed.Load() {
				return nil, unix.ENOBUFS
			}
			return addrs()
		}
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		f.startWith(t, klog.NewContext(t.Context(), logger))
		f.set("a", udp(nodePort(1, forward)))
		f.set("b", udp(nodePort(2, forward)))
		time.Sleep(3 * checkPeriod) //nolint:forbidigo // of the bubble
		synctest.Wait()
		if len(f.flushes) > 0 {
			t.Errorf("without addresses: got %d flushes, want none", len(f.flushes))
		}
		buffer := logger.GetSink().(ktesting.Underlier).GetBuffer()
		if logs := buffer.String(); strings.Count(logs, "Failed to flush") != 1 {
			t.Errorf("got logs\n%s\nwant one of the failure", logs)
		}
		failed.Store(false)
		time.Sleep(checkPeriod) //nolint:forbidigo // of the bubble
		synctest.Wait()
		if len(f.flushes) != 1 {
			t.Fatalf("with addresses: got %d flushes, want 1", len(f.flushes))
		}
		for port, want := range map[uint16]bool{1: true, 2: true, 3: false} {
			flow := &netlink.ConntrackFlow{
				Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(clientIP), DstIP: net.ParseIP(nodeIP), DstPort: port},
				Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(nodeIP), SrcPort: port},
			}
			if got := f.flushes[0].MatchConntrackFlow(flow); got != want {
				t.Errorf("port %d: got flushed %t, want %t", port, got, want)
			}
		}
		time.Sleep(3 * checkPeriod) //nolint:forbidigo // of the bubble
		synctest.Wait()
		if len(f.flushes) != 1 {
			t.Errorf("later: got %d flushes, want 1", len(f.flushes))
		}
	})
}

// sendFromPort0 sends UDP with source port 0.
func sendFromPort0(t *testing.T, client ns.NetNS, to *net.UDPAddr) {
	t.Helper()
	must(t, client.Do(func(ns.NetNS) error {
		conn, err := net.ListenPacket("ip4:udp", clientIP)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, err = conn.WriteTo(wire.UDP(netip.MustParseAddrPort(clientIP+":0"), to.AddrPort(), nil), &net.IPAddr{IP: to.IP})
		return err
	}))
}

// A client that sends UDP before the service exists, and goes on, reaches it then.
func TestRules_udp(t *testing.T) {
	h := newHost(t)
	listen := func(netns ns.NetNS, addr string) net.PacketConn {
		var conn net.PacketConn
		must(t, netns.Do(func(ns.NetNS) (err error) {
			conn, err = net.ListenPacket("udp4", addr)
			return err
		}))
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	server, before, client := listen(h.switched, "172.30.0.10:80"), listen(h.node, nodeIP+":30080"), listen(h.client, clientIP+":5000")
	to := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(nodeIP + ":30080"))
	receive := func(conn net.PacketConn) {
		t.Helper()
		await.OK(t, await.PacketTime, func(context.Context) error {
			if _, err := client.WriteTo([]byte("hello"), to); err != nil {
				return err
			}
			must(t, conn.SetReadDeadline(time.Now().Add(time.Second)))
			_, from, err := conn.ReadFrom(make([]byte, 100))
			if err == nil && from.String() != clientIP+":5000" {
				return errors.New("got a packet from " + from.String())
			}
			return err
		})
	}
	receive(before)
	h.Set("a", []Frontend{udp(nodePort(30080, forward))})
	receive(server)
	sendFromPort0(t, h.client, to)
	if _, err := client.WriteTo([]byte("last"), to); err != nil {
		t.Fatal(err)
	}
	for message := make([]byte, 100); ; {
		must(t, server.SetReadDeadline(time.Now().Add(await.PacketTime)))
		n, from, err := server.ReadFrom(message)
		must(t, err)
		if from.String() != clientIP+":5000" {
			t.Errorf("got a packet from %s, want those of port 0 dropped", from)
		}
		if string(message[:n]) == "last" {
			break
		}
	}
	h.Set("a", nil)
	receive(before)
}
