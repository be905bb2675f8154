package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	networkv1 "github.com/openshift/api/network/v1"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// wide is the format of a table with all columns.
const wide = "wide"

func vnidsCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	var noHeaders bool
	cmd := &cobra.Command{
		Use:   "get-vnids [NAMESPACE...]",
		Short: "Show the VNIDs of namespaces",
		Long: "Show the VNIDs of namespaces. Namespaces with the same VNID are one network in mode multitenant; those with VNID 0\n" +
			"reach all others and are reached by all. `ovs-ofctl dump-flows` shows a packet's VNID in reg0, in hexadecimal.",
		Example: "  kubectl ovsdn get-vnids\n  kubectl ovsdn get-vnids p1 p2 -o wide",
		RunE: func(cmd *cobra.Command, args []string) error {
			printer, err := tableOrObjects(format, noHeaders)
			if err != nil {
				return usageError{err}
			}
			_, network, err := clients(flags)
			if err != nil {
				return err
			}
			list, err := network.NetworkV1().NetNamespaces().List(cmd.Context(), metav1.ListOptions{})
			if err != nil {
				return err
			}
			return printVNIDs(streams, printer, list.Items, args)
		},
	}
	format.AddFlags(cmd)
	cmd.Flag("output").Usage = "Output format. One of: (" + strings.Join(append(format.AllowedFormats(), wide), ", ") + ")."
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "do not print the table's headers")
	return cmd
}

// tableOrObjects returns a printer of metav1.Table if it is *tablePrinter, else of objects.
func tableOrObjects(flags *genericclioptions.PrintFlags, noHeaders bool) (printers.ResourcePrinter, error) {
	if format := *flags.OutputFormat; format == "" || format == wide {
		return &tablePrinter{printers.NewTablePrinter(printers.PrintOptions{Wide: format == wide, NoHeaders: noHeaders})}, nil
	}
	return flags.ToPrinter()
}

type tablePrinter struct{ printers.ResourcePrinter }

// printVNIDs prints the NetNamespaces of these names, or all if there are none.
func printVNIDs(streams genericiooptions.IOStreams, printer printers.ResourcePrinter, all []networkv1.NetNamespace, names []string) error {
	slices.SortFunc(all, func(a, b networkv1.NetNamespace) int { return strings.Compare(a.Name, b.Name) })
	var chosen []networkv1.NetNamespace
	for _, nn := range all {
		if len(names) == 0 || slices.Contains(names, nn.Name) {
			chosen = append(chosen, nn)
		}
	}
	var errs []error
	for _, name := range names {
		if !slices.ContainsFunc(chosen, func(nn networkv1.NetNamespace) bool { return nn.Name == name }) {
			errs = append(errs, fmt.Errorf("namespace %s has no VNID: no NetNamespace has that name", name))
		}
	}
	if len(chosen) == 0 && len(errs) == 0 {
		fmt.Fprintln(streams.ErrOut, "No resources found")
		return nil
	}
	if len(chosen) > 0 {
		o, err := output(printer, all, chosen, len(names) == 1)
		if err != nil {
			return err
		}
		errs = append(errs, printer.PrintObj(o, streams.Out))
	}
	return errors.Join(errs...)
}

// output returns what kubectl would print: a table, one named object, or a list.
func output(printer printers.ResourcePrinter, all, chosen []networkv1.NetNamespace, single bool) (runtime.Object, error) {
	if _, is := printer.(*tablePrinter); is {
		return vnidTable(all, chosen), nil
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}}}
	for i := range chosen {
		nn := &chosen[i]
		nn.TypeMeta = metav1.TypeMeta{APIVersion: networkv1.GroupVersion.String(), Kind: "NetNamespace"}
		if single {
			return nn, nil
		}
		encoded, err := json.Marshal(nn)
		var o unstructured.Unstructured
		if err == nil {
			err = o.UnmarshalJSON(encoded)
		}
		if err != nil {
			return nil, fmt.Errorf("print NetNamespace %s: %w", nn.Name, err)
		}
		list.Items = append(list.Items, o)
	}
	return list, nil
}

func vnidTable(all, chosen []networkv1.NetNamespace) *metav1.Table {
	sharers := map[config.VNID][]string{}
	for _, nn := range all {
		sharers[vnidOf(nn)] = append(sharers[vnidOf(nn)], nn.Name)
	}
	const onlyWide = 1 // the priority of a column
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Namespace", Type: "string"},
		{Name: "VNID", Type: "integer"},
		{Name: "Shared With", Type: "string", Priority: onlyWide},
		{Name: "Multicast", Type: "boolean", Priority: onlyWide},
		{Name: "Egress IPs", Type: "string", Priority: onlyWide},
		{Name: "Note", Type: "string", Priority: onlyWide},
	}}
	for _, nn := range chosen {
		var egressIPs []string
		for _, ip := range nn.EgressIPs {
			egressIPs = append(egressIPs, string(ip))
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{
			nn.Name, int64(vnidOf(nn)), sharedWith(nn, sharers[vnidOf(nn)]),
			nn.Annotations[networkv1.MulticastEnabledAnnotation] == "true", orNone(strings.Join(egressIPs, ",")), orNone(note(&nn)),
		}})
	}
	return table
}

// vnidOf returns the VNID in use, or the netid if neither the netid nor the assigned VNID is valid.
func vnidOf(nn networkv1.NetNamespace) config.VNID {
	if n, err := config.ParseNetNamespace(&nn); err == nil {
		return n.VNID
	}
	return config.VNID(nn.NetID)
}

// sharedWith returns the first few other namespaces with the VNID.
func sharedWith(nn networkv1.NetNamespace, sharers []string) string {
	const most = 3
	if vnidOf(nn).IsGlobal() {
		return "<all>"
	}
	others := slices.DeleteFunc(slices.Clone(sharers), func(name string) bool { return name == nn.Name })
	if n := len(others); n > most {
		return fmt.Sprintf("%s + %d more...", strings.Join(others[:most], ","), n-most)
	}
	return orNone(strings.Join(others, ","))
}

// note describes what is invalid about a NetNamespace.
func note(nn *networkv1.NetNamespace) string {
	n, err := config.ParseNetNamespace(nn)
	if err != nil {
		return strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	if n.Fault != nil {
		return fmt.Sprintf("%s; until then VNID %s stays in use", strings.ReplaceAll(n.Fault.Error(), "\n", "; "), n.VNID)
	}
	if change, requested, _ := config.RequestedChange(nn); requested {
		return "requested: " + change.String()
	}
	return nn.Annotations[config.ChangeRefusedAnnotation]
}

func orNone(s string) string {
	if s == "" {
		return "<none>"
	}
	return s
}
