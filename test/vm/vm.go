// Package vm runs a command as root on a Debian kernel, which has the Open vSwitch module that many machines lack, in a virtual machine with
// this machine's own root file system. Only QEMU is installed on this machine, and writes of the command are discarded.
//
// QEMU emulates the processor, since the machines that tests run on seldom have KVM: count on a tenth of the speed. It
// can't do without root, for a mount namespace, nor run on anything but amd64.
package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// DefaultCacheDir is the directory of the kernels, some 400 MB each.
const DefaultCacheDir = "/var/cache/ovsdn-lab/vm"

// Options configures how a command runs. The zero value is valid.
type Options struct {
	Dir       string        // the command's working directory; this process' if empty
	Env       []string      // what the command finds in its environment beside PATH and HOME, as KEY=VALUE
	MemoryMiB int           // 2048 if 0; what is written to files comes out of it
	CPUs      int           // 2 if 0
	Timeout   time.Duration // for the whole run, boot included; 10 minutes if 0
	Output    io.Writer     // gets the command's standard output and error as they come; discarded if nil
	CacheDir  string        // DefaultCacheDir if empty
}

func (o *Options) setDefaults() error {
	if o.Dir == "" {
		dir, err := os.Getwd()
		if err != nil {
			return err
		}
		o.Dir = dir
	}
	if o.MemoryMiB == 0 {
		o.MemoryMiB = 2048
	}
	if o.CPUs == 0 {
		o.CPUs = 2
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Minute
	}
	if o.CacheDir == "" {
		o.CacheDir = DefaultCacheDir
	}
	if !filepath.IsAbs(o.Dir) || !filepath.IsAbs(o.CacheDir) {
		return fmt.Errorf("the folders %s and %s must be absolute paths", o.Dir, o.CacheDir)
	}
	return nil
}

// ErrTimeout is what Run's error wraps when Options.Timeout has passed.
var ErrTimeout = errors.New("the virtual machine's time is up")

// Run boots a machine, runs the command in it, and returns its exit code. An error means that there is no exit code: the machine could
// not be started, died, or was stopped because the context ended or time was up.
func Run(ctx context.Context, o Options, command ...string) (int, error) {
	if len(command) == 0 {
		return 0, errors.New("no command to run in the virtual machine")
	}
	if err := o.setDefaults(); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, o.Timeout, fmt.Errorf("%w (%v)", ErrTimeout, o.Timeout))
	defer cancel()
	code, err := run(ctx, o, command)
	if err != nil && ctx.Err() != nil {
		return 0, fmt.Errorf("virtual machine: %w", context.Cause(ctx))
	}
	return code, err
}

func run(ctx context.Context, o Options, command []string) (int, error) {
	kernel, err := openKernel(ctx, o.CacheDir)
	if err != nil {
		return 0, fmt.Errorf("kernel for the virtual machine: %w", err)
	}
	defer kernel.Close()
	dir, err := os.MkdirTemp("", "ovsdn-vm-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	m := machine{Options: o, kernel: kernel, dir: dir}
	if err := m.prepare(ctx, command); err != nil {
		return 0, fmt.Errorf("prepare the virtual machine: %w", err)
	}
	return m.run(ctx)
}

// machine is one run. Its folder has root/, where the guest's view of the root file system is mounted, and control/,
// which the guest mounts at /run/vm: it reads guest.sh there, and writes status.
type machine struct {
	Options
	kernel *kernel
	dir    string
}

func (m machine) path(parts ...string) string {
	return filepath.Join(append([]string{m.dir}, parts...)...)
}

func (m machine) prepare(ctx context.Context, command []string) error {
	for _, d := range []string{"root", "control"} {
		if err := os.Mkdir(m.path(d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(m.path("control", "guest.sh"), []byte(m.guestScript(command)), 0o600); err != nil {
		return err
	}
	modules, err := m.kernel.bootModules(ctx)
	if err != nil {
		return err
	}
	return writeInitramfs(m.path("initramfs"), modules)
}

// minUptime is the guest's uptime at which the command starts, in seconds: ovs-vswitchd 3.1 that is started in the first 10 seconds of uptime
// takes itself to have no handler threads, and loses every packet of the kernel's. A time namespace with a later clock would not do: the kernel
// reports the last use of datapath flows by its own clock, and vswitchd deletes those that it takes to be idle.
const minUptime = "11"

// guestScript runs in the guest's root file system as process 1.
func (m machine) guestScript(command []string) string {
	var env, words strings.Builder
	for _, e := range m.Env {
		env.WriteString("export " + quote(e) + "\n")
	}
	for _, c := range command {
		words.WriteString(" " + quote(c))
	}
	return `export PATH=/usr/local/go/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8
` + env.String() + `
mkdir -p /lib/modules
ln -sfn ` + quote(m.kernel.modulesDir()) + ` "/lib/modules/$(uname -r)"
ip link set lo up
while read -r up _ </proc/uptime && [ "${up%.*}" -lt ` + minUptime + ` ]; do sleep 1; done
(
  exec </dev/null >/dev/hvc0 2>&1
  stty raw <&1 # while it is open: closing it resets it
  cd ` + quote(m.Dir) + ` &&
  exec setsid` + words.String() + `
)
echo $? >/run/vm/status.new
mv /run/vm/status.new /run/vm/status
echo o >/proc/sysrq-trigger
while :; do sleep 60; done
`
}

// quote makes one word of a POSIX shell.
func quote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// exitCode is the command's, that the guest left. A guest that died left none.
func (m machine) exitCode() (int, error) {
	text, err := os.ReadFile(m.path("control", "status"))
	if errors.Is(err, fs.ErrNotExist) {
		console, err := os.ReadFile(m.path("console"))
		return 0, errors.Join(fmt.Errorf("the virtual machine died before the command ended; the end of its console:\n%s", tail(console)), err)
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(string(bytes.TrimSpace(text)))
}

func tail(text []byte) []byte {
	const enough = 4096
	return text[max(0, len(text)-enough):]
}

// output runs a program and returns its standard output. Its error includes the program's standard error.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return "", fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, bytes.TrimSpace(tail(exit.Stderr)))
		}
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(out), nil
}
