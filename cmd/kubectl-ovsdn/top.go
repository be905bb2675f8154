package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

// topLister prints the rates of the pods' traffic between two samples of their counters.
type topLister struct {
	genericiooptions.IOStreams
	kube      kubernetes.Interface
	printer   printers.ResourcePrinter
	by        trafficGroup
	namespace string // of pods; "": all
	node      string // "": all
	sortBy    string
	limit     int // 0: none
	interval  time.Duration

	previous map[podPort]podCounters // nil before the first sample
	unread   []string                // nodes that the previous sample lacks, with the reasons
}

// podPort identifies a port of a pod over samples.
type podPort struct {
	node, namespace, name string
	ofPort                int
}

// podCounters are those of a port in one sample.
type podCounters struct {
	age     time.Duration
	in, out diagnostics.Traffic
}

// minTopInterval bounds how often all agents are asked.
const minTopInterval = time.Second

func topCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top pods|namespaces|nodes",
		Short: "Show the pods, namespaces or nodes with most traffic",
		Long: "Show the rates of the traffic of pods, or their sums by namespace or node, in the order of traffic. The counters of the pods' ports are read\n" +
			"twice. A pod that was added in the meantime, or whose counters went backwards, is left out.",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown argument %q; write pods, namespaces or nodes", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	for _, by := range []trafficGroup{byPod, byNamespace, byNode} {
		cmd.AddCommand(topByCommand(flags, streams, by))
	}
	return cmd
}

func topByCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams, by trafficGroup) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	l := &topLister{IOStreams: streams, by: by}
	var allNamespaces, noHeaders, watch bool
	cmd := &cobra.Command{
		Use:     string(by),
		Short:   "Show the " + string(by) + " with most traffic of pods",
		Example: "  kubectl ovsdn top " + string(by) + "\n\n  # all, by packets per second\n  kubectl ovsdn top " + string(by) + " --limit=0 --sort-by=packets",
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := l.validate(args); err != nil {
				return err
			}
			if l.printer, err = tableOrObjects(format, noHeaders); err != nil {
				return usageError{err}
			}
			if by == byPod && !allNamespaces {
				if l.namespace, _, err = flags.ToRawKubeConfigLoader().Namespace(); err != nil {
					return err
				}
			}
			if l.kube, _, err = clients(flags); err != nil {
				return err
			}
			return poll(cmd.Context(), watch, l.interval, l.show)
		},
	}
	format.AddFlags(cmd)
	cmd.Flag("output").Usage = "Output format. One of: (" + strings.Join(append(format.AllowedFormats(), wide), ", ") + ")."
	if by == byPod {
		cmd.Flags().BoolVarP(&allNamespaces, "all-namespaces", "A", false, "show the pods of all namespaces")
	}
	if by != byNode {
		cmd.Flags().StringVar(&l.node, "node", "", "show only pods of this `node`")
		_ = cmd.RegisterFlagCompletionFunc("node", completeNodes(flags)) // fails for unknown flags only
	}
	cmd.Flags().StringVar(&l.sortBy, "sort-by", sortByBytes, "`order`: "+strings.Join(trafficOrders(), ", "))
	cmd.Flags().IntVar(&l.limit, "limit", 20, "print at most this `number` of rows; 0: all")
	cmd.Flags().DurationVar(&l.interval, "interval", pollInterval, "`time` between the two samples, at least 1s")
	cmd.Flags().BoolVar(&noHeaders, "no-headers", false, "do not print the table's headers")
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "print the rates again after each interval")
	return cmd
}

func (l *topLister) validate(args []string) error {
	switch {
	case len(args) > 0:
		return usagef("unknown argument %q", args[0])
	case !slices.Contains(trafficOrders(), l.sortBy):
		return usagef("--sort-by=%s: write one of %s", l.sortBy, strings.Join(trafficOrders(), ", "))
	case l.limit < 0:
		return usagef("--limit=%d is negative", l.limit)
	case l.interval < minTopInterval:
		return usagef("--interval=%v is shorter than %v", l.interval, minTopInterval)
	}
	return nil
}

// show prints the rates since the previous sample, before which it reads one if there is none.
func (l *topLister) show(ctx context.Context) error {
	if l.previous == nil {
		var err error
		if _, l.unread, err = l.sample(ctx); err != nil {
			return err
		}
		if !pause.For(ctx, l.interval) {
			return ctx.Err()
		}
	}
	rates, problems, err := l.sample(ctx)
	if err != nil {
		return err
	}
	// A node that has answered once has no rates.
	problems, l.unread = uniqueSorted(append(l.unread, problems...)), problems
	if err := l.print(rates); err != nil {
		return err
	}
	for _, p := range problems {
		fmt.Fprintln(l.ErrOut, strings.ReplaceAll(p, "\n", "; "))
	}
	if len(problems) > 0 {
		return errReported
	}
	return nil
}

func uniqueSorted(texts []string) []string {
	slices.Sort(texts)
	return slices.Compact(texts)
}

// sample reads the counters, and returns the rates since the previous sample, and the nodes that can't be read.
func (l *topLister) sample(ctx context.Context) (rates []*trafficRate, problems []string, err error) {
	current, sums := map[podPort]podCounters{}, trafficSums{}
	problems, err = l.read(ctx, func(node string, p *diagnostics.PodTraffic) {
		port, now := podPort{node, p.Namespace, p.Name, p.OFPort}, podCounters{p.Age.Duration, p.In, p.Out}
		current[port] = now
		if before, known := l.previous[port]; known {
			sums.add(l.by, port, before, now)
		}
	})
	if err != nil {
		return nil, nil, err
	}
	l.previous = current
	return sums.sorted(l.sortBy, l.limit), problems, nil
}

// read calls each for the chosen pods. It retains one page of nodes at a time.
func (l *topLister) read(ctx context.Context, each func(node string, p *diagnostics.PodTraffic)) (problems []string, err error) {
	eachOf := func(o *diagnostics.NodeTraffic) {
		if o.Error != "" && !o.NoAgent {
			problems = append(problems, o.Name+": "+o.Error)
		}
		if o.Truncated {
			problems = append(problems, fmt.Sprintf("%s: has more than %d ports of pods; those beyond are left out", o.Name, diagnostics.MaxTrafficPods))
		}
		for i := range o.Pods {
			if l.namespace == "" || l.namespace == o.Pods[i].Namespace {
				each(o.Name, &o.Pods[i])
			}
		}
	}
	if l.node != "" {
		var one diagnostics.NodeTraffic
		if err := readDiagnostics(ctx, l.kube, &one, nil, "nodetraffics", l.node); err != nil {
			return nil, err
		}
		eachOf(&one)
		return problems, nil
	}
	parameters := map[string]string{"limit": "100"}
	for {
		var list diagnostics.NodeTrafficList
		if err := readDiagnostics(ctx, l.kube, &list, parameters, "nodetraffics"); err != nil {
			return nil, err
		}
		for i := range list.Items {
			eachOf(&list.Items[i])
		}
		if list.Continue == "" {
			return problems, nil
		}
		parameters["continue"] = list.Continue
	}
}
