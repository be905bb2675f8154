package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/await"
)

// asController makes this test binary run as the program, so that tests can send it signals.
const asController = "OVSDN_TEST_AS_CONTROLLER"

func TestMain(m *testing.M) {
	if os.Getenv(asController) != "" {
		main()
	}
	m.Run() // go test exits with its result
}

const timeout = 90 * time.Second // a loaded machine is slow

// process is a running program.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // valid when ended is closed

	mu  sync.Mutex
	log bytes.Buffer
}

// start runs the program without probes until the test's end.
func start(t *testing.T, args ...string) *process {
	t.Helper()
	p := &process{ended: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0], append([]string{"--healthz-bind-address=0"}, args...)...)
	p.cmd.Env = append(os.Environ(), asController+"=1")
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		defer close(p.ended)
		// The kernel sends the signal when the thread ends that started the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := p.cmd.Start()
		started <- err
		if err == nil {
			p.err = p.cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // fails only when it has ended
		<-p.ended
		if t.Failed() {
			t.Log(p.text())
		}
	})
	return p
}

// Write collects the log.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// waitLog waits until the log has the text.
func (p *process) waitLog(t *testing.T, text string) {
	t.Helper()
	eventually(t, func() error {
		if !strings.Contains(p.text(), text) {
			return errors.New("the log does not contain " + text)
		}
		return nil
	})
}

func (p *process) signal(t *testing.T, s os.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func (p *process) wantExit(t *testing.T, code int) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(timeout):
		t.Fatal("the process does not end")
	}
	if got := p.cmd.ProcessState.ExitCode(); got != code {
		t.Errorf("exit code %d (%v), want %d", got, p.err, code)
	}
}

// kill ends the process by SIGKILL.
func (p *process) kill(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGKILL)
	<-p.ended
}

// pause returns when all threads have stopped: on a busy machine they continue for a while, and a SIGCONT in that time would cancel the
// stop.
func (p *process) pause(t *testing.T) {
	t.Helper()
	p.signal(t, syscall.SIGSTOP)
	eventually(t, func() error {
		threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.cmd.Process.Pid))
		if err != nil || len(threads) == 0 {
			return fmt.Errorf("no threads: %w", err)
		}
		for _, file := range threads {
			stat, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			// PID (NAME) STATE
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
				return fmt.Errorf("a thread runs: %.60s", stat)
			}
		}
		return nil
	})
}

func eventually(t *testing.T, look func() error) {
	t.Helper()
	await.OK(t, timeout, func(context.Context) error { return look() })
}
