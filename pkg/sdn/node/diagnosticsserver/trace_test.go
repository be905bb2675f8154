package diagnosticsserver

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// traceCase is a packet, and the expected answer.
type traceCase struct {
	packet  string // without protocol and port
	verdict diagnostics.Verdict
	reason  string
	outputs string // as JSON without the packet's protocol and ports, separated by spaces
	objects string
}

func (tc traceCase) check(t *testing.T, n *traceNode, name string) {
	t.Helper()
	packet := tc.packet
	if !strings.Contains(packet, "protocol=") {
		packet += " protocol=TCP"
	}
	if !strings.Contains(packet, "destinationPort=") && !strings.Contains(packet, "ICMP") {
		packet += " destinationPort=80"
	}
	got := n.traced(t, packet)
	var objects, outputs []string
	for _, o := range got.Objects {
		objects = append(objects, strings.TrimSpace(o.Object+" "+o.Rule))
	}
	for _, o := range got.Outputs {
		text := o.To + " " + o.Packet.Source + ">" + o.Packet.Destination
		if o.HostIP != "" {
			text += " via " + o.HostIP + " VNID " + config.VNID(o.VNID).String() + " from " + o.Packet.From
		}
		if o.Packet.EgressIP != "" {
			text += " egress IP " + o.Packet.EgressIP
		}
		outputs = append(outputs, text)
	}
	if got.Verdict != tc.verdict || !strings.Contains(got.Reason, tc.reason) || strings.Join(outputs, "; ") != tc.outputs || strings.Join(objects, ", ") != tc.objects {
		t.Errorf("%s: got %s: %s\noutputs %s\nobjects %s\nwant %s: %s\noutputs %s\nobjects %s", name,
			got.Verdict, got.Reason, strings.Join(outputs, "; "), strings.Join(objects, ", "), tc.verdict, tc.reason, tc.outputs, tc.objects)
		if text, err := json.MarshalIndent(got.Steps, "", " "); err == nil && testing.Verbose() {
			t.Log(string(text))
		}
	}
	for _, step := range got.Steps {
		if step.Unexpected {
			t.Errorf("%s: step %+v is unexpected", name, step)
		}
	}
}

const (
	delivered = diagnostics.VerdictDelivered
	dropped   = diagnostics.VerdictDropped
	forwarded = diagnostics.VerdictForwarded
	unknown   = diagnostics.VerdictUnknown
)

func TestTrace(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeMultitenant, false)
	for name, tc := range map[string]traceCase{
		"a pod here": {"from=pod/default/web destination=10.128.0.4", delivered, "pod default/db receives it at 10.128.0.4:80",
			"pod/default/db 10.128.0.3>10.128.0.4", ""},
		"a pod here, ICMP": {"from=pod/default/web destination=10.128.0.4 protocol=ICMP", delivered, "pod default/db receives it at 10.128.0.4", "pod/default/db 10.128.0.3>10.128.0.4", ""},
		"a reply": {"from=pod/default/db destination=10.128.0.3 conntrack=reply", delivered, "if the connection goes through the service proxy of the host",
			"pod/default/web 10.128.0.4>10.128.0.3", ""},
		"another VNID": {"from=pod/default/web destination=10.128.0.6", dropped,
			"table isolation (80) dropped it: isolation: VNID 17 (pod default/web) may not reach VNID 23 (pod shop/cart)", "", ""},
		"another VNID's service": {"from=pod/shop/cart destination=172.30.0.10", dropped,
			"isolation: VNID 23 (pod shop/cart) may not reach VNID 17 (service/default/web)", "", ""},
		"a service": {"from=pod/default/web destination=172.30.0.10", forwarded, "to the host, whose service proxy selects an endpoint",
			"host 10.128.0.3>172.30.0.10", "service/default/web"},
		"a service with a denied endpoint": {"from=pod/shop/out destination=172.30.0.10 destinationPort=443", dropped,
			"table egress-denied (29) dropped it: the pod may not reach an endpoint of the service that is outside of the pod network: pod shop/out is isolated for egress by networkpolicy/shop/closed",
			"", "networkpolicy/shop/closed"},
		"a service with allowed endpoints": {"from=pod/default/web destination=172.30.0.10 destinationPort=443", forwarded, "to the host, whose service proxy selects an endpoint",
			"host 10.128.0.3>172.30.0.10", "service/default/web"},
		"a service with many endpoints": {"from=pod/default/web destination=172.30.0.10 destinationPort=8443", forwarded, "steps are left out", "host 10.128.0.3>172.30.0.10", "service/default/web"},
		"no port of the service": {"from=pod/default/web destination=172.30.0.10 destinationPort=81", dropped,
			"table service (60) dropped it: no service that the VNID of the source may use has the address and port 172.30.0.10:81 (TCP)", "", ""},
		"the proxy sends it on":    {"from=host source=10.128.0.3 destination=10.128.0.4", delivered, "pod default/db", "pod/default/db 10.128.0.3>10.128.0.4", ""},
		"the node itself":          {"from=host destination=10.128.0.4", delivered, "pod default/db", "pod/default/db 10.128.0.1>10.128.0.4", ""},
		"the node itself to there": {"from=host destination=10.129.0.9", forwarded, "node/node2", "node/node2 10.128.0.1>10.129.0.9 via 192.0.2.2 VNID 0 from node/node1", ""},
		"isolated by policies": {"from=node/node2 vnid=17 source=10.129.0.8 destination=10.128.0.4", dropped,
			"table ingress-denied (83) dropped it: pod default/db is isolated for ingress by networkpolicy/default/allow, networkpolicy/default/deny, 3 more, and no rule allows the packet",
			"", "networkpolicy/default/allow, networkpolicy/default/deny"},
		"denied by a rule": {"from=node/node2 vnid=17 source=10.129.0.9 destination=10.128.0.4", dropped,
			"table ingress-denied (83) dropped it: rule ingress 2 of clusternetworkpolicy/baseline denies it", "", "clusternetworkpolicy/baseline ingress 2"},
		"isolated for egress": {"from=pod/shop/out destination=10.128.0.6", dropped,
			"table egress-denied (29) dropped it: pod shop/out is isolated for egress by networkpolicy/shop/closed, and no rule allows the packet", "", "networkpolicy/shop/closed"},
		"there":           {"from=pod/default/web destination=10.129.0.9", forwarded, "node/node2 (192.0.2.2) with VNID 17", "node/node2 10.128.0.3>10.129.0.9 via 192.0.2.2 VNID 17 from node/node1", ""},
		"there, tracked":  {"from=pod/default/db destination=10.129.0.9", forwarded, "node/node2 (192.0.2.2) with VNID 17", "node/node2 10.128.0.4>10.129.0.9 via 192.0.2.2 VNID 17 from node/node1", ""},
		"from there":      {"from=node/node2 vnid=17 source=10.129.0.9 destination=10.128.0.3", delivered, "pod default/web", "pod/default/web 10.129.0.9>10.128.0.3", ""},
		"node from there": {"from=node/node2 source=192.0.2.2 destination=10.128.0.3", delivered, "pod default/web", "pod/default/web 192.0.2.2>10.128.0.3", ""},
		"spoofed from there": {"from=node/node2 vnid=17 source=10.128.0.3 destination=10.128.0.4", dropped,
			"table tunnel-ingress (10) dropped it: spoofed source: it is in no subnet of the node that sent the packet through the tunnel (10.128.0.3 through 192.0.2.2)", "", "node/node2"},
		"spoofed": {"from=pod/default/web source=10.128.0.4 destination=10.128.0.6", dropped,
			"table pod-ingress (20) dropped it: spoofed source: the MAC or the address is not the pod's: 10.128.0.4 is no address of pod/default/web", "", ""},
		"VXLAN": {"from=pod/default/web protocol=UDP destinationPort=4789 destination=192.0.2.2", dropped, "pods may not send VXLAN", "", ""},
		"no route there": {"from=pod/default/web destination=10.131.0.9", dropped,
			"table remote (90) dropped it: no HostSubnet has a subnet with the destination, or its fixed VNID is another one (10.128.0.3 to 10.131.0.9)", "", ""},
		"no pod here": {"from=pod/default/web destination=10.128.0.99", dropped, "table local-pod (70) dropped it: no pod of this node has the destination", "", ""},
		"outside":     {"from=pod/default/web destination=203.0.113.5", forwarded, "which routes it to 203.0.113.5 outside of the pod network", "host 10.128.0.3>203.0.113.5", ""},
		"egress firewall": {"from=pod/shop/cart destination=203.0.113.5", dropped,
			"table egress-firewall (100) dropped it: egress firewall: an EgressNetworkPolicy of the namespace denies the destination 203.0.113.5 (the rule for 203.0.113.0/24)", "", "egressnetworkpolicy/shop/limits"},
		"egress firewall of an endpoint": {"from=pod/shop/cart destination=172.30.0.20", dropped,
			"table egress-firewall (100) dropped it: the pod may not reach an endpoint of the service that is outside of the pod network: " +
				"egress firewall: an EgressNetworkPolicy of the namespace denies the destination: the rule for 203.0.113.0/24", "", "egressnetworkpolicy/shop/limits"},
		"egress firewall allows": {"from=pod/shop/cart destination=203.0.114.5", forwarded, "outside of the pod network", "host 10.128.0.6>203.0.114.5", ""},
		"egress IP here":         {"from=pod/eip/here destination=203.0.113.5", forwarded, "with the egress IP 198.51.100.7", "host 198.51.100.7>203.0.113.5", ""},
		"egress IP there": {"from=pod/eip/there destination=203.0.113.5", forwarded, "which hosts the egress IP 198.51.100.8",
			"node/node2 10.128.0.8>203.0.113.5 via 192.0.2.2 VNID 24 from node/node1 egress IP 198.51.100.8", ""},
		"egress IP without a node": {"from=pod/eip/nowhere destination=203.0.113.5", dropped, "table egress-ip (101) dropped it: no node hosts the egress IP of the namespace: 198.51.100.9", "", ""},
		"egress IP from there": {"from=node/node2 vnid=24 source=10.129.0.9 destination=203.0.113.5 egressIP=198.51.100.7", forwarded, "with the egress IP 198.51.100.7",
			"host 198.51.100.7>203.0.113.5", ""},
		"no egress IP from there":   {"from=node/node2 vnid=24 source=10.129.0.9 destination=203.0.113.5", dropped, "this node does not host the egress IP", "", ""},
		"the node's own address":    {"from=pod/default/web destination=10.128.0.1", forwarded, "to the host, which has the address 10.128.0.1", "host 10.128.0.3>10.128.0.1", ""},
		"reply to an egress IP":     {"from=host source=203.0.113.5 destination=198.51.100.7 conntrack=reply", unknown, "table classify (0) translates the addresses by the conntrack entry, which a trace does not read", "", ""},
		"no reply to the egress IP": {"from=host source=203.0.113.5 destination=198.51.100.7", dropped, "it is no reply to a packet that left with the egress IP", "", ""},
	} {
		tc.check(t, n, name)
	}
}

// A step has its flow, the objects that it is made of, and the assumed state of the connection.
func TestTrace_steps(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	got := n.traced(t, "from=pod/default/web destination=10.128.0.4 protocol=TCP destinationPort=80")
	steps := map[uint8]diagnostics.TraceStep{}
	for _, s := range got.Steps {
		steps[s.Table] = s
	}
	for _, want := range []diagnostics.TraceStep{
		{Table: 20, TableName: "pod-ingress", Priority: 100, Match: "ip,in_port=3,dl_src=0a:58:0a:80:00:03,nw_src=10.128.0.3", Actions: "load:0x11->NXM_NX_REG0[],goto_table:26",
			Cookie: fmt.Sprintf("%#x", tracePods()[0].Owner().Cookie()), Objects: []diagnostics.TraceObject{{Object: "pod/default/web"}}, Names: []string{"from port 3", "source VNID 17"}},
		{Table: 80, TableName: "isolation", Priority: 200, Actions: "goto_table:81", Cookie: fmt.Sprintf("%#x", staticOwner().Cookie()), Conntrack: diagnostics.ConntrackNew},
		{Table: 81, TableName: "ingress-policy", Priority: 27000, Match: "conj_id=77,ip", Actions: "goto_table:82", Cookie: steps[81].Cookie,
			Objects: []diagnostics.TraceObject{{Object: "networkpolicy/default/allow", Rule: "ingress 0"}}},
	} {
		if diff := cmp.Diff(want, steps[want.Table]); diff != "" {
			t.Errorf("table %d (-want +got):\n%s", want.Table, diff)
		}
	}
	if p := got.Packet; got.Name != "node1" || got.Kind != "NodeTrace" || p.Source != "10.128.0.3" || p.SourcePort != diagnostics.DefaultSourcePort || p.Conntrack != diagnostics.ConntrackNew {
		t.Errorf("got %+v of packet %+v", got.ObjectMeta, p)
	}
}

// Another program's flow decides. One of the agent's that another program has replaced is unexpected, too.
func TestTrace_unexpectedFlow(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	for _, tc := range []struct {
		flow    string
		verdict diagnostics.Verdict
		reason  string
	}{
		{"priority=9999,ip,nw_dst=10.128.0.4,actions=drop", dropped, `table route (30) dropped it by a flow that another program added (priority 9999, match "ip,nw_dst=10.128.0.4"): see kubectl ovsdn flows node1 --diff`},
		{"priority=9999,ip,nw_dst=10.128.0.4,actions=output:6", delivered, "pod shop/cart receives it at 10.128.0.4:80; the deciding flow of table route (30) was added by another program: see kubectl ovsdn flows node1 --diff"},
		{"priority=9999,ip,nw_dst=10.128.0.4,actions=normal", unknown, "table route (30) may output it to several ports: NORMAL"},
		{"priority=9999,ip,nw_dst=10.128.0.4,actions=output:9999", dropped, "Open vSwitch does not output the packet: table route (30): Nonexistent output port"},
		{"priority=9999,ip,nw_dst=10.128.0.4,actions=resubmit(,30)", dropped, "Open vSwitch drops the packet: Translation failed"},
		{"priority=10000,ip,nw_dst=10.128.0.4,actions=resubmit(,31)", dropped, "table 31 has no flow for the packet"},
	} {
		n.sw.OFCtl(t, "add-flow", ovstest.Bridge, "table=30,"+tc.flow)
		n.checkUnexpected(t, tc.flow, tc.verdict, tc.reason)
	}
	n.sw.OFCtl(t, "--strict", "del-flows", ovstest.Bridge, "table=30,priority=9999,ip,nw_dst=10.128.0.4")
	n.sw.OFCtl(t, "--strict", "del-flows", ovstest.Bridge, "table=30,priority=10000,ip,nw_dst=10.128.0.4")
	n.sw.OFCtl(t, "add-flow", ovstest.Bridge, "table=30,priority=200,ip,nw_dst=10.128.0.0/23,actions=drop")
	n.checkUnexpected(t, "in place of the agent's", dropped, "table route (30) dropped it by a flow that another program added")
	n.sw.OFCtl(t, "del-flows", ovstest.Bridge)
	if got := n.traced(t, "from=pod/default/web destination=10.128.0.4 protocol=TCP destinationPort=80"); got.Verdict != dropped ||
		got.Reason != "table classify (0) has no flow for the packet: flows are missing on the switch, see kubectl ovsdn flows node1 --diff" {
		t.Errorf("without flows: got %s: %s", got.Verdict, got.Reason)
	}
}

func (n *traceNode) checkUnexpected(t *testing.T, name string, verdict diagnostics.Verdict, reason string) {
	t.Helper()
	got := n.traced(t, traceParameters)
	if got.Verdict != verdict || !strings.Contains(got.Reason, reason) || !slices.ContainsFunc(got.Steps, func(s diagnostics.TraceStep) bool { return s.Unexpected && s.Table == 30 }) {
		t.Errorf("%s: got %s: %s, want %s: %s, and an unexpected step", name, got.Verdict, got.Reason, verdict, reason)
	}
}

// noRules does not know the rules of flows.
type noRules struct{ fakePolicies }

func (noRules) RuleNames([]uint32) []string { return nil }

// A rule that denied the packet may be removed before its name is read.
func TestTrace_removedRule(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	n.network.Policies = noRules{}
	traceCase{"from=node/node2 vnid=17 source=10.129.0.9 destination=10.128.0.4", dropped,
		"table ingress-denied (83) dropped it: an ingress rule that was removed in the meantime denied it; trace again", "", ""}.check(t, n, "removed rule")
}

// The host's firewall marks packets that it forwards for others, which policies do not evaluate as the node's own.
func TestTrace_origin(t *testing.T) {
	tier.Parallel(t)
	const isolated = "table ingress-denied (83) dropped it: pod default/db is isolated for ingress by networkpolicy/default/allow"
	const isolators = "networkpolicy/default/allow, networkpolicy/default/deny"
	n := newTraceNode(t)
	for _, mode := range []config.Mode{config.ModeMultitenant, config.ModeNetworkPolicy} {
		n.setMode(t, mode, false)
		for name, tc := range map[string]traceCase{
			"node port, masqueraded": {"from=host origin=nodePort destination=10.128.0.4", dropped, isolated, "", isolators},
			"node port to there":     {"from=host origin=nodePort destination=10.129.0.9", forwarded, "node/node2", "node/node2 10.128.0.1>10.129.0.9 via 192.0.2.2 VNID 0 from node/node1", ""},
			"hairpin":                {"from=host origin=hairpin destination=10.128.0.3", delivered, "pod default/web receives it", "pod/default/web 10.128.0.1>10.128.0.3", ""},
			"denied hairpin": {"from=host origin=hairpin destination=10.128.0.4", dropped,
				"table ingress-denied (83) dropped it: rule ingress 2 of clusternetworkpolicy/baseline denies it", "", "clusternetworkpolicy/baseline ingress 2"},
		} {
			tc.check(t, n, fmt.Sprint(mode, ", ", name))
		}
	}
	if got := n.traced(t, "from=host origin=nodePort destination=10.129.0.9 protocol=TCP destinationPort=80"); got.Packet.Origin != diagnostics.OriginNodePort ||
		len(got.Outputs) != 1 || got.Outputs[0].Packet.Origin != diagnostics.OriginNodePort {
		t.Errorf("got packet %+v, outputs %+v, want them with the origin", got.Packet, got.Outputs)
	}
	const routed = "from=host origin=routed destination=10.128.0.4"
	traceCase{routed, dropped, isolated, "", isolators}.check(t, n, "routed, masqueraded")
	n.setMode(t, config.ModeMultitenant, false)
	traceCase{routed, dropped, "isolation: VNID 1 ", "", ""}.check(t, n, "multitenant, routed, masqueraded")
	n.setMode(t, config.ModeSubnet, false)
	n.network.Policies = nil
	traceCase{"from=host origin=nodePort destination=10.128.0.4", delivered, "pod default/db", "pod/default/db 10.128.0.1>10.128.0.4", ""}.check(t, n, "mode subnet")
}

func TestTrace_balancesServices(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, true)
	const there = "node/node2 10.128.0.4>10.129.0.7 via 192.0.2.2 VNID 17 from node/node1"
	for name, tc := range map[string]traceCase{
		"endpoint here":  {"from=pod/default/db destination=172.30.0.10 endpoint=10.128.0.3:8080", delivered, "pod default/web receives it at 10.128.0.3:8080", "pod/default/web 10.128.0.4>10.128.0.3", ""},
		"endpoint there": {"from=pod/default/db destination=172.30.0.10 endpoint=10.129.0.7:8080", forwarded, "node/node2", there, ""},
		"with affinity":  {"from=pod/default/db destination=172.30.0.11 endpoint=10.129.0.7:8080", forwarded, "node/node2", there, ""},
		"no endpoint":    {"from=pod/default/db destination=172.30.0.10 endpoint=10.129.0.8:8080", unknown, "the switch does not select endpoint 10.129.0.8:8080 for the packet", "", ""},
		"itself":         {"from=pod/default/web destination=172.30.0.10 endpoint=10.128.0.3:8080", delivered, "pod default/web", "pod/default/web 169.254.0.10>10.128.0.3", ""},
		"without endpoints": {"from=pod/default/db destination=172.30.0.12", dropped,
			"service/default/web (172.30.0.12:80) has no endpoints: table reject (69) sends the packet to the host, which rejects it", "host 10.128.0.4>172.30.0.12", "service/default/web"},
		"reply":           {"from=pod/default/web destination=10.128.0.4 conntrack=reply", delivered, "its source is the service's address if the connection was opened to a service", "pod/default/db 10.128.0.3>10.128.0.4", ""},
		"the node itself": {"from=host destination=172.30.0.10 endpoint=10.128.0.3:8080", delivered, "pod default/web", "pod/default/web 10.128.0.1>10.128.0.3", ""},
		"from outside": {"from=host origin=nodePort source=203.0.113.5 destination=172.30.0.10 endpoint=10.128.0.3:8080", delivered, "pod default/web",
			"pod/default/web 203.0.113.5>10.128.0.3", ""},
		"reply to outside":       {"from=pod/default/web destination=203.0.113.5 conntrack=reply", forwarded, "", "host 10.128.0.3>203.0.113.5", ""},
		"from outside, unopened": {"from=host origin=nodePort source=203.0.113.5 destination=172.30.0.11", dropped, "table service (60) dropped it", "", ""},
		"no service":             {"from=pod/default/db destination=172.30.0.99", dropped, "no service that the VNID of the source may use has the address and port 172.30.0.99:80", "", ""},
	} {
		tc.check(t, n, name)
	}
	n.setMode(t, config.ModeSubnet, true)
	n.network.Policies = nil
	traceCase{"from=host origin=nodePort source=203.0.113.5 destination=172.30.0.10 endpoint=10.128.0.3:8080", delivered, "pod default/web",
		"pod/default/web 203.0.113.5>10.128.0.3", ""}.check(t, n, "mode subnet, from outside")
}

func TestTrace_subnet(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeSubnet, false)
	n.network.Policies = nil
	for name, tc := range map[string]traceCase{
		"here":    {"from=pod/default/web destination=10.128.0.6", delivered, "pod shop/cart", "pod/shop/cart 10.128.0.3>10.128.0.6", ""},
		"there":   {"from=pod/default/web destination=10.129.0.9", forwarded, "node/node2", "node/node2 10.128.0.3>10.129.0.9 via 192.0.2.2 VNID 17 from node/node1", ""},
		"service": {"from=pod/default/web destination=172.30.0.10", forwarded, "to the host, whose service proxy selects an endpoint", "host 10.128.0.3>172.30.0.10", "service/default/web"},
		"outside": {"from=pod/default/web destination=203.0.113.5", forwarded, "outside of the pod network", "host 10.128.0.3>203.0.113.5", ""},
	} {
		tc.check(t, n, name)
	}
}

// A packet that an egress firewall denies would perhaps be allowed by a rule whose name has no address.
func TestTrace_unresolvedNames(t *testing.T) {
	tier.Parallel(t)
	n := newTraceNode(t)
	n.setMode(t, config.ModeNetworkPolicy, false)
	n.network.UnresolvedNames = func(namespace string, _ int) ([]string, int) {
		return []string{"api.example.com (the DNS server answered SERVFAIL)", "of-" + namespace + ".example.com"}, 3
	}
	traceCase{"from=pod/shop/cart destination=203.0.113.5", dropped, "denies the destination 203.0.113.5 (the rule for 203.0.113.0/24); DNS names of its rules without an address: " +
		"api.example.com (the DNS server answered SERVFAIL), of-shop.example.com, 3 more", "", "egressnetworkpolicy/shop/limits"}.check(t, n, "unresolved names")
}
