package ovs_test

import (
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// wire is the one connection between a backend and its database.
type wire struct {
	listener net.Listener
	running  sync.WaitGroup

	mu                sync.Mutex
	backend, database *net.UnixConn // nil before they are there
	held              chan struct{} // nothing comes from the database until it is closed; nil: it comes
}

// startWired is startNative with a wire to the database, and none to the switch.
func startWired(t *testing.T) (*ovstest.Switch, *ovs.Native, *wire) {
	t.Helper()
	s := ovstest.Start(t)
	dir := t.TempDir()
	listener, err := net.Listen("unix", filepath.Join(dir, "db.sock"))
	must(t, err)
	w := &wire{listener: listener}
	w.running.Go(func() { w.carry(t, filepath.Join(s.RunDir, "db.sock")) })
	n := patient(ovs.NewNative(ovstest.Bridge, dir))
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
		t.Errorf("%v", err)
		return
	}
	w.mu.Lock()
	w.backend, w.database = backend.(*net.UnixConn), database.(*net.UnixConn)
	w.mu.Unlock()
	w.running.Go(func() { pass(database, backend, w.release) })
	pass(backend, database, w.wait)
}

// pass copies until an end is closed. It calls before ahead of each part.
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

// hold keeps back what comes from the database until the backend asks it for something.
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

// deafen makes what the backend sends fail, as when the database went; its end is not heard of. Nobody answers any more.
func (w *wire) deafen(t *testing.T) {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	must(t, w.listener.Close())
	must(t, w.backend.CloseRead())
}

func (w *wire) cut() {
	w.listener.Close() // fails the second time
	w.release()
	w.mu.Lock()
	if w.backend != nil {
		w.backend.Close()
		w.database.Close()
	}
	w.mu.Unlock()
	w.running.Wait()
}

// What is said of a database that went holds for the next call too, however late the end of the connection is heard of.
func TestNativeForgetsADatabaseThatWent(t *testing.T) {
	for name, call := range map[string]func(*ovs.Native) error{
		"transaction": func(n *ovs.Native) error { _, err := n.AddPort(t.Context(), tun()); return err },
		"look":        func(n *ovs.Native) error { return n.EnsureBridge(t.Context(), bridge()) },
	} {
		t.Run(name, func(t *testing.T) {
			_, n, w := startWired(t)
			w.deafen(t)
			if err := call(n); !ovs.IsUnavailable(err) {
				t.Errorf("got %v", err)
			}
			if _, err := n.ListPorts(t.Context()); !ovs.IsUnavailable(err) {
				t.Errorf("the next call: got %v", err)
			}
		})
	}
}

// The news of what somebody did before the call may be on its way.
func TestNativeSeesWhatWasDoneBeforeTheCall(t *testing.T) {
	s, n, w := startWired(t)
	w.hold()
	s.VSCtl(t, "set", "bridge", ovstest.Bridge, "protocols=OpenFlow14")
	must(t, n.EnsureBridge(t.Context(), bridge()))
	if got := strings.TrimSpace(s.VSCtl(t, "get", "bridge", ovstest.Bridge, "protocols")); got != "[OpenFlow10, OpenFlow13, OpenFlow14, OpenFlow15]" {
		t.Errorf("protocols %s", got)
	}
	w.hold()
	s.VSCtl(t, "clear", "bridge", ovstest.Bridge, "external_ids", "--", "add-port", ovstest.Bridge, "theirs", "--", "set", "interface", "theirs", "type=internal")
	if err := n.DeleteBridge(t.Context(), bridge()); !ovs.IsForeignBridge(err) {
		t.Errorf("a bridge that somebody else has taken: got %v", err)
	}
}
