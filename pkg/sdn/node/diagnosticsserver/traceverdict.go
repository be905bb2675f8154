package diagnosticsserver

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// place is a flow of the trace with its step.
type place struct {
	pass *ovs.TracePass
	flow *ovs.TracedFlow
	step *diagnostics.TraceStep
}

// table returns the name of the table for a sentence.
func (p place) table() string {
	if p.step.TableName == "" {
		return fmt.Sprintf("table %d", p.step.Table)
	}
	return fmt.Sprintf("table %s (%d)", p.step.TableName, p.step.Table)
}

// places returns all flows of a pass.
func (t *tracer) places(pass int) []place {
	all := make([]place, len(t.steps[pass]))
	for i := range all {
		all[i] = place{&t.trace.Passes[pass], &t.trace.Passes[pass].Flows[i], &t.steps[pass][i]}
	}
	return all
}

// conclude completes the answer by the trace.
func (t *tracer) conclude(answer *diagnostics.NodeTrace) {
	t.decide(answer)
	var omitted int
	if answer.Steps, omitted = t.allSteps(); omitted > 0 {
		answer.Reason += fmt.Sprintf("; %d steps are left out", omitted)
	}
}

func (t *tracer) decide(answer *diagnostics.NodeTrace) {
	unknown := func(format string, args ...any) {
		answer.Verdict, answer.Reason = diagnostics.VerdictUnknown, fmt.Sprintf(format, args...)
	}
	outputs, warning := t.outputs()
	last := t.trace.Passes[len(t.trace.Passes)-1]
	switch at, translated := t.translation(); {
	case t.unselected:
		unknown("the switch does not select endpoint %s for the packet: it is no endpoint that node %s uses, or the client's session affinity has another one", t.request.endpoint, t.node)
	case translated:
		unknown("%s translates the addresses by the conntrack entry, which a trace does not read", at.table())
	case last.Failure != "":
		answer.Verdict, answer.Reason = diagnostics.VerdictDropped, "Open vSwitch drops the packet: "+last.Failure
	case t.trace.Forks >= len(t.trace.Passes):
		unknown("the trace ends at a recirculation")
	case len(outputs) > 0:
		t.deliver(answer, outputs)
	case warning != "":
		answer.Verdict, answer.Reason = diagnostics.VerdictDropped, "Open vSwitch does not output the packet: "+warning
	default:
		t.drop(answer)
	}
}

// translation returns the flow after which the packet may have addresses of its connection's entry that the trace does not know. Those after table service-reply,
// which evaluates none, have no influence.
func (t *tracer) translation() (place, bool) {
	if t.request.lookup == ovs.LookupNew {
		return place{}, false
	}
	for i := range t.trace.Passes {
		for _, at := range t.places(i) {
			for _, a := range at.flow.Actions {
				if _, translates := a.Resumes(); translates && at.flow.Key.Table != pipeline.ServiceReplyTable {
					return at, true
				}
			}
		}
	}
	return place{}, false
}

// outputOf is an output of the packet.
type outputOf struct {
	place
	port int
}

// outputs returns the outputs of the packet, and the last warning about one that has no effect.
func (t *tracer) outputs() (all []outputOf, warning string) {
	for i := range t.trace.Passes {
		for _, at := range t.places(i) {
			for _, a := range at.flow.Actions {
				port, ok := a.Output(at.pass)
				if !ok {
					continue
				}
				if w := slices.DeleteFunc(slices.Clone(a.Warnings), func(w string) bool { return i > 0 && ovs.OnlyInTrace(w) }); len(w) > 0 && port != ovs.NoPort {
					warning = fmt.Sprintf("%s: %s", at.table(), strings.Join(w, "; "))
					continue
				}
				all = append(all, outputOf{at, port})
			}
		}
	}
	return all, warning
}

// drop explains which flow dropped the packet.
func (t *tracer) drop(answer *diagnostics.NodeTrace) {
	answer.Verdict = diagnostics.VerdictDropped
	places := t.places(len(t.trace.Passes) - 1)
	if len(places) == 0 {
		answer.Verdict, answer.Reason = diagnostics.VerdictUnknown, "the trace has no flows"
		return
	}
	at := places[len(places)-1]
	prefix := ""
	if at.flow.Key.Table == pipeline.EndpointVerdictTable {
		if i := slices.IndexFunc(places[:len(places)-1], deniesEndpoint); i >= 0 {
			at, prefix = places[i], "the pod may not reach an endpoint of the service that is outside of the pod network: "
		}
	}
	answer.Objects = at.step.Objects
	switch {
	case at.flow.NoMatch:
		answer.Reason = fmt.Sprintf("%s has no flow for the packet: flows are missing on the switch, see kubectl ovsdn flows %s --diff", at.table(), t.node)
	case at.step.Unexpected:
		answer.Reason = fmt.Sprintf("%s dropped it by a flow that another program added (priority %d, match %q): see kubectl ovsdn flows %s --diff", at.table(), at.step.Priority, at.step.Match, t.node)
	case slices.ContainsFunc(at.flow.Actions, ovs.TracedAction.HasNoBucket):
		answer.Reason = fmt.Sprintf("%s dropped it: the group of the service selects no endpoint", at.table())
	default:
		answer.Reason = fmt.Sprintf("%s dropped it: %s%s", at.table(), prefix, t.cause(at, answer))
	}
}

// deniesEndpoint reports whether the flow denied the packet with an endpoint as its destination. Those of further endpoints are not evaluated.
func deniesEndpoint(p place) bool {
	return p.flow.Key.Table != pipeline.EndpointTable && (isDrop(p.flow) || slices.ContainsFunc(p.flow.Actions, func(a ovs.TracedAction) bool {
		return strings.HasPrefix(a.Text, "controller")
	}))
}

func isDrop(f *ovs.TracedFlow) bool {
	return len(f.Actions) == 1 && pipeline.IsDrop(f.Actions[0].Text)
}

// cause explains the drop, and may replace the objects of the answer.
func (t *tracer) cause(at place, answer *diagnostics.NodeTrace) string {
	text := pipeline.ExplainDrop(at.flow.Key.Table, at.flow.Key.Priority)
	end := at.pass.End
	source, destination := end["nw_src"], end["nw_dst"]
	switch at.flow.Key.Table {
	case pipeline.EgressDeniedTable:
		return t.denied(answer, end, source, true)
	case pipeline.IngressDeniedTable:
		return t.denied(answer, end, destination, false)
	case pipeline.IsolationTable:
		return fmt.Sprintf("isolation: VNID %d%s may not reach VNID %d%s", number(end["reg0"]), t.ofPod(source), number(end["reg1"]), t.ofDestination(destination))
	case pipeline.TunnelIngressTable:
		return fmt.Sprintf("%s (%s through %s)", text, source, end["tun_src"])
	case pipeline.PodIngressTable:
		if pipeline.DropReason(at.flow.Key.Table, at.flow.Key.Priority) == pipeline.DropSpoofedSource {
			return fmt.Sprintf("%s: %s is no address of %s", text, source, t.request.from)
		}
	case pipeline.ServiceTable:
		return fmt.Sprintf("%s %s:%s (%s)", text, destination, end["tp_dst"], t.request.packet.Protocol)
	case pipeline.EgressFirewallTable:
		if t.isService(destination) { // its endpoints were evaluated
			return fmt.Sprintf("%s: %s", text, matched(at.flow.Key.Match))
		}
		return fmt.Sprintf("%s %s (%s)%s", text, destination, matched(at.flow.Key.Match), t.unresolved(at.step.Objects))
	case pipeline.EgressIPTable:
		if ip := number(end["reg11"]); ip != 0 && ip != pipeline.UnusableEgressIP {
			return fmt.Sprintf("%s: %s", text, addrOf(ip))
		}
	case pipeline.RouteTable, pipeline.LocalPodTable, pipeline.RemoteTable, pipeline.ServiceReturnTable:
		return fmt.Sprintf("%s (%s to %s)", text, source, destination)
	}
	return text
}

// unresolved returns the DNS names without an address of the EgressNetworkPolicies, for the end of a sentence: their Allow rules allow nothing, and their Deny rules
// deny all if they have never been resolved.
func (t *tracer) unresolved(policies []diagnostics.TraceObject) string {
	if len(policies) == 0 {
		return ""
	}
	o, err := diagnostics.ParseObject(policies[0].Object)
	if err != nil {
		return ""
	}
	names, more := t.UnresolvedNames(o.Namespace, maxOwners)
	if len(names) == 0 {
		return ""
	}
	if more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return "; DNS names of its rules without an address: " + strings.Join(names, ", ")
}

// matched returns the destination that a flow of the egress firewall matches.
func matched(match string) string {
	if _, to, ok := strings.Cut(match, "nw_dst="); ok {
		to, _, _ = strings.Cut(to, ",")
		return "the rule for " + to
	}
	return "the rule for all other destinations"
}

// denied explains a drop by policies of the pod with the address.
func (t *tracer) denied(answer *diagnostics.NodeTrace, end map[string]string, pod string, egress bool) string {
	direction := "ingress"
	if egress {
		direction = "egress"
	}
	if t.Policies == nil {
		return direction + " policies deny it"
	}
	if rule := number(end["reg5"]); rule != 0 {
		if answer.Objects = rulesOf(t.Policies.RuleNames([]uint32{rule})); len(answer.Objects) == 0 {
			return fmt.Sprintf("an %s rule that was removed in the meantime denied it; trace again", direction)
		}
		o := answer.Objects[0]
		return fmt.Sprintf("rule %s of %s denies it", o.Rule, o.Object)
	}
	answer.Objects = nil
	addr, err := netip.ParseAddr(pod)
	if err != nil {
		return direction + " policies deny it"
	}
	names, more := t.Policies.Isolators(addr, egress, maxOwners)
	for _, name := range names {
		answer.Objects = append(answer.Objects, policyObject(name))
	}
	by := make([]string, len(answer.Objects))
	for i, o := range answer.Objects {
		by[i] = o.Object
	}
	if more > 0 {
		by = append(by, fmt.Sprintf("%d more", more))
	}
	if len(by) == 0 {
		by = []string{"policies"}
	}
	return fmt.Sprintf("%s is isolated for %s by %s, and no rule allows the packet", t.nameOf(pod), direction, strings.Join(by, ", "))
}

// nameOf returns the name of the pod or node with the address, or the address.
func (t *tracer) nameOf(text string) string {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	for _, p := range t.pods {
		if slices.Contains(p.Addrs, addr) {
			return "pod " + p.Namespace + "/" + p.Name
		}
	}
	if t.Policies != nil {
		if namespace, name, ok := t.Policies.NameOf(addr); ok && namespace == "" {
			return "node " + name
		} else if ok {
			return "pod " + namespace + "/" + name
		}
	}
	return text
}

// ofPod returns the name of the pod or node with the address in parentheses.
func (t *tracer) ofPod(text string) string { return " (" + t.nameOf(text) + ")" }

// ofDestination returns the name of the destination in parentheses: that of a service, whose flow has loaded its VNID, or of a pod.
func (t *tracer) ofDestination(text string) string {
	for i := range t.trace.Passes {
		for _, at := range t.places(i) {
			if at.flow.Key.Table == pipeline.ServiceTable && len(at.step.Objects) > 0 && !t.inCluster(text) {
				return " (" + at.step.Objects[0].Object + ")"
			}
		}
	}
	return t.ofPod(text)
}

// inCluster reports whether the address is in the pod network.
func (t *tracer) inCluster(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && contains(t.Node.ClusterNetworks, addr)
}

// number returns the value of a register; 0 if it is not set.
func number(text string) uint32 {
	n, _ := strconv.ParseUint(text, 0, 32)
	return uint32(n)
}

// addrOf returns the IPv4 address that a register has.
func addrOf(n uint32) netip.Addr {
	return netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
}

// vnidOf returns the VNID of a tunnel.
func vnidOf(text string) uint32 { return number(text) & uint32(config.MaxVNID) }
