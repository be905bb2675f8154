package machine

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/await"
)

// supervise runs units until the test ends, in this process instead of a machine's PID 1.
func supervise(t *testing.T, units ...Unit) *Control {
	t.Helper()
	ignore := goleak.IgnoreCurrent()
	// Not t.TempDir, whose path may be too long for a unix socket.
	dir, err := os.MkdirTemp("", "machine")
	if err != nil {
		t.Fatal(err)
	}
	spec := &Spec{Name: "test", Dir: dir, Logs: dir, Units: units}
	if err := spec.validate(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := newSupervisor(spec)
	s.restartDelay, s.stopGrace = 100*time.Millisecond, 300*time.Millisecond
	served, err := s.serve(ctx, filepath.Join(dir, controlEnd))
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		s.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-over
		<-served
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
		// The signal package has one permanent goroutine.
		await.NoGoroutines(t, ignore, goleak.IgnoreTopFunction("os/signal.signal_recv"), goleak.IgnoreTopFunction("os/signal.loop"))
	})
	return NewControl(dir)
}

func shell(script string) []string { return []string{"sh", "-c", script} }

// eventually polls until the unit's status is as wanted.
func eventually(t *testing.T, control *Control, unit, what string, wanted func(Status) bool) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		status, err := control.Unit(ctx, unit)
		if err != nil {
			t.Fatal(err)
		}
		if wanted(status) {
			return status
		}
		select {
		case <-ctx.Done():
			t.Fatalf("%s: want %s, have %+v", unit, what, status)
		case <-ticker.C:
		}
	}
}

func isUp(s Status) bool { return s.State == Up }

func waitUp(t *testing.T, control *Control) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return control.WaitUp(ctx)
}

func TestServiceComesBack(t *testing.T) {
	control := supervise(t, Unit{Name: "service", Commands: [][]string{{"sleep", "1000"}}})
	if err := waitUp(t, control); err != nil {
		t.Fatal(err)
	}
	first := eventually(t, control, "service", "up", isUp)
	if err := control.Do(t.Context(), "service", Kill); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(first.PID, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d is there after kill: %v", first.PID, err)
	}
	second := eventually(t, control, "service", "started again", func(s Status) bool { return isUp(s) && s.Starts == 2 })
	if second.PID == first.PID || second.LastEnd != unix.SIGKILL.String() {
		t.Errorf("after kill: %+v, before: %+v", second, first)
	}
	if err := control.Do(t.Context(), "service", Restart); err != nil {
		t.Fatal(err)
	}
	third := eventually(t, control, "service", "started again at once", isUp)
	if third.PID == second.PID || third.Starts != 3 {
		t.Errorf("after restart: %+v, before: %+v", third, second)
	}
}

func TestServiceStaysStopped(t *testing.T) {
	control := supervise(t,
		Unit{Name: "deaf", Commands: [][]string{shell("trap '' TERM; while :; do sleep 0.1; done")}},
		Unit{Name: "manual", Manual: true, Commands: [][]string{{"sleep", "1000"}}},
	)
	// A manual unit without a request delays no waiter.
	if err := waitUp(t, control); err != nil {
		t.Fatal(err)
	}
	deaf := eventually(t, control, "deaf", "up", isUp)
	if err := control.Do(t.Context(), "deaf", Stop); err != nil {
		t.Fatal(err)
	}
	if status := eventually(t, control, "deaf", "stopped", func(s Status) bool { return s.State == Stopped }); status.PID != 0 {
		t.Errorf("stopped: %+v", status)
	}
	if err := unix.Kill(deaf.PID, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("process %d is there after stop: %v", deaf.PID, err)
	}
	if status := eventually(t, control, "manual", "stopped", func(s Status) bool { return s.State == Stopped }); status.Starts != 0 {
		t.Errorf("started without a request: %+v", status)
	}
	for _, unit := range []string{"manual", "deaf"} {
		if err := control.Do(t.Context(), unit, Start); err != nil {
			t.Fatal(err)
		}
		eventually(t, control, unit, "up", isUp)
	}
}

func TestUnitsStartInOrder(t *testing.T) {
	dir := t.TempDir()
	notes := filepath.Join(dir, "notes")
	note := func(word string) []string { return shell("echo " + word + " >> " + notes) }
	control := supervise(t,
		Unit{Name: "first", Task: true, Commands: [][]string{shell("sleep 0.2"), note("one"), note("two")}},
		Unit{Name: "second", Task: true, After: []string{"first"}, Commands: [][]string{note("three")}},
	)
	if err := waitUp(t, control); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := string(content), "one\ntwo\nthree\n"; got != want {
		t.Errorf("notes %q, want %q", got, want)
	}
}

func TestFailedTaskReportsCause(t *testing.T) {
	control := supervise(t,
		Unit{Name: "task", Task: true, Commands: [][]string{shell("echo the reason; exit 3"), {"false"}}},
		Unit{Name: "next", Task: true, After: []string{"task"}, Commands: [][]string{{"true"}}},
	)
	err := waitUp(t, control)
	var failed *UnitError
	if !errors.As(err, &failed) {
		t.Fatalf("error %v, want a UnitError", err)
	}
	if failed.Status.Name != "task" || failed.Status.LastEnd != "exit status 3" {
		t.Errorf("failed: %+v", failed.Status)
	}
	if !strings.Contains(err.Error(), "the reason") {
		t.Errorf("the error does not quote the log: %v", err)
	}
	if status := eventually(t, control, "next", "waiting", func(s Status) bool { return s.State == Waiting }); status.Starts != 0 {
		t.Errorf("started though what it needs has failed: %+v", status)
	}
}

func TestProgramThatIsNotThere(t *testing.T) {
	control := supervise(t, Unit{Name: "task", Task: true, Commands: [][]string{{"/no/such/program"}}})
	if err := waitUp(t, control); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error %v does not name the program", err)
	}
}

// A service with a socket is up when the socket accepts, and those after it start only then.
func TestSocketMakesReady(t *testing.T) {
	dir, err := os.MkdirTemp("", "machine")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket, release := filepath.Join(dir, "socket"), filepath.Join(dir, "release")
	control := supervise(t,
		Unit{Name: "service", Socket: socket, Commands: [][]string{{os.Args[0], "-test.run=^TestHelperListen$", "-test.v", "-test.timeout=60s", "--", release, socket}}},
		Unit{Name: "next", Task: true, After: []string{"service"}, Commands: [][]string{{"true"}}},
	)
	eventually(t, control, "service", "starting", func(s Status) bool { return s.State == Starting })
	if status, err := control.Unit(t.Context(), "next"); err != nil || status.State != Waiting {
		t.Errorf("next before the socket accepts: %+v, %v", status, err)
	}
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := waitUp(t, control); err != nil {
		t.Fatal(err)
	}
}

func TestControlRefuses(t *testing.T) {
	control := supervise(t, Unit{Name: "service", Commands: [][]string{{"sleep", "1000"}}})
	if err := control.Do(t.Context(), "nothing", Stop); err == nil || !strings.Contains(err.Error(), "there are service") {
		t.Errorf("unknown unit: %v", err)
	}
	if err := control.Do(t.Context(), "service", "jump"); err == nil || !strings.Contains(err.Error(), "start, stop, restart, kill") {
		t.Errorf("unknown action: %v", err)
	}
	pid, err := control.PID(t.Context())
	if err != nil || pid != os.Getpid() {
		t.Errorf("PID = %d, %v, want %d", pid, err, os.Getpid())
	}
	if _, err := NewControl(t.TempDir()).PID(t.Context()); !errors.Is(err, ErrNotRunning) {
		t.Errorf("PID of nothing: %v, want %v", err, ErrNotRunning)
	}
}

func TestSpecValidate(t *testing.T) {
	for name, units := range map[string][]Unit{
		"twice":              {{Name: "a", Task: true}, {Name: "a", Task: true}},
		"service of two":     {{Name: "a", Commands: [][]string{{"x"}, {"y"}}}},
		"empty command":      {{Name: "a", Commands: [][]string{{}}}},
		"waits for a later":  {{Name: "a", Task: true, After: []string{"b"}}, {Name: "b", Task: true}},
		"waits for itself":   {{Name: "a", Task: true, After: []string{"a"}}},
		"service of nothing": {{Name: "a"}},
	} {
		if err := (&Spec{Units: units}).validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestIsMachine(t *testing.T) {
	for _, test := range []struct {
		args string
		want bool
	}{
		{"/b/ovsdn-lab machine-init /d/lab/machines/node1 ", true},
		{"/b/ovsdn-lab machine-run /d/lab/machines/node1 ", true},
		{"/b/ovsdn-lab machine-run /d/lab2/machines/node1 ", false},
		{"/b/ovsdn-lab up /d/lab ", false},
		{"", false},
	} {
		if got := isMachine(strings.Split(test.args, " "), "/d/lab"); got != test.want {
			t.Errorf("isMachine(%q) = %v, want %v", test.args, got, test.want)
		}
	}
}
