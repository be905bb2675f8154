package native_test

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// wire relays the only connection between a backend and its database.
type wire struct {
	listener net.Listener
	running  sync.WaitGroup

	mu                sync.Mutex
	backend, database *net.UnixConn // nil before the connection
	held              chan struct{} // closed by release; while not nil, output of the database is held
}

// startWired does the same as startNative with a wire to the database, and without a connection to the switch.
func startWired(t *testing.T) (*ovstest.Switch, *native.Native, *wire) {
	t.Helper()
	s := ovstest.Start(t)
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "db.sock"))
	must(t, err)
	w := &wire{listener: listener}
	w.running.Go(func() { w.carry(t, filepath.Join(s.RunDir, "db.sock")) })
	n := patient(native.New(ovstest.Bridge, dir))
	t.Cleanup(func() {
		n.Close()
		w.cut()
	})
	must(t, n.EnsureBridge(t.Context(), bridge()))
	return s, n, w
}

func (w *wire) carry(t *testing.T, socket string) {
	backend, err := w.listener.Accept()
	if err != nil {
		return // closed
	}
	database, err := net.Dial("unix", socket)
	if err != nil {
		backend.Close()
		t.Errorf("dial the database: %v", err)
		return
	}
	w.mu.Lock()
	w.backend, w.database = backend.(*net.UnixConn), database.(*net.UnixConn)
	w.mu.Unlock()
	w.running.Go(func() { pass(database, backend, w.release) })
	pass(backend, database, w.wait)
}

// pass copies until an end is closed. It calls before with each part, before the write.
func pass(to io.Writer, from io.Reader, before func()) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		before()
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// hold delays the output of the database until the backend's next request.
func (w *wire) hold() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held == nil {
		w.held = make(chan struct{})
	}
}

func (w *wire) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.held != nil {
		close(w.held)
		w.held = nil
	}
}

func (w *wire) wait() {
	w.mu.Lock()
	held := w.held
	w.mu.Unlock()
	if held != nil {
		<-held
	}
}

// breakWrites makes the backend's writes fail, as if the database had ended, while its reads do not report the end of the connection.
func (w *wire) breakWrites(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	must(t, w.listener.Close())
	must(t, w.backend.CloseRead())
}

func (w *wire) cut() {
	w.listener.Close() // an error means that it is closed
	w.release()
	w.mu.Lock()
	if w.backend != nil {
		w.backend.Close()
		w.database.Close()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// After one call has failed because the database ended, the next call fails too, even if the end of the connection is reported late.
func TestNativeDiscardsCopyOfLostDatabase(t *testing.T) {
	tier.Parallel(t)
	for name, call := range map[string]func(*native.Native) error{
		"transaction": func(n *native.Native) error { _, err := n.AddPort(t.Context(), tun()); return err },
		"sync":        func(n *native.Native) error { return n.EnsureBridge(t.Context(), bridge()) },
	} {
		t.Run(name, func(t *testing.T) {
			_, n, w := startWired(t)
			w.breakWrites(t)
			if err := call(n); !ovs.IsUnavailable(err) {
				t.Errorf("got %v, want an unavailable error", err)
			}
			if _, err := n.ListPorts(t.Context()); !ovs.IsUnavailable(err) {
				t.Errorf("next call: got %v, want an unavailable error", err)
			}
		})
	}
}

// The update about a change of another client may arrive after the call has begun.
func TestNativeSeesEarlierChanges(t *testing.T) {
	tier.Parallel(t)
	s, n, w := startWired(t)
	w.hold()
	s.VSCtl(t, "set", "bridge", ovstest.Bridge, "protocols=OpenFlow14")
	must(t, n.EnsureBridge(t.Context(), bridge()))
	if got := strings.TrimSpace(s.VSCtl(t, "get", "bridge", ovstest.Bridge, "protocols")); got != "[OpenFlow10, OpenFlow13, OpenFlow14, OpenFlow15]" {
		t.Errorf("got protocols %s, want OpenFlow 1.0, 1.3, 1.4 and 1.5", got)
	}
	w.hold()
	s.VSCtl(t, "clear", "bridge", ovstest.Bridge, "external_ids", "--", "add-port", ovstest.Bridge, "theirs", "--", "set", "interface", "theirs", "type=internal")
	if err := n.DeleteBridge(t.Context(), bridge()); !ovs.IsForeignBridge(err) {
		t.Errorf("bridge with a port of another owner: got %v, want a foreign bridge", err)
	}
}
