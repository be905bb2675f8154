package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ovsdn/ovsdn/test/lab"
)

func newUp(name *string) *cobra.Command {
	shape := lab.DefaultShape()
	modes, proxies := lab.Landed()
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Bring a lab up, or start what is missing in one that is up",
		Args:  cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.IntVar(&shape.Nodes, "nodes", shape.Nodes, "how many nodes")
	flags.StringVar((*string)(&shape.Mode), "mode", string(shape.Mode),
		"networkpolicy, multitenant or subnet; in this version there is "+join(modes))
	flags.StringVar((*string)(&shape.ServiceProxy), "service-proxy", string(shape.ServiceProxy),
		"ovs, or external for kube-proxy; in this version there is "+join(proxies))
	flags.TextVar(&shape.ClusterNetwork, "cluster-network", shape.ClusterNetwork, "where pods' addresses come from")
	flags.IntVar(&shape.HostBits, "host-bits", shape.HostBits, "bits of a pod's address that its node gives out")
	flags.TextVar(&shape.ServiceNetwork, "service-network", shape.ServiceNetwork, "where services' addresses come from")
	flags.StringVar((*string)(&shape.Install), "install", string(shape.Install),
		"manifests: kubelet starts agents and controllers from images; processes: the lab does; none: a cluster without a network")
	flags.StringVar((*string)(&shape.Datapath), "datapath", string(shape.Datapath),
		"of Open vSwitch: netdev works everywhere, system needs the kernel's module")
	flags.StringVar((*string)(&shape.Switch), "switch", string(shape.Switch),
		"where nodes have Open vSwitch from. host: theirs runs one; image: they have none, and deploy/overlays/ovs is what is installed")
	flags.BoolVar(&shape.ControlPlaneOnly, "control-plane-only", false, "no nodes and no network, only the Kubernetes API with its controllers")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := lab.Up(cmd.Context(), lab.Options{Name: *name, Shape: shape, Progress: progress(cmd)})
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "lab %s is up. Look around:\n  ovsdn-lab --name %[1]s kubectl -- get nodes -o wide\n", l.Name())
		switch nodes := l.Nodes(); {
		case len(nodes) == 0:
		case shape.Install == lab.None:
			fmt.Fprintf(cmd.OutOrStdout(), "Install a network:\n  ovsdn-lab --name %s kubectl -- apply -k %s\n", l.Name(), l.InstallDir())
		default:
			fmt.Fprintf(cmd.OutOrStdout(), "  ovsdn-lab --name %s exec %s -- ovs-ofctl --names dump-flows br0\n", l.Name(), nodes[0])
		}
		return nil
	}
	return cmd
}

// progress goes to the standard error, so that a verb's result stays alone on the standard output.
func progress(cmd *cobra.Command) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), format+"\n", args...) }
}

func join[T ~string](values []T) string {
	var all []string
	for _, v := range values {
		all = append(all, string(v))
	}
	return strings.Join(all, ", ")
}
