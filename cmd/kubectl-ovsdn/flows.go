package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// flowLister reads the flows of a node.
type flowLister struct {
	genericiooptions.IOStreams
	kube         kubernetes.Interface
	printer      printers.ResourcePrinter
	wide         bool
	noHeaders    bool
	node, object string
	diff, watch  bool
	table        string // number or name; "": all

	previous map[string]diagnostics.Flow // by table, priority and match
	read     time.Time                   // previous
}

func flowsCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	l := &flowLister{IOStreams: streams}
	cmd := &cobra.Command{
		Use:   "flows NODE [OBJECT]",
		Short: "Show the flows of a node, and how they differ from the desired ones",
		Long: "Show the flows of a node's bridge by table, with their counters, or those of one object. OBJECT is pod/NAMESPACE/NAME,\n" +
			"namespace/NAME, service/NAMESPACE/NAME, networkpolicy/NAMESPACE/NAME, clusternetworkpolicy/NAME,\n" +
			"egressnetworkpolicy/NAMESPACE/NAME or node/NAME.",
		Example: "  kubectl ovsdn flows node1\n  kubectl ovsdn flows node1 pod/default/web -o wide\n\n" +
			"  # flows that are missing, unexpected or different; the exit code is 1 if there are any\n  kubectl ovsdn flows node1 --diff\n\n" +
			"  # packets per second\n  kubectl ovsdn flows node1 --table=isolation --watch",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return completeNodes(flags)(cmd, args, begin)
			case 1:
				return completeObject(cmd.Context(), flags, begin, diagnostics.Kinds()...)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := l.parse(args); err != nil {
				return err
			}
			if l.printer, err = tableOrObjects(format, l.noHeaders); err != nil {
				return usageError{err}
			}
			l.wide = *format.OutputFormat == wide
			if _, isTable := l.printer.(*tablePrinter); l.watch && !isTable {
				return usagef("--watch prints tables only; leave out --output=%s", *format.OutputFormat)
			}
			if l.kube, _, err = clients(flags); err != nil {
				return err
			}
			return poll(cmd.Context(), l.watch, pollInterval, l.show)
		},
	}
	format.AddFlags(cmd)
	cmd.Flag("output").Usage = "Output format. One of: (" + strings.Join(append(format.AllowedFormats(), wide), ", ") + ")."
	cmd.Flags().BoolVar(&l.noHeaders, "no-headers", false, "do not print the table's headers")
	cmd.Flags().BoolVar(&l.diff, "diff", false, "print only flows that are missing, unexpected or different; the exit code is 1 if there are any")
	cmd.Flags().BoolVarP(&l.watch, "watch", "w", false, "print the rates per second of flows with traffic, every 2 seconds (flows)")
	cmd.Flags().StringVar(&l.table, "table", "", "show only flows of the `table`, by number or name")
	return cmd
}

func (l *flowLister) parse(args []string) error {
	switch {
	case len(args) == 0:
		return usagef("no node; add the name of a Node")
	case len(args) > 2:
		return usagef("specify one node and at most one object")
	case l.watch && l.diff:
		return usagef("--watch and --diff exclude each other")
	}
	l.node = args[0]
	if strings.Contains(l.node, "/") {
		return usagef("%q is not the name of a Node; write NODE [OBJECT]", l.node)
	}
	if len(args) == 2 {
		o, err := diagnostics.ParseObject(args[1])
		if err != nil {
			return usageError{err}
		}
		l.object = o.String()
	}
	return nil
}

func (l *flowLister) show(ctx context.Context) error {
	var answer diagnostics.NodeFlows
	parameters := map[string]string{}
	if l.object != "" {
		parameters[diagnostics.ObjectParameter] = l.object
	}
	if err := readDiagnostics(ctx, l.kube, &answer, parameters, "nodeflows", l.node); err != nil {
		return err
	}
	if answer.Truncated {
		fmt.Fprintf(l.ErrOut, "warning: the node has more than %d flows; some that are installed as desired are left out: ask for an object\n", diagnostics.MaxFlows)
	}
	answer.Flows = slices.DeleteFunc(answer.Flows, func(f diagnostics.Flow) bool {
		return l.diff && f.State == diagnostics.FlowInstalled || l.table != "" && l.table != f.TableName && l.table != strconv.Itoa(int(f.Table))
	})
	if l.watch {
		return l.showRates(answer.Flows, time.Now())
	}
	if err := l.print(&answer); err != nil {
		return err
	}
	if l.diff && len(answer.Flows) > 0 {
		return errReported
	}
	return nil
}

func (l *flowLister) print(answer *diagnostics.NodeFlows) error {
	if _, isTable := l.printer.(*tablePrinter); isTable {
		if len(answer.Flows) == 0 && !l.diff {
			fmt.Fprintln(l.ErrOut, "No resources found")
		}
		return l.printTables(answer.Flows)
	}
	answer.TypeMeta = metav1.TypeMeta{APIVersion: diagnostics.Group + "/" + diagnostics.Version, Kind: "NodeFlows"}
	items, err := objectsOf([]*diagnostics.NodeFlows{answer})
	if err != nil {
		return err
	}
	return l.printer.PrintObj(&items[0], l.Out)
}

// printTables prints the flows by table.
func (l *flowLister) printTables(flows []diagnostics.Flow) error {
	purposes := map[int]string{}
	for _, t := range pipeline.Tables() {
		purposes[t.Number] = t.Purpose
	}
	for i := 0; i < len(flows); {
		end := i
		for end < len(flows) && flows[end].Table == flows[i].Table {
			end++
		}
		if !l.noHeaders {
			if i > 0 {
				fmt.Fprintln(l.Out)
			}
			fmt.Fprintf(l.Out, "Table %d %s: %s\n", flows[i].Table, orNone(flows[i].TableName), orNone(purposes[int(flows[i].Table)]))
		}
		if err := l.printTable(flows[i:end]); err != nil {
			return err
		}
		i = end
	}
	return nil
}

func (l *flowLister) printTable(flows []diagnostics.Flow) error {
	w := printers.GetNewTabWriter(l.Out)
	header := []string{"PRIORITY", "PACKETS", "BYTES", "STATE", "MATCH", "ACTIONS"}
	if l.wide {
		header = append(header, "NAMES", "OWNERS", "COOKIE")
	}
	if !l.noHeaders {
		writeRow(w, header)
	}
	for _, f := range flows {
		row := []string{
			strconv.Itoa(int(f.Priority)), strconv.FormatUint(f.Packets, 10), strconv.FormatUint(f.Bytes, 10), string(f.State), orAny(f.Match), f.Actions,
		}
		if l.wide {
			names := pipeline.Explain(int(f.Table), f.Match, f.Actions)
			row = append(row, orNone(strings.Join(names, ", ")), orNone(strings.Join(f.Owners, ", ")), f.Cookie)
		}
		writeRow(w, row)
		if f.Desired != "" {
			fmt.Fprintf(w, "\t\t\tDesired\t\t%s\n", f.Desired)
		}
	}
	return w.Flush()
}

func writeRow(w io.Writer, cells []string) { fmt.Fprintln(w, strings.Join(cells, "\t")) }

func orAny(match string) string {
	if match == "" {
		return "<any>"
	}
	return match
}

// showRates prints the rates of flows with traffic since the previous call.
func (l *flowLister) showRates(flows []diagnostics.Flow, now time.Time) error {
	current := make(map[string]diagnostics.Flow, len(flows))
	type rate struct {
		diagnostics.Flow
		packets, bytes float64
	}
	var rates []rate
	seconds := now.Sub(l.read).Seconds()
	for _, f := range flows {
		key := fmt.Sprintf("%d %d %s", f.Table, f.Priority, f.Match)
		current[key] = f
		if before, known := l.previous[key]; known && f.Packets > before.Packets && f.Bytes >= before.Bytes {
			rates = append(rates, rate{f, float64(f.Packets-before.Packets) / seconds, float64(f.Bytes-before.Bytes) / seconds})
		}
	}
	isFirst := l.previous == nil
	l.previous, l.read = current, now
	if isFirst {
		return nil
	}
	w := printers.GetNewTabWriter(l.Out)
	if !l.noHeaders {
		writeRow(w, []string{"TABLE", "PRIORITY", "PACKETS/S", "BYTES/S", "MATCH"})
	}
	for _, r := range rates {
		writeRow(w, []string{r.TableName, strconv.Itoa(int(r.Priority)), fmt.Sprintf("%.1f", r.packets), fmt.Sprintf("%.0f", r.bytes), orAny(r.Match)})
	}
	return w.Flush()
}
