package lab

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/lab/machine"
)

// execGrace is what a command's own children have to let go of its output when it has ended.
const execGrace = 2 * time.Second

// ExecArgs is the command line that runs a command on a machine: a node, Outside or ControlPlane. Its environment
// should be machine.ExecEnv.
func (l *Lab) ExecArgs(ctx context.Context, machineName string, command ...string) ([]string, error) {
	control, err := l.control(machineName)
	if err != nil {
		return nil, err
	}
	pid, err := control.PID(ctx)
	if err != nil {
		return nil, fmt.Errorf("%s of lab %s: %w: \"ovsdn-lab up\" starts what is missing", machineName, l.name, err)
	}
	return machine.ExecArgs(pid, command), nil
}

// Command is a command on a machine, for callers that handle its input and output themselves. The end of the context kills it.
func (l *Lab) Command(ctx context.Context, machineName string, command ...string) (*exec.Cmd, error) {
	args, err := l.ExecArgs(ctx, machineName, command...)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = machine.ExecEnv()
	// nsenter's child would outlive it, and hold the pipes open.
	cmd.SysProcAttr = &unix.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = execGrace
	return cmd, nil
}

// Exec runs a command on a machine and returns its output. An error that is an *exec.ExitError has its exit status.
func (l *Lab) Exec(ctx context.Context, machineName string, command ...string) (stdout, stderr string, err error) {
	cmd, err := l.Command(ctx, machineName, command...)
	if err != nil {
		return "", "", err
	}
	return output(cmd)
}

// Kubectl runs kubectl on the host, as administrator.
func (l *Lab) Kubectl(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	command := l.KubectlArgs(args...)
	return output(exec.CommandContext(ctx, command[0], command[1:]...))
}

// KubectlArgs is the command line of kubectl for this lab.
func (l *Lab) KubectlArgs(args ...string) []string {
	return append([]string{l.state.Programs.Kube, "kubectl", "--kubeconfig", l.kubeconfigPath()}, args...)
}

func output(cmd *exec.Cmd) (string, string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	return stdout.String(), stderr.String(), err
}
