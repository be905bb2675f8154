package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// connect opens a TCP connection to a port, or to one that is free for 0.
func connect(t *testing.T, from, to end, port uint16) (opener, acceptor net.Conn) {
	t.Helper()
	l, err := to.NetNS.Listen("tcp4", netip.AddrPortFrom(to.Addr, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ctx, cancel := context.WithTimeout(t.Context(), fixture.PacketTime)
	defer cancel()
	if opener, err = from.NetNS.DialContext(ctx, "tcp4", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if acceptor, err = await.Accept(ctx, l); err != nil {
		t.Fatal(err)
	}
	return opener, acceptor
}

// connectBy opens a TCP connection to a port by another address, as soon as that leads to the port.
func connectBy(t *testing.T, from, to end, port uint16, by netip.AddrPort) (opener, acceptor net.Conn) {
	t.Helper()
	l, err := to.NetNS.Listen("tcp4", netip.AddrPortFrom(to.Addr, port).String())
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("%s connects to %s by %s", from.Name, to.Name, by), func(ctx context.Context) (err error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		opener, err = from.NetNS.DialContext(ctx, "tcp4", by.String())
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), fixture.PacketTime)
	defer cancel()
	if acceptor, err = await.Accept(ctx, l); err != nil {
		t.Fatal(err)
	}
	return opener, acceptor
}

// conversation is a connection with continuous data in both directions.
type conversation struct {
	name   string
	conn   net.Conn
	words  words
	spoken chan int // number of echoed bytes, for a waiting reader
	stop   chan struct{}
	ended  chan error
}

// words are the size and the interval of the data.
type words struct {
	bytes int
	every time.Duration
}

// talk begins a conversation that ends with the test. A word takes several packets. There are few of them, so that pings find the
// processor free.
func talk(t *testing.T, from, to end) *conversation {
	t.Helper()
	return words{16 << 10, 20 * time.Millisecond}.talk(t, from, to)
}

func (w words) talk(t *testing.T, from, to end) *conversation {
	t.Helper()
	conn, peer := connect(t, from, to, 0)
	return w.begin(t, from.Name+" to "+to.Name, conn, peer)
}

// talkBy begins a conversation with a port by another address.
func (w words) talkBy(t *testing.T, from, to end, port uint16, by netip.AddrPort) *conversation {
	t.Helper()
	conn, peer := connectBy(t, from, to, port, by)
	return w.begin(t, from.Name+" to "+to.Name+" by "+by.String(), conn, peer)
}

func (w words) begin(t *testing.T, name string, conn, peer net.Conn) *conversation {
	t.Helper()
	go func() {
		defer peer.Close()
		_, _ = io.Copy(peer, peer) // the other side reports errors
	}()
	c := &conversation{name: name, conn: conn, words: w, spoken: make(chan int), stop: make(chan struct{}), ended: make(chan error, 1)}
	go func() { c.ended <- c.run() }()
	t.Cleanup(func() { conn.Close() })
	return c
}

func (c *conversation) run() error {
	defer c.conn.Close()
	word, back := make([]byte, c.words.bytes), make([]byte, c.words.bytes)
	ticker := time.NewTicker(c.words.every)
	defer ticker.Stop()
	for sum := 0; ; {
		rand.Read(word) // never fails (crypto/rand)
		if err := c.conn.SetDeadline(time.Now().Add(fixture.SyncTime)); err != nil {
			return err
		}
		if _, err := c.conn.Write(word); err != nil {
			return err
		}
		if _, err := io.ReadFull(c.conn, back); err != nil {
			return err
		}
		if !bytes.Equal(word, back) {
			return errors.New("other bytes came back")
		}
		sum += c.words.bytes
		select {
		case c.spoken <- sum:
		default:
		}
		select {
		case <-c.stop:
			return nil
		case <-ticker.C:
		}
	}
}

// goesOn returns when new data has been sent and echoed.
func (c *conversation) goesOn(t *testing.T) {
	t.Helper()
	if err := c.hear(); err != nil {
		t.Fatal(err)
	}
}

func (c *conversation) hear() error {
	for range 2 {
		select {
		case <-c.spoken:
		case err := <-c.ended:
			return fmt.Errorf("the connection from %s: %w", c.name, err)
		case <-time.After(fixture.SyncTime):
			return fmt.Errorf("the connection from %s: nothing for %v", c.name, fixture.SyncTime)
		}
	}
	return nil
}

func (c *conversation) ends(t *testing.T) {
	t.Helper()
	close(c.stop)
	if err := <-c.ended; err != nil {
		t.Errorf("the connection from %s: %v", c.name, err)
	}
}
