package e2e

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// testLasting: an allowed connection loses nothing, also if only the acceptor sends, while the first policies select its ends, and other policies are
// added, changed and deleted. Beside losses of a control stream the machine may lose datagrams.
func testLasting(t *testing.T, c *cluster) {
	a := newAudience(t, c)
	ns := a.namespace
	c.unlessDropped(t, func() (losses []string) {
		a.free(t)
		var all []lasting
		for _, from := range []pod{a.near, a.far} {
			l := lasting{control: c.control(t, stream{name: "from " + a.acceptor.Name, every: pingInterval, nodes: [2]string{a.acceptor.Node, from.Node}}).begin(t)}
			for _, how := range []string{overTCP, overUDP} {
				l.duplexes = append(l.duplexes, a.open(t, how, from))
			}
			all = append(all, l)
		}
		a.change(t, ingressPolicy(ns, "to-acceptor", "acceptor", "near", "far"))
		a.change(t, egressPolicy(ns, "from-near", "near", "acceptor"), egressPolicy(ns, "from-far", "far", "acceptor"))
		for range 3 {
			a.SetPolicy(t, ingressPolicy(ns, "to-stranger", "stranger"))
			isolated(t, a.friend, a.stranger)
			a.SetPolicy(t, ingressPolicy(ns, "to-stranger", "stranger", "friend"))
			fixture.Meet(t, a.friend.NetNS, a.stranger.Addr)
			a.SetPolicy(t, ingressPolicy(ns, "to-acceptor", "acceptor", "near", "far", "friend"))
			fixture.Meet(t, a.friend.NetNS, a.acceptor.Addr)
			a.SetPolicy(t, ingressPolicy(ns, "to-acceptor", "acceptor", "near", "far"))
			isolated(t, a.friend, a.acceptor)
		}
		a.free(t)
		for _, l := range all {
			losses = append(losses, l.losses(t)...)
		}
		return losses
	})
}

// lasting is connections of an acceptor that sends to an opener, and the control stream beside them.
type lasting struct {
	duplexes []*duplex
	control  *wire.Pings
}

// losses ends the sending, and returns what was lost.
func (l lasting) losses(t *testing.T) (losses []string) {
	t.Helper()
	for _, d := range l.duplexes {
		d.back.quieten()
		sent := d.back.sent.Load()
		fixture.Eventually(t, fixture.SyncTime, "the last word is heard on "+d.name, func(context.Context) error {
			heard, ago := d.there.heard.Load(), time.Since(time.Unix(0, d.there.last.Load()))
			if heard != sent && ago < 5*silence { // a busy machine delays packets
				return fmt.Errorf("of %d bytes %d", sent, heard)
			}
			return nil
		})
	}
	pings, machines, err := l.control.Stop()
	doubled := l.control.Duplicates()
	if len(machines)+len(doubled) > 0 || err != nil {
		t.Logf("of %d pings of the control stream %d were lost and %d answered twice, error %v", pings, len(machines), len(doubled), err)
	}
	for _, d := range l.duplexes {
		sent, heard := d.back.sent.Load(), d.there.heard.Load()
		t.Logf("on %s %d bytes were sent, %d received", d.name, sent, heard)
		from, isUDP := d.back.conn.(*numbered)
		to, _ := d.there.conn.(*numbered)
		if !isUDP && heard != sent {
			losses = append(losses, fmt.Sprintf("on %s of %d bytes %d were heard", d.name, sent, heard))
		}
		if !isUDP {
			continue
		}
		lost, twice := from.lost(to)
		if lost, twice = fixture.Unexcused(lost, machines), fixture.Unexcused(twice, doubled); len(lost)+len(twice) > 0 {
			losses = append(losses, fmt.Sprintf("on %s %d words were lost and %d heard twice, beyond the control stream's: %v %v", d.name, len(lost), len(twice), lost, twice))
		}
	}
	return losses
}

// numbered is a UDP socket that writes consecutive numbers in place of words of the same size, and counts those that it reads.
type numbered struct {
	net.Conn

	mu       sync.Mutex
	sent     []time.Time    // by number
	received map[uint32]int // how often, by number
}

func (n *numbered) Write([]byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at := time.Now()
	count, err := n.Conn.Write(binary.BigEndian.AppendUint32(nil, uint32(len(n.sent))))
	if err == nil {
		n.sent = append(n.sent, at)
	}
	return count, err
}

func (n *numbered) Read(buffer []byte) (int, error) {
	count, err := n.Conn.Read(buffer)
	if err == nil && count == 4 {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.received == nil {
			n.received = map[uint32]int{}
		}
		n.received[binary.BigEndian.Uint32(buffer)]++
	}
	return count, err
}

// lost returns when the words were sent that the other end did not receive, and those that it received more than once.
func (n *numbered) lost(to *numbered) (lost, twice []time.Time) {
	n.mu.Lock()
	defer n.mu.Unlock()
	to.mu.Lock()
	defer to.mu.Unlock()
	for number, at := range n.sent {
		switch count := to.received[uint32(number)]; {
		case count == 0:
			lost = append(lost, at)
		case count > 1:
			twice = append(twice, at)
		}
	}
	return lost, twice
}

func TestNumbered(t *testing.T) {
	loopback := func() *net.UDPConn {
		conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	to := loopback()
	dialed, err := net.Dial("udp4", to.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer dialed.Close()
	sender, receiver := &numbered{Conn: dialed}, &numbered{Conn: to}
	for range 3 {
		if _, err := sender.Write([]byte("word")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := dialed.Write([]byte{0, 0, 0, 1}); err != nil { // again
		t.Fatal(err)
	}
	for range 4 {
		if _, err := receiver.Read(make([]byte, 16)); err != nil {
			t.Fatal(err)
		}
	}
	lost, twice := sender.lost(receiver)
	if len(lost) != 0 || len(twice) != 1 || !twice[0].Equal(sender.sent[1]) {
		t.Errorf("got lost %v, twice %v; want none, the second of %v", lost, twice, sender.sent)
	}
	delete(receiver.received, 2)
	if lost, _ := sender.lost(receiver); len(lost) != 1 || !lost[0].Equal(sender.sent[2]) {
		t.Errorf("got lost %v, want the third of %v", lost, sender.sent)
	}
}
