package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// maxDifferences is the number of differences after which no further questions are asked.
const maxDifferences = 1000

// verifier requests a comparison of the objects with the flows.
type verifier struct {
	genericiooptions.IOStreams
	kube    kubernetes.Interface
	printer printers.ResourcePrinter
	wide    bool

	namespace string // "" is all
	sample    int32
	packets   bool
}

func verifyCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	v := &verifier{IOStreams: streams}
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Compare the connections between pods that policies allow with what the flows of all nodes do",
		Long: "Ask for each pair of pods, with each port in use and one other, whether NetworkPolicies, ClusterNetworkPolicies and VNIDs allow a connection, and what the\n" +
			"flows of the nodes do with its first packet. Differences are listed with the flow that decided. Without --packets no packet is sent. With it, a TCP connection or a\n" +
			"UDP datagram of one byte is also sent for each pair and port for which the trace agrees with the objects, allowed or denied: programs in pods receive them, and denied\n" +
			"packets are counted and logged. It also needs the right to create probes.diagnostics.ovsdn.io: at the cluster scope if you may create verifications there, else in the\n" +
			"namespace. Without --namespace all pods of the cluster are\n" +
			"compared, which needs the right to create verifications.diagnostics.ovsdn.io at the cluster scope. With it, the pairs with both pods in the namespace are, or, with\n" +
			"that right, with one of them. The exit code is 0 if all pairs were compared, without differences, changes and\n" +
			"unknown answers, else 1.",
		Example: "  kubectl ovsdn verify\n  kubectl ovsdn verify -n shop -o wide\n  kubectl ovsdn verify -n shop --packets\n\n  # some random connections of a large cluster\n  kubectl ovsdn verify --sample 2000",
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return usagef("unknown argument %q; choose pods by --namespace", args[0])
			}
			return nil
		},
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if v.sample < 0 || v.sample > diagnostics.MaxSample {
				return usagef("--sample: %d must be from 0 to %d", v.sample, diagnostics.MaxSample)
			}
			if v.printer, err = tableOrObjects(format, false); err != nil {
				return usageError{err}
			}
			v.namespace, v.wide = *flags.Namespace, *format.OutputFormat == wide
			if v.kube, _, err = clients(flags); err != nil {
				return err
			}
			return v.run(cmd.Context())
		},
	}
	format.AddFlags(cmd)
	cmd.Flag("output").Usage = "Output format. One of: (" + strings.Join(append(format.AllowedFormats(), wide), ", ") + ")."
	cmd.Flags().Int32Var(&v.sample, "sample", 0, fmt.Sprintf("`number` of questions that are drawn at random, at most %d; 0: all questions", diagnostics.MaxSample))
	cmd.Flags().BoolVar(&v.packets, "packets", false, "also send a TCP connection or UDP datagram for each pair and port from the source pod's network namespace; programs in pods receive it")
	return cmd
}

// run requests parts until none is left.
func (v *verifier) run(ctx context.Context) error {
	all := &diagnostics.Verification{}
	all.Spec.Sample, all.Spec.Packets = v.sample, v.packets
	for part := 0; part == 0 || all.Status.Continue != "" && len(all.Status.Differences) < maxDifferences; part++ {
		spec := all.Spec
		spec.Continue = all.Status.Continue
		o, err := v.create(ctx, spec)
		if err != nil {
			if part > 0 {
				_ = v.print(&all.Status) // what was found before
			}
			return err
		}
		if o.Status.Continue != "" && o.Status.Continue == all.Status.Continue {
			return fmt.Errorf("the controller repeats its answer after %s", o.Status.Continue)
		}
		all.ObjectMeta = o.ObjectMeta
		add(&all.Status, &o.Status)
	}
	slices.SortFunc(all.Status.Differences, func(a, b diagnostics.Difference) int { return diagnostics.CompareDifferences(&a, &b) })
	var err error
	if _, isTable := v.printer.(*tablePrinter); isTable {
		err = v.print(&all.Status)
	} else {
		all.TypeMeta = diagnosticsType("Verification")
		err = printOne(v.printer, v.Out, all)
	}
	if all.Status.Questions == 0 {
		fmt.Fprintln(v.ErrOut, "No pairs of pods to compare: check the namespace")
	}
	if s := &all.Status; err == nil && (len(s.Differences) > 0 || s.Unknown > 0 || s.Changed > 0 || s.Skipped > 0 || s.Questions == 0) {
		return errReported
	}
	return err
}

// create has the controller answer a request.
func (v *verifier) create(ctx context.Context, spec diagnostics.VerificationSpec) (*diagnostics.Verification, error) {
	answer := &diagnostics.Verification{}
	if err := create(ctx, v.kube, v.namespace, "verifications", &diagnostics.Verification{TypeMeta: diagnosticsType("Verification"), Spec: spec}, answer); err != nil {
		return nil, err
	}
	// A controller that does not know the field answers without it.
	if spec.Packets && !answer.Spec.Packets {
		return nil, errors.New("the controller does not support --packets; upgrade it")
	}
	return answer, nil
}

// add adds a part.
func add(all, part *diagnostics.VerificationStatus) {
	all.Pods, all.Continue = part.Pods, part.Continue
	all.Questions += part.Questions
	all.Unknown += part.Unknown
	all.Changed += part.Changed
	all.Skipped += part.Skipped
	all.Sent += part.Sent
	all.Unconfirmed += part.Unconfirmed
	all.Duration.Duration += part.Duration.Duration
	all.Differences = append(all.Differences, part.Differences...)
	for _, reason := range part.Unanswered {
		if !slices.Contains(all.Unanswered, reason) {
			all.Unanswered = append(all.Unanswered, reason)
		}
	}
}

// print prints the differences and a summary.
func (v *verifier) print(s *diagnostics.VerificationStatus) error {
	if len(s.Differences) > 0 {
		w := printers.GetNewTabWriter(v.Out)
		header := []string{"SOURCE", "DESTINATION", "PORT", "EXPECTED", "ACTUAL", "NODE", "FLOW", "OBJECTS"}
		if v.wide {
			header = append(header, "ACTIONS", "COOKIE", "EXPECTED-BY", "REASON")
		}
		writeRow(w, header)
		for i := range s.Differences {
			writeRow(w, v.row(&s.Differences[i]))
		}
		if err := w.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(v.Out)
	}
	fmt.Fprintf(v.Out, "Pods:        %d\nQuestions:   %d in %v\nDifferences: %d\n", s.Pods, s.Questions, s.Duration.Round(100*time.Millisecond), len(s.Differences))
	if v.packets {
		fmt.Fprintf(v.Out, "Packets:     %d sent; %d allowed UDP connections without an answer, not confirmed\n", s.Sent, s.Unconfirmed)
	}
	if s.Changed > 0 {
		fmt.Fprintf(v.Out, "Changed:     %d, not counted as differences: they did not differ the second time, or their objects changed\n", s.Changed)
	}
	if s.Skipped > 0 {
		fmt.Fprintf(v.Out, "Skipped:     %d of the sample, not asked in time: use a smaller --sample\n", s.Skipped)
	}
	if s.Unknown > 0 {
		fmt.Fprintf(v.Out, "Unknown:     %d, without an answer\n", s.Unknown)
	}
	for _, reason := range s.Unanswered {
		fmt.Fprintf(v.ErrOut, "Not answered: %s\n", reason)
	}
	if s.Continue != "" {
		fmt.Fprintf(v.ErrOut, "Stopped after %d differences: the other pairs were not compared; use --namespace for a part of them\n", len(s.Differences))
	}
	return nil
}

func (v *verifier) row(d *diagnostics.Difference) []string {
	flow, actions, cookie := "", "", ""
	if f := d.Flow; f != nil {
		flow, actions, cookie = f.TableName+" "+strconv.Itoa(int(f.Priority))+" "+matchOf(f), f.Actions, f.Cookie
		if f.Unexpected {
			flow += " (of another program)"
		}
	}
	var objects []string
	for _, o := range d.Objects {
		objects = append(objects, o.String())
	}
	actual := string(d.Actual)
	if d.ByPacket {
		actual += " (packet)"
	}
	row := []string{d.Source, d.Destination, d.Protocol + " " + strconv.Itoa(int(d.Port)), string(d.Expected), actual, d.Node, orNone(flow), orNone(strings.Join(objects, ", "))}
	if v.wide {
		row = append(row, orNone(actions), orNone(cookie), orNone(d.ExpectedReason), d.Reason)
	}
	return row
}
