package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node"
)

// hostFlags are the flags that say where the host's files are.
func hostFlags(f *pflag.FlagSet, cfg *node.Config) {
	f.StringVar(&cfg.CNISocket, "cni-socket", cfg.CNISocket, "unix socket that the CNI plugin calls")
	f.StringVar(&cfg.CNIConfDir, "cni-conf-dir", cfg.CNIConfDir, "where the container runtime looks for CNI configurations")
	f.StringVar(&cfg.CNIBinDir, "cni-bin-dir", cfg.CNIBinDir, "where the runtime looks for CNI plugins: the one beside this program is installed there; empty: it is there already")
	f.StringVar(&cfg.IPAMDir, "ipam-dir", cfg.IPAMDir, "where the addresses in use are kept, in host-local's format")
	f.StringVar(&cfg.SysctlDir, "sysctl-dir", "", "where the host's sysctls can be written; empty: /proc/sys, which a container has read-only")
}

func uninstallCommand() *cobra.Command {
	cfg := node.Defaults()
	cfg.CNIBinDir = "/opt/cni/bin"
	var kubeconfig, server, unless string
	var stay bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Take the pod network off this node, whose agent must not run",
		Long: "Takes away what the agent has put on this node: the container runtime's configuration and plugin, the interfaces of pods,\n" +
			"br0 with its ports, firewall rules, addresses; and makes sysctls what they were. Pods lose their network.\n" +
			"Agents do the same when all that they were installed with is deleted. It can be run again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.ValidatePaths(); err != nil { // of the rest, such as the host's name, nothing is used
				return errors.Join(errUsage, err)
			}
			if unless != "" {
				if err := checkUninstalled(cmd.Context(), kubeconfig, server, unless); err != nil {
					return err
				}
			}
			if err := node.Uninstall(cmd.Context(), cfg); err != nil {
				return err
			}
			klog.FromContext(cmd.Context()).Info("The pod network is off this node")
			if stay {
				<-cmd.Context().Done()
			}
			return nil
		},
	}
	hostFlags(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&unless, "unless-installed", "", "a `namespace`: refuse while the cluster has it, and it is not being deleted; empty: the cluster is not asked")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server for that; empty: the pod's service account")
	cmd.Flags().StringVar(&server, "kube-apiserver", "", "URL of the API server, instead of the kubeconfig's or the service's")
	cmd.Flags().BoolVar(&stay, "stay", false, "when it is done, wait to be stopped, as pods of a DaemonSet should")
	return cmd
}

// checkUninstalled returns nil only if the API server has said that nothing is installed in the namespace.
func checkUninstalled(ctx context.Context, kubeconfig, server, namespace string) error {
	config, err := clientConfig(kubeconfig, server)
	if err != nil {
		return errors.Join(errUsage, err)
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	return node.CheckUninstalled(ctx, kube, namespace)
}
