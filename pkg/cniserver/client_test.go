package cniserver

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/test/await"
)

// listen returns the socket of an agent that does not serve yet.
func listen(t *testing.T) (socket string, l net.Listener) {
	t.Helper()
	socket = filepath.Join(shortDir(t), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return socket, l
}

// An answer that does not parse is that of an agent of another version, which is being replaced.
func TestCall_agentOfAnotherVersion(t *testing.T) {
	socket, l := listen(t)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(conn, "HTTP/1.1 400 Bad Request\r\n\r\n")
			conn.Close()
		}
	}()
	if _, err := Call(t.Context(), socket, request(CommandAdd)); code(t, err) != types.ErrTryAgainLater {
		t.Error(err)
	}
}

func TestCall_withoutAgent(t *testing.T) {
	dir := shortDir(t)
	for command, want := range map[string]uint{
		CommandAdd:    types.ErrTryAgainLater,
		CommandDel:    types.ErrTryAgainLater,
		CommandStatus: types.ErrPluginNotAvailable,
	} {
		socket := filepath.Join(dir, "none.sock")
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := Call(ctx, socket, request(command))
		if code(t, err) != want {
			t.Errorf("%s: got %v", command, err)
		}
		for _, part := range []string{socket, "is ovsdn-node running on this node?"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: got error %q, want %q in it", command, err, part)
			}
		}
	}
}

// STATUS waits for an agent that is replaced.
func TestCall_statusDuringRestart(t *testing.T) {
	var calls atomic.Int32
	socket, stop := run(t, verbs{status: func() error {
		calls.Add(1)
		return types.NewError(types.ErrTryAgainLater, "the agent is stopping", "")
	}}, time.Second, time.Second)
	asked := make(chan error, 1)
	go func() {
		_, err := callStatus(t.Context(), socket, request(CommandStatus), time.Minute)
		asked <- err
	}()
	await.OK(t, await.SyncTime, func(context.Context) error {
		if calls.Load() == 0 {
			return errors.New("it was not asked")
		}
		return nil
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	runAt(t, socket, verbs{status: func() error { return nil }}, time.Second, time.Second)
	if err := <-asked; err != nil {
		t.Error(err)
	}
}

// The agent is killed, or hangs, while it serves the request.
func TestCall_agentEnds(t *testing.T) {
	socket, l := listen(t)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			conn.Close()
		}
	}()
	if _, err := Call(t.Context(), socket, request(CommandAdd)); code(t, err) != types.ErrTryAgainLater {
		t.Errorf("agent killed: got %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := Call(ctx, socket, request(CommandAdd)); code(t, err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "in time") {
		t.Errorf("agent hangs: got %v", err)
	}
}
