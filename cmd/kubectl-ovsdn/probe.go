package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// probeSender requests one packet from a pod.
type probeSender struct {
	tracePrinter // its arguments and its client

	timeout time.Duration
}

func probeCommand(flags *genericclioptions.ConfigFlags, streams genericiooptions.IOStreams) *cobra.Command {
	format := genericclioptions.NewPrintFlags("")
	p := &probeSender{tracePrinter: tracePrinter{IOStreams: streams}}
	cmd := &cobra.Command{
		Use:   "probe SOURCE DESTINATION",
		Short: "Send a packet from a pod, and show whether it is answered",
		Long: "Send one packet from the network namespace of a pod: open and close a TCP connection, or send a UDP datagram of one byte or an ICMP echo request, which is\n" +
			"the default, except to services: their only TCP port. Nothing runs in the pod. SOURCE is pod/NAMESPACE/NAME, DESTINATION also service/NAMESPACE/NAME, node/NAME or an IPv4 address outside of the pod network. You need\n" +
			"the right to create probes.diagnostics.ovsdn.io in the namespaces of both. The exit code is 0 if the packet is answered, else 1. To see what drops it, use\n" +
			"kubectl ovsdn trace.",
		Example: "  kubectl ovsdn probe pod/shop/web pod/shop/db --tcp 5432\n  kubectl ovsdn probe pod/shop/web service/shop/db\n  kubectl ovsdn probe pod/shop/web node/node1",
		ValidArgsFunction: func(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
			switch len(args) {
			case 0:
				return completeObject(cmd.Context(), flags, begin, diagnostics.KindPod)
			case 1:
				return completeObject(cmd.Context(), flags, begin, diagnostics.KindPod, diagnostics.KindNode, diagnostics.KindService)
			}
			return nil, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := p.parse(cmd, flags, args); err != nil {
				return err
			}
			if p.printer, err = tableOrObjects(format, false); err != nil {
				return usageError{err}
			}
			if p.kube, _, err = clients(flags); err != nil {
				return err
			}
			return p.send(cmd.Context())
		},
	}
	format.AddFlags(cmd)
	cmd.Flags().Int32Var(&p.tcp, "tcp", 0, "TCP `port` of the destination, or of the service")
	cmd.Flags().Int32Var(&p.udp, "udp", 0, "UDP `port` of the destination, or of the service")
	cmd.Flags().BoolVar(&p.icmp, icmpFlag, false, icmpUsage)
	cmd.Flags().DurationVar(&p.timeout, "timeout", diagnostics.DefaultProbeSeconds*time.Second, fmt.Sprintf("`time` to wait for an answer, in seconds, at most %ds", diagnostics.MaxProbeSeconds))
	return cmd
}

func (p *probeSender) parse(cmd *cobra.Command, flags *genericclioptions.ConfigFlags, args []string) error {
	if len(args) > 0 && !strings.HasPrefix(args[0], string(diagnostics.KindPod)+"/") {
		return usagef("%q: a probe is sent from a pod, such as pod/NAMESPACE/NAME", args[0])
	}
	if p.timeout < time.Second || p.timeout > diagnostics.MaxProbeSeconds*time.Second || p.timeout%time.Second != 0 {
		return usagef("--timeout: %v must be whole seconds from 1s to %ds", p.timeout, diagnostics.MaxProbeSeconds)
	}
	return p.tracePrinter.parse(cmd, flags, args)
}

func (p *probeSender) send(ctx context.Context) error {
	answer := &diagnostics.Probe{TypeMeta: diagnosticsType("Probe"), Spec: diagnostics.ProbeSpec{
		Source: p.spec.Source, Destination: p.spec.Destination, Protocol: p.spec.Protocol, Port: p.spec.Port, TimeoutSeconds: int32(p.timeout / time.Second), //nolint:gosec // in the range
	}}
	if err := create(ctx, p.kube, p.namespace, "probes", answer, answer); err != nil {
		return err
	}
	var err error
	if _, isTable := p.printer.(*tablePrinter); isTable {
		_, err = fmt.Fprintf(p.Out, "%s: %s to %s, %s: %s\n", answer.Status.Verdict, answer.Spec.Source, answer.Spec.Destination, protocolText(answer.Spec.Protocol, answer.Spec.Port), answer.Status.Reason)
	} else {
		answer.TypeMeta = diagnosticsType("Probe")
		err = printOne(p.printer, p.Out, answer)
	}
	if err == nil && answer.Status.Verdict != diagnostics.VerdictAnswered {
		return errReported
	}
	return err
}

func diagnosticsType(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: diagnostics.Group + "/" + diagnostics.Version, Kind: kind}
}

// protocolText returns the protocol with the port, if it has one.
func protocolText(protocol string, port int32) string {
	if port == 0 {
		return protocol
	}
	return protocol + " port " + strconv.Itoa(int(port))
}
