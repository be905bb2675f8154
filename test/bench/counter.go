package main

import (
	"bufio"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// counter stands between a program and a switch and counts the flow-mods that the program sends, alone or in bundles. It
// knows nothing of who sends them, so that it counts for every program alike.
type counter struct {
	dir  string // to be used as Open vSwitch's run directory
	real string // the switch's socket

	messages, sent atomic.Int64
}

// newCounter serves until the figure ends.
func (b *B) newCounter(s *ovstest.Switch) *counter {
	b.Helper()
	c := &counter{dir: b.TempDir(), real: filepath.Join(s.RunDir, ovstest.Bridge+".mgmt")}
	b.must(os.Symlink(filepath.Join(s.RunDir, "db.sock"), filepath.Join(c.dir, "db.sock")))
	l, err := new(net.ListenConfig).Listen(b.Context(), "unix", c.socket())
	b.must(err)
	var serving sync.WaitGroup
	b.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			program, err := l.Accept()
			if err != nil {
				return // closed
			}
			serving.Go(func() { c.pass(program) })
		}
	})
	return c
}

func (c *counter) socket() string { return filepath.Join(c.dir, ovstest.Bridge+".mgmt") }

func (c *counter) reset() {
	c.messages.Store(0)
	c.sent.Store(0)
}

// flowMods returns how many were sent since reset. That nobody came by at all is an error: then 0 means nothing.
func (c *counter) flowMods(b *B) int64 {
	b.Helper()
	if c.messages.Load() == 0 {
		b.Fatal("no message came by the counter")
	}
	return c.sent.Load()
}

// pass carries a connection until one side ends it.
func (c *counter) pass(program net.Conn) {
	defer program.Close()
	to, err := net.Dial("unix", c.real)
	if err != nil {
		return
	}
	defer to.Close()
	go func() {
		_, _ = io.Copy(program, to) // ends with the connections
		program.Close()
	}()
	in := bufio.NewReaderSize(program, 1<<16) // the longest message
	for {
		head, err := in.Peek(openflow.HeaderLen)
		if err != nil {
			return
		}
		h, err := openflow.ParseHeader(head)
		if err != nil {
			return
		}
		message, err := in.Peek(int(h.Length))
		if err != nil {
			return
		}
		c.messages.Add(1)
		if isFlowMod(message) {
			c.sent.Add(1)
		}
		if _, err := to.Write(message); err != nil {
			return
		}
		if _, err := in.Discard(len(message)); err != nil {
			return
		}
	}
}

func isFlowMod(message []byte) bool {
	_, m, err := openflow.Decode(message)
	if err != nil {
		return false // the switch will say so
	}
	if add, ok := m.(*openflow.BundleAdd); ok {
		m = add.Message
	}
	_, ok := m.(*openflow.FlowMod)
	return ok
}
