package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressip"
)

func egressIPsCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	var noHeaders bool
	cmd := &cobra.Command{
		Use:   "egress-ips [IP...]",
		Short: "Show egress IPs, and set those of namespaces and nodes",
		Long: "Show which namespace has an egress IP, which node hosts it, and whether it is used. Packets of the namespace's pods to hosts\n" +
			"outside of the cluster have an egress IP of the namespace as their source. Whether the host of a node forwards packets with an IP is read from its agent,\n" +
			"which needs the right to get nodestatuses.diagnostics.ovsdn.io: else the state is Unknown.",
		Example: "  kubectl ovsdn egress-ips\n  kubectl ovsdn egress-ips 192.0.2.10 -o wide",
		RunE: func(cmd *cobra.Command, args []string) error {
			ips, err := parseIPs(args)
			if err != nil {
				return err
			}
			printer, err := tableOrObjects(format, noHeaders)
			if err != nil {
				return usageError{err}
			}
			kube, network, err := clients(flags)
			if err != nil {
				return err
			}
			c, err := readEgress(cmd.Context(), network)
			if err != nil {
				return err
			}
			c.readPlacements(cmd.Context(), kube, ips, streams.ErrOut)
			return c.print(streams, printer, ips)
		},
	}
	format.AddFlags(cmd)
	cmd.Flag("output").Usage = "Output format. One of: (" + strings.Join(append(format.AllowedFormats(), wide), ", ") + ")."
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "do not print the table's headers")
	cmd.AddCommand(setNamespaceCommand(flags, streams), setNodeCommand(flags, streams))
	return cmd
}

func parseIPs(args []string) (ips []netip.Addr, err error) {
	for _, s := range args {
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil || !a.Is4():
			return nil, usagef("%q is not an IPv4 address", s)
		case slices.Contains(ips, a):
			return nil, usagef("%s is specified twice", a)
		}
		ips = append(ips, a)
	}
	return ips, nil
}

// egress has the egress IPs of a cluster.
type egress struct {
	table         *egressip.Table
	network       *config.Network
	netNamespaces map[string]*networkv1.NetNamespace
	hostSubnets   map[string]*networkv1.HostSubnet
	placements    placements
}

// readEgress reads the egress IPs of a cluster whose mode has some.
func readEgress(ctx context.Context, client networkclient.Interface) (*egress, error) {
	o, err := client.NetworkV1().ClusterNetworks().Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get the cluster's network: %w", err)
	}
	c := &egress{netNamespaces: map[string]*networkv1.NetNamespace{}, hostSubnets: map[string]*networkv1.HostSubnet{}}
	if c.network, err = config.ActiveNetwork(o); err != nil {
		return nil, fmt.Errorf("ClusterNetwork %s %w", o.Name, err)
	}
	if c.network.Mode == config.ModeSubnet {
		return nil, fmt.Errorf("the cluster's network is in mode %s (%s), which has no egress IPs", c.network.Mode, c.network.Mode.PluginName())
	}
	c.table = egressip.New(egressip.Reserved(c.network))
	namespaces, err := client.NetworkV1().NetNamespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range namespaces.Items {
		c.setNamespace(&namespaces.Items[i])
	}
	nodes, err := client.NetworkV1().HostSubnets().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	for i := range nodes.Items {
		c.setNode(&nodes.Items[i])
	}
	return c, nil
}

func (c *egress) setNamespace(o *networkv1.NetNamespace) {
	ips, _, _ := config.ParseNamespaceEgressIPs(o) // without invalid entries, as agents do
	c.netNamespaces[o.Name] = o
	c.table.SetNamespace(o.Name, ips)
}

func (c *egress) setNode(o *networkv1.HostSubnet) {
	c.hostSubnets[o.Name] = o
	n, _ := egressip.NodeOf(o, netip.Addr{}) // without invalid entries
	c.table.SetNode(o.Name, n)
}

// print prints these IPs, or all if there are none. It returns an error about those that no object has.
func (c *egress) print(streams genericiooptions.IOStreams, printer printers.ResourcePrinter, ips []netip.Addr) error {
	single := len(ips) == 1
	var errs []error
	if len(ips) == 0 {
		if ips = c.table.IPs(); len(ips) == 0 {
			fmt.Fprintln(streams.ErrOut, "No resources found")
			return nil
		}
	}
	ips = slices.DeleteFunc(slices.Clone(ips), func(a netip.Addr) bool {
		ip := c.table.IP(a)
		exists := len(ip.Namespaces)+len(ip.Nodes) > 0
		if !exists {
			errs = append(errs, fmt.Errorf("egress IP %s not found: no NetNamespace and no HostSubnet has it", a))
		}
		return !exists
	})
	if len(ips) > 0 {
		errs = append(errs, c.printIPs(streams, printer, ips, single))
	}
	return errors.Join(errs...)
}

func (c *egress) printIPs(streams genericiooptions.IOStreams, printer printers.ResourcePrinter, ips []netip.Addr, single bool) error {
	if _, is := printer.(*tablePrinter); is {
		return printer.PrintObj(c.printed(ips), streams.Out)
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}}}
	for _, a := range ips {
		list.Items = append(list.Items, c.object(a))
	}
	if single {
		return printer.PrintObj(&list.Items[0], streams.Out)
	}
	return printer.PrintObj(list, streams.Out)
}

// printed returns the table.
func (c *egress) printed(ips []netip.Addr) runtime.Object {
	const onlyWide = 1 // the priority of a column
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "IP", Type: "string"},
		{Name: "Namespace", Type: "string"},
		{Name: "Node", Type: "string"},
		{Name: "State", Type: "string"},
		{Name: "Assigned", Type: "string", Priority: onlyWide},
		{Name: "Note", Type: "string", Priority: onlyWide},
	}}
	for _, a := range ips {
		ip := c.table.IP(a)
		state, note := c.stateOf(ip)
		table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{
			a.String(), orNone(strings.Join(ip.Namespaces, ",")), orNone(strings.Join(ip.Nodes, ",")), state, orNone(c.assignment(ip)), orNone(note),
		}})
	}
	return table
}

// object returns an object that exists only in the output.
func (c *egress) object(a netip.Addr) unstructured.Unstructured {
	ip := c.table.IP(a)
	state, note := c.stateOf(ip)
	o := map[string]any{
		"apiVersion": "ovsdn.io/v1", "kind": "EgressIP", "metadata": map[string]any{"name": a.String()},
		"namespaces": anyOf(ip.Namespaces), "nodes": anyOf(ip.Nodes), "state": state,
	}
	if note != "" {
		o["note"] = note
	}
	return unstructured.Unstructured{Object: o}
}

func anyOf(names []string) []any {
	all := make([]any, len(names))
	for i, name := range names {
		all[i] = name
	}
	return all
}

// assignment returns how the nodes of an IP got it.
func (c *egress) assignment(ip egressip.IP) string {
	var all []string
	for _, name := range ip.Nodes {
		how := "manual"
		if c.isAutomatic(name) {
			how = "automatic"
		}
		if !slices.Contains(all, how) {
			all = append(all, how)
		}
	}
	return strings.Join(all, ",")
}

func (c *egress) isAutomatic(node string) bool {
	o := c.hostSubnets[node]
	return o != nil && len(o.EgressCIDRs) > 0
}
