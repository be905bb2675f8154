// ovsdn-lab runs a real Kubernetes cluster on one Linux machine, for the demo, tests and benchmarks. The library
// behind it is test/lab.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/version"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/lab/machine"
)

func main() {
	os.Exit(run())
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ovsdn-lab: "+err.Error())
		return 1
	}
	return 0
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "ovsdn-lab",
		Short: "Run a Kubernetes cluster with ovsdn on this machine",
		Long: `ovsdn-lab runs a real Kubernetes cluster on one Linux machine, without a container engine: a control plane, nodes
with kubelet, containerd and an Open vSwitch of their own, and a host outside the cluster (192.0.2.1), each in
Linux namespaces. It needs root. Several labs with other names run side by side.`,
		Version:       version.Get().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	name := root.PersistentFlags().String("name", lab.DefaultName, "name of the lab: 1 to 12 of a-z, 0-9 and -")
	root.AddCommand(
		newUp(name), newDown(name), newStatus(name), newKubeconfig(name), newKubectl(name), newExec(name),
		newAddNode(name), newRemoveNode(name), newLoadImage(name), newReload(name), newService(name), newPrepare(),
		newMachine(machine.InitVerb, machine.Init), newMachine(machine.RunVerb, machine.Run),
	)
	return root
}

// newMachine is for the program's own use, as PID 1 of a machine.
func newMachine(verb string, do func(dir string) error) *cobra.Command {
	return &cobra.Command{
		Use: verb + " DIR", Hidden: true, Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return do(args[0]) },
	}
}
