package tracing

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// host is what users read in place of FromHost.
const host = "the host"

// shown returns the name of an object, or what the user may read of it.
func (t *Tracer) shown(ctx context.Context, object string) string {
	if object == diagnostics.FromHost {
		return object
	}
	o, err := diagnostics.ParseObject(object)
	switch {
	case err != nil:
		return "an object that is not shown"
	case o.Kind == diagnostics.KindNode || t.Sees(ctx, o):
		return o.String()
	}
	switch o.Kind {
	case diagnostics.KindNetworkPolicy, diagnostics.KindEgressNetworkPolicy:
		return "another tenant's policy"
	case diagnostics.KindClusterNetworkPolicy:
		return "a ClusterNetworkPolicy"
	case diagnostics.KindNamespace:
		return "another tenant's namespace"
	}
	return "another tenant's " + string(o.Kind)
}

// redact removes from an agent's answer what the user may not read: the names of other tenants' objects, the flows that are made of them, and a reason that
// may name them. Outputs are not changed: they are not part of a Trace.
func (t *Tracer) redact(ctx context.Context, answer *diagnostics.NodeTrace) {
	var isComplete bool
	answer.Objects, isComplete = t.shownObjects(ctx, answer.Objects)
	for i := range answer.Steps {
		step := &answer.Steps[i]
		objects, all := t.shownObjects(ctx, step.Objects)
		step.Objects, isComplete = objects, isComplete && all
		isUnknown := isPolicyTable(step.TableName) && len(objects) == 0 && step.Match != "" && !isOfNode(step) // of a rule whose policy the agent does not know
		isComplete = isComplete && !isUnknown
		if !all || isUnknown {
			step.Match, step.Actions, step.Cookie, step.Names = "", "", "", nil
		}
	}
	for _, out := range answer.Outputs {
		isComplete = isComplete && t.shown(ctx, out.To) == out.To
	}
	if !isComplete || !t.seesNames(ctx, answer.Reason) {
		answer.Reason = ""
	}
}

// RedactResult removes from the result of a batch what the user may not read, as from an agent's answer to a trace. It does not change the outputs.
func (t *Tracer) RedactResult(ctx context.Context, r *diagnostics.TraceResult) {
	answer := diagnostics.NodeTrace{Verdict: r.Verdict, Reason: r.Reason, Objects: r.Objects, Outputs: r.Outputs}
	if r.Flow != nil {
		answer.Steps = []diagnostics.TraceStep{*r.Flow}
	}
	t.redact(ctx, &answer)
	r.Reason, r.Objects = t.reasonOf(ctx, &answer), answer.Objects
	if r.Flow != nil {
		r.Flow = &answer.Steps[0]
	}
}

// Sentence returns the sentence of an agent if the user may read all names in it, or else the other one.
func (t *Tracer) Sentence(ctx context.Context, text, otherwise string) string {
	if t.seesNames(ctx, text) {
		return text
	}
	return otherwise
}

// seesNames reports whether the user may read all names in a sentence of an agent, such as networkpolicy/NAMESPACE/NAME and pod NAMESPACE/NAME.
func (t *Tracer) seesNames(ctx context.Context, text string) bool {
	words := strings.FieldsFunc(text, func(r rune) bool {
		return r != '/' && r != '-' && r != '.' && !unicode.IsLetter(r) && !unicode.IsDigit(r)
	})
	for _, word := range words {
		word = strings.Trim(word, ".-")
		if !strings.Contains(word, "/") {
			continue
		}
		if _, err := netip.ParsePrefix(word); err == nil {
			continue
		}
		o, err := diagnostics.ParseObject(word)
		if err != nil {
			o, err = diagnostics.ParseObject(podPrefix + word)
		}
		if err != nil || o.Kind != diagnostics.KindNode && !t.Sees(ctx, o) {
			return false
		}
	}
	return true
}

// shownObjects returns the objects as the user may read them, and whether that is all of them.
func (t *Tracer) shownObjects(ctx context.Context, objects []diagnostics.TraceObject) (shown []diagnostics.TraceObject, all bool) {
	all = true
	for _, o := range objects {
		if name := t.shown(ctx, o.Object); name != o.Object {
			all = false
			o = diagnostics.TraceObject{Object: name}
		}
		if !slices.Contains(shown, o) { // the number of another tenant's policies is not shown either
			shown = append(shown, o)
		}
	}
	return shown, all
}

// reasonOf returns the reason of a redacted answer.
func (t *Tracer) reasonOf(ctx context.Context, answer *diagnostics.NodeTrace) string {
	if answer.Reason != "" {
		return answer.Reason
	}
	if len(answer.Outputs) > 0 {
		return "sent to " + described(t.shown(ctx, answer.Outputs[0].To))
	}
	if answer.Verdict == diagnostics.VerdictUnknown {
		return "the agent does not know what decides"
	}
	where := "the bridge"
	if n := len(answer.Steps); n > 0 {
		where = fmt.Sprintf("table %s (%d)", answer.Steps[n-1].TableName, answer.Steps[n-1].Table)
	}
	if len(answer.Objects) == 0 {
		return where + " dropped it"
	}
	return fmt.Sprintf("%s dropped it: %s", where, list(answer.Objects))
}

func described(object string) string {
	if object == diagnostics.FromHost {
		return host
	}
	return object
}

// list returns the objects with their rules.
func list(objects []diagnostics.TraceObject) string {
	texts := make([]string, 0, len(objects))
	for _, o := range objects {
		texts = append(texts, o.String())
	}
	return strings.Join(texts, ", ")
}

// isPolicyTable reports whether flows of the table are made of policies.
func isPolicyTable(name string) bool {
	return slices.Contains([]string{"egress-policy", "ingress-policy", "egress-firewall"}, name)
}

// isOfNode reports whether the flow is one of the node's static flows, which are made of no object.
func isOfNode(step *diagnostics.TraceStep) bool {
	cookie, err := strconv.ParseUint(step.Cookie, 0, 64)
	return err == nil && pipeline.CookieKind(cookie) == pipeline.KindNode
}

// allowing returns the policies that allow the packet, by node.
func allowing(hops []diagnostics.Hop) string {
	var texts []string
	for _, hop := range hops {
		var policies []diagnostics.TraceObject
		for _, step := range hop.Steps {
			if !isPolicyTable(step.TableName) {
				continue
			}
			for _, o := range step.Objects {
				if !strings.HasPrefix(o.Object, podPrefix) && !strings.HasPrefix(o.Object, nodePrefix) && !slices.Contains(policies, o) {
					policies = append(policies, o)
				}
			}
		}
		if len(policies) > 0 {
			texts = append(texts, list(policies)+" on node "+hop.Node)
		}
	}
	return strings.Join(texts, ", ")
}

// printable quotes text with characters that a terminal could interpret.
func printable(text string) string {
	if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) || r == unicode.ReplacementChar }) {
		return strconv.Quote(text)
	}
	return text
}
