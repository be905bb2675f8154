package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/installation"
)

// hostFlags adds the flags for paths on the host.
func hostFlags(f *pflag.FlagSet, cfg *node.Config) {
	f.StringVar(&cfg.CNISocket, "cni-socket", cfg.CNISocket, "unix socket that the CNI plugin calls")
	f.StringVar(&cfg.CNIConfDir, "cni-conf-dir", cfg.CNIConfDir, "the container runtime's directory of CNI configurations")
	f.StringVar((*string)(&cfg.Firewall), "firewall", string(cfg.Firewall),
		"what has the rules of the host: auto (iptables if it is installed, as in the agent's image, else nftables), iptables or nftables")
	f.StringVar(&cfg.IPAMDir, "ipam-dir", cfg.IPAMDir, "directory of the leases of addresses, in host-local's format")
	f.StringVar(&cfg.SysctlDir, "sysctl-dir", "", "directory of the host's sysctls, writable; empty: /proc/sys, which is read-only in a container")
}

func uninstallCommand() *cobra.Command {
	cfg := node.Defaults()
	cfg.CNIBinDir = "/opt/cni/bin"
	var kubeconfig, server, unless string
	var stay bool
	cmd := &cobra.Command{
		Use:   "uninstall",
		Short: "Remove the pod network from this node, whose agent must not run",
		Long: "Removes what the agent installed on this node: the container runtime's configuration and plugin, the interfaces of pods,\n" +
			"br0 with its ports, firewall rules, addresses; and restores sysctls. Pods lose their network.\n" +
			"Agents do the same when their namespace is deleted. The command can be repeated.",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := cfg.ValidateHost(); err != nil { // other settings, such as the node's name, are not used
				return usageError{err}
			}
			if unless != "" {
				if err := checkUninstalled(cmd.Context(), kubeconfig, server, unless); err != nil {
					return err
				}
			}
			if err := node.Uninstall(cmd.Context(), cfg); err != nil {
				return err
			}
			klog.FromContext(cmd.Context()).Info("Uninstalled the pod network from this node")
			if stay {
				<-cmd.Context().Done()
			}
			return nil
		},
	}
	hostFlags(cmd.Flags(), &cfg)
	cmd.Flags().StringVar(&cfg.CNIBinDir, "cni-bin-dir", cfg.CNIBinDir, "the runtime's directory of CNI plugins, from which ovsdn-cni is removed; empty: do not remove it")
	cmd.Flags().StringVar(&unless, "unless-installed", "", "fail while this `namespace` exists and is not being deleted; empty: do not check it")
	cmd.Flags().StringVar(&kubeconfig, "kubeconfig", "", "kubeconfig file for --unless-installed; empty: the pod's service account")
	cmd.Flags().StringVar(&server, "kube-apiserver", "", "URL of the API server, in place of the kubeconfig's or the service's")
	cmd.Flags().BoolVar(&stay, "stay", false, "wait for SIGTERM after the removal, as pods of a DaemonSet should")
	return cmd
}

// checkUninstalled returns nil only if the API server reports that the namespace does not exist or is being deleted.
func checkUninstalled(ctx context.Context, kubeconfig, server, namespace string) error {
	config, err := clientConfig(kubeconfig, server)
	if err != nil {
		return usageError{err}
	}
	kube, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("client: %w", err)
	}
	return installation.CheckUninstalled(ctx, kube, namespace)
}
