package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/lab/checkout"
)

// process is a program that runs on a host of its own: a network namespace, and perhaps a view of the file system. It dies
// with this process.
type process struct {
	cmd  *exec.Cmd
	log  string        // what it printed
	done chan struct{} // closed when it has ended
}

// start starts the program. With a runDir, it sees that directory as Open vSwitch's.
func (b *B) start(host ns.NetNS, runDir, program string, args ...string) *process {
	b.Helper()
	log, err := os.CreateTemp("", "bench-*.log")
	b.must(err)
	defer log.Close()
	b.Cleanup(func() { os.Remove(log.Name()) })
	p := &process{cmd: exec.Command(program, args...), log: log.Name(), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		defer close(p.done)
		// Never unlocked: no other goroutine may run in these namespaces. The kernel sends the death signal when the thread ends that started the
		// child.
		runtime.LockOSThread()
		err := enter(host, runDir)
		if err == nil {
			err = p.cmd.Start()
		}
		started <- err
		if err == nil {
			_ = p.cmd.Wait() // "signal: killed"
		}
	}()
	if err := <-started; err != nil {
		b.Fatalf("start %s: %v", program, err)
	}
	b.Cleanup(p.kill)
	return p
}

// enter puts the thread, and what it starts, onto the host.
func enter(host ns.NetNS, runDir string) error {
	if err := host.Set(); err != nil {
		return err
	}
	if runDir == "" {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("new mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	// /var/run is a link to it. A new one also separates iptables' lock from the machine's.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	const target = "/run/openvswitch"
	if err := os.Mkdir(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(runDir, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s: %w", target, err)
	}
	return nil
}

// kill returns when the program has ended. It may be called again.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only if it has ended
	<-p.done
}

// lastWords is the end of what the program printed.
func (p *process) lastWords() string {
	const enough = 4 << 10
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-enough):])
}

// program returns the path of one of our programs, which `make build` makes.
func (b *B) program(name string) string {
	b.Helper()
	path := filepath.Join(b.root(), "bin", name)
	if _, err := os.Stat(path); err != nil {
		b.Fatalf("%v: run `make build` first", err)
	}
	return path
}

func (b *B) root() string {
	b.Helper()
	root, err := checkout.Root(".")
	b.must(err)
	return root
}

// netns makes a network namespace that lives as long as the figure.
func (b *B) netns() ns.NetNS {
	b.Helper()
	n, err := ns.TempNetNS()
	b.must(err)
	b.Cleanup(func() { n.Close() }) // only a descriptor; the kernel frees the namespace
	return n
}

// pathOf returns a path of the namespace, which has no name in the file system.
func pathOf(n ns.NetNS) string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.Fd()) }
