package cniserver

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/await"
)

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// verbs is a Handler of functions.
type verbs struct {
	add    func(context.Context, *Request) (*current.Result, error)
	del    func(context.Context, *Request) error
	status func() error
}

func (v verbs) Add(ctx context.Context, r *Request) (*current.Result, error) { return v.add(ctx, r) }
func (v verbs) Del(ctx context.Context, r *Request) error                    { return v.del(ctx, r) }
func (v verbs) Check(context.Context, *Request) error                        { return nil }
func (v verbs) GC(context.Context, *Request) error                           { return nil }
func (v verbs) Status(context.Context) error {
	if v.status != nil {
		return v.status()
	}
	return types.NewError(types.ErrPluginNotAvailable, "not yet", "")
}

// run serves the handler until the test ends.
func run(t *testing.T, h Handler, drain, undo time.Duration) (socket string, stop func() error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root") // only root may call
	}
	socket = filepath.Join(shortDir(t), "cni.sock")
	return socket, runAt(t, socket, h, drain, undo)
}

func runAt(t *testing.T, socket string, h Handler, drain, undo time.Duration) (stop func() error) {
	t.Helper()
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- serve(ctx, l, h, drain, undo) }()
	stop = sync.OnceValue(func() error {
		cancel()
		return <-served
	})
	t.Cleanup(func() { _ = stop() })
	return stop
}

// shortDir returns a temporary directory with a short path: that of t.TempDir may be too long for a socket address.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cni")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func request(command string) *Request {
	return &Request{
		Command: command, ContainerID: "abc", Netns: "/run/netns/x", IfName: "eth0", Args: "A=b", Path: "/opt/cni/bin",
		Config: json.RawMessage(testConfig),
	}
}

func TestServe(t *testing.T) {
	want := &current.Result{CNIVersion: "1.1.0", Interfaces: []*current.Interface{{Name: "eth0", Sandbox: "/run/netns/x"}}}
	socket, stop := run(t, verbs{
		add: func(ctx context.Context, r *Request) (*current.Result, error) {
			if _, ok := ctx.Deadline(); !ok {
				t.Error("got no deadline of the context")
			}
			if r.ContainerID != "abc" || r.IfName != "eth0" || r.Netns != "/run/netns/x" || r.Args != "A=b" || string(r.Config) != testConfig {
				t.Errorf("got %+v", r)
			}
			return want, nil
		},
		del: func(context.Context, *Request) error { return errors.New("the switch is on fire") },
	}, time.Second, time.Second)

	got, err := Call(t.Context(), socket, request(CommandAdd))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ADD (-want +got):\n%s", diff)
	}
	if _, err := Call(t.Context(), socket, request(CommandCheck)); err != nil {
		t.Error(err)
	}
	_, err = Call(t.Context(), socket, request(CommandDel))
	if code(t, err) != types.ErrInternal || !strings.Contains(err.Error(), "on fire") {
		t.Errorf("DEL: got %v", err)
	}
	_, err = Call(t.Context(), socket, request(CommandStatus))
	if code(t, err) != types.ErrPluginNotAvailable || err.Error() != "not yet" {
		t.Errorf("STATUS: got %v", err)
	}
	bad := request(CommandAdd)
	bad.ContainerID = "a/b"
	if _, err = Call(t.Context(), socket, bad); code(t, err) != types.ErrInvalidEnvironmentVariables {
		t.Errorf("ADD with interface a/b: got %v", err)
	}
	huge := request(CommandAdd)
	huge.Args = strings.Repeat("x", maxRequestBytes)
	if _, err = Call(t.Context(), socket, huge); code(t, err) != types.ErrDecodingFailure {
		t.Errorf("ADD with a too long request: got %v", err)
	}

	if err := stop(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(socket); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("socket after stop: got %v, want that it does not exist", err)
	}
}

// An invalid request gets an error, also from a plugin of another version, and one that is too long is not read to its end.
func TestServe_invalidRequests(t *testing.T) {
	socket, _ := run(t, verbs{}, time.Second, time.Second)
	for _, line := range []string{
		"POST /cni HTTP/1.1", "", "nonsense", "{}", "[]", `{"command":"STATUS","config":` + testConfig + `}{}`,
		strings.Repeat("x", maxRequestBytes),
	} {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, line+"\n"); err != nil {
			t.Fatal(err)
		}
		var got answer
		err = json.NewDecoder(conn).Decode(&got)
		conn.Close()
		if err != nil || got.Error == nil || got.Error.Code != types.ErrDecodingFailure {
			t.Errorf("%.40s: got %+v, %v", line, got, err)
		}
	}
}

func TestServe_pluginCloses(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	socket, _ := run(t, verbs{add: func(ctx context.Context, _ *Request) (*current.Result, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}}, time.Second, time.Second)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	if _, err := Call(ctx, socket, request(CommandAdd)); err == nil {
		t.Error("got no error")
	}
	<-ended
}

func TestServe_timeoutOfPlugin(t *testing.T) {
	remaining := make(chan time.Duration, 1)
	socket, _ := run(t, verbs{add: func(ctx context.Context, _ *Request) (*current.Result, error) {
		deadline, _ := ctx.Deadline()
		remaining <- time.Until(deadline)
		return &current.Result{CNIVersion: "1.1.0"}, nil
	}}, time.Second, time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := Call(ctx, socket, request(CommandAdd)); err != nil {
		t.Fatal(err)
	}
	if got := <-remaining; got > 30*time.Second || got < 10*time.Second {
		t.Errorf("timeout in the agent: got %s", got)
	}
}

// callDel sends a DEL, and returns its result as soon as it is answered.
func callDel(t *testing.T, socket string) <-chan error {
	answered := make(chan error, 1)
	go func() {
		_, err := Call(t.Context(), socket, request(CommandDel))
		answered <- err
	}()
	return answered
}

func TestStop_waitsForRequests(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	socket, stop := run(t, verbs{del: func(ctx context.Context, _ *Request) error {
		close(started)
		<-release
		return ctx.Err()
	}}, time.Minute, time.Minute)
	answered := callDel(t, socket)
	<-started
	stopped := make(chan error, 1)
	go func() { stopped <- stop() }()
	// The socket accepts no connection, and no other agent starts, since a request is still running.
	waitFor(t, func() bool {
		_, err := os.Stat(socket)
		return errors.Is(err, os.ErrNotExist)
	})
	if l, err := Listen(socket); !IsInUse(err) {
		t.Errorf("Listen of another agent: got %v, want InUseError", err)
		l.Close()
	}
	close(release)
	if err := <-answered; err != nil {
		t.Error(err)
	}
	if err := <-stopped; err != nil {
		t.Error(err)
	}
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestStop_cancelsRequests(t *testing.T) {
	started := make(chan struct{})
	socket, stop := run(t, verbs{del: func(ctx context.Context, _ *Request) error {
		close(started)
		<-ctx.Done()
		return ctx.Err()
	}}, time.Millisecond, time.Minute)
	answered := callDel(t, socket)
	<-started
	if err := stop(); err != nil {
		t.Error(err)
	}
	if err := <-answered; code(t, err) != types.ErrTryAgainLater {
		t.Errorf("DEL: got %v, want ErrTryAgainLater", err)
	}
}

func TestStop_requestNeverEnds(t *testing.T) {
	started, release := make(chan struct{}), make(chan struct{})
	socket, stop := run(t, verbs{del: func(context.Context, *Request) error {
		close(started)
		<-release
		return nil
	}}, time.Millisecond, time.Millisecond)
	answered := callDel(t, socket)
	<-started
	if err := stop(); err == nil || !strings.Contains(err.Error(), "did not end") {
		t.Errorf("stop: got %v, want an error that requests did not end", err)
	}
	close(release)
	if err := <-answered; code(t, err) != types.ErrTryAgainLater {
		t.Errorf("DEL: got %v, want ErrTryAgainLater", err)
	}
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.After(time.Minute)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the condition did not become true")
		}
	}
}

// A thread of root takes another uid, which the kernel records at connect. The modes of socket and directory allow the connection.
func TestServe_otherUsers(t *testing.T) {
	socket, _ := run(t, verbs{}, time.Second, time.Second)
	for path, mode := range map[string]os.FileMode{filepath.Dir(socket): 0o755, socket: 0o666} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	const other = 65534
	type reply struct {
		text []byte
		err  error
	}
	answers := make(chan reply, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, other, other, other); errno != 0 {
			answers <- reply{err: errno}
			return
		}
		conn, err := net.Dial("unix", socket)
		if err != nil {
			answers <- reply{err: err}
			return
		}
		defer conn.Close()
		// The refusal may come before the request, and the end of the connection with it.
		_, _ = io.WriteString(conn, `{"command":"STATUS","config":`+testConfig+"}\n")
		text, _ := io.ReadAll(conn)
		answers <- reply{text: text}
	}()
	got := <-answers
	if got.err != nil {
		t.Fatal(got.err)
	}
	if !strings.Contains(string(got.text), "uid 65534 may not call") {
		t.Errorf("got answer:\n%s", got.text)
	}
}
