package diagnosticsserver

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// explain makes the steps of the trace, with the owners of the flows in the snapshot, and returns the flows that the agent did not install.
func (t *tracer) explain(ctx context.Context, snapshot *flowstore.Snapshot) (unexpected map[ovs.Key]bool, err error) {
	cookies := map[ovs.Key]uint64{}
	addCookies(cookies, t.trace)
	desired, err := snapshot.FlowsAt(ctx, cookies)
	if err != nil {
		return nil, err
	}
	return t.explainBy(byKey(desired)), nil
}

// addCookies adds the flows of a trace with their cookies.
func addCookies(to map[ovs.Key]uint64, trace *ovs.Trace) {
	for i := range trace.Passes {
		for _, f := range trace.Passes[i].Flows {
			if !f.NoMatch {
				to[f.Key] = f.Cookie
			}
		}
	}
}

func byKey(flows []flowstore.DesiredFlow) map[ovs.Key]*flowstore.DesiredFlow {
	all := make(map[ovs.Key]*flowstore.DesiredFlow, len(flows))
	for i := range flows {
		all[flows[i].Key] = &flows[i]
	}
	return all
}

// explainBy makes the steps of the trace, and returns the flows that are not desired.
func (t *tracer) explainBy(desired map[ovs.Key]*flowstore.DesiredFlow) (unexpected map[ovs.Key]bool) {
	unexpected = map[ovs.Key]bool{}
	t.steps = make([][]diagnostics.TraceStep, len(t.trace.Passes))
	for i := range t.trace.Passes {
		for j := range t.trace.Passes[i].Flows {
			f := &t.trace.Passes[i].Flows[j]
			step := t.step(f, desired[f.Key])
			if j == 0 && t.trace.Passes[i].Lookup != "" {
				step.Conntrack = t.request.packet.Conntrack
			}
			if step.Unexpected {
				unexpected[f.Key] = true
			}
			t.steps[i] = append(t.steps[i], step)
		}
	}
	return unexpected
}

// confirm clears Unexpected of steps whose flow was not unexpected in the previous trace.
func (t *tracer) confirm(previous map[ovs.Key]bool) {
	for i := range t.steps {
		for j := range t.steps[i] {
			step := &t.steps[i][j]
			step.Unexpected = step.Unexpected && previous[t.trace.Passes[i].Flows[j].Key]
		}
	}
}

func (t *tracer) step(f *ovs.TracedFlow, desired *flowstore.DesiredFlow) diagnostics.TraceStep {
	texts := make([]string, len(f.Actions))
	for i, a := range f.Actions {
		texts[i] = a.Text
	}
	step := diagnostics.TraceStep{
		Table: uint8(f.Key.Table), TableName: t.tables[f.Key.Table], Priority: uint16(f.Key.Priority), Match: f.Key.Match, //nolint:gosec // as parsed
		Actions: strings.Join(texts, ","),
	}
	if f.NoMatch {
		step.Actions = "no flow matches"
		return step
	}
	step.Cookie = fmt.Sprintf("%#x", f.Cookie)
	step.Names = pipeline.Explain(f.Key.Table, step.Match, step.Actions)
	switch {
	case desired != nil && desired.Cookie == f.Cookie:
		step.Objects = t.objectsOf(desired.Owners, step.Match, desired.Actions)
	case f.Key.Table != pipeline.AffinityTable: // whose flows the switch learns
		step.Unexpected = true
	}
	return step
}

// objectsOf returns the objects that a flow is made of. Static flows, which are made of the node, have none.
func (t *tracer) objectsOf(owners []pipeline.Owner, match, actions string) []diagnostics.TraceObject {
	var all []diagnostics.TraceObject
	add := func(kind diagnostics.Kind, name string) {
		all = append(all, diagnostics.TraceObject{Object: string(kind) + "/" + name})
	}
	for _, o := range owners[:min(len(owners), maxOwners)] {
		switch o.Kind {
		case pipeline.KindHostSubnet, pipeline.KindNodeAddresses:
			add(diagnostics.KindNode, o.Key)
		case pipeline.KindPod:
			if name, ok := strings.CutPrefix(t.names.pods[o], "pod "); ok {
				add(diagnostics.KindPod, name)
			}
		case pipeline.KindService:
			add(diagnostics.KindService, o.Key)
		case pipeline.KindEgressFirewall:
			for _, name := range t.EgressPolicies(o.Key) {
				add(diagnostics.KindEgressNetworkPolicy, o.Key+"/"+name)
			}
		case pipeline.KindPolicy:
			if t.Policies != nil {
				all = append(all, rulesOf(t.Policies.RuleNames(ruleIDs(match, actions)))...)
			}
		}
	}
	slices.SortFunc(all, func(a, b diagnostics.TraceObject) int {
		return strings.Compare(a.Object+" "+a.Rule, b.Object+" "+b.Rule)
	})
	all = slices.Compact(all)
	return all[:min(len(all), maxOwners)]
}

// rulesOf returns the rules with the names, such as default/web/ingress/0.
func rulesOf(names []string) []diagnostics.TraceObject {
	rules := make([]diagnostics.TraceObject, 0, len(names))
	for _, name := range names {
		parts := strings.Split(name, "/")
		at := len(parts) - 1
		for at > 0 && parts[at] != "ingress" && parts[at] != "egress" {
			at--
		}
		if at == 0 {
			at = len(parts)
		}
		o := policyObject(strings.Join(parts[:at], "/"))
		o.Rule = strings.Join(parts[at:], " ")
		rules = append(rules, o)
	}
	return rules
}

// policyObject returns the policy with the name: NAMESPACE/NAME, or NAME of a ClusterNetworkPolicy.
func policyObject(name string) diagnostics.TraceObject {
	kind := diagnostics.KindClusterNetworkPolicy
	if strings.Contains(name, "/") {
		kind = diagnostics.KindNetworkPolicy
	}
	return diagnostics.TraceObject{Object: string(kind) + "/" + name}
}
