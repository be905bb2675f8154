package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/lab/logtail"
)

// NetNSDir is where named network namespaces are, as for ip-netns(8).
const NetNSDir = "/run/netns"

// initLog is the name of PID 1 among the logs.
const initLog = "init"

// Config is what starts a machine.
type Config struct {
	Spec Spec
	// Program calls Init and Run under InitVerb and RunVerb.
	Program string
	// Forward is a listener of the host, for Spec.Forward. The machine gets a copy of it.
	Forward *os.File
}

// startTimeout is for a machine to get so far that it can be entered.
const startTimeout = 30 * time.Second

// endInterval is how long a wait for a process goes on at most after its context has ended.
const endInterval = 100 * time.Millisecond

// Launch starts a machine that is not running, and returns when it can be entered, while its units are still starting. The
// machine outlives this process.
func Launch(ctx context.Context, config Config) error {
	spec := &config.Spec
	if err := spec.validate(); err != nil {
		return fmt.Errorf("specification of %s: %w", spec.Name, err)
	}
	for _, dir := range []string{spec.Dir, spec.Logs} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("make the folders of %s: %w", spec.Name, err)
		}
	}
	if err := spec.write(); err != nil {
		return err
	}
	log, err := os.OpenFile(spec.Log(initLog), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log of %s: %w", spec.Name, err)
	}
	defer log.Close()
	cmd := exec.Command(config.Program, InitVerb, spec.Dir)
	cmd.Dir = "/"
	cmd.Stdout, cmd.Stderr = log, log
	if config.Forward != nil {
		cmd.ExtraFiles = []*os.File{config.Forward}
	}
	cmd.SysProcAttr = &unix.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	// A child starts in the network namespace of the thread that starts it.
	if err := ns.WithNetNSPath(filepath.Join(NetNSDir, spec.NetNS), func(ns.NetNS) error { return cmd.Start() }); err != nil {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if err := waitRunning(ctx, spec.Dir, ended); err != nil {
		return fmt.Errorf("start %s: %w\n%s", spec.Name, err, logtail.Last(spec.Log(initLog)))
	}
	return nil
}

func waitRunning(ctx context.Context, dir string, ended <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("not running after %v", startTimeout))
	defer cancel()
	control := NewControl(dir)
	ticker := time.NewTicker(socketInterval)
	defer ticker.Stop()
	for {
		if _, err := control.PID(ctx); err == nil || !errors.Is(err, ErrNotRunning) {
			return err
		}
		select {
		case err := <-ended:
			return fmt.Errorf("its PID 1 ended: %w", err)
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
}

// ExecArgs is a command line that runs another one inside the machine of that PID 1. Its environment is the caller's
// to set, see ExecEnv. It is nsenter's: a Go program has threads before its first line, and can't join a mount namespace with them.
func ExecArgs(pid int, command []string) []string {
	args := []string{"nsenter", "--target", strconv.Itoa(pid), "--mount", "--net", "--pid", "--uts", "--ipc", "--cgroup", "--root", "--wd", "--"}
	return append(args, command...)
}

// ExecEnv is the environment of a command in a machine. It includes the caller's terminal type.
func ExecEnv() []string {
	env := []string{"PATH=" + searchPath, "HOME=/root", "LANG=C.UTF-8"}
	if term, ok := os.LookupEnv("TERM"); ok {
		env = append(env, "TERM="+term)
	}
	return env
}

// KillAll ends the machines whose folders are dir or below it, also those that have not entered their cgroup yet. It returns when they have
// ended with all processes in them.
func KillAll(ctx context.Context, dir string) error {
	processes, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return fmt.Errorf("list processes: %w", err)
	}
	var killed []int // by their file descriptors
	var errs []error
	for _, path := range processes {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		// First the descriptor, then the look at the command line, so that both are about the same process.
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // Processes end while we look.
		}
		content, err := os.ReadFile(path)
		if err != nil || !isMachine(strings.Split(string(content), "\x00"), dir) {
			errs = append(errs, unix.Close(fd))
			continue
		}
		if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			errs = append(errs, fmt.Errorf("kill process %d: %w", pid, err))
		}
		killed = append(killed, fd)
	}
	for _, fd := range killed {
		errs = append(errs, waitEnd(ctx, fd), unix.Close(fd))
	}
	return errors.Join(errs...)
}

// waitEnd returns when the process has ended. That of a PID 1 is the last of its machine.
func waitEnd(ctx context.Context, pidfd int) error {
	for {
		poll := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
		n, err := unix.Poll(poll, int(endInterval.Milliseconds()))
		switch {
		case n > 0:
			return nil
		case err != nil && !errors.Is(err, unix.EINTR):
			return fmt.Errorf("wait for a killed process: %w", err)
		case ctx.Err() != nil:
			return fmt.Errorf("wait for a killed process: %w", context.Cause(ctx))
		}
	}
}
