package ovs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// killDelay passes from a context's end until the output pipes are closed by force.
const killDelay = time.Second

// Exec programs a bridge by running ovs-vsctl and ovs-ofctl, each with a time-out. It is what Native is held against: the same
// contract, and the same end of the same random changes.
//
// It runs the programs itself: go-openvswitch's Client takes no context, and its bundles know neither strict deletes nor
// which flow the switch refused.
type Exec struct {
	bridge  string
	runDir  string
	timeout time.Duration // of one program, but for Replace
}

var _ Interface = (*Exec)(nil)

// NewExec returns a backend for the bridge of the Open vSwitch whose sockets are in runDir (DefaultRunDir, unless it is a
// test's). It is patient: a machine shared with other tests can be slow.
func NewExec(bridge, runDir string) *Exec {
	return &Exec{bridge: bridge, runDir: runDir, timeout: time.Minute}
}

// NewTransaction implements Interface.
func (e *Exec) NewTransaction() *Transaction {
	return &Transaction{}
}

// programError is a program that ended with an error.
type programError struct {
	program string
	stderr  string
	err     error
}

func (e *programError) Error() string {
	if e.stderr == "" {
		return fmt.Sprintf("%s: %v", e.program, e.err)
	}
	return fmt.Sprintf("%s: %v: %s", e.program, e.err, e.stderr)
}

func (e *programError) Unwrap() error {
	return e.err
}

// vsctl runs ovs-vsctl with the commands in one transaction and returns what it printed.
func (e *Exec) vsctl(ctx context.Context, args ...string) ([]byte, error) {
	socket := filepath.Join(e.runDir, "db.sock")
	args = append([]string{timeoutFlag(e.timeout), "--db=unix:" + socket, "--format=json"}, args...)
	return run(ctx, e.timeout, socket, nil, "ovs-vsctl", args...)
}

// ofctl runs ovs-ofctl on the bridge with a script as its standard input.
func (e *Exec) ofctl(ctx context.Context, timeout time.Duration, script string, command ...string) error {
	socket := filepath.Join(e.runDir, e.bridge+".mgmt")
	args := append([]string{timeoutFlag(timeout), "--protocols=OpenFlow14"}, command...)
	args = append(args, "unix:"+socket, "-")
	_, err := run(ctx, timeout, socket, strings.NewReader(script), "ovs-ofctl", args...)
	return err
}

// command runs one that reads no script.
func (e *Exec) command(ctx context.Context, command string, args ...string) ([]byte, error) {
	socket := filepath.Join(e.runDir, e.bridge+".mgmt")
	args = append([]string{timeoutFlag(e.timeout), "--protocols=OpenFlow14", command, "unix:" + socket}, args...)
	return run(ctx, e.timeout, socket, nil, "ovs-ofctl", args...)
}

func timeoutFlag(d time.Duration) string {
	return "--timeout=" + strconv.Itoa(int(d.Seconds()))
}

// run runs a program that talks to the socket. The error of one that failed because nobody answers there satisfies
// IsUnavailable.
func run(ctx context.Context, timeout time.Duration, socket string, stdin *strings.Reader, program string, args ...string) ([]byte, error) {
	// The program's own alarm comes first, except when it hangs in the kernel.
	limited, cancel := context.WithTimeout(ctx, timeout+killDelay)
	defer cancel()
	cmd := exec.CommandContext(limited, program, args...)
	cmd.WaitDelay = killDelay
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if stdin != nil {
		cmd.Stdin = stdin
	}
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	failed := &programError{program: program, stderr: strings.TrimSpace(stderr.String()), err: err}
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("%w: %w", failed, ctx.Err())
	case limited.Err() != nil || timedOut(err) || !answers(limited, socket):
		return nil, &unavailableError{failed}
	}
	return nil, failed
}

// timedOut reports whether a program ended by the alarm that its --timeout sets.
func timedOut(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGALRM
}

// answers reports whether something listens on the socket.
func answers(ctx context.Context, socket string) bool {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
