// Package ovstest gives a test an Open vSwitch of its own: ovsdb-server and ovs-vswitchd with the userspace datapath, in a
// new network namespace and a temporary directory. When the test ends, or its process dies, nothing is left behind.
package ovstest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Bridge is the bridge that Dump, Diff and Trace look at. Start does not create it: that is EnsureBridge's job.
const Bridge = "br0"

// schema is where Debian's and Fedora's packages put the database schema.
const schema = "/usr/share/openvswitch/vswitch.ovsschema"

// patience bounds every wait; a machine shared with other tests can be slow.
const patience = 90 * time.Second

// Switch is a running Open vSwitch.
type Switch struct {
	// RunDir holds the sockets: db.sock, br0.mgmt, ovs-vswitchd.ctl. It is what OVS_RUNDIR means to the OVS programs.
	RunDir string
	// NS is the network namespace of the switch and its devices.
	NS ns.NetNS

	calls    chan func() // run on the thread that the daemons are children of
	db       *exec.Cmd
	vswitchd *exec.Cmd
}

// Start starts an Open vSwitch that lives as long as the test. It skips the test without root.
func Start(t testing.TB) *Switch {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	// Not t.TempDir(): with a test's name in it a socket's path passes the 107 bytes that the kernel takes.
	dir, err := os.MkdirTemp("", "ovs")
	if err != nil {
		t.Fatal(err)
	}
	s := &Switch{RunDir: dir, calls: make(chan func())}
	done := make(chan struct{})
	ready := make(chan error, 1)
	go s.own(ready, done)
	t.Cleanup(func() {
		close(s.calls)
		<-done
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the switch's directory: %v", err)
		}
	})
	if err := <-ready; err != nil {
		t.Fatalf("new network namespace: %v", err)
	}
	s.startNew(t)
	return s
}

// startNew starts both daemons with a new database.
func (s *Switch) startNew(t testing.TB) {
	t.Helper()
	s.run(t, "ovsdb-tool", "create", s.path("conf.db"), schema)
	s.StartDB(t)
	s.run(t, "ovs-vsctl", "--timeout=30", "--no-wait", "init")
	s.StartVSwitchd(t)
}

// LoseDB restarts both daemons with a new, empty database, as a host does after the loss of conf.db.
func (s *Switch) LoseDB(t testing.TB) {
	t.Helper()
	s.StopVSwitchd(t)
	s.StopDB(t)
	if err := os.Remove(s.path("conf.db")); err != nil {
		t.Fatal(err)
	}
	s.startNew(t)
}

// own is the thread that has the namespace and is the daemons' parent. It lives as long as the switch, since the
// kernel sends a child its parent-death signal when the thread that started it ends, not when the process does.
func (s *Switch) own(ready chan<- error, done chan<- struct{}) {
	defer close(done)
	runtime.LockOSThread() // never unlocked: no other goroutine may run in the thread's namespace
	err := unix.Unshare(unix.CLONE_NEWNET)
	if err == nil {
		s.NS, err = ns.GetCurrentNS()
	}
	ready <- err
	for f := range s.calls {
		f()
	}
	for _, cmd := range []*exec.Cmd{s.vswitchd, s.db} {
		kill(cmd)
	}
	if s.NS != nil {
		s.NS.Close() // only the descriptor; the namespace goes with the thread
	}
}

func (s *Switch) call(f func()) {
	done := make(chan struct{})
	s.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

func kill(cmd *exec.Cmd) {
	if cmd == nil || cmd.ProcessState != nil {
		return
	}
	_ = cmd.Process.Kill() // fails only if it has ended by itself, which Wait sees too
	_ = cmd.Wait()         // "signal: killed"
}

// start starts a daemon in the foreground; its log is NAME.log in RunDir.
func (s *Switch) start(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	args = append(args, "--unixctl="+s.path(name+".ctl"), "--pidfile="+s.path(name+".pid"), "--log-file="+s.path(name+".log"),
		"-vconsole:off", "-vsyslog:off")
	cmd := exec.Command(name, args...)
	cmd.Env = s.Env()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var err error
	s.call(func() { err = cmd.Start() })
	if err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	return cmd
}

// StartVSwitchd starts ovs-vswitchd again after StopVSwitchd, and waits until it takes commands and has made
// the bridges of its database.
func (s *Switch) StartVSwitchd(t testing.TB) {
	t.Helper()
	s.vswitchd = s.start(t, "ovs-vswitchd", "unix:"+s.path("db.sock"))
	s.await(t, "ovs-vswitchd.ctl")
	// The name that a vswitchd chooses by itself, and that is looked for by the one in ovs-vswitchd.pid.
	if err := os.Symlink("ovs-vswitchd.ctl", s.path(fmt.Sprintf("ovs-vswitchd.%d.ctl", s.vswitchd.Process.Pid))); err != nil {
		t.Fatal(err)
	}
	// A change that vswitchd must confirm.
	s.run(t, "ovs-vsctl", "--timeout=30", "set", "open_vswitch", ".", fmt.Sprintf("external-ids:started=%d", s.vswitchd.Process.Pid))
}

// StopVSwitchd kills ovs-vswitchd: its flows are lost, the database is retained.
func (s *Switch) StopVSwitchd(t testing.TB) {
	t.Helper()
	s.call(func() { kill(s.vswitchd) })
}

// PauseVSwitchd stops ovs-vswitchd from running until the returned function is called: its sockets accept, and
// nothing answers.
func (s *Switch) PauseVSwitchd(t testing.TB) (resume func()) {
	t.Helper()
	return pause(t, s.vswitchd)
}

// PauseDB does the same to ovsdb-server.
func (s *Switch) PauseDB(t testing.TB) (resume func()) {
	t.Helper()
	return pause(t, s.db)
}

func pause(t testing.TB, cmd *exec.Cmd) (resume func()) {
	t.Helper()
	signal := func(sig syscall.Signal) {
		if err := cmd.Process.Signal(sig); err != nil {
			t.Errorf("signal %v to %s: %v", sig, cmd.Path, err)
		}
	}
	signal(syscall.SIGSTOP)
	return func() { signal(syscall.SIGCONT) }
}

// StartDB starts ovsdb-server again after StopDB, and waits until it answers.
func (s *Switch) StartDB(t testing.TB) {
	t.Helper()
	s.db = s.start(t, "ovsdb-server", s.path("conf.db"), "--remote=punix:"+s.path("db.sock"))
	s.await(t, "db.sock")
}

// StopDB kills ovsdb-server.
func (s *Switch) StopDB(t testing.TB) {
	t.Helper()
	s.call(func() { kill(s.db) })
}

// await waits until something accepts connections on the socket.
func (s *Switch) await(t testing.TB, socket string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("unix", s.path(socket))
		if err == nil {
			conn.Close()
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%v\n%s", err, s.Logs())
		}
	}
}

func (s *Switch) path(name string) string {
	return filepath.Join(s.RunDir, name)
}

// Env is the environment in which every ovs-* program finds this switch.
func (s *Switch) Env() []string {
	return append(os.Environ(), "OVS_RUNDIR="+s.RunDir, "OVS_DBDIR="+s.RunDir, "OVS_LOGDIR="+s.RunDir)
}

// Command prepares an ovs-* program that talks to this switch.
func (s *Switch) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = s.Env()
	return cmd
}

// run runs an ovs-* program that must succeed, and returns its standard output.
func (s *Switch) run(t testing.TB, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := s.Command(ctx, name, args...).Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			out = append(out, exit.Stderr...)
		}
		t.Fatalf("%s %s: %v\n%s\n%s", name, strings.Join(args, " "), err, out, s.Logs())
	}
	return string(out)
}

// VSCtl runs ovs-vsctl and returns its standard output.
func (s *Switch) VSCtl(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovs-vsctl", append([]string{"--timeout=30"}, args...)...)
}

// OFCtl runs ovs-ofctl with OpenFlow 1.4 and returns its standard output.
func (s *Switch) OFCtl(t testing.TB, args ...string) string {
	t.Helper()
	return s.run(t, "ovs-ofctl", append([]string{"--timeout=30", "-O", "OpenFlow14"}, args...)...)
}

// Dump returns br0's flows in the switch's order, without statistics, one a line as ovs-ofctl prints them.
func (s *Switch) Dump(t testing.TB) []string {
	t.Helper()
	var flows []string
	for line := range strings.Lines(s.OFCtl(t, "--no-stats", "--no-names", "dump-flows", Bridge)) {
		flows = append(flows, strings.TrimSpace(line))
	}
	return flows
}

// Diff compares br0's flows with the wanted ones: match, cookie, time-outs and actions. It returns "" when they are equal, else
// lines that start with - (only on the switch) or + (only wanted).
func (s *Switch) Diff(t testing.TB, want []*ovs.Flow) string {
	t.Helper()
	var file strings.Builder
	for _, f := range want {
		text, err := ovs.FlowText(f)
		if err != nil {
			t.Fatal(err)
		}
		file.WriteString(text + "\n")
	}
	name := s.path("want.txt")
	if err := os.WriteFile(name, []byte(file.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const differ = 2 // diff-flows' exit code
	cmd := s.Command(ctx, "ovs-ofctl", "--timeout=30", "-O", "OpenFlow14", "diff-flows", Bridge, name)
	var stderr strings.Builder // has warnings about a machine that did not run
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != differ) {
		t.Fatalf("ovs-ofctl diff-flows: %v\n%s%s", err, out, &stderr)
	}
	return string(out)
}

// Trace returns the report of ofproto/trace on br0 for the packet, such as "in_port=3,tcp,nw_src=10.128.0.2,…".
func (s *Switch) Trace(t testing.TB, packet string, options ...string) string {
	t.Helper()
	args := append([]string{"--target=" + s.path("ovs-vswitchd.ctl"), "--timeout=30", "ofproto/trace", Bridge, packet}, options...)
	return s.run(t, "ovs-appctl", args...)
}

// Conntrack returns the tracked connections of the switch's datapath, one a line.
func (s *Switch) Conntrack(t testing.TB) string {
	t.Helper()
	return s.run(t, "ovs-appctl", "--target="+s.path("ovs-vswitchd.ctl"), "--timeout=30", "dpctl/dump-conntrack")
}

// Logs returns the warnings and errors in the daemons' logs.
func (s *Switch) Logs() string {
	var b strings.Builder
	for _, name := range []string{"ovsdb-server.log", "ovs-vswitchd.log"} {
		text, err := os.ReadFile(s.path(name))
		if err != nil {
			fmt.Fprintf(&b, "%v\n", err)
			continue
		}
		for line := range strings.Lines(string(text)) {
			if !strings.Contains(line, "|INFO|") {
				b.WriteString(name + ": " + line)
			}
		}
	}
	return b.String()
}
