package main

import (
	"encoding/json"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const tracesPath = diagnosticsPath + "/namespaces/shop/traces"

// droppedTrace is a Trace whose packet another node drops.
func droppedTrace() diagnostics.Trace {
	packet := diagnostics.TracePacket{From: "pod/shop/web", Protocol: "TCP", Source: "10.128.0.5", Destination: "10.129.0.7", SourcePort: 49152, DestinationPort: 5432}
	remote := packet
	remote.From, remote.VNID = "node/node1", 17
	reason := "on node node2: table ingress-denied (83) dropped it: pod shop/db is isolated for ingress by networkpolicy/shop/deny, and no rule allows the packet"
	return diagnostics.Trace{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop"},
		Spec:       diagnostics.TraceSpec{Source: "pod/shop/web", Destination: "pod/shop/db", Protocol: "TCP", Port: 5432},
		Status: diagnostics.TraceStatus{Verdict: diagnostics.VerdictDropped, Reason: reason, Paths: []diagnostics.TracePath{{
			Verdict: diagnostics.VerdictDropped, Reason: reason, Hops: []diagnostics.Hop{
				{Node: "node1", From: "pod/shop/web", Packet: packet, Verdict: diagnostics.VerdictForwarded, Reason: "table output (133) sends it through the tunnel to node/node2 (192.0.2.2) with VNID 17", Steps: []diagnostics.TraceStep{
					{Table: 20, TableName: "pod-ingress", Priority: 100, Match: "ip,in_port=3", Actions: "load:0x11->NXM_NX_REG0[],goto_table:26", Cookie: "0x4aa", Names: []string{"source VNID 17"},
						Objects: []diagnostics.TraceObject{{Object: "pod/shop/web"}}},
					{Table: 27, TableName: "egress-policy", Conntrack: diagnostics.ConntrackNew, Objects: []diagnostics.TraceObject{{Object: "another tenant's policy"}, {Object: "networkpolicy/shop/out", Rule: "egress 0"}}},
					{Table: 90, TableName: "remote", Priority: 100, Match: "ip,nw_dst=10.129.0.0/23", Actions: "output:1", Unexpected: true},
				}},
				{Node: "node2", From: "node/node1", Packet: remote, Verdict: diagnostics.VerdictDropped, Reason: "table ingress-denied (83) dropped it: pod shop/db is isolated for ingress by networkpolicy/shop/deny, and no rule allows the packet", Steps: []diagnostics.TraceStep{
					{Table: 83, TableName: "ingress-denied", Objects: []diagnostics.TraceObject{{Object: "pod/shop/db"}}, Actions: "drop"},
				}},
			},
		}}},
	}
}

func deliveredTrace() diagnostics.Trace {
	o := droppedTrace()
	reply := diagnostics.Hop{Node: "node1", From: "pod/shop/db", Packet: diagnostics.TracePacket{Protocol: "TCP", Source: "10.128.0.6", Destination: "10.128.0.5", SourcePort: 8080, DestinationPort: 49152, Conntrack: diagnostics.ConntrackReply},
		Verdict: diagnostics.VerdictDelivered, Reason: "pod shop/web receives it at 10.128.0.5:49152"}
	o.Spec.Destination, o.Spec.Port = "service/shop/db", 80
	o.Status = diagnostics.TraceStatus{Verdict: diagnostics.VerdictDelivered, Reason: "service/shop/db: 1 of 1 endpoints get the packet: delivered to pod/shop/db on node node1", Paths: []diagnostics.TracePath{{
		Endpoint: "10.128.0.6:8080 pod/shop/db", Verdict: diagnostics.VerdictDelivered, Reason: "delivered to pod/shop/db on node node1", NotEvaluated: []string{"host-access and the firewall of node node1"},
		Hops: []diagnostics.Hop{{Node: "node1", From: "host", Packet: diagnostics.TracePacket{Protocol: "TCP", Source: "10.128.0.5", Destination: "10.128.0.6", SourcePort: 49152, DestinationPort: 8080},
			Verdict: diagnostics.VerdictDelivered, Reason: "pod shop/db receives it at 10.128.0.6:8080"}, reply},
	}}}
	return o
}

func TestTrace(t *testing.T) {
	api := newFakeAPI(t, map[string]any{tracesPath: droppedTrace()})
	api.wants(t, exitFailed, `
Dropped: pod/shop/web to pod/shop/db, TCP port 5432: on node node2: table ingress-denied (83) dropped it: pod shop/db is isolated for ingress by networkpolicy/shop/deny, and no rule allows the packet

Node node1, from pod/shop/web, TCP 10.128.0.5:49152 to 10.129.0.7:5432
TABLE   NAME            RESULT
20      pod-ingress     source VNID 17, pod/shop/web
27      egress-policy   connection: new, another tenant's policy, networkpolicy/shop/out (egress 0)
90      remote          a flow of another program
Forwarded: table output (133) sends it through the tunnel to node/node2 (192.0.2.2) with VNID 17

Node node2, from node/node1, TCP 10.128.0.5:49152 to 10.129.0.7:5432
TABLE   NAME             RESULT
83      ingress-denied   drops it, pod/shop/db
Dropped: table ingress-denied (83) dropped it: pod shop/db is isolated for ingress by networkpolicy/shop/deny, and no rule allows the packet
`, "", "trace", "pod/shop/web", "pod/shop/db", "--tcp=5432")
	api.wants(t, exitFailed, `
Dropped: pod/shop/web to pod/shop/db, TCP port 5432: on node node2: table ingress-denied (83) dropped it: pod shop/db is isolated for ingress by networkpolicy/shop/deny, and no rule allows the packet

Node node1, from pod/shop/web, TCP 10.128.0.5:49152 to 10.129.0.7:5432
TABLE   NAME            PRIORITY   MATCH                     ACTIONS                                  RESULT                                                                        COOKIE
20      pod-ingress     100        ip,in_port=3              load:0x11->NXM_NX_REG0[],goto_table:26   source VNID 17, pod/shop/web                                                  0x4aa
27      egress-policy   0          <none>                    <none>                                   connection: new, another tenant's policy, networkpolicy/shop/out (egress 0)   <none>
90      remote          100        ip,nw_dst=10.129.0.0/23   output:1                                 a flow of another program                                                     <none>
Forwarded: table output (133) sends it through the tunnel to node/node2 (192.0.2.2) with VNID 17

Node node2, from node/node1, TCP 10.128.0.5:49152 to 10.129.0.7:5432
TABLE   NAME             PRIORITY   MATCH   ACTIONS   RESULT                  COOKIE
83      ingress-denied   0          <any>   drop      drops it, pod/shop/db   <none>
Dropped: table ingress-denied (83) dropped it: pod shop/db is isolated for ingress by networkpolicy/shop/deny, and no rule allows the packet
`, "", "trace", "pod/shop/web", "pod/shop/db", "--tcp=5432", "-o", "wide")

	api.answers[tracesPath] = deliveredTrace()
	api.wants(t, exitOK, `
Delivered: pod/shop/web to service/shop/db, TCP port 80: service/shop/db: 1 of 1 endpoints get the packet: to pod/shop/db on node node1

Endpoint 10.128.0.6:8080 pod/shop/db: Delivered: to pod/shop/db on node node1
Not evaluated: host-access and the firewall of node node1

Node node1, from host, TCP 10.128.0.5:49152 to 10.128.0.6:8080
Delivered: pod shop/db receives it at 10.128.0.6:8080
`, "", "trace", "pod/shop/web", "service/shop/db")
	if code, out, _ := api.run(t.Context(), "trace", "pod/shop/web", "service/shop/db", "-o", "wide"); code != exitOK || !strings.Contains(out, "Node node1, reply from pod/shop/db, TCP 10.128.0.6:8080 to 10.128.0.5:49152\n") {
		t.Errorf("got exit code %d and no reply:\n%s", code, out)
	}
	code, out, _ := api.run(t.Context(), "trace", "pod/shop/web", "service/shop/db", "-o", "json")
	var o diagnostics.Trace
	if err := json.Unmarshal([]byte(out), &o); err != nil || code != exitOK || o.Kind != "Trace" || o.Status.Verdict != diagnostics.VerdictDelivered {
		t.Errorf("got exit code %d, error %v and\n%s", code, err, out)
	}
}

func TestTrace_requests(t *testing.T) {
	api := newFakeAPI(t, map[string]any{tracesPath: deliveredTrace(), diagnosticsPath + "/namespaces/default/traces": deliveredTrace()})
	for args, want := range map[string]string{
		"pod/shop/web pod/other/db --udp 53":           `{"source":"pod/shop/web","destination":"pod/other/db","protocol":"UDP","port":53}`,
		"node/node1 service/shop/db":                   `{"source":"node/node1","destination":"service/shop/db"}`,
		"203.0.113.5 pod/shop/db --icmp":               `{"source":"203.0.113.5","destination":"pod/shop/db","protocol":"ICMP"}`,
		"pod/shop/web pod/other/db":                    `{"source":"pod/shop/web","destination":"pod/other/db","protocol":"ICMP"}`,
		"pod/shop/web node/node1":                      `{"source":"pod/shop/web","destination":"node/node1","protocol":"ICMP"}`,
		"pod/shop/web 203.0.113.5":                     `{"source":"pod/shop/web","destination":"203.0.113.5","protocol":"ICMP"}`,
		"pod/web node/node1 -n shop --sctp 7":          `{"source":"pod/shop/web","destination":"node/node1","protocol":"SCTP","port":7}`,
		"pod/web 203.0.113.5 --tcp 7 --source-port 99": `{"source":"pod/default/web","destination":"203.0.113.5","protocol":"TCP","port":7,"sourcePort":99}`,
	} {
		code, _, errOut := api.run(t.Context(), append([]string{"trace"}, strings.Fields(args)...)...)
		var sent struct{ Spec json.RawMessage }
		if err := json.Unmarshal(api.body.Load().([]byte), &sent); err != nil || string(sent.Spec) != want || code != exitOK {
			t.Errorf("%s: got exit code %d, %s, spec %s, want %s", args, code, errOut, sent.Spec, want)
		}
	}
	for _, args := range []string{
		"", "pod/shop/web", "pod/shop/web pod/shop/db --source-port 99", "pod/shop/web pod/shop/db --tcp 80 --udp 80", "pod/shop/web pod/shop/db --tcp 0", "pod/shop/web pod/shop/db --tcp 65536",
		"service/shop/db pod/shop/web --icmp", "pod/shop/web networkpolicy/shop/db --icmp", "node/node1 203.0.113.5 --icmp", "pod/shop/web db --icmp", "pod/a/b/c pod/shop/db --icmp",
	} {
		if code, _, errOut := api.run(t.Context(), append([]string{"trace"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(errOut, "--help") {
			t.Errorf("%s: got exit code %d, %q, want a usage error", args, code, errOut)
		}
	}
	api.answers[tracesPath] = metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Details: &metav1.StatusDetails{Group: diagnostics.Group, Kind: "traces"}, Message: `User "u" cannot create resource "traces"`}
	api.wants(t, exitFailed, "", `User "u" cannot create resource "traces"`, "trace", "pod/shop/web", "service/shop/db")
}
