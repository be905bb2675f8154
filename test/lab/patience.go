package lab

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/test/lab/logtail"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// How long to wait is for slow machines, like emulated ones. What is broken is found out earlier: a service that
// ends again and again.
const (
	patience      = 6 * time.Minute
	maxStarts     = 5
	crashInterval = 500 * time.Millisecond
	checkTimeout  = 5 * time.Second
)

// bePatient returns a context for waiting on units of machines. It ends when a unit fails permanently, with the cause. The function that
// cancels it returns when no goroutine reads the lab's state, which the caller then changes.
func (l *Lab) bePatient(ctx context.Context, machines ...string) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithTimeoutCause(ctx, patience, fmt.Errorf("timeout after %v", patience))
	ctx, giveUp := context.WithCancelCause(ctx)
	var watchers sync.WaitGroup
	for _, name := range machines {
		watchers.Go(func() {
			if err := l.findCrashLoop(ctx, name); err != nil {
				giveUp(err)
			}
		})
	}
	return ctx, func() {
		giveUp(nil)
		stop()
		watchers.Wait()
	}
}

// findCrashLoop returns when a service has ended too often, or without an error when the context ends.
func (l *Lab) findCrashLoop(ctx context.Context, name string) error {
	control := machine.NewControl(l.machineDir(name))
	before, containers := map[string]int{}, map[string]int{}
	ticker := time.NewTicker(crashInterval)
	defer ticker.Stop()
	for first := true; ; {
		// A machine that does not answer yet, or no more, is found out by those who wait for it.
		units, err := control.Units(ctx)
		if err == nil {
			for _, u := range units {
				if first {
					before[u.Name] = u.Starts
				}
				if !u.Task && u.State == machine.Failed && u.Starts-before[u.Name] >= maxStarts {
					return fmt.Errorf("%s: ends again and again: %w", name, &machine.UnitError{Status: u})
				}
			}
			first = false
		}
		if err := l.findContainerLoop(name, containers); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// findContainerLoop reports a container of the product on that machine that has ended too often since the first look, which fills before.
func (l *Lab) findContainerLoop(name string, before map[string]int) error {
	for _, program := range []string{agentUnit, controllerUnit} {
		if l.containers(name, program) == nil {
			continue
		}
		log, starts, err := lastLog(l.podLogDir(name), program)
		if err != nil {
			return err
		}
		if first, seen := before[program]; !seen || starts < first { // less: another pod
			before[program] = starts
		} else if starts-first >= maxStarts {
			return fmt.Errorf("%s: %s ends again and again; %s", name, program, logtail.Last(log))
		}
	}
	return nil
}

// check returns the unit of a machine that is not up, for errors about its effects.
func (l *Lab) check(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), checkTimeout)
	defer cancel()
	err := machine.NewControl(l.machineDir(name)).Check(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
