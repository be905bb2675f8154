package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// start builds pause and starts it as process 1 of a PID namespace, as a sandbox does.
func start(t *testing.T) *exec.Cmd {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	program := filepath.Join(t.TempDir(), "pause")
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", program, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	pause := exec.CommandContext(t.Context(), program)
	pause.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	if err := pause.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "pause reaps a child, so it minds its signals", func() bool {
		orphan(t, pause, "true &")
		return len(children(t, pause)) == 0
	})
	return pause
}

// orphan runs a script in the PID namespace; what it leaves behind becomes a child of process 1.
func orphan(t *testing.T, pause *exec.Cmd, script string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "nsenter", "--pid", "--target", fmt.Sprint(pause.Process.Pid), "sh", "-c", script)
	command.Stderr = os.Stderr // no pipe: the orphans would hold it open
	if err := command.Run(); err != nil {
		t.Fatal(err)
	}
}

// children returns the process IDs, as seen from here, of the children of any of its threads.
func children(t *testing.T, pause *exec.Cmd) []int {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pause.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var pids []int
	for _, f := range files {
		list, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue // a thread that has ended
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, field := range strings.Fields(string(list)) {
			pid, err := strconv.Atoi(field)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
	}
	return pids
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(time.Minute)
	for !condition() {
		select {
		case <-deadline:
			t.Fatalf("not within a minute: %s", what)
		case <-tick.C:
		}
	}
}

func TestStopsWhenAsked(t *testing.T) {
	for _, s := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(s.String(), func(t *testing.T) {
			pause := start(t)
			if err := pause.Process.Signal(s); err != nil {
				t.Fatal(err)
			}
			if err := pause.Wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestReapsOrphans(t *testing.T) {
	pause := start(t)
	orphan(t, pause, "for i in 1 2 3 4 5; do sleep 1000 & done")
	orphans := children(t, pause)
	if len(orphans) != 5 {
		t.Errorf("pause has the children %v, want five", orphans)
	}
	for _, pid := range orphans {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "pause has no child left", func() bool { return len(children(t, pause)) == 0 })
	if err := pause.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := pause.Wait(); err != nil {
		t.Error(err)
	}
}
