package main

import (
	"fmt"
	"net"
	"strconv"
	"strings"

	"k8s.io/cli-runtime/pkg/printers"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// print prints a sentence, and then each path with its hops.
func (t *tracePrinter) print(o *diagnostics.Trace) error {
	fmt.Fprintf(t.Out, "%s: %s to %s, %s: %s\n", o.Status.Verdict, o.Spec.Source, o.Spec.Destination, protocolText(o.Spec.Protocol, o.Spec.Port), withoutVerdict(o.Status.Verdict, o.Status.Reason))
	for i := range o.Status.Paths {
		p := &o.Status.Paths[i]
		if p.Endpoint != "" {
			fmt.Fprintf(t.Out, "\nEndpoint %s: %s: %s\n", p.Endpoint, p.Verdict, withoutVerdict(p.Verdict, p.Reason))
		}
		for _, text := range p.NotEvaluated {
			fmt.Fprintf(t.Out, "Not evaluated: %s\n", text)
		}
		if err := t.printHops(p); err != nil {
			return err
		}
	}
	return nil
}

// withoutVerdict returns the reason without the verdict, which is printed before it: "delivered to X" becomes "to X".
func withoutVerdict(v diagnostics.Verdict, reason string) string {
	return strings.Replace(reason, strings.ToLower(string(v))+" to ", "to ", 1)
}

// printHops prints the hops of a path. Those of a reply that is delivered are part of the wide output only.
func (t *tracePrinter) printHops(p *diagnostics.TracePath) error {
	for i := range p.Hops {
		hop := &p.Hops[i]
		direction := ""
		if hop.Packet.Conntrack == diagnostics.ConntrackReply {
			if direction = "reply "; !t.wide && p.Verdict == diagnostics.VerdictDelivered {
				continue
			}
		}
		fmt.Fprintf(t.Out, "\nNode %s, %sfrom %s, %s %s to %s\n", hop.Node, direction, hop.From, hop.Packet.Protocol,
			socket(hop.Packet.Source, hop.Packet.SourcePort), socket(hop.Packet.Destination, hop.Packet.DestinationPort))
		if err := t.printSteps(hop); err != nil {
			return err
		}
		fmt.Fprintf(t.Out, "%s: %s\n", hop.Verdict, hop.Reason)
	}
	return nil
}

func socket(addr string, port uint16) string {
	if port == 0 {
		return addr
	}
	return net.JoinHostPort(addr, strconv.Itoa(int(port)))
}

func (t *tracePrinter) printSteps(hop *diagnostics.Hop) error {
	if len(hop.Steps) == 0 {
		return nil
	}
	w := printers.GetNewTabWriter(t.Out)
	header := []string{"TABLE", "NAME", "RESULT"}
	if t.wide {
		header = []string{"TABLE", "NAME", "PRIORITY", "MATCH", "ACTIONS", "RESULT", "COOKIE"}
	}
	writeRow(w, header)
	for i := range hop.Steps {
		step := &hop.Steps[i]
		drops := i == len(hop.Steps)-1 && hop.Verdict == diagnostics.VerdictDropped
		row := []string{strconv.Itoa(int(step.Table)), orNone(step.TableName), resultOf(step, drops)}
		if t.wide {
			row = []string{row[0], row[1], strconv.Itoa(int(step.Priority)), matchOf(step), orNone(step.Actions), row[2], orNone(step.Cookie)}
		}
		writeRow(w, row)
	}
	return w.Flush()
}

// matchOf returns the match of a flow, unless the flow is another tenant's.
func matchOf(step *diagnostics.TraceStep) string {
	if step.Match == "" && step.Actions == "" {
		return orNone("")
	}
	return orAny(step.Match)
}

// resultOf returns what a flow did, in words.
func resultOf(step *diagnostics.TraceStep, drops bool) string {
	var parts []string
	if drops {
		parts = append(parts, "drops it")
	}
	if step.Unexpected {
		parts = append(parts, "a flow of another program")
	}
	if step.Conntrack != "" {
		parts = append(parts, "connection: "+string(step.Conntrack))
	}
	parts = append(parts, step.Names...)
	for _, o := range step.Objects {
		parts = append(parts, o.String())
	}
	return orNone(strings.Join(parts, ", "))
}
