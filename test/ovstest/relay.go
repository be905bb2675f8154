package ovstest

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// longest is how long an OpenFlow message can be, in bytes: its header has 16 bits for that.
const longest = 1 << 16

// Relay forwards messages between programs and the switch's Bridge until the test ends. It returns the run directory through which programs
// connect to it, and calls see for each message before it forwards it to the switch, so see is called before the answer. Several
// goroutines call see if there are several connections. Programs close their connections before the test ends.
func (s *Switch) Relay(tb testing.TB, see func(openflow.Message)) (runDir string) {
	tb.Helper()
	r := &relay{}
	return s.relay(tb, r, Bridge+".mgmt", "db.sock", func(program, to net.Conn) {
		r.running.Go(func() {
			_, _ = io.Copy(program, to) // ends with either
			program.Close()
		})
		forward(program, to, see)
	})
}

// RelayDB forwards the connections of programs to ovsdb-server until the test ends. It returns the run directory through which programs connect to it.
// Between hold and release they receive nothing from ovsdb-server, as if it were slow.
func (s *Switch) RelayDB(tb testing.TB) (runDir string, hold func() (release func())) {
	tb.Helper()
	var held sync.RWMutex
	hold = func() func() {
		held.Lock()
		release := sync.OnceFunc(held.Unlock)
		tb.Cleanup(release)
		return release
	}
	r := &relay{}
	return s.relay(tb, r, "db.sock", Bridge+".mgmt", func(program, to net.Conn) {
		r.running.Go(func() {
			_, _ = io.Copy(to, program) // ends with either
			to.Close()
		})
		buffer := make([]byte, longest)
		for {
			n, err := to.Read(buffer)
			if err != nil {
				return
			}
			held.RLock()
			_, err = program.Write(buffer[:n])
			held.RUnlock()
			if err != nil {
				return
			}
		}
	}), hold
}

// relay accepts connections to one socket, and links the other one, in the directory that it returns.
func (s *Switch) relay(tb testing.TB, r *relay, socket, other string, pass func(program, to net.Conn)) (dir string) {
	tb.Helper()
	dir, err := os.MkdirTemp("", "relay") // as in Start
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Symlink(s.path(other), filepath.Join(dir, other)); err != nil {
		tb.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, socket))
	if err != nil {
		tb.Fatal(err)
	}
	r.to, r.pass = s.path(socket), pass
	r.running.Go(func() { r.accept(listener) })
	tb.Cleanup(func() {
		listener.Close()
		r.running.Wait()
	})
	return dir
}

// ReadMessage returns the next OpenFlow message of a connection, as it came. It is valid until the reader is used again. The reader has room
// for the longest message.
func ReadMessage(in *bufio.Reader) (openflow.Header, []byte, error) {
	start, err := in.Peek(openflow.HeaderLen)
	if err != nil {
		return openflow.Header{}, nil, err
	}
	header, err := openflow.ParseHeader(start)
	if err != nil {
		return openflow.Header{}, nil, err
	}
	message, err := in.Peek(int(header.Length))
	if err != nil {
		return openflow.Header{}, nil, err
	}
	_, err = in.Discard(len(message)) // stays in the buffer
	return header, message, err
}

// NewReader returns a reader for ReadMessage.
func NewReader(conn io.Reader) *bufio.Reader { return bufio.NewReaderSize(conn, longest) }

type relay struct {
	to      string
	pass    func(program, to net.Conn) // until one of them ends
	running sync.WaitGroup
}

func (r *relay) accept(listener net.Listener) {
	for {
		program, err := listener.Accept()
		if err != nil {
			return // closed
		}
		r.running.Go(func() { r.connect(program) })
	}
}

// connect carries a connection until one side ends it.
func (r *relay) connect(program net.Conn) {
	defer program.Close()
	to, err := net.Dial("unix", r.to)
	if err != nil {
		return
	}
	defer to.Close()
	r.pass(program, to)
}

// forward calls see for each message, and sends it.
func forward(program, to net.Conn, see func(openflow.Message)) {
	in := NewReader(program)
	for {
		_, message, err := ReadMessage(in)
		if err != nil {
			return
		}
		if _, m, err := openflow.Decode(message); err == nil { // else the switch reports it
			see(m)
		}
		if _, err := to.Write(message); err != nil {
			return
		}
	}
}
