// Command ovsdn-controller is the master: it validates ClusterNetwork `default`, and allocates a HostSubnet for every node and a
// NetNamespace for every namespace. Several can run in a cluster; one leads.
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
	exitOK     = 0 // also after SIGTERM
	exitFailed = 1
	exitUsage  = 2 // invalid flags: a restart does not help
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// usageError is an error in the command line.
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
		Short: "Validate the cluster's network configuration, and allocate HostSubnets for nodes and VNIDs for namespaces",
		Long: "ovsdn-controller creates ClusterNetwork `default` from its flags if it does not exist. An existing object takes\n" +
			"precedence over the flags. The controller accepts edits unless they conflict with addresses in use: the annotation\n" +
			"ovsdn.io/conditions has the result, ovsdn.io/accepted-configuration the active configuration.\n" +
			"It allocates a HostSubnet for each node and a NetNamespace for each namespace, and releases them after deletion.\n" +
			"It reports failures in Events on the Node, the NetNamespace or the ClusterNetwork, and retries.",
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
				cfg.REST = &rest.Config{} // Validate then reports only the other flags
			}
			if err := errors.Join(loadErr, cfg.Validate()); err != nil {
				return usageError{err}
			}
			return master.Run(cmd.Context(), cfg)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })

	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file for the API server (default: the pod's service account)")
	f.StringVar(&server, "kube-apiserver", "", "URL of the API server; set it in a pod: the default is an address of the service network, which needs this pod network")
	f.StringSliceVar(&cfg.ClusterNetworks, "cluster-network", cfg.ClusterNetworks, "`CIDR` from which nodes get their subnets; may be repeated, in the order of use")
	f.Uint32Var(&cfg.HostBits, "host-bits", cfg.HostBits, "host bits of each node's subnet: 9 makes a /23")
	f.StringVar(&cfg.ServiceNetwork, "service-network", cfg.ServiceNetwork, "`CIDR` of service IPs: kube-apiserver's --service-cluster-ip-range")
	f.StringVar(&cfg.Mode, "mode", cfg.Mode, "isolation of pods: subnet (none), networkpolicy (policies) or multitenant (VNIDs and policies)")
	f.Uint16Var(&cfg.VXLANPort, "vxlan-port", cfg.VXLANPort, "UDP port of VXLAN")
	f.Uint32Var(&cfg.MTU, "mtu", cfg.MTU, "MTU of pods in `bytes` (default: on each node, that of its own interface less 50)")
	f.StringVar(&cfg.ServiceProxy, "service-proxy", cfg.ServiceProxy,
		"implementation of services in a new cluster: ovs (flows of br0) or external (kube-proxy); an existing ClusterNetwork has that of its annotation ovsdn.io/service-proxy, or external")
	f.DurationVar(&cfg.HostSubnetRetention, "hostsubnet-retention", cfg.HostSubnetRetention,
		"`time` for which the HostSubnet of a deleted Node is retained, so that a Node of the same name and InternalIP gets it back; 0: delete the HostSubnet at once")
	f.StringSliceVar(&cfg.GlobalNamespaces, "global-namespaces", cfg.GlobalNamespaces, "new `namespaces` with these names get VNID 0, which reaches all pods and is reached by all")
	f.BoolVar(&cfg.Unidle, "unidle", cfg.Unidle, "scale the objects of idled services up when agents report packets for them; deploy/components/unidling grants the rights")
	f.BoolVar(&cfg.LeaderElect, "leader-elect", cfg.LeaderElect, "work only while holding the lease, so that several controllers can run")
	f.StringVar(&cfg.LeaderElectNamespace, "leader-elect-namespace", cfg.LeaderElectNamespace, "`namespace` of the leader's Lease; deploy/rbac grants the right to the default one")
	f.StringVar(&cfg.HealthzAddress, "healthz-bind-address", cfg.HealthzAddress, "`host:port` of /healthz and /readyz for probes; 0: none")
	f.StringVar(&cfg.Metrics.Address, "metrics-bind-address", cfg.Metrics.Address, "`host:port` of /metrics and /debug/pprof by HTTPS, for clients with a token that has the right, and of the API group diagnostics.ovsdn.io; another port than 9446, or 0 (none), requires that its APIService is deleted or changed")
	f.StringVar(&cfg.Metrics.CertFile, "metrics-tls-cert-file", "", "`file` with the PEM certificate of the metrics server; empty: that of the diagnostics authority")
	f.StringVar(&cfg.Metrics.KeyFile, "metrics-tls-private-key-file", "", "`file` with the PEM private key of the metrics server")
	klogFlags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(klogFlags)
	f.AddGoFlag(klogFlags.Lookup("v"))
	return cmd
}
