package machine

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// unit is one of a supervisor's. A goroutine of its own runs it, and is asked through requests.
type unit struct {
	spec       Unit
	supervisor *supervisor
	requests   chan request
	ready      chan struct{} // closed when the unit is up for the first time
	readyOnce  sync.Once

	mu     sync.Mutex
	status Status
}

func (u *unit) current() Status {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.status
}

func (u *unit) set(change func(*Status)) {
	u.mu.Lock()
	change(&u.status)
	up := u.status.State == Up
	u.mu.Unlock()
	if up {
		u.readyOnce.Do(func() { close(u.ready) })
	}
}

// run does what is asked until the context ends.
func (u *unit) run(ctx context.Context) {
	l := &loop{unit: u, wanted: !u.spec.Manual, waiting: u.dependencies(ctx)}
	defer l.terminate()
	for {
		l.startIfDue()
		select {
		case <-ctx.Done():
			return
		case <-l.waiting:
			l.waiting = nil
		case <-l.delay:
			l.delay = nil
		case <-l.accepting:
			l.accepting = nil
			u.set(func(s *Status) { s.State = Up })
		case <-l.ended():
			l.afterEnd()
		case r := <-u.requests:
			l.handle(r)
		}
	}
}

// dependencies returns a channel that closes when the units have come up that this one waits for.
func (u *unit) dependencies(ctx context.Context) <-chan struct{} {
	up := make(chan struct{})
	go func() {
		for _, after := range u.spec.After {
			select {
			case <-u.supervisor.units[after].ready:
			case <-ctx.Done():
				return
			}
		}
		close(up)
	}()
	return up
}

// loop is the state of a unit's goroutine. A nil channel is for what is not awaited.
type loop struct {
	*unit
	wanted    bool
	process   *process         // that runs, or nil
	next      int              // which of a task's commands is next
	waiting   <-chan struct{}  // closes when the dependencies are up
	delay     <-chan time.Time // before the next start
	accepting <-chan struct{}  // closes when the process accepts connections
	replies   []chan error     // of clients that wait for a start
}

func (l *loop) ended() <-chan struct{} {
	if l.process == nil {
		return nil
	}
	return l.process.done
}

func (l *loop) startIfDue() {
	if l.wanted && l.process == nil && l.waiting == nil && l.delay == nil {
		if err := l.start(); err != nil {
			l.set(func(s *Status) { s.LastEnd = err.Error() })
			l.afterFailure()
		}
	}
	for _, reply := range l.replies {
		reply <- nil
	}
	l.replies = nil
}

func (l *loop) start() error {
	log, err := os.OpenFile(l.status.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	defer log.Close()
	command := l.spec.Commands[l.next]
	fmt.Fprintf(log, "--- %s start: %s\n", time.Now().UTC().Format(time.RFC3339Nano), strings.Join(command, " "))
	if l.process, err = l.supervisor.reaper.start(command, log); err != nil {
		fmt.Fprintf(log, "--- not started: %v\n", err)
		return fmt.Errorf("start: %w", err)
	}
	l.set(func(s *Status) {
		s.State, s.PID = Starting, l.process.pid
		if l.next == 0 {
			s.Starts++
		}
		if !l.spec.Task && l.spec.Socket == "" {
			s.State = Up
		}
	})
	if l.spec.Socket != "" {
		l.accepting = accepting(l.process, l.spec.Socket)
	}
	return nil
}

// accepting returns a channel that closes when the process accepts connections. It never does if the process ends.
func accepting(p *process, socket string) <-chan struct{} {
	up := make(chan struct{})
	go func() {
		ticker := time.NewTicker(socketInterval)
		defer ticker.Stop()
		for {
			if conn, err := net.Dial("unix", socket); err == nil {
				conn.Close()
				close(up)
				return
			}
			select {
			case <-p.done:
				return
			case <-ticker.C:
			}
		}
	}()
	return up
}

// afterEnd goes on when the process has ended by itself.
func (l *loop) afterEnd() {
	status := l.process.status
	l.recordEnd()
	switch {
	case !l.spec.Task || status != 0:
		l.afterFailure()
	case l.next < len(l.spec.Commands)-1:
		l.next++
	default:
		l.wanted = false
		l.set(func(s *Status) { s.State = Up })
	}
}

// afterFailure starts a service again after a delay. A task waits for a request.
func (l *loop) afterFailure() {
	l.set(func(s *Status) { s.State = Failed })
	if l.spec.Task {
		l.wanted = false
		return
	}
	l.delay = time.After(l.supervisor.restartDelay)
}

// recordEnd records how the process has ended.
func (l *loop) recordEnd() {
	end := describe(l.process.status)
	l.process, l.accepting = nil, nil
	l.set(func(s *Status) { s.PID, s.LastEnd = 0, end })
	log, err := os.OpenFile(l.status.Log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return // The status has it too.
	}
	defer log.Close()
	fmt.Fprintf(log, "--- %s end: %s\n", time.Now().UTC().Format(time.RFC3339Nano), end)
}

func (l *loop) handle(r request) {
	switch r.action {
	case Start:
		if l.process == nil {
			l.want()
		}
		l.replies = append(l.replies, r.reply)
	case Restart:
		l.terminate()
		l.want()
		l.replies = append(l.replies, r.reply)
	case Stop:
		l.terminate()
		l.wanted, l.delay = false, nil
		l.set(func(s *Status) { s.State = Stopped })
		r.reply <- nil
	case Kill:
		if l.process != nil {
			l.supervisor.reaper.signal(l.process, unix.SIGKILL)
			<-l.process.done
		}
		r.reply <- nil
	default:
		r.reply <- fmt.Errorf("no action %q: there are %s, %s, %s, %s", r.action, Start, Stop, Restart, Kill)
	}
}

func (l *loop) want() {
	l.wanted, l.delay, l.next = true, nil, 0
	l.set(func(s *Status) { s.State = Waiting })
}

// terminate ends the process, first with SIGTERM, and returns when it has ended.
func (l *loop) terminate() {
	if l.process == nil {
		return
	}
	l.supervisor.reaper.signal(l.process, unix.SIGTERM)
	select {
	case <-l.process.done:
	case <-time.After(l.supervisor.stopGrace):
		l.supervisor.reaper.signal(l.process, unix.SIGKILL)
		<-l.process.done
	}
	l.recordEnd()
}

func describe(status unix.WaitStatus) string {
	if status.Signaled() {
		return status.Signal().String()
	}
	return fmt.Sprintf("exit status %d", status.ExitStatus())
}
