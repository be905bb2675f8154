package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

func newDown(name *string) *cobra.Command {
	var all bool
	cmd := &cobra.Command{
		Use: "down", Short: "Remove a lab, or all of them", Args: cobra.NoArgs,
		Long: `down removes all parts of a lab, in any state: processes, mounts, network namespaces, cgroups and files. With --all it
does so with every lab of this machine, also with those that a killed test run has left behind.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if all {
				if cmd.Flags().Changed("name") {
					return errors.New("--all removes every lab of this machine: omit --name, or --all to remove one lab")
				}
				return downAll(cmd)
			}
			existed, err := lab.Down(cmd.Context(), *name, progress(cmd))
			if err != nil {
				return err
			}
			if existed {
				fmt.Fprintf(cmd.OutOrStdout(), "lab %s is down\n", *name)
			} else {
				fmt.Fprintf(cmd.OutOrStdout(), "lab %s does not exist: nothing to remove\n", *name)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "remove every lab of this machine, also running ones and those of other users")
	return cmd
}

func downAll(cmd *cobra.Command) error {
	removed, err := lab.DownAll(cmd.Context(), progress(cmd))
	for _, name := range removed {
		fmt.Fprintf(cmd.OutOrStdout(), "lab %s is down\n", name)
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w; labs belong to root; use sudo", err)
	}
	if err == nil && len(removed) == 0 {
		fmt.Fprintln(cmd.OutOrStdout(), "there are no labs: nothing to remove")
	}
	return err
}

func newPrepare() *cobra.Command {
	return &cobra.Command{
		Use: "prepare", Short: "Build what labs and tests need, unless it is cached", Args: cobra.NoArgs,
		Long: `prepare builds Kubernetes, containerd, runc, CoreDNS and the images of pods, as the first lab on a machine does, and as
tests do that start an API server. What is cached is not built again. It waits for another build on this machine.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dir, err := lab.Prepare(cmd.Context(), lab.Options{Progress: progress(cmd)})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "all programs and images of labs are in %s\n", dir)
			return nil
		},
	}
}

func newKubeconfig(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "kubeconfig", Short: "Print an administrator's kubeconfig, for this host", Args: cobra.NoArgs,
		RunE: withLab(name, func(cmd *cobra.Command, l *lab.Lab, _ []string) error {
			content, err := l.Kubeconfig()
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(content)
			return err
		}),
	}
}

func newKubectl(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "kubectl -- ARGS", Short: "Run kubectl as administrator",
		RunE: withLab(name, func(_ *cobra.Command, l *lab.Lab, args []string) error {
			return become(l.KubectlArgs(args...), unix.Environ())
		}),
	}
}

func newExec(name *string) *cobra.Command {
	return &cobra.Command{
		Use:   "exec NODE -- CMD",
		Short: "Run a command on a node, on the host outside, or in the control plane",
		Long:  "exec runs a command on a node, on \"" + lab.Outside + "\" or on \"" + lab.ControlPlane + "\", and ends with its exit status.",
		Args:  cobra.MinimumNArgs(2),
		RunE: withLab(name, func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			command, err := l.ExecArgs(cmd.Context(), args[0], args[1:]...)
			if err != nil {
				return err
			}
			return become(command, machine.ExecEnv())
		}),
	}
}

// become replaces this process, so that terminal, signals and exit status are the command's own.
func become(command, env []string) error {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return err
	}
	return fmt.Errorf("run %s: %w", path, unix.Exec(path, command, env))
}

func newAddNode(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "add-node", Short: "Start one more node and print its name", Args: cobra.NoArgs,
		RunE: withLab(name, func(cmd *cobra.Command, l *lab.Lab, _ []string) error {
			node, err := l.AddNode(cmd.Context(), progress(cmd))
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), node)
			return nil
		}),
	}
}

func newRemoveNode(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "remove-node NODE", Short: "End a node and delete it from the cluster", Args: cobra.ExactArgs(1),
		RunE: withLab(name, func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			return l.RemoveNode(cmd.Context(), args[0], progress(cmd))
		}),
	}
}

func newLoadImage(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "load-image FILE.tar", Short: "Import an image archive into every node, now and later", Args: cobra.ExactArgs(1),
		RunE: withLab(name, func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			return l.LoadImage(cmd.Context(), args[0])
		}),
	}
}

func newReload(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "reload", Short: "Roll the built programs out in a running lab, as new images", Args: cobra.NoArgs,
		RunE: withLab(name, func(cmd *cobra.Command, l *lab.Lab, _ []string) error {
			return l.Reload(cmd.Context(), lab.Build{}, progress(cmd))
		}),
	}
}

func newService(name *string) *cobra.Command {
	actions := []string{string(machine.Start), string(machine.Stop), string(machine.Restart), string(machine.Kill), "status"}
	return &cobra.Command{
		Use:   "service NODE NAME " + strings.Join(actions, "|"),
		Short: "Start or stop a process of a node, of the host outside or of the control plane",
		Long: `service starts and stops the processes of a machine: kubelet, kube-proxy, containerd, ovsdb-server, ovs-vswitchd and
ovsdn-node of a node; etcd, kube-apiserver, kube-controller-manager, kube-scheduler and ovsdn-controller of the
control plane. "kill" is SIGKILL; the process then restarts after a second. After "stop" it does not.
With --install=manifests kubelet starts ovsdn-node and ovsdn-controller, and the verbs have the same meaning. With
--switch=image nodes have no ovsdb-server and ovs-vswitchd of their own: they are in pods.`,
		Args: cobra.ExactArgs(3), ValidArgs: actions,
		RunE: withLab(name, func(cmd *cobra.Command, l *lab.Lab, args []string) error {
			service, err := l.Service(args[0], args[1])
			if err != nil {
				return err
			}
			if args[2] != "status" {
				return service.Do(cmd.Context(), machine.Action(args[2]))
			}
			status, err := service.Status(cmd.Context())
			if err != nil {
				return err
			}
			return printUnits(cmd, args[0], []machine.Status{status})
		}),
	}
}

func newStatus(name *string) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the machines of a lab and their processes", Args: cobra.NoArgs,
		RunE: withLab(name, printStatus),
	}
}

func printStatus(cmd *cobra.Command, l *lab.Lab, _ []string) error {
	shape := l.Shape()
	fmt.Fprintf(cmd.OutOrStdout(), "lab %s: mode %s, service proxy %s, datapath %s, Open vSwitch of the %s, cluster network %s (%d host bits), service network %s\n",
		l.Name(), shape.Mode, shape.ServiceProxy, shape.Datapath, shape.Switch, shape.ClusterNetwork, shape.HostBits, shape.ServiceNetwork)
	for _, name := range l.Machines() {
		units, err := l.Units(cmd.Context(), name)
		if err != nil {
			fmt.Fprintf(cmd.OutOrStdout(), "%v\n", err)
			continue
		}
		if err := printUnits(cmd, name, units); err != nil {
			return err
		}
	}
	return printNodes(cmd.Context(), cmd, l)
}

// printNodes prints what kubectl does not show.
func printNodes(ctx context.Context, cmd *cobra.Command, l *lab.Lab) error {
	if l.Shape().ControlPlaneOnly {
		return nil
	}
	stdout, stderr, err := l.Kubectl(ctx, "get", "nodes", "-o", "wide", "--request-timeout=5s")
	if err != nil {
		return fmt.Errorf("the API server does not answer: %w: %s", err, stderr)
	}
	fmt.Fprint(cmd.OutOrStdout(), stdout)
	return nil
}

func printUnits(cmd *cobra.Command, name string, units []machine.Status) error {
	table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintf(table, "%s\tSTATE\tPID\tSTARTS\tLAST END\tLOG\n", strings.ToUpper(name))
	for _, u := range units {
		fmt.Fprintf(table, "%s\t%s\t%d\t%d\t%s\t%s\n", u.Name, u.State, u.PID, u.Starts, u.LastEnd, u.Log)
	}
	return table.Flush()
}

// withLab opens the lab for a verb that needs one.
func withLab(name *string, do func(*cobra.Command, *lab.Lab, []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		l, err := lab.Open(*name)
		if errors.Is(err, fs.ErrPermission) {
			return fmt.Errorf("%w; labs belong to root; use sudo", err)
		}
		if err != nil {
			return err
		}
		return do(cmd, l, args)
	}
}
