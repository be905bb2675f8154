package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"
	"k8s.io/client-go/kubernetes"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// tracePrinter requests the path of a packet.
type tracePrinter struct {
	genericiooptions.IOStreams
	kube    kubernetes.Interface
	printer printers.ResourcePrinter
	wide    bool

	namespace string
	spec      diagnostics.TraceSpec

	tcp, udp, sctp, sourcePort int32
	icmp                       bool
}

// icmpFlag is the flag of the protocol that packets have by default, except of those to services.
const (
	icmpFlag  = "icmp"
	icmpUsage = "an ICMP echo request, the default unless the destination is a service"
)

func traceCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	t := &tracePrinter{IOStreams: streams}
	cmd := &cobra.Command{
		Use:   "trace SOURCE DESTINATION",
		Short: "Show the path of a packet over the nodes, and what drops it",
		Long: "Show the path of the first packet of a connection over the nodes, and the policies that drop or allow it. No packet is sent.\n" +
			"SOURCE is pod/NAMESPACE/NAME, node/NAME or an IPv4 address outside of the pod network, DESTINATION also service/NAMESPACE/NAME. A name without a\n" +
			"namespace is in that of --namespace or the kubeconfig. Without a protocol the packet is an ICMP echo request, as of ping; to a service, its only TCP\n" +
			"port. You need the right to create traces.diagnostics.ovsdn.io in the namespaces of both. The exit code is 0 if the packet is delivered, else 1.",
		Example: "  kubectl ovsdn trace pod/shop/web pod/shop/db\n  kubectl ovsdn trace pod/shop/web pod/shop/db --tcp 5432\n" +
			"  kubectl ovsdn trace pod/shop/web service/shop/db\n\n" +
			"  # the flows that the packet matches\n  kubectl ovsdn trace pod/shop/web 203.0.113.5 --tcp 443 -o wide",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			kinds := []diagnostics.Kind{diagnostics.KindPod, diagnostics.KindNode}
			switch len(args) {
			case 0:
				return completeObject(cmd.Context(), flags, begin, kinds...)
			case 1:
				return completeObject(cmd.Context(), flags, begin, append(kinds, diagnostics.KindService)...)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := t.parse(cmd, flags, args); err != nil {
				return err
			}
			if t.printer, err = tableOrObjects(format, false); err != nil {
				return usageError{err}
			}
			t.wide = *format.OutputFormat == wide
			if t.kube, _, err = clients(flags); err != nil {
				return err
			}
			return t.show(cmd.Context())
		},
	}
	format.AddFlags(cmd)
	cmd.Flag("output").Usage = "Output format. One of: (" + strings.Join(append(format.AllowedFormats(), wide), ", ") + ")."
	cmd.Flags().Int32Var(&t.tcp, "tcp", 0, "TCP `port` of the destination, or of the service")
	cmd.Flags().Int32Var(&t.udp, "udp", 0, "UDP `port` of the destination, or of the service")
	cmd.Flags().Int32Var(&t.sctp, "sctp", 0, "SCTP `port` of the destination, or of the service")
	cmd.Flags().BoolVar(&t.icmp, icmpFlag, false, icmpUsage)
	cmd.Flags().Int32Var(&t.sourcePort, "source-port", 0, fmt.Sprintf("`port` of the source; by default %d", diagnostics.DefaultSourcePort))
	return cmd
}

func (t *tracePrinter) parse(cmd *cobra.Command, flags *genericclioptions.ConfigFlags, args []string) error {
	if len(args) != 2 {
		return usagef("specify a source and a destination, such as pod/NAMESPACE/NAME")
	}
	var protocols []string
	for _, name := range []string{"tcp", "udp", "sctp", icmpFlag} {
		if cmd.Flags().Changed(name) {
			protocols = append(protocols, name)
		}
	}
	isService := strings.HasPrefix(args[1], string(diagnostics.KindService)+"/")
	switch {
	case len(protocols) > 1:
		return usagef("--%s and --%s exclude each other", protocols[0], protocols[1])
	case len(protocols) == 0 && !isService && t.sourcePort != 0:
		return usagef("--source-port without a protocol that has ports; add a flag such as --tcp=PORT")
	case len(protocols) == 0 && !isService:
		t.spec.Protocol = strings.ToUpper(icmpFlag)
	case len(protocols) == 1:
		t.spec.Protocol = strings.ToUpper(protocols[0])
		t.spec.Port = t.tcp + t.udp + t.sctp // one of them
		if protocols[0] != icmpFlag && (t.spec.Port < 1 || t.spec.Port > 65535) {
			return usagef("--%s: %d is no port", protocols[0], t.spec.Port)
		}
	}
	t.spec.SourcePort = t.sourcePort
	var err error
	sourceNamespace, destinationNamespace := "", ""
	if t.spec.Source, sourceNamespace, err = qualify(flags, args[0], diagnostics.KindPod, diagnostics.KindNode); err != nil {
		return err
	}
	if t.spec.Destination, destinationNamespace, err = qualify(flags, args[1], diagnostics.KindPod, diagnostics.KindNode, diagnostics.KindService); err != nil {
		return err
	}
	if t.namespace = sourceNamespace; t.namespace == "" {
		t.namespace = destinationNamespace
	}
	if t.namespace == "" {
		return usagef("neither %s nor %s is a pod or a service", args[0], args[1])
	}
	return nil
}

// qualify returns the object with its namespace; that of the kubeconfig if it has none. Addresses are not changed: the API server validates them.
func qualify(flags *genericclioptions.ConfigFlags, text string, kinds ...diagnostics.Kind) (object, namespace string, err error) {
	kind, name, isObject := strings.Cut(text, "/")
	if !isObject {
		if strings.Trim(text, "0123456789.") != "" {
			return "", "", usagef("%q is neither an object such as pod/NAMESPACE/NAME nor an IPv4 address", text)
		}
		return text, "", nil
	}
	if !slices.Contains(kinds, diagnostics.Kind(kind)) {
		return "", "", usagef("%q: the kind is none of %s", text, strings.Trim(fmt.Sprint(kinds), "[]"))
	}
	if diagnostics.Kind(kind).IsNamespaced() && !strings.Contains(name, "/") {
		if namespace, _, err = flags.ToRawKubeConfigLoader().Namespace(); err != nil {
			return "", "", err
		}
		text = kind + "/" + namespace + "/" + name
	}
	o, err := diagnostics.ParseObject(text)
	if err != nil {
		return "", "", usageError{err}
	}
	return o.String(), o.Namespace, nil
}

func (t *tracePrinter) show(ctx context.Context) error {
	answer := &diagnostics.Trace{TypeMeta: diagnosticsType("Trace"), Spec: t.spec}
	err := create(ctx, t.kube, t.namespace, "traces", answer, answer)
	if err != nil {
		return err
	}
	if _, isTable := t.printer.(*tablePrinter); isTable {
		err = t.print(answer)
	} else {
		answer.TypeMeta = diagnosticsType("Trace")
		err = printOne(t.printer, t.Out, answer)
	}
	if err == nil && answer.Status.Verdict != diagnostics.VerdictDelivered {
		return errReported
	}
	return err
}

// create creates the object in the namespace, or at the cluster scope without one, and decodes the answer, which may be the same object.
func create(ctx context.Context, kube kubernetes.Interface, namespace, resource string, o, answer any) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	path := diagnosticsPath
	if namespace != "" {
		path += "/namespaces/" + namespace
	}
	path += "/" + resource
	result := kube.Discovery().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(body).Do(ctx)
	if err := result.Error(); err != nil {
		return explainAPIError(err)
	}
	raw, err := result.Raw()
	if err == nil {
		err = json.Unmarshal(raw, answer)
	}
	if err != nil {
		return fmt.Errorf("answer of %s: %w", path, err)
	}
	return nil
}

// printOne prints the object by -o.
func printOne[T any](printer printers.ResourcePrinter, w io.Writer, o T) error {
	items, err := objectsOf([]T{o})
	if err != nil {
		return err
	}
	return printer.PrintObj(&items[0], w)
}
