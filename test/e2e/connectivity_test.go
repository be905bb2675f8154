package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// trio is two pods on the first node and one on the second.
type trio struct {
	*cluster
	namespace string
	a, b, c   pod
	node1     machine
	node2     machine
	outside   machine
}

func newTrio(t *testing.T) *trio {
	t.Helper()
	return trioOn(t, newCluster(t))
}

func trioOn(t *testing.T, c *cluster) *trio {
	t.Helper()
	ns := c.Namespace(t)
	pods := c.Run(t, ns, fixture.Netexec("a", fixture.Node1), fixture.Netexec("b", fixture.Node1), fixture.Netexec("c", fixture.Node2))
	x := &trio{
		cluster: c, namespace: ns, a: pods[0], b: pods[1], c: pods[2],
		node1: c.Machine(t, fixture.Node1), node2: c.Machine(t, fixture.Node2), outside: c.Machine(t, lab.Outside),
	}
	fixture.Meet(t, x.a.NetNS, x.c.Addr)
	return x
}

func (x *trio) nodeEnd(t *testing.T, m machine) end {
	t.Helper()
	return end{Name: m.Name, NetNS: m.NetNS, Addr: x.Addr(t, m.Name)}
}

// TestConnectivity covers every kind of path with every kind of packet. The pods are ready before the test starts, which shows
// that kubelet's probes arrive.
func TestConnectivity(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sees all paths")
	}
	testConnectivity(t, newTrio(t))
}

func testConnectivity(t *testing.T, x *trio) {
	a, b, c := x.a.End(), x.b.End(), x.c.End()
	one, two := x.nodeEnd(t, x.node1), x.nodeEnd(t, x.node2)
	outside := end{Name: "outside", NetNS: x.outside.NetNS, Addr: lab.OutsideAddr()}
	gateway1 := x.a.Gateway()

	for _, path := range []struct {
		from, to end
		source   netip.Addr // as the other end sees it
	}{
		{a, b, a.Addr},
		{b, a, b.Addr},
		{a, c, a.Addr},
		{c, a, c.Addr},
		{one, a, gateway1},
		{one, c, gateway1},
		{two, a, x.c.Gateway()},
		{a, one, a.Addr},
		// The underlay does not know pods.
		{a, two, one.Addr},
		{c, one, two.Addr},
		{a, outside, one.Addr},
		{c, outside, two.Addr},
	} {
		t.Run(fmt.Sprintf("%s to %s", path.from.Name, path.to.Name), func(t *testing.T) {
			fixture.Meet(t, path.from.NetNS, path.to.Addr)
			t.Run("ping", func(t *testing.T) { testPings(t, path.from, path.to) })
			t.Run("tcp", func(t *testing.T) { testTCP(t, path.from, path.to, path.source) })
			t.Run("udp", func(t *testing.T) { testUDP(t, path.from, path.to, path.source) })
		})
	}
	for _, path := range [][2]end{{a, b}, {a, c}, {c, a}} {
		t.Run(fmt.Sprintf("sctp from %s to %s", path[0].Name, path[1].Name), func(t *testing.T) {
			testSCTP(t, path[0], path[1])
		})
	}
}

// podMTU is the underlay's 1500 less VXLAN's 50.
const podMTU = 1450

func testPings(t *testing.T, from, to end) {
	for _, e := range []wire.Echo{
		{},
		{Bytes: 1400, DontFragment: true},
		{Bytes: podMTU, DontFragment: true},
		{Bytes: 4000},
	} {
		fixture.Echoed(t, from.NetNS, to.Addr, e)
	}
	if !strings.HasPrefix(from.Name, "pod ") {
		return // A node's own interface takes more.
	}
	ctx, cancel := context.WithTimeout(t.Context(), fixture.PacketTime)
	defer cancel()
	if err := from.NetNS.Ping(ctx, to.Addr, wire.Echo{Bytes: podMTU + 1, DontFragment: true}); !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a packet of %d bytes that must not be fragmented: %v, want %v", podMTU+1, err, unix.EMSGSIZE)
	}
}

// bulkBytes fill many windows, and take a moment through the userspace datapath.
const bulkBytes = 4 << 20

// testTCP sends large data in each direction, and compares checksums.
func testTCP(t *testing.T, from, to end, source netip.Addr) {
	l, err := to.NetNS.Listen("tcp4", netip.AddrPortFrom(to.Addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type arrival struct {
		from netip.Addr
		sum  [sha256.Size]byte
		err  error
	}
	arrived := make(chan arrival, 1)
	go func() {
		var a arrival
		a.from, a.sum, a.err = echoTCP(l)
		arrived <- a
	}()

	ctx, cancel := context.WithTimeout(t.Context(), fixture.SyncTime)
	defer cancel()
	data := make([]byte, bulkBytes)
	rand.Read(data) // never fails (crypto/rand)
	conn, err := from.NetNS.DialContext(ctx, "tcp4", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	sum, err := exchange(ctx, conn, data)
	if err != nil {
		t.Fatal(err)
	}
	got := <-arrived
	if got.err != nil {
		t.Fatal(got.err)
	}
	if want := sha256.Sum256(data); got.sum != want || sum != want {
		t.Errorf("sent %x, there arrived %x, and came back %x", want, got.sum, sum)
	}
	if got.from != source {
		t.Errorf("the connection comes from %s, want %s", got.from, source)
	}
}

// echoTCP sends a connection's bytes back, and returns where it came from and the sum of the bytes.
func echoTCP(l net.Listener) (from netip.Addr, sum [sha256.Size]byte, err error) {
	conn, err := l.Accept()
	if err != nil {
		return from, sum, err
	}
	defer conn.Close()
	hash := sha256.New()
	if _, err := io.Copy(io.MultiWriter(conn, hash), conn); err != nil {
		return from, sum, err
	}
	hash.Sum(sum[:0])
	return conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), sum, nil
}

// exchange sends all data while it reads what comes back.
func exchange(ctx context.Context, conn net.Conn, data []byte) (sum [sha256.Size]byte, err error) {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return sum, err
	}
	sent := make(chan error, 1)
	go func() {
		_, err := conn.Write(data)
		sent <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	hash := sha256.New()
	_, err = io.Copy(hash, conn)
	hash.Sum(sum[:0])
	return sum, errors.Join(err, <-sent)
}

// testUDP sends datagrams of one packet and of several.
func testUDP(t *testing.T, from, to end, source netip.Addr) {
	server, err := to.NetNS.ListenPacket("udp4", netip.AddrPortFrom(to.Addr, 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	sources := make(chan netip.Addr, 1)
	go echoUDP(server, sources)

	for _, size := range []int{1, 1400, 4000} {
		fixture.Within(t, fixture.PacketTime, fmt.Sprintf("%d bytes", size), func(ctx context.Context) error {
			// On a socket of its own: what was sent again may be answered again, late.
			conn, err := from.NetNS.DialContext(ctx, "udp4", server.LocalAddr().String())
			if err != nil {
				return err
			}
			defer conn.Close()
			return askUDP(ctx, conn, size)
		})
		if t.Failed() {
			return
		}
		if got := <-sources; got != source {
			t.Errorf("%d bytes come from %s, want %s", size, got, source)
		}
	}
}

// echoUDP sends datagrams back until the socket closes, and reports the source of each.
func echoUDP(server net.PacketConn, sources chan<- netip.Addr) {
	buffer := make([]byte, 1<<16)
	for {
		length, from, err := server.ReadFrom(buffer)
		if err != nil {
			return
		}
		select {
		case sources <- from.(*net.UDPAddr).AddrPort().Addr().Unmap():
		default: // the previous one is unread
		}
		if _, err := server.WriteTo(buffer[:length], from); err != nil {
			return
		}
	}
}

// askUDP sends one datagram and compares what comes back.
func askUDP(ctx context.Context, conn net.Conn, size int) error {
	data := make([]byte, size)
	rand.Read(data) // never fails (crypto/rand)
	return fixture.Resending(ctx, conn, func() error {
		_, err := conn.Write(data)
		return err
	}, func() error {
		back := make([]byte, 1<<16)
		length, err := conn.Read(back)
		if err == nil && !bytes.Equal(back[:length], data) {
			return fmt.Errorf("other bytes came back, %d of them", length)
		}
		return err
	})
}

// The types of the first two chunks of an association (RFC 9260).
const (
	sctpInit    = 1
	sctpInitACK = 2
)

// testSCTP starts an association with raw packets, since the kernel may have no SCTP: INIT, then INIT ACK.
func testSCTP(t *testing.T, from, to end) {
	open := func(e end) net.PacketConn {
		conn, err := e.NetNS.ListenPacket(fmt.Sprintf("ip4:%d", wire.ProtocolSCTP), e.Addr.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	client, server := open(from), open(to)
	chunk := make([]byte, 16)
	rand.Read(chunk) // never fails (crypto/rand)
	for _, step := range []struct {
		name     string
		from, to net.PacketConn
		packet   []byte
	}{
		{"INIT", client, server, wire.SCTP(40000, 9, sctpInit, chunk)},
		{"INIT ACK", server, client, wire.SCTP(9, 40000, sctpInitACK, chunk)},
	} {
		var (
			got    []byte
			source net.Addr
		)
		fixture.Within(t, fixture.PacketTime, step.name+" arrives", func(ctx context.Context) error {
			return fixture.Resending(ctx, step.to, func() error {
				_, err := step.from.WriteTo(step.packet, step.to.LocalAddr())
				return err
			}, func() (err error) {
				buffer, length := make([]byte, 1<<16), 0
				length, source, err = step.to.ReadFrom(buffer)
				got = buffer[:length]
				return err
			})
		})
		if t.Failed() {
			return
		}
		if !bytes.Equal(got, step.packet) {
			t.Errorf("%s arrives as %x, it was sent as %x", step.name, got, step.packet)
		}
		if want := step.from.LocalAddr().String(); source.String() != want {
			t.Errorf("%s comes from %s, want %s", step.name, source, want)
		}
	}
}
