package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/util/retry"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
)

func setNamespaceCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var none bool
	cmd := &cobra.Command{
		Use:   "set-namespace NAMESPACE (IP... | --none)",
		Short: "Set the egress IPs of a namespace",
		Long: "Replace the egress IPs of a namespace, the field egressIPs of its NetNamespace. Each pod uses one of those that nodes host; while none is\n" +
			"hosted, packets of the namespace's pods to hosts outside are dropped.",
		Example: "  kubectl ovsdn egress-ips set-namespace shop 192.0.2.10 192.0.2.11\n  kubectl ovsdn egress-ips set-namespace shop --none",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no namespace specified")
			}
			ips, err := parseIPs(args[1:])
			if err != nil {
				return err
			}
			if (len(ips) > 0) == none {
				return usagef("specify either IPs or --none")
			}
			return setNamespace(cmd.Context(), flags, streams, args[0], ips)
		},
	}
	cmd.Flags().BoolVar(&none, "none", false, "remove all egress IPs: packets have the address of the pod's node")
	return cmd
}

func setNodeCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	var none bool
	var cidrs []string
	cmd := &cobra.Command{
		Use:   "set-node NODE (IP... | --cidr=CIDR... | --none)",
		Short: "Set the egress IPs that a node hosts, or the ranges from which ovsdn-controller assigns them",
		Long: "Replace the egress IPs that a node hosts, the fields egressIPs and egressCIDRs of its HostSubnet. With ranges, ovsdn-controller assigns the\n" +
			"egress IPs of namespaces to the nodes, and moves them if a node fails.",
		Example: "  # by hand\n  kubectl ovsdn egress-ips set-node node1 192.0.2.10\n\n" +
			"  # by ovsdn-controller\n  kubectl ovsdn egress-ips set-node node1 --cidr=192.0.2.0/24",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("no node specified")
			}
			ips, err := parseIPs(args[1:])
			if err != nil {
				return err
			}
			ways := 0
			for _, is := range []bool{len(ips) > 0, len(cidrs) > 0, none} {
				if is {
					ways++
				}
			}
			if ways != 1 {
				return usagef("specify either IPs, --cidr or --none")
			}
			return setNode(cmd.Context(), flags, streams, args[0], ips, cidrs)
		},
	}
	cmd.Flags().StringSliceVar(&cidrs, "cidr", nil, "`range` from which ovsdn-controller assigns egress IPs to the node; may be repeated")
	cmd.Flags().BoolVar(&none, "none", false, "the node hosts no egress IPs")
	return cmd
}

func setNamespace(ctx context.Context, flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams, name string, ips []netip.Addr) error {
	_, network, err := clients(flags)
	if err != nil {
		return err
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		c, err := readEgress(ctx, network)
		if err != nil {
			return err
		}
		o := c.netNamespaces[name]
		if o == nil {
			return fmt.Errorf("namespace %s has no VNID: no NetNamespace has that name", name)
		}
		o.EgressIPs = nil
		for _, a := range ips {
			o.EgressIPs = append(o.EgressIPs, networkv1.NetNamespaceEgressIP(a.String()))
		}
		_, _, fault := config.ParseNamespaceEgressIPs(o)
		c.setNamespace(o)
		if err := errors.Join(fault, c.conflicts(ips)); err != nil {
			return err
		}
		_, err = network.NetworkV1().NetNamespaces().Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
	if err == nil {
		fmt.Fprintf(streams.Out, "namespace/%s has egress IPs %s\n", name, orNone(joined(ips)))
	}
	return err
}

func setNode(ctx context.Context, flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams, name string, ips []netip.Addr, cidrs []string) error {
	_, network, err := clients(flags)
	if err != nil {
		return err
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		c, err := readEgress(ctx, network)
		if err != nil {
			return err
		}
		o := c.hostSubnets[name]
		if o == nil {
			return fmt.Errorf("node %s has no subnet: no HostSubnet has that name", name)
		}
		setEgress(o, ips, cidrs)
		_, fault := config.ParseEgressNode(o)
		c.setNode(o)
		if err := errors.Join(fault, c.conflicts(ips)); err != nil {
			return err
		}
		_, err = network.NetworkV1().HostSubnets().Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
	switch {
	case err != nil:
		return err
	case len(cidrs) > 0:
		fmt.Fprintf(streams.Out, "node/%s hosts egress IPs of %s\n", name, strings.Join(cidrs, ","))
	default:
		fmt.Fprintf(streams.Out, "node/%s hosts egress IPs %s\n", name, orNone(joined(ips)))
	}
	return nil
}

// setEgress sets the fields of a HostSubnet. With ranges, egressIPs is ovsdn-controller's.
func setEgress(o *networkv1.HostSubnet, ips []netip.Addr, cidrs []string) {
	if len(cidrs) == 0 {
		o.EgressIPs = nil
	}
	for _, a := range ips {
		o.EgressIPs = append(o.EgressIPs, networkv1.HostSubnetEgressIP(a.String()))
	}
	o.EgressCIDRs = nil
	for _, s := range cidrs {
		o.EgressCIDRs = append(o.EgressCIDRs, networkv1.HostSubnetEgressCIDR(s))
	}
}

// conflicts returns an error if one of the IPs would not be used until a user changes an object. ovsdn-controller removes an IP from nodes with ranges by itself.
func (c *egress) conflicts(ips []netip.Addr) error {
	var errs []error
	for _, a := range ips {
		ip := c.table.IP(a)
		manual := slices.DeleteFunc(slices.Clone(ip.Nodes), c.isAutomatic)
		switch {
		case !ip.IsConflict() || ip.Problem == egressip.ManyNodes && len(manual) < 2:
		case ip.Problem == egressip.ManyNodes:
			errs = append(errs, fmt.Errorf("egress IP %s: %s: %s", a, ip.Problem, strings.Join(manual, ", ")))
		case ip.Problem == egressip.ManyNames:
			errs = append(errs, fmt.Errorf("egress IP %s: %s: %s", a, ip.Problem, strings.Join(ip.Namespaces, ", ")))
		default:
			errs = append(errs, fmt.Errorf("egress IP %s: %s", a, ip.Problem))
		}
	}
	return errors.Join(errs...)
}

func joined(ips []netip.Addr) string {
	var all []string
	for _, a := range ips {
		all = append(all, a.String())
	}
	return strings.Join(all, ",")
}
