package native

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

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// killDelay is the time from the end of the context until the output pipes are closed.
const killDelay = time.Second

// Exec programs a bridge by running ovs-vsctl and ovs-ofctl, each with a timeout. Tests compare Native with it: the same contract, and
// the same results of random calls.
//
// It does not use go-openvswitch's Client, which accepts no context, and whose bundles have no strict deletes and do not
// report which flow the switch rejected.
type Exec struct {
	bridge  string
	runDir  string
	timeout time.Duration // of one program, except in Replace
}

var _ ovs.Interface = (*Exec)(nil)

// NewExec returns a backend for the bridge of the Open vSwitch whose sockets are in runDir (DefaultRunDir, unless it is a
// test's). The timeouts are long, because other tests may share the machine.
func NewExec(bridge, runDir string) *Exec {
	return &Exec{bridge: bridge, runDir: runDir, timeout: time.Minute}
}

// NewTransaction implements Interface.
func (e *Exec) NewTransaction() *ovs.Transaction {
	return &ovs.Transaction{}
}

// programError is the error of a program.
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

// vsctl runs ovs-vsctl with the commands in one transaction and returns its output.
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

// command runs a command of ovs-ofctl that reads no script.
func (e *Exec) command(ctx context.Context, command string, args ...string) ([]byte, error) {
	socket := filepath.Join(e.runDir, e.bridge+".mgmt")
	args = append([]string{timeoutFlag(e.timeout), "--protocols=OpenFlow14", command, "unix:" + socket}, args...)
	return run(ctx, e.timeout, socket, nil, "ovs-ofctl", args...)
}

func timeoutFlag(d time.Duration) string {
	return "--timeout=" + strconv.Itoa(int(d.Seconds()))
}

// run runs a program that connects to the socket. If it fails because no server answers on the socket, the error satisfies
// IsUnavailable.
func run(ctx context.Context, timeout time.Duration, socket string, stdin *strings.Reader, program string, args ...string) ([]byte, error) {
	// The program's own --timeout ends it first, unless it hangs in the kernel.
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
		return nil, ovs.NewUnavailable(failed)
	}
	return nil, failed
}

// timedOut reports whether the program's --timeout ended it.
func timedOut(err error) bool {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return false
	}
	status, ok := exit.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && status.Signal() == syscall.SIGALRM
}

// answers reports whether a server listens on the socket.
func answers(ctx context.Context, socket string) bool {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}
