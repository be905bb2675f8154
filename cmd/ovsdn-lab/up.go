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
		Short: "Start a lab, or the missing parts of a running one",
		Args:  cobra.NoArgs,
	}
	flags := cmd.Flags()
	flags.IntVar(&shape.Nodes, "nodes", shape.Nodes, "number of nodes")
	flags.StringVar((*string)(&shape.Mode), "mode", string(shape.Mode),
		"networkpolicy, multitenant or subnet; this version has "+join(modes))
	flags.StringVar((*string)(&shape.ServiceProxy), "service-proxy", string(shape.ServiceProxy),
		"implementation of services: external (kube-proxy on the node) or ovs (the switch, without kube-proxy); this version has "+join(proxies))
	flags.BoolVar(&shape.Unidle, "unidle", false, "agents hold packets to idled services, with --service-proxy=ovs")
	flags.BoolVar(&shape.ClusterIPs, "cluster-ips", false, "kube-apiserver connects to webhooks and aggregated APIs by the cluster IPs of their services, not to endpoints")
	flags.TextVar(&shape.ClusterNetwork, "cluster-network", shape.ClusterNetwork, "CIDR of pods")
	flags.IntVar(&shape.HostBits, "host-bits", shape.HostBits, "host bits of each node's subnet")
	flags.TextVar(&shape.ServiceNetwork, "service-network", shape.ServiceNetwork, "CIDR of services")
	flags.StringVar(&shape.DNSForward, "dns-forward", shape.DNSForward,
		"`ADDRESS:PORT` of the DNS server for names outside of the cluster; without one the cluster's DNS refuses them")
	flags.StringVar((*string)(&shape.Install), "install", string(shape.Install),
		"manifests: kubelet starts agents and controllers from images; processes: the lab starts them; none: a cluster without a network")
	flags.StringVar((*string)(&shape.Datapath), "datapath", string(shape.Datapath),
		"datapath of Open vSwitch: netdev works everywhere, system needs the kernel's module")
	flags.StringVar((*string)(&shape.Switch), "switch", string(shape.Switch),
		"Open vSwitch of nodes. host: each host runs one; image: hosts have none, and deploy/overlays/ovs is installed")
	flags.BoolVar(&shape.ControlPlaneOnly, "control-plane-only", false, "no nodes and no network, only the Kubernetes API with its controllers")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		l, err := lab.Up(cmd.Context(), lab.Options{Name: *name, Shape: shape, Progress: progress(cmd)})
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.OutOrStdout(), "lab %s is up. Explore:\n  ovsdn-lab --name %[1]s kubectl -- get nodes -o wide\n", l.Name())
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

// progress goes to standard error: standard output has only the result.
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
