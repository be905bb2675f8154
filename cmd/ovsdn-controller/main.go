// Command ovsdn-controller is the master: it keeps ClusterNetwork `default`, and gives every node its HostSubnet and every
// namespace its NetNamespace. Several can run in a cluster: one leads, the others stand by.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/apiserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/master"
	"github.com/ovsdn/ovsdn/pkg/version"
)

// Exit codes.
const (
	exitOK     = 0 // also when told to stop
	exitFailed = 1
	exitUsage  = 2 // the flags are wrong: starting again won't help
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is a fault of the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	defer klog.Flush()
	err := cmd.ExecuteContext(klog.NewContext(ctx, klog.Background()))
	if err == nil {
		return exitOK
	}
	fmt.Fprintf(stderr, "%s: %v\n", cmd.Name(), err)
	if _, ok := errors.AsType[usageError](err); ok {
		fmt.Fprintf(stderr, "Run '%s --help' for the flags.\n", cmd.Name())
		return exitUsage
	}
	return exitFailed
}

func command() *cobra.Command {
	cfg := master.Defaults()
	var kubeconfig, server string
	cmd := &cobra.Command{
		Use:   "ovsdn-controller",
		Short: "Keep the cluster's network configuration and give every node its HostSubnet, every namespace its VNID",
		Long: "ovsdn-controller creates ClusterNetwork `default` from its flags when there is none; one that exists is followed,\n" +
			"whatever the flags say. Edits are followed too, as far as nothing in use loses its place: the annotation\n" +
			"ovsdn.io/conditions says whether they are, ovsdn.io/accepted-configuration what is in force.\n" +
			"Then it gives every node a HostSubnet and every namespace a NetNamespace, and frees them after those.\n" +
			"What is wrong is said in Events on the node, the NetNamespace or the ClusterNetwork, and waited out.",
		Version:       version.Get().String(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if err := cobra.NoArgs(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			var loadErr error
			cfg.REST, loadErr = apiserver.Config(kubeconfig, server)
			if loadErr != nil {
				cfg.REST = &rest.Config{} // so that Validate speaks of the other flags only
			}
			if err := errors.Join(loadErr, cfg.Validate()); err != nil {
				return usageError{err}
			}
			return master.Run(cmd.Context(), cfg)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })

	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "file that says how to reach the API server (default: the pod's service account)")
	f.StringVar(&server, "kube-apiserver", "", "URL of the API server; in a pod, never leave it to the service network that this project builds")
	f.StringSliceVar(&cfg.ClusterNetworks, "cluster-network", cfg.ClusterNetworks, "`CIDR` that nodes get their subnets from; repeat it for more, in the order of use")
	f.Uint32Var(&cfg.HostBits, "host-bits", cfg.HostBits, "bits of address that a node's subnet leaves to its pods: 9 makes a /23")
	f.StringVar(&cfg.ServiceNetwork, "service-network", cfg.ServiceNetwork, "`CIDR` of the service IPs, as kube-apiserver has it")
	f.StringVar(&cfg.Mode, "mode", cfg.Mode, "what isolates pods: subnet (nothing), multitenant or networkpolicy")
	f.Uint16Var(&cfg.VXLANPort, "vxlan-port", cfg.VXLANPort, "UDP port of VXLAN")
	f.Uint32Var(&cfg.MTU, "mtu", cfg.MTU, "largest packet of pods, in `bytes` (default: every node decides by its underlay)")
	f.StringSliceVar(&cfg.GlobalNamespaces, "global-namespaces", cfg.GlobalNamespaces, "`namespaces` that get VNID 0, which reaches all and is reached by all, when they are new")
	f.BoolVar(&cfg.LeaderElect, "leader-elect", cfg.LeaderElect, "work only while leading, so that several controllers can run")
	f.StringVar(&cfg.LeaderElectNamespace, "leader-elect-namespace", cfg.LeaderElectNamespace, "`namespace` of the leader's Lease; deploy/rbac gives the right to it in the default")
	f.StringVar(&cfg.HealthzAddress, "healthz-bind-address", cfg.HealthzAddress, "`host:port` of /healthz and /readyz for probes; 0: none")
	klogFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	f.AddGoFlag(klogFlags.Lookup("v"))
	return cmd
}
