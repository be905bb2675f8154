package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// pollInterval is that of --watch, except of counters that agents sample.
const pollInterval = 2 * time.Second

// statusLister reads the statuses of nodes.
type statusLister struct {
	genericiooptions.IOStreams
	kube    kubernetes.Interface
	network networkclient.Interface
	printer printers.ResourcePrinter
	nodes   []string       // empty: all
	first   *clusterStatus // what is read once; nil: it was not
}

func statusCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	var noHeaders, watch bool
	cmd := &cobra.Command{
		Use:   "status [NODE...]",
		Short: "Show the state of the nodes' pod networks",
		Long: "Show the state of the pod network of all nodes, or of these, as their agents report it. The exit code is 0 if all are ready and\n" +
			"without problems, else 1. Warnings, which are Events of the last hour, do not change it.",
		Example:           "  kubectl ovsdn status\n  kubectl ovsdn status node1 -o wide",
		ValidArgsFunction: completeNodes(flags),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			s := &statusLister{IOStreams: streams, nodes: args}
			if s.printer, err = tableOrObjects(format, noHeaders); err != nil {
				return usageError{err}
			}
			if s.kube, s.network, err = clients(flags); err != nil {
				return err
			}
			return poll(cmd.Context(), watch, pollInterval, s.show)
		},
	}
	format.AddFlags(cmd)
	cmd.Flag("output").Usage = "Output format. One of: (" + strings.Join(append(format.AllowedFormats(), wide), ", ") + ")."
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "do not print the table's headers")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print the state again every 2 seconds (status)")
	return cmd
}

// poll calls show once, or with watch in the interval until the context ends.
func poll(ctx context.Context, watch bool, interval time.Duration, show func(context.Context) error) error {
	err := show(ctx)
	if !watch {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for err == nil || errors.Is(err, errReported) {
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
			err = show(ctx)
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func (s *statusLister) show(ctx context.Context) error {
	statuses, problems, err := readStatuses(ctx, s.kube, s.nodes)
	if err != nil {
		return err
	}
	for _, st := range statuses {
		problems = append(problems, problemsOf(st)...)
	}
	problems = append(problems, peerProblems(statuses)...)
	cluster, err := s.readCluster(ctx, statuses)
	if err != nil {
		return err
	}
	problems = append(problems, cluster.problems...)
	_, isTable := s.printer.(*tablePrinter)
	if err := s.print(statuses, cluster.counts, isTable); err != nil {
		return err
	}
	out := s.ErrOut
	if isTable {
		out = s.Out
		printNodes(out, statuses)
		cluster.print(out)
	}
	for _, p := range problems {
		fmt.Fprintln(out, p)
	}
	if isTable {
		cluster.printWarnings(out)
	}
	if len(problems) > 0 || len(statuses) == 0 {
		return errReported
	}
	return nil
}

// readStatuses returns the statuses, and problems with nodes that can't be read. Without names it reads all. The error is that of all.
func readStatuses(ctx context.Context, kube kubernetes.Interface, nodes []string) (statuses []diagnostics.NodeStatus, problems []string, err error) {
	if len(nodes) == 0 {
		parameters := map[string]string{"limit": "500"}
		for {
			var list diagnostics.NodeStatusList
			if err := readDiagnostics(ctx, kube, &list, parameters, "nodestatuses"); err != nil {
				return nil, nil, err
			}
			statuses = append(statuses, list.Items...)
			if list.Continue == "" {
				return statuses, nil, nil
			}
			parameters["continue"] = list.Continue
		}
	}
	for _, node := range nodes {
		var one diagnostics.NodeStatus
		if err := readDiagnostics(ctx, kube, &one, nil, "nodestatuses", node); err != nil {
			problems = append(problems, fmt.Sprintf("%s: %v", node, err))
			continue
		}
		statuses = append(statuses, one)
	}
	return statuses, problems, nil
}

// print prints the statuses; as a list of objects also the counts of the cluster.
func (s *statusLister) print(statuses []diagnostics.NodeStatus, counts map[string]any, isTable bool) error {
	switch {
	case len(statuses) == 0:
		fmt.Fprintln(s.ErrOut, "No resources found")
		return nil
	case isTable:
		return s.printer.PrintObj(statusTable(statuses), s.Out)
	}
	for i := range statuses {
		statuses[i].TypeMeta = metav1.TypeMeta{APIVersion: diagnostics.Group + "/" + diagnostics.Version, Kind: "NodeStatus"}
	}
	items, err := objectsOf(statuses)
	if err != nil {
		return err
	}
	if len(s.nodes) == 1 {
		return s.printer.PrintObj(&items[0], s.Out)
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "cluster": counts}, Items: items}
	return s.printer.PrintObj(list, s.Out)
}

func statusTable(statuses []diagnostics.NodeStatus) *metav1.Table {
	const onlyWide = 1 // the priority of a column
	table := &metav1.Table{ColumnDefinitions: []metav1.TableColumnDefinition{
		{Name: "Node", Type: "string"}, {Name: "Ready", Type: "string"}, {Name: "Host-IP", Type: "string"}, {Name: "Subnet", Type: "string"},
		{Name: "Pods", Type: "string"}, {Name: "Free", Type: "string"}, {Name: "Flows", Type: "string"}, {Name: "Drift", Type: "string"}, {Name: "Version", Type: "string"},
		{Name: "Mode", Type: "string", Priority: onlyWide}, {Name: "Datapath", Type: "string", Priority: onlyWide}, {Name: "OVS", Type: "string", Priority: onlyWide},
		{Name: "Last Audit", Type: "string", Priority: onlyWide}, {Name: "Peers", Type: "string", Priority: onlyWide},
	}}
	for _, o := range statuses {
		st := o.Status
		ready := "False"
		switch {
		case st.NoAgent:
			ready = "NoAgent"
		case st.Error != "":
			ready = "Unknown"
		case st.Ready:
			ready = "True"
		}
		number := func(n int64) string {
			if st.Error != "" {
				return "<unknown>"
			}
			return fmt.Sprint(n)
		}
		audit := ""
		if st.LastAudit != nil {
			audit = st.LastAudit.UTC().Format(time.RFC3339)
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: []any{
			o.Name, ready, orNone(st.HostIP), orNone(st.Subnet), number(int64(st.Pods)), number(int64(st.Free)), number(int64(st.Flows)), number(st.Drift),
			orNone(st.AgentVersion), orNone(st.Mode), orNone(st.Datapath), orNone(st.OVSVersion), orNone(audit), fmt.Sprintf("%d/%d", st.AnsweringPeers, st.Peers),
		}})
	}
	return table
}

// problemsOf returns the problems of a node, each in a line.
func problemsOf(o diagnostics.NodeStatus) (lines []string) {
	add := func(text string) {
		lines = append(lines, o.Name+": "+strings.ReplaceAll(text, "\n", "; "))
	}
	st := o.Status
	if st.NoAgent {
		return nil
	}
	if st.Error != "" {
		add(st.Error)
		return lines
	}
	if st.SwitchError != "" { // first: other parts of NotReady may follow from it
		add(st.SwitchError)
	}
	if rest := withoutLine(st.NotReady, st.SwitchError); !st.Ready && (rest != "" || st.SwitchError == "") {
		add("not ready: " + orNone(rest))
	}
	for _, refused := range st.RefusedFlows {
		add("the switch refuses flows: " + refused)
	}
	if st.Addresses > 0 && st.Free == 0 {
		add("no address of the subnet is free: new pods do not start")
	}
	return lines
}

// withoutLine returns the other lines of a text.
func withoutLine(text, line string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(l string) bool { return l == line }), "\n")
}

// peerProblems returns a line for each node that others do not reach, and each problem: if it is down, all others report it. Problems of paths from or to a
// node whose own agent reports that Open vSwitch does not answer are left out: that is their cause.
func peerProblems(statuses []diagnostics.NodeStatus) (lines []string) {
	const most = 3 // names in a line
	reporters := map[diagnostics.PeerProblem][]string{}
	failed := map[string]bool{}
	for _, o := range statuses {
		failed[o.Name] = o.Status.SwitchError != ""
	}
	for _, o := range statuses {
		for _, p := range o.Status.PeerProblems {
			if !failed[o.Name] && !failed[p.Node] {
				reporters[p] = append(reporters[p], o.Name)
			}
		}
	}
	for p, names := range reporters {
		from := strings.Join(names[:min(most, len(names))], ", ")
		if more := len(names) - most; more > 0 {
			from += fmt.Sprintf(" and %d more", more)
		}
		lines = append(lines, fmt.Sprintf("%s: from %s: %s", p.Node, from, strings.ReplaceAll(p.Problem, "\n", "; ")))
	}
	slices.Sort(lines)
	return lines
}
