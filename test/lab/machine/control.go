package machine

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/lab/logtail"
)

// handler answers what Control asks.
func (s *supervisor) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /units", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		// The only error is that of a client that has closed its connection.
		_ = json.NewEncoder(w).Encode(s.statuses())
	})
	mux.HandleFunc("POST /units/{name}/{action}", func(w http.ResponseWriter, r *http.Request) {
		if err := s.do(r.Context(), r.PathValue("name"), Action(r.PathValue("action"))); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
		}
	})
	return mux
}

// Control speaks with the PID 1 of a machine, through a socket in the machine's folder. It may be used from
// any namespace that sees the folder, by many at once.
type Control struct {
	socket string
	client *http.Client
}

// NewControl connects at the first use.
func NewControl(dir string) *Control {
	socket := filepath.Join(dir, controlEnd)
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}
	return &Control{socket: socket, client: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// ErrNotRunning is the error if no PID 1 answers.
var ErrNotRunning = errors.New("the machine is not running")

// Units are listed in the order of the machine's specification.
func (c *Control) Units(ctx context.Context) ([]Status, error) {
	var units []Status
	err := c.call(ctx, http.MethodGet, "/units", func(body io.Reader) error { return json.NewDecoder(body).Decode(&units) })
	return units, err
}

// Unit is one of them.
func (c *Control) Unit(ctx context.Context, name string) (Status, error) {
	units, err := c.Units(ctx)
	if err != nil {
		return Status{}, err
	}
	for _, u := range units {
		if u.Name == name {
			return u, nil
		}
	}
	return Status{}, fmt.Errorf("no unit %q", name)
}

// Do returns when the action is done.
func (c *Control) Do(ctx context.Context, unit string, action Action) error {
	return c.call(ctx, http.MethodPost, "/units/"+url.PathEscape(unit)+"/"+url.PathEscape(string(action)), func(io.Reader) error { return nil })
}

func (c *Control) call(ctx context.Context, method, path string, read func(io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://machine"+path, nil)
	if err != nil {
		return fmt.Errorf("ask the machine: %w", err)
	}
	response, err := c.client.Do(request)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return ErrNotRunning
	}
	if err != nil {
		return fmt.Errorf("ask the machine: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		message, err := io.ReadAll(io.LimitReader(response.Body, 4096))
		return errors.Join(errors.New(strings.TrimSpace(string(message))), err)
	}
	return read(response.Body)
}

// PID of the machine's PID 1, as the caller sees it. The kernel provides it with the connection, so it is never stale.
func (c *Control) PID(ctx context.Context) (int, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket)
	if errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.ENOENT) {
		return 0, ErrNotRunning
	}
	if err != nil {
		return 0, fmt.Errorf("find the machine's PID 1: %w", err)
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, fmt.Errorf("find the machine's PID 1: %w", err)
	}
	var peer *unix.Ucred
	var peerErr error
	err = raw.Control(func(fd uintptr) { peer, peerErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, peerErr); err != nil {
		return 0, fmt.Errorf("find the machine's PID 1: %w", err)
	}
	return int(peer.Pid), nil
}

// waitInterval is between two looks at the units.
const waitInterval = 30 * time.Millisecond

// WaitUp returns when Check returns nil. It fails when a task has failed, or with the end of the context; the error has the unit and its log.
func (c *Control) WaitUp(ctx context.Context) error {
	ticker := time.NewTicker(waitInterval)
	defer ticker.Stop()
	for {
		err := c.Check(ctx)
		var unit *UnitError
		if err == nil || errors.As(err, &unit) && unit.Status.Task && unit.Status.State == Failed {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%w)", err, context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

// Check fails if a unit is not up that starts by itself or that a client has started.
func (c *Control) Check(ctx context.Context) error {
	units, err := c.Units(ctx)
	if err != nil {
		return err
	}
	return notUp(units)
}

// notUp returns an error for a unit that is not up. A failed one comes first, since others may wait for it.
func notUp(units []Status) error {
	var first *UnitError
	for _, u := range units {
		if u.State == Up || u.State == Stopped {
			continue
		}
		if first == nil || u.State == Failed && first.Status.State != Failed {
			first = &UnitError{Status: u}
		}
	}
	if first == nil {
		return nil
	}
	return first
}

// UnitError is about a unit that is not up.
type UnitError struct {
	Status Status
}

func (e *UnitError) Error() string {
	message := fmt.Sprintf("%s is %s", e.Status.Name, e.Status.State)
	if e.Status.LastEnd != "" {
		message += ", last end: " + e.Status.LastEnd
	}
	return message + "; " + logtail.Last(e.Status.Log)
}
