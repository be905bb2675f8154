package cniserver

import (
	"context"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// A deleted socket is restored while the agent serves, with its lock: no second agent can start.
func TestRestore(t *testing.T) {
	for name, tc := range map[string]struct {
		lose func(socket string) error
		want bool
	}{
		"nothing":       {func(string) error { return nil }, false},
		"socket":        {os.Remove, true},
		"lock":          {func(socket string) error { return os.Remove(socket + lockSuffix) }, true},
		"directory":     {func(socket string) error { return os.RemoveAll(filepath.Dir(socket)) }, true},
		"another file":  {func(socket string) error { return os.Rename(socket+lockSuffix, socket) }, true},
		"stale sibling": {func(socket string) error { return os.WriteFile(filepath.Join(filepath.Dir(socket), ".s"), nil, 0o600) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			socket := filepath.Join(shortDir(t), "run", "cni.sock")
			l, err := Listen(socket)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			served := make(chan error, 1)
			go func() { served <- Serve(ctx, l, verbs{status: func() error { return nil }}) }()
			if err := tc.lose(socket); err != nil {
				t.Fatal(err)
			}

			if got, err := l.Restore(); err != nil || got != tc.want {
				t.Errorf("Restore: got %v, %v; want %v", got, err, tc.want)
			}
			if again, err := l.Restore(); err != nil || again {
				t.Errorf("second Restore: got %v, %v; want false", again, err)
			}
			if _, err := call(t.Context(), socket, request(CommandStatus)); err != nil {
				t.Errorf("STATUS on the restored socket: got %v", err)
			}
			if _, err := Listen(socket); !IsInUse(err) {
				t.Errorf("second agent: got %v, want InUseError", err)
			}
			cancel()
			if err := <-served; err != nil {
				t.Error(err)
			}
			if _, err := net.Dial("unix", socket); err == nil {
				t.Error("Call after stop: got no error")
			}
		})
	}
}

// An agent whose lock was deleted, and taken by a second agent, reports that it must end, and leaves the socket to the other.
func TestRestore_inUse(t *testing.T) {
	socket := filepath.Join(shortDir(t), "cni.sock")
	first, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer first.lock.Close()
	if err := os.Remove(socket + lockSuffix); err != nil {
		t.Fatal(err)
	}
	second, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if _, err := first.Restore(); !IsInUse(err) {
		t.Errorf("got %v, want InUseError", err)
	}
	if err := first.socket.Close(); err != nil {
		t.Error(err)
	}
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatalf("socket of the second agent: got %v", err)
	}
	conn.Close()
}
