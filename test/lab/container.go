package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/ovsdn/ovsdn/test/lab/machine"
)

const (
	// containerInterval is between two looks for a container's process.
	containerInterval = 20 * time.Millisecond
	// termGrace is what a container's process has between SIGTERM and SIGKILL.
	termGrace = 10 * time.Second
)

// containers are the processes of one of the product's programs that kubelet runs, on one node or on all.
type containers struct {
	lab     *Lab
	program string
	nodes   []string
	// disable prevents the cluster from running the program there, or allows it again.
	disable func(ctx context.Context, off bool) error
}

// containers returns nothing for what is a unit of the machine.
func (l *Lab) containers(machineName, name string) *containers {
	switch {
	case l.state.Shape.Install == Processes || l.state.Shape.ControlPlaneOnly:
		return nil
	case name == agentUnit && machineName != ControlPlane && machineName != Outside:
		return &containers{lab: l, program: name, nodes: []string{machineName}, disable: func(ctx context.Context, off bool) error {
			return l.disableAgent(ctx, machineName, off)
		}}
	case name == controllerUnit && machineName == ControlPlane:
		return &containers{lab: l, program: name, nodes: l.Nodes(), disable: l.disableControllers}
	case name == controllerUnit && machineName != Outside:
		return &containers{lab: l, program: name, nodes: []string{machineName}, disable: l.disableControllers}
	default:
		return nil
	}
}

func (l *Lab) disableAgent(ctx context.Context, node string, off bool) error {
	value := "null"
	if off {
		value = `""`
	}
	client, err := l.Client()
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, noAgentLabel, value)
	_, err = client.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (l *Lab) disableControllers(ctx context.Context, off bool) error {
	replicas := l.state.controllers()
	if off {
		replicas = 0
	}
	client, err := l.Client()
	if err != nil {
		return err
	}
	patch := fmt.Sprintf(`{"spec":{"replicas":%d}}`, replicas)
	_, err = client.AppsV1().Deployments(productNamespace).Patch(ctx, controllerUnit, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// controllers is how many there are: two, as the manifests ask for, where there is room. A node has one.
func (s *state) controllers() int { return min(2, s.Shape.Nodes) }

// process is one container's, by its number on its node.
type process struct {
	node string
	pid  int
}

func (c *containers) do(ctx context.Context, action machine.Action) error {
	before, err := c.processes(ctx)
	if err != nil {
		return err
	}
	switch action {
	case machine.Start:
		return errors.Join(c.disable(ctx, false), c.wait(ctx, func(now []process) bool { return len(now) > 0 }))
	case machine.Stop:
		return errors.Join(c.disable(ctx, true), c.wait(ctx, func(now []process) bool { return len(now) == 0 }))
	case machine.Restart:
		return errors.Join(c.end(ctx, before), c.wait(ctx, func(now []process) bool { return len(now) >= len(before) }))
	case machine.Kill:
		return c.signal(ctx, before, "KILL")
	default:
		return fmt.Errorf("no action %q", action)
	}
}

// end asks the processes to end, and kills those that don't.
func (c *containers) end(ctx context.Context, all []process) error {
	kind, cancel := context.WithTimeout(ctx, termGrace)
	defer cancel()
	if err := c.signal(kind, all, "TERM"); kind.Err() == nil || ctx.Err() != nil {
		return err
	}
	return c.signal(ctx, all, "KILL")
}

// signal returns when the processes have ended.
func (c *containers) signal(ctx context.Context, all []process, signal string) error {
	for _, p := range all {
		// A process may have ended in the meantime: only the check below counts.
		_, _, _ = c.lab.Exec(ctx, p.node, "kill", "-"+signal, strconv.Itoa(p.pid))
	}
	return c.wait(ctx, func(now []process) bool {
		for _, p := range now {
			for _, signalled := range all {
				if p == signalled {
					return false
				}
			}
		}
		return true
	})
}

func (c *containers) wait(ctx context.Context, enough func([]process) bool) error {
	return wait.PollUntilContextCancel(ctx, containerInterval, true, func(ctx context.Context) (bool, error) {
		now, err := c.processes(ctx)
		return err == nil && enough(now), err
	})
}

// processes are those that run now.
func (c *containers) processes(ctx context.Context) ([]process, error) {
	var all []process
	for _, node := range c.nodes {
		control, err := c.lab.control(node)
		if err != nil {
			return nil, err
		}
		init, err := control.PID(ctx)
		if errors.Is(err, machine.ErrNotRunning) {
			continue
		}
		if err != nil {
			return nil, err
		}
		pid, err := containerProcess(fmt.Sprintf("/proc/%d/root/proc", init), c.program)
		if err != nil {
			return nil, err
		}
		if pid != 0 {
			all = append(all, process{node, pid})
		}
	}
	return all, nil
}

// containerProcess finds the process that runs a program as the first of a container, or 0.
func containerProcess(proc, program string) (int, error) {
	entries, err := os.ReadDir(proc)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil // the machine has just ended
	}
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		// Processes end while one looks at them.
		if exe, err := os.Readlink(filepath.Join(proc, e.Name(), "exe")); err != nil || filepath.Base(exe) != program {
			continue
		}
		if status, err := os.ReadFile(filepath.Join(proc, e.Name(), "status")); err == nil && isFirst(string(status)) {
			return pid, nil
		}
	}
	return 0, nil
}

// isFirst reads /proc/PID/status: the last of NSpid is the number in the process's own namespace, see proc(5).
func isFirst(status string) bool {
	for line := range strings.Lines(status) {
		if numbers, ok := strings.CutPrefix(line, "NSpid:"); ok {
			all := strings.Fields(numbers)
			return len(all) > 1 && all[len(all)-1] == "1"
		}
	}
	return false
}

// status counts the starts of all containers of the existing pods.
func (c *containers) status(ctx context.Context) (machine.Status, error) {
	s := machine.Status{Name: c.program, State: machine.Failed}
	all, err := c.processes(ctx)
	if err != nil {
		return s, err
	}
	if len(all) > 0 {
		s.State, s.PID = machine.Up, all[0].pid
	}
	for _, node := range c.nodes {
		log, starts, err := lastLog(c.lab.podLogDir(node), c.program)
		if err != nil {
			return s, err
		}
		s.Log, s.Starts = log, s.Starts+starts
	}
	return s, nil
}

// lastLog is where a container of the product logs on the node with that folder of logs, and how often it has started in its pod. Kubelet gives each start a file,
// NAMESPACE_POD_UID/CONTAINER/NUMBER.log.
func lastLog(logDir, program string) (path string, starts int, err error) {
	logs, err := filepath.Glob(filepath.Join(logDir, productNamespace+"_"+program+"-*", "*", "*.log"))
	if err != nil {
		return "", 0, err
	}
	var newest time.Time
	for _, log := range logs {
		number, err := strconv.Atoi(strings.TrimSuffix(filepath.Base(log), ".log"))
		if err != nil {
			continue // rotated
		}
		// The folder of the pod that came last; in it, the highest number.
		info, err := os.Stat(filepath.Dir(filepath.Dir(log)))
		if err != nil {
			continue // that pod was deleted
		}
		if at := info.ModTime(); at.After(newest) || at.Equal(newest) && number >= starts {
			newest, path, starts = at, log, number+1
		}
	}
	return path, starts, nil
}
