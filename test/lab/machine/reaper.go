package machine

import (
	"context"
	"os"
	"os/exec"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// reaper starts processes and collects all that end, its own and the orphans that PID 1 inherits. It can't be combined with os/exec: the
// first waiter gets the exit status.
type reaper struct {
	// mu is held from before a process starts until it is known, and while one is collected.
	mu       sync.Mutex
	children map[int]*process
}

// process is a child.
type process struct {
	pid  int
	done chan struct{}
	// status is valid when done is closed.
	status unix.WaitStatus
}

func newReaper() *reaper { return &reaper{children: map[int]*process{}} }

// start runs a program in a session of its own with its output in the file.
func (r *reaper) start(command []string, out *os.File) (*process, error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, err
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	started, err := os.StartProcess(path, command, &os.ProcAttr{
		Dir: "/", Files: []*os.File{null, out, out}, Sys: &unix.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, err
	}
	p := &process{pid: started.Pid, done: make(chan struct{})}
	r.children[p.pid] = p
	return p, started.Release()
}

// run collects until the context ends.
func (r *reaper) run(ctx context.Context) {
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	defer signal.Stop(ended)
	for {
		for r.collect() {
		}
		select {
		case <-ctx.Done():
			return
		case <-ended:
		}
	}
}

// collect takes one ended process, if there is one.
func (r *reaper) collect() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var status unix.WaitStatus
	pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
	if err != nil || pid <= 0 {
		return false
	}
	if p, ok := r.children[pid]; ok {
		delete(r.children, pid)
		p.status = status
		close(p.done)
	}
	return true
}

// signal sends it if the process still runs.
func (r *reaper) signal(p *process, s unix.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// While it is in the map, no other process has its PID.
	if _, ok := r.children[p.pid]; ok {
		_ = unix.Kill(p.pid, s)
	}
}
