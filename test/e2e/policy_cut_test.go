package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// cutPort is the first on which the acceptors of these tests listen: a server's, below those that clients get from their system.
const cutPort = 9000

// audience is an acceptor that sends, and the silent openers of connections to it. The stranger is always denied: its isolation shows that
// policies are active.
type audience struct {
	*cluster
	namespace                             string
	acceptor, near, far, friend, stranger pod
	ports                                 uint16
}

func newAudience(t *testing.T, c *cluster) *audience {
	t.Helper()
	a := &audience{cluster: c, namespace: c.Namespace(t), ports: cutPort}
	p := c.Run(t, a.namespace, fixture.Netexec("acceptor", fixture.Node1), fixture.Netexec("near", fixture.Node1), fixture.Netexec("far", fixture.Node2), fixture.Netexec("friend", fixture.Node2), fixture.Netexec("stranger", fixture.Node1))
	a.acceptor, a.near, a.far, a.friend, a.stranger = p[0], p[1], p[2], p[3], p[4]
	return a
}

// change sets policies, and returns when the stranger is isolated.
func (a *audience) change(t *testing.T, policies ...*networkingv1.NetworkPolicy) {
	t.Helper()
	a.setAll(t, policies)
	byName := map[string]pod{"acceptor": a.acceptor, "near": a.near, "far": a.far, "friend": a.friend}
	for _, p := range policies {
		target := byName[p.Spec.PodSelector.MatchLabels["app"]]
		if p.Spec.PolicyTypes[0] == networkingv1.PolicyTypeIngress {
			isolated(t, a.stranger, target)
		} else {
			isolated(t, target, a.stranger)
		}
	}
}

func (a *audience) setAll(t *testing.T, policies []*networkingv1.NetworkPolicy) {
	t.Helper()
	for _, p := range policies {
		a.SetPolicy(t, p)
	}
}

// free takes all policies away.
func (a *audience) free(t *testing.T) {
	t.Helper()
	a.deletePolicies(t, a.namespace)
	for _, from := range []pod{a.near, a.far, a.friend, a.stranger} {
		fixture.Meet(t, from.NetNS, a.acceptor.Addr)
		fixture.Meet(t, a.acceptor.NetNS, from.Addr)
		fixture.Meet(t, from.NetNS, a.stranger.Addr)
	}
}

// The ways in which an acceptor talks.
const (
	overTCP = "TCP"
	overUDP = "UDP"
	// unheeding is TCP of a sender that repeats its segment regardless of acknowledgements; the opener counts all segments.
	unheeding = "segments"
)

// open opens something to the acceptor on which only the acceptor talks.
func (a *audience) open(t *testing.T, how string, from pod) *duplex {
	t.Helper()
	opens := map[string]func(t *testing.T, from, to pod, port uint16) (net.Conn, net.Conn){
		overTCP: connectPods, overUDP: connectUDP, unheeding: connectUnheeding,
	}[how]
	opener, acceptor := opens(t, from, a.acceptor, a.ports)
	d := newDuplex(t, fmt.Sprintf("%s from %s to port %d", how, from.Name, a.ports), opener, acceptor)
	a.ports++
	began := time.Now()
	d.back.talks(t)
	d.there.hears(t, began, "the acceptor is heard on "+d.name)
	return d
}

func connectPods(t *testing.T, from, to pod, port uint16) (opener, acceptor net.Conn) {
	t.Helper()
	return connect(t, from.End(), to.End(), port)
}

// connectUDP sends a packet of UDP, and returns when it has arrived, with sockets that are for the other end only.
func connectUDP(t *testing.T, from, to pod, port uint16) (opener, acceptor net.Conn) {
	t.Helper()
	dial := func(at pod, local, remote netip.AddrPort) (conn net.Conn) {
		if err := at.NetNS.Do(func() (err error) {
			conn, err = net.DialUDP("udp4", net.UDPAddrFromAddrPort(local), net.UDPAddrFromAddrPort(remote))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		return conn
	}
	client, server := netip.AddrPortFrom(from.Addr, firstClientPort+port), netip.AddrPortFrom(to.Addr, port)
	acceptor, opener = dial(to, server, client), dial(from, client, server)
	fixture.Within(t, fixture.PacketTime, "the opener's first packet arrives", func(ctx context.Context) error {
		return fixture.Resending(ctx, acceptor, func() error {
			_, err := opener.Write([]byte("talk to me"))
			return err
		}, func() error {
			_, err := acceptor.Read(make([]byte, 1<<10))
			return err
		})
	})
	if err := acceptor.SetReadDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
	return &numbered{Conn: opener}, &numbered{Conn: acceptor}
}

// firstClientPort is the first that systems give to clients.
const firstClientPort = 32768

// repeater sends one frame whatever is to be written.
type repeater struct {
	net.Conn
	inject *wire.Injector
	frame  []byte
}

func (r repeater) Write(word []byte) (int, error) {
	if err := r.inject.Resend(r.frame); err != nil {
		return 0, err
	}
	return len(word), nil
}

func (r repeater) Close() error { return errors.Join(r.Conn.Close(), r.inject.Close()) }

// rawEar hears all packets of TCP from an address.
type rawEar struct {
	net.Conn
	packets net.PacketConn
	from    netip.AddrPort
}

func (e rawEar) Read(buffer []byte) (int, error) {
	for {
		n, from, err := e.packets.ReadFrom(buffer)
		if err != nil {
			return 0, err
		}
		addr, _ := netip.AddrFromSlice(addrOf(from))
		if addr.Unmap() == e.from.Addr() && n > 1 && binary.BigEndian.Uint16(buffer) == e.from.Port() {
			return n, nil
		}
	}
}

func (e rawEar) Close() error { return errors.Join(e.Conn.Close(), e.packets.Close()) }

// connectUnheeding opens a TCP connection, and lets the acceptor send its first segment, which it then repeats.
func connectUnheeding(t *testing.T, from, to pod, port uint16) (opener, acceptor net.Conn) {
	t.Helper()
	opener, acceptor = connectPods(t, from, to, port)
	word := fmt.Sprintf("word of port %d", port)
	capture, err := to.NetNS.Capture("eth0", []byte(word))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := acceptor.Write([]byte(word)); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, fixture.PacketTime, "the segment is seen", func(context.Context) error {
		if len(capture.Frames([]byte(word))) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	if err := capture.Close(); err != nil {
		t.Fatal(err)
	}
	inject, err := to.NetNS.Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := from.NetNS.ListenPacket(fmt.Sprintf("ip4:%d", wire.ProtocolTCP), from.Addr.String())
	if err != nil {
		t.Fatal(err)
	}
	return rawEar{opener, packets, netip.AddrPortFrom(to.Addr, port)}, repeater{acceptor, inject, capture.Frames([]byte(word))[0]}
}

// egressPolicy lets a pod reach only the named pods of the namespace.
func egressPolicy(namespace, name, target string, to ...string) *networkingv1.NetworkPolicy {
	p := ingressPolicy(namespace, name, target, to...)
	for _, rule := range p.Spec.Ingress {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: rule.From})
	}
	p.Spec.Ingress, p.Spec.PolicyTypes = nil, []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	return p
}

// cut is a change of policies that forbids connections.
type cut struct {
	name, how           string
	before, always, now []*networkingv1.NetworkPolicy
}

// testCuts: a connection that becomes forbidden ends also if only the acceptor sends and the opener of TCP acknowledges, on the same node and across
// nodes, and whether or not the switch had committed the connection before.
func testCuts(t *testing.T, c *cluster) {
	a := newAudience(t, c)
	for _, tc := range a.cuts() {
		t.Run(tc.how+": "+tc.name, func(t *testing.T) { a.revoke(t, tc, cutTime) })
	}
}

func (a *audience) cuts() []cut {
	ns := a.namespace
	let := func(openers ...string) []*networkingv1.NetworkPolicy {
		return []*networkingv1.NetworkPolicy{ingressPolicy(ns, "to-acceptor", "acceptor", append(openers, "friend")...)}
	}
	openers := func(to ...string) []*networkingv1.NetworkPolicy {
		return []*networkingv1.NetworkPolicy{egressPolicy(ns, "from-near", "near", to...), egressPolicy(ns, "from-far", "far", to...)}
	}
	answersOnly := []*networkingv1.NetworkPolicy{
		egressPolicy(ns, "from-acceptor", "acceptor"),
		ingressPolicy(ns, "to-near", "near"), ingressPolicy(ns, "to-far", "far"), ingressPolicy(ns, "to-friend", "friend"),
	}
	return []cut{
		{name: "the acceptor's first policy", how: overTCP, now: let()},
		{name: "the opener's first policy", how: overTCP, now: openers()},
		{name: "the acceptor's policy changes", how: overTCP, before: let("near", "far"), now: let()},
		{name: "the opener's policy changes", how: overTCP, before: openers("acceptor"), now: openers()},
		{name: "the acceptor's policy changes", how: unheeding, always: answersOnly, before: let("near", "far"), now: let()},
		{name: "the opener's policy changes", how: unheeding, always: answersOnly, before: openers("acceptor"), now: openers()},
		{name: "the acceptor's policy changes", how: overUDP, always: answersOnly, before: let("near", "far"), now: let()},
		{name: "the opener's policy changes", how: overUDP, always: answersOnly, before: openers("acceptor"), now: openers()},
	}
}

// revoke opens connections, forbids them, and requires that they end within that time.
func (a *audience) revoke(t *testing.T, tc cut, within time.Duration) {
	t.Helper()
	a.free(t)
	a.change(t, slices.Concat(tc.always, tc.before)...)
	friend := a.open(t, tc.how, a.friend)
	forbidden := []*duplex{a.open(t, tc.how, a.near), a.open(t, tc.how, a.far)}
	since := time.Now()
	a.setAll(t, tc.now)
	for _, d := range forbidden {
		d.there.dies(t, friend.there, since, "the acceptor of "+d.name, within)
		d.back.heard.Store(0) // a packet that opened it may have been sent twice
	}
	dead := time.Now()
	for _, d := range slices.Concat(forbidden, []*duplex{friend}) {
		d.there.talks(t)
	}
	friend.lives(t, time.Now().Add(silence))
	for _, d := range forbidden {
		if d.back.heard.Load() != 0 {
			fixture.Arrived(t, "the opener is heard again on %s", d.name)
		}
		if last := time.Unix(0, d.there.last.Load()); last.After(dead) {
			fixture.Arrived(t, "the acceptor is heard again on %s, %v after it was forbidden", d.name, last.Sub(since))
		}
	}
}
