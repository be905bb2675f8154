// Command ovsdn-node is the node agent: it reconciles br0 with the cluster's objects, and sets up pods on requests of the CNI plugin.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/apiserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node"
	"github.com/ovsdn/ovsdn/pkg/version"
)

// Exit codes.
const (
	exitFailed = 1
	exitUsage  = 2
)

// usageError is an error in the command line.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// noArgs refuses arguments.
func noArgs(cmd *cobra.Command, args []string) error {
	if err := cobra.NoArgs(cmd, args); err != nil {
		return usageError{err}
	}
	return nil
}

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	defer klog.Flush()
	setGCPercent(os.LookupEnv)

	if err := command().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "ovsdn-node:", err)
		if _, ok := errors.AsType[usageError](err); ok {
			fmt.Fprintln(os.Stderr, "Run 'ovsdn-node --help' for the flags.")
			return exitUsage
		}
		return exitFailed
	}
	return 0
}

// gcPercent is how much garbage the agent's memory may have, in percent of what is in use. Go's default, 100, needs a quarter more with 10,000 services, of which a
// comparison of all flows makes much garbage; a change of one makes so little that its CPU time is the same.
const gcPercent = 50

// setGCPercent sets gcPercent, unless the administrator has set another one in the environment.
func setGCPercent(lookup func(string) (string, bool)) {
	if _, set := lookup("GOGC"); !set {
		debug.SetGCPercent(gcPercent)
	}
}

func command() *cobra.Command {
	cfg := node.Defaults()
	var kubeconfig, server string

	cmd := &cobra.Command{
		Use:           "ovsdn-node",
		Short:         "The node agent of ovsdn",
		Version:       version.Get().String(),
		Args:          noArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.Validate(); err != nil {
				return usageError{err}
			}
			client, err := clientConfig(kubeconfig, server)
			if err != nil {
				return usageError{err}
			}
			return node.Run(cmd.Context(), cfg, client)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })

	f := cmd.Flags()
	f.StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file for the API server; empty: the pod's service account")
	f.StringVar(&server, "kube-apiserver", "", "URL of the API server, in place of the kubeconfig's or the service's; not an address of the service network")
	agentFlags(f, &cfg)

	logging := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(logging)
	f.AddGoFlag(logging.Lookup("v"))
	cmd.CompletionOptions.DisableDefaultCmd = true
	cmd.AddCommand(uninstallCommand())
	return cmd
}

// agentFlags defines the flags that the agent's configuration consists of.
func agentFlags(f *pflag.FlagSet, cfg *node.Config) {
	f.StringVar(&cfg.NodeName, "node-name", cfg.NodeName, "name of this node's Node object")
	f.StringVar(&cfg.Namespace, "namespace", "", "namespace of this installation: if it is deleted, the agent removes the network from the node when it stops; empty: never")
	f.StringVar(&cfg.NodeIP, "node-ip", "", "this node's address; empty: found by --iface, --iface-regex or the default route")
	f.StringVar(&cfg.Iface, "iface", "", "interface with this node's address")
	f.StringVar(&cfg.IfaceRegex, "iface-regex", "", "regular expression for the name of the interface with this node's address")
	f.IntVar(&cfg.MTU, "mtu", 0, "MTU of pods in bytes; 0: the ClusterNetwork's, else that of the node's interface less 50")
	f.IntVar(&cfg.RoutableMTU, "routable-mtu", 0, "MTU of routes in bytes, at most that of pods: the largest packet that is sent; 0: the ClusterNetwork's annotation, else none")
	f.StringVar(&cfg.Datapath, "datapath", cfg.Datapath, "OVS datapath type: system (the kernel's) or netdev (userspace)")
	f.StringVar((*string)(&cfg.ServiceProxy), "service-proxy", string(cfg.ServiceProxy),
		"implementation of services: auto (that of the ClusterNetwork) or, on this node only, external (kube-proxy) or ovs (flows of br0)")
	f.BoolVar(&cfg.Unidle, "unidle", cfg.Unidle,
		"hold first packets to idled services until these have endpoints, and report them by Event NeedPods; without effect where kube-proxy balances services; false: reject them")
	f.StringSliceVar(&cfg.NodePortAddresses, "nodeport-addresses", cfg.NodePortAddresses,
		"IPv4 `CIDRs` of the node addresses at which node ports answer, or primary: only the HostSubnet's IP; empty: all; without effect where kube-proxy balances services")
	f.StringSliceVar(&cfg.HostNetworkNamespaces, "host-network-namespaces", cfg.HostNetworkNamespaces,
		"`namespaces` that represent the host networks of all nodes in NetworkPolicies, if they exist; add default for policies from OpenShift 3; empty: none")
	f.IntVar(&cfg.PeerProbeRate, "peer-probe-rate", cfg.PeerProbeRate, "ICMP probes per second of other nodes, through the overlay and the underlay, at most 50; 0: none")
	f.BoolVar(&cfg.IPMasq, "ip-masq", cfg.IPMasq, "masquerade packets of this node's pods to hosts outside, except to networks of the ClusterNetwork's annotation; false: only packets to other nodes")
	f.StringVar((*string)(&cfg.HostAccess), "host-access", string(cfg.HostAccess),
		"packets from its pods that the node accepts before its own firewall rules: replies (in connections that the node opens), services (also packets that services direct to the node) or all")
	hostFlags(f, cfg)
	flowExportFlags(f, cfg)
	f.StringVar(&cfg.CNIBinDir, "cni-bin-dir", cfg.CNIBinDir, "the runtime's directory of CNI plugins, to which the agent copies ovsdn-cni from the directory of its own program; empty: do not install it")
	f.StringVar(&cfg.HealthzAddr, "healthz-bind-address", cfg.HealthzAddr, "`host:port` of /healthz and /readyz for probes; 0: none")
	f.StringVar(&cfg.ServiceHealthzAddr, "service-healthz-bind-address", cfg.ServiceHealthzAddr,
		"`host:port` of /healthz and /livez for load balancers, as kube-proxy serves them; without effect where kube-proxy balances services; 0: none")
	f.StringVar(&cfg.Metrics.Address, "metrics-bind-address", cfg.Metrics.Address, "`host:port` of /metrics and /debug/pprof by HTTPS, for clients with a token that has the right; 0: none")
	f.StringVar(&cfg.Metrics.CertFile, "metrics-tls-cert-file", "", "`file` with the PEM certificate of the metrics server; empty: that of the diagnostics authority")
	f.StringVar(&cfg.Metrics.KeyFile, "metrics-tls-private-key-file", "", "`file` with the PEM private key of the metrics server")
}

func flowExportFlags(f *pflag.FlagSet, cfg *node.Config) {
	f.StringSliceVar(&cfg.FlowExport.Collectors, "ipfix-collectors", cfg.FlowExport.Collectors, "`IP:PORT` of collectors to which Open vSwitch exports sampled flows by IPFIX (UDP); empty: none")
	f.IntVar(&cfg.FlowExport.Sampling, "ipfix-sampling", cfg.FlowExport.Sampling, "one of that many packets that policies allow or deny is sampled, at most 65535; 1: each")
	f.DurationVar(&cfg.FlowExport.ActiveTimeout, "ipfix-cache-timeout", cfg.FlowExport.ActiveTimeout, "how long the samples of a flow are aggregated, in whole seconds, at most 70m; 0: each is exported at once")
	f.Uint32Var(&cfg.FlowExport.MaxFlows, "ipfix-cache-max-flows", cfg.FlowExport.MaxFlows, "number of flows whose samples are aggregated; 0: each sample is exported at once")
	f.Uint32Var(&cfg.FlowExport.Domain, "ipfix-domain", cfg.FlowExport.Domain, "observation domain of this node's flows; 0: its IPv4 address as a number")
}

func clientConfig(kubeconfig, server string) (*rest.Config, error) {
	c, err := apiserver.Config(kubeconfig, server)
	if err != nil {
		return nil, err
	}
	c.UserAgent = rest.DefaultKubernetesUserAgent()
	// client-go's 5 a second would queue the pods of a node that starts up; each ADD sends at most one request.
	c.QPS, c.Burst = 50, 100
	return c, nil
}
