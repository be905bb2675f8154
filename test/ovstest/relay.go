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
	dir, err := os.MkdirTemp("", "relay") // as in Start
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Symlink(s.path("db.sock"), filepath.Join(dir, "db.sock")); err != nil {
		tb.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, Bridge+".mgmt"))
	if err != nil {
		tb.Fatal(err)
	}
	r := &relay{to: s.path(Bridge + ".mgmt"), see: see}
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
	see     func(openflow.Message)
	running sync.WaitGroup
}

func (r *relay) accept(listener net.Listener) {
	for {
		program, err := listener.Accept()
		if err != nil {
			return // closed
		}
		r.running.Go(func() { r.pass(program) })
	}
}

// pass carries a connection until one side ends it.
func (r *relay) pass(program net.Conn) {
	defer program.Close()
	to, err := net.Dial("unix", r.to)
	if err != nil {
		return
	}
	defer to.Close()
	r.running.Go(func() {
		_, _ = io.Copy(program, to) // ends with either
		program.Close()
	})
	in := NewReader(program)
	for {
		_, message, err := ReadMessage(in)
		if err != nil {
			return
		}
		if _, m, err := openflow.Decode(message); err == nil { // else the switch reports it
			r.see(m)
		}
		if _, err := to.Write(message); err != nil {
			return
		}
	}
}
