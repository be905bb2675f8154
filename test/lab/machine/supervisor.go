package machine

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// Time limits of a supervisor.
const (
	// restartDelay is between the end of a service and its next start.
	restartDelay = time.Second
	// stopGrace is what a service has between SIGTERM and SIGKILL.
	stopGrace = 5 * time.Second
	// socketInterval is between two attempts to connect to a service that is starting.
	socketInterval = 20 * time.Millisecond
)

// State of a unit.
type State string

// The states. A service goes waiting, starting, up, and back to starting when it ends; a task ends as up or failed.
const (
	Waiting  State = "waiting"
	Starting State = "starting"
	Up       State = "up"
	Failed   State = "failed"
	Stopped  State = "stopped"
)

// Status is what a unit does now.
type Status struct {
	Name  string
	State State
	// PID in the machine, or 0.
	PID int
	// Starts counts them.
	Starts int
	// Task units do nothing more once they are up.
	Task bool
	// LastEnd describes how the last process ended, if any has.
	LastEnd string
	Log     string
}

// Action is what can be asked of a unit.
type Action string

// The actions. Each returns when it is done: stopped, or started again (which is not yet Up).
// Kill is SIGKILL, after which a service is started again as after any other death.
const (
	Start   Action = "start"
	Stop    Action = "stop"
	Restart Action = "restart"
	Kill    Action = "kill"
)

type request struct {
	action Action
	reply  chan error
}

// supervisor runs the units of a machine.
type supervisor struct {
	reaper *reaper
	units  map[string]*unit
	order  []*unit
	// restartDelay and stopGrace are constants but for tests.
	restartDelay, stopGrace time.Duration
}

func newSupervisor(spec *Spec) *supervisor {
	s := &supervisor{reaper: newReaper(), units: map[string]*unit{}, restartDelay: restartDelay, stopGrace: stopGrace}
	for _, u := range spec.Units {
		added := &unit{
			spec: u, supervisor: s, requests: make(chan request), ready: make(chan struct{}),
			status: Status{Name: u.Name, State: Waiting, Task: u.Task, Log: spec.Log(u.Name)},
		}
		if u.Manual {
			added.status.State = Stopped
		}
		s.units[u.Name] = added
		s.order = append(s.order, added)
	}
	return s
}

// run returns when the context has ended and no unit runs.
func (s *supervisor) run(ctx context.Context) {
	reaping, stopReaping := context.WithCancel(context.WithoutCancel(ctx))
	var reaper, units sync.WaitGroup
	reaper.Go(func() { s.reaper.run(reaping) })
	for _, u := range s.order {
		units.Go(func() { u.run(ctx) })
	}
	units.Wait()
	stopReaping()
	reaper.Wait()
}

func (s *supervisor) statuses() []Status {
	var all []Status
	for _, u := range s.order {
		all = append(all, u.current())
	}
	return all
}

// do asks a unit for an action and returns when it is done.
func (s *supervisor) do(ctx context.Context, name string, action Action) error {
	u, ok := s.units[name]
	if !ok {
		return fmt.Errorf("no unit %q here: there are %s", name, strings.Join(s.names(), ", "))
	}
	r := request{action: action, reply: make(chan error, 1)}
	select {
	case u.requests <- r:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case err := <-r.reply:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *supervisor) names() []string {
	var names []string
	for _, u := range s.order {
		names = append(names, u.spec.Name)
	}
	return names
}
