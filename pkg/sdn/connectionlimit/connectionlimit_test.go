package connectionlimit

import (
	"net"
	"testing"
)

// client is a connection of the source 192.0.2.N.
type client struct {
	net.Conn
	source byte
	closed bool
}

func (c *client) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, c.source)} }

func (c *client) Close() error {
	c.closed = true
	return nil
}

type fixture struct {
	*testing.T
	*Limiter
}

// expect opens a connection of the source.
func (f fixture) expect(source byte, admitted bool) (*client, *Conn) {
	f.Helper()
	c := &client{source: source}
	conn, ok := f.Admit(c)
	if ok != admitted || c.closed == admitted {
		f.Errorf("source %d: got admitted %t, closed %t, want admitted %t", source, ok, c.closed, admitted)
	}
	return c, conn
}

// One source address has a limit of connections, others do not use it up; all have a limit together. A closed connection no longer counts.
func TestLimiter_limits(t *testing.T) {
	f := fixture{t, New(Limits{All: 4, Source: 2})}
	_, first := f.expect(1, true)
	f.expect(1, true)
	f.expect(1, false)
	_, other := f.expect(2, true)
	f.expect(2, true)
	f.expect(3, false) // all
	for range 2 {      // counts once
		_ = first.Close()
	}
	f.expect(3, true)
	f.expect(4, false)
	_ = other.Close()
	if got := f.Open(); got != 3 || len(f.open) != 3 {
		t.Errorf("got %d connections of %d sources, want 3 of 3", got, len(f.open))
	}
}

// A source with few connections gets a place although others have as many as they may, and a source with most gets none.
func TestLimiter_evicts(t *testing.T) {
	f := fixture{t, New(Limits{All: 6, Source: 4, Evict: true})}
	oldest, held := f.expect(1, true)
	next, _ := f.expect(1, true)
	f.expect(1, true)
	f.expect(1, true)
	f.expect(1, false)
	other, _ := f.expect(2, true)
	f.expect(2, true)

	f.expect(3, true)
	if !oldest.closed || next.closed || other.closed {
		t.Errorf("a source without connections: got the oldest of the source with most closed %t, its next %t, of another %t; want the oldest only",
			oldest.closed, next.closed, other.closed)
	}
	_ = held.Close() // by the server, later
	f.expect(1, false)
	f.expect(3, true)
	if !next.closed || other.closed {
		t.Errorf("a source with one connection: got the second of the source with most closed %t, of another %t; want the first one only", next.closed, other.closed)
	}
	f.expect(3, false) // all have two
	f.expect(4, true)
	f.expect(5, true)
	if got := f.Open(); got != 6 {
		t.Errorf("got %d connections, want 6", got)
	}
}

// A connection without an address of TCP counts for one source.
func TestSourceOf(t *testing.T) {
	a, b := net.Pipe()
	defer a.Close()
	defer b.Close()
	if got := SourceOf(a); got.IsValid() {
		t.Errorf("pipe: got %s, want no address", got)
	}
	if got := SourceOf(&client{source: 7}).String(); got != "192.0.2.7" {
		t.Errorf("got %s, want 192.0.2.7", got)
	}
}
