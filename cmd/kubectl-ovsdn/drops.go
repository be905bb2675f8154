package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// dropLister reads the counters of dropped packets.
type dropLister struct {
	genericiooptions.IOStreams
	kube    kubernetes.Interface
	printer printers.ResourcePrinter
	nodes   []string // empty: all
	watch   bool

	previous map[nodeDrop]uint64 // packets
	known    map[string]bool     // the nodes of previous
}

// sampleInterval is that in which agents read most of the counters.
const sampleInterval = 15 * time.Second

// nodeDrop is what a counter counts.
type nodeDrop struct{ node, table, reason string }

func dropsCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	l := &dropLister{IOStreams: streams}
	var noHeaders bool
	cmd := &cobra.Command{
		Use:   "drops [NODE...]",
		Short: "Show the packets that the nodes' flows and the agents' rules in iptables drop",
		Long: "Show how many packets the flows of all nodes, or of these, have dropped since the agent started, by table and reason; those of reason\n" +
			"policy since vswitchd started. Table host has the agent's rules in iptables, the reason is the comment of the rule. Counters are at most 15 seconds\n" +
			"old, those of foreign-source, egress-firewall and host at most 60 seconds.",
		Example:           "  kubectl ovsdn drops\n\n  # what is dropped now\n  kubectl ovsdn drops node1 --watch\n\n  kubectl ovsdn drops -o json",
		ValidArgsFunction: completeNodes(flags),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			l.nodes = args
			if l.printer, err = tableOrObjects(format, noHeaders); err != nil {
				return usageError{err}
			}
			if l.watch && !l.isTable() {
				return usagef("--watch prints tables only; leave out --output=%s", *format.OutputFormat)
			}
			if l.kube, _, err = clients(flags); err != nil {
				return err
			}
			return poll(cmd.Context(), l.watch, sampleInterval, l.show)
		},
	}
	format.AddFlags(cmd)
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "do not print the table's headers")
	cmd.Flags().BoolVarP(&l.watch, "watch", "w", false, "print the counters that increase, by how much, every 15 seconds (drops)")
	return cmd
}

func (l *dropLister) show(ctx context.Context) error {
	statuses, problems, err := readStatuses(ctx, l.kube, l.nodes)
	if err != nil {
		return err
	}
	for _, st := range statuses {
		if st.Status.Error != "" && !st.Status.NoAgent {
			problems = append(problems, st.Name+": "+st.Status.Error)
		}
	}
	switch {
	case l.watch:
		err = l.printIncreases(statuses)
	case l.isTable():
		err = l.printTotals(statuses, len(problems) == 0)
	default:
		err = l.printObjects(statuses)
	}
	for _, p := range problems {
		fmt.Fprintln(l.ErrOut, strings.ReplaceAll(p, "\n", "; "))
	}
	if err == nil && len(problems) > 0 {
		err = errReported
	}
	return err
}

func (l *dropLister) printTotals(statuses []diagnostics.NodeStatus, isComplete bool) error {
	table := dropTable("Packets")
	eachDrop(statuses, func(d nodeDrop, packets uint64) {
		table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{d.node, d.table, d.reason, packets}})
	})
	if len(table.Rows) == 0 {
		if isComplete {
			fmt.Fprintln(l.ErrOut, "No dropped packets")
		}
		return nil
	}
	return l.printer.PrintObj(table, l.Out)
}

// printIncreases prints the counters that increased since the previous call, of nodes that answered then.
func (l *dropLister) printIncreases(statuses []diagnostics.NodeStatus) error {
	table, current, known := dropTable("Increase"), map[nodeDrop]uint64{}, map[string]bool{}
	for _, o := range statuses {
		known[o.Name] = o.Status.Error == ""
	}
	eachDrop(statuses, func(d nodeDrop, packets uint64) {
		current[d] = packets
		if before := l.previous[d]; l.known[d.node] && packets > before {
			table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{d.node, d.table, d.reason, packets - before}})
		}
	})
	l.previous, l.known = current, known
	if len(table.Rows) == 0 {
		return nil
	}
	return l.printer.PrintObj(table, l.Out)
}

func (l *dropLister) isTable() bool {
	_, is := l.printer.(*tablePrinter)
	return is
}

// nodeDrops are the counters of a node. No API serves it.
type nodeDrops struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Drops []diagnostics.NodeDrop `json:"drops"` // [] if the node has dropped nothing
}

// printObjects prints an object for each node that answered; no list if one node was given.
func (l *dropLister) printObjects(statuses []diagnostics.NodeStatus) error {
	var objects []nodeDrops
	for _, o := range statuses {
		if o.Status.Error == "" {
			objects = append(objects, nodeDrops{diagnosticsType("NodeDrops"), metav1.ObjectMeta{Name: o.Name}, append([]diagnostics.NodeDrop{}, o.Status.Drops...)})
		}
	}
	items, err := objectsOf(objects)
	if err != nil {
		return err
	}
	if len(l.nodes) == 1 {
		if len(items) == 0 {
			return nil // the problem is printed
		}
		return l.printer.PrintObj(&items[0], l.Out)
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}}, Items: items}
	return l.printer.PrintObj(list, l.Out)
}

func dropTable(count string) *metav1.Table {
	return &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Node", Type: "string"}, {Name: "Table", Type: "string"}, {Name: "Reason", Type: "string"}, {Name: count, Type: "string"},
	}}
}

func eachDrop(statuses []diagnostics.NodeStatus, each func(nodeDrop, uint64)) {
	for _, o := range statuses {
		for _, d := range o.Status.Drops {
			each(nodeDrop{o.Name, d.Table, d.Reason}, d.Packets)
		}
	}
}
