package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// fakeAPI is an API server with answers by path; a function answers the others.
type fakeAPI struct {
	url     string
	answers map[string]any // a metav1.Status is sent with its code; an http.HandlerFunc answers itself
	last    atomic.Value   // the URL of the last request of the group
	body    atomic.Value   // the body of that request
}

func newFakeAPI(t *testing.T, answers map[string]any) *fakeAPI {
	t.Helper()
	a := &fakeAPI{answers: answers}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, diagnosticsPath) {
			a.last.Store(r.URL.String())
			if body, err := io.ReadAll(r.Body); err == nil {
				a.body.Store(body)
			}
		}
		answer, ok := a.answers[r.URL.Path]
		if f, is := answer.(func() any); is {
			answer = f()
		}
		if !ok {
			http.NotFound(w, r)
			return
		}
		if f, is := answer.(http.HandlerFunc); is {
			f(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if st, is := answer.(metav1.Status); is {
			st.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}
			st.Status = metav1.StatusFailure
			answer = st
			w.WriteHeader(int(st.Code))
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	a.url = server.URL
	return a
}

func (a *fakeAPI) run(ctx context.Context, args ...string) (code int, out, errOut string) {
	streams, _, o, e := genericiooptions.NewTestIOStreams()
	code = run(ctx, append([]string{"--server", a.url, "--kubeconfig=/dev/null"}, args...), streams)
	return code, o.String(), e.String()
}

func (a *fakeAPI) wants(t *testing.T, code int, out, errOut string, args ...string) {
	t.Helper()
	gotCode, gotOut, gotErr := a.run(t.Context(), args...)
	if diff := cmp.Diff(strings.TrimPrefix(out, "\n"), gotOut); diff != "" || gotCode != code || !strings.Contains(gotErr, errOut) || errOut == "" && gotErr != "" {
		t.Errorf("%v: exit code %d, want %d; error output %q, want %q; output (-want +got):\n%s", args, gotCode, code, gotErr, errOut, diff)
	}
}

func nodeStatuses(states ...diagnostics.NodeStatusStatus) diagnostics.NodeStatusList {
	var list diagnostics.NodeStatusList
	for i, st := range states {
		st.HostIP, st.Subnet = fmt.Sprintf("192.0.2.%d", i+1), fmt.Sprintf("10.%d.0.0/23", 128+i)
		list.Items = append(list.Items, diagnostics.NodeStatus{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node%d", i+1)}, Status: st})
	}
	return list
}

func readyStatus() diagnostics.NodeStatusStatus {
	return diagnostics.NodeStatusStatus{
		AgentVersion: "v1.2.0", OVSVersion: "3.1.0", Datapath: "system", Mode: "multitenant", Ready: true, Pods: 12, Addresses: 509, Free: 497, Flows: 840,
		Peers: 2, AnsweringPeers: 2, LastAudit: &metav1.Time{Time: time.Date(2026, 11, 26, 4, 0, 0, 0, time.UTC)},
	}
}

func TestDrops(t *testing.T) {
	dropping := readyStatus()
	dropping.Drops = []diagnostics.NodeDrop{{Table: "isolation", Reason: "isolation", Packets: 7}, {Table: "pod-ingress", Reason: "spoofed-source", Packets: 2}}
	silent := diagnostics.NodeStatusStatus{Error: "the agent does not answer: connection refused"}
	all := nodeStatuses(dropping, readyStatus(), silent)
	api := newFakeAPI(t, map[string]any{
		diagnosticsPath + "/nodestatuses":       all,
		diagnosticsPath + "/nodestatuses/node2": all.Items[1],
	})
	api.wants(t, exitFailed, `
NODE    TABLE         REASON           PACKETS
node1   isolation     isolation        7
node1   pod-ingress   spoofed-source   2
`, "node3: the agent does not answer: connection refused\n", "drops")
	api.wants(t, exitOK, "", "No dropped packets\n", "drops", "node2")

	table := &tablePrinter{printers.NewTablePrinter(printers.PrintOptions{})}
	l := &dropLister{IOStreams: genericiooptions.NewTestIOStreamsDiscard(), printer: table, nodes: []string{"node1"}, watch: true}
	out := &strings.Builder{}
	l.Out = out
	increases := func(states ...diagnostics.NodeStatusStatus) string {
		t.Helper()
		out.Reset()
		if err := l.printIncreases(nodeStatuses(states...).Items); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	later := dropping
	later.Drops = []diagnostics.NodeDrop{{Table: "isolation", Reason: "isolation", Packets: 27}, {Table: "pod-ingress", Reason: "spoofed-source", Packets: 2}}
	for i, step := range []struct {
		state diagnostics.NodeStatusStatus
		want  string
	}{{dropping, ""}, {later, "NODE    TABLE       REASON      INCREASE\nnode1   isolation   isolation   20\n"}, {later, ""}, {silent, ""}, {later, ""}} {
		if got := increases(step.state); got != step.want {
			t.Errorf("reading %d: got %q, want %q", i, got, step.want)
		}
	}
}

func TestDrops_objects(t *testing.T) {
	dropping := readyStatus()
	dropping.Drops = []diagnostics.NodeDrop{{Table: "isolation", Reason: "isolation", Packets: 7}}
	silent := diagnostics.NodeStatusStatus{Error: "the agent does not answer: connection refused"}
	all := nodeStatuses(dropping, readyStatus(), silent)
	api := newFakeAPI(t, map[string]any{
		diagnosticsPath + "/nodestatuses":       all,
		diagnosticsPath + "/nodestatuses/node2": all.Items[1],
		diagnosticsPath + "/nodestatuses/node3": all.Items[2],
	})
	const failure = "node3: the agent does not answer: connection refused\n"
	api.wants(t, exitFailed, "nodedrops.diagnostics.ovsdn.io/node1\nnodedrops.diagnostics.ovsdn.io/node2\n", failure, "drops", "-o", "name")
	api.wants(t, exitFailed, "node1 isolation isolation 7\n", failure,
		"drops", "-o", `go-template={{range .items}}{{$name := .metadata.name}}{{range .drops}}{{$name}} {{.table}} {{.reason}} {{.packets}}{{"\n"}}{{end}}{{end}}`)
	api.wants(t, exitOK, `
apiVersion: diagnostics.ovsdn.io/v1alpha1
drops: []
kind: NodeDrops
metadata:
  name: node2
`, "", "drops", "node2", "-o", "yaml")
	api.wants(t, exitFailed, "", failure, "drops", "node3", "-o", "json")
	api.wants(t, exitUsage, "", "--watch prints tables only", "drops", "--watch", "-o", "json")
	api.wants(t, exitUsage, "", "unable to match a printer", "drops", "-o", "table9")
}

func TestStatus(t *testing.T) {
	failing := readyStatus()
	failing.Ready, failing.NotReady, failing.Drift, failing.AgentVersion = false, "tun0 has no address\nno CNI configuration", 3, "v1.1.0"
	failing.RefusedFlows = []string{"pod default/web: OFPBAC_BAD_OUT_PORT"}
	failing.PeerProblems = []diagnostics.PeerProblem{{Node: "node3", Problem: "the overlay does not answer"}}
	ready := readyStatus()
	ready.PeerProblems = failing.PeerProblems
	silent := diagnostics.NodeStatusStatus{Error: "the agent does not answer: connection refused"}
	all := nodeStatuses(ready, failing, silent)
	leader := "ovsdn-controller-abc"
	api := newFakeAPI(t, map[string]any{
		diagnosticsPath + "/nodestatuses":       all,
		diagnosticsPath + "/nodestatuses/node1": nodeStatuses(readyStatus()).Items[0],
		diagnosticsPath + "/nodestatuses/node9": metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Message: `nodestatuses.diagnostics.ovsdn.io "node9" not found`,
			Details: &metav1.StatusDetails{Group: diagnostics.Group, Kind: "nodestatuses", Name: "node9"}},
		"/apis/network.openshift.io/v1/hostsubnets": map[string]any{"items": []any{map[string]any{"metadata": map[string]any{"name": "node1"}}}},
		"/apis/network.openshift.io/v1/netnamespaces": map[string]any{"items": []any{
			map[string]any{"metadata": map[string]any{"name": "a"}, "netname": "a", "netid": 17}, map[string]any{"metadata": map[string]any{"name": "b"}, "netname": "b", "netid": 17}}},
		"/apis/coordination.k8s.io/v1/namespaces/ovsdn-system/leases/ovsdn-controller": map[string]any{"spec": map[string]any{"holderIdentity": leader}},
	})
	api.wants(t, exitFailed, `
NODE    READY     HOST-IP     SUBNET          PODS        FREE        FLOWS       DRIFT       VERSION
node1   True      192.0.2.1   10.128.0.0/23   12          497         840         0           v1.2.0
node2   False     192.0.2.2   10.129.0.0/23   12          497         840         3           v1.1.0
node3   Unknown   192.0.2.3   10.130.0.0/23   <unknown>   <unknown>   <unknown>   <unknown>   <none>

Nodes ready: 1/3
Versions:    v1.1.0 (1), v1.2.0 (1)
Subnets:     1
VNIDs:       1 of 2 namespaces
Leader:      ovsdn-controller-abc
node2: not ready: tun0 has no address; no CNI configuration
node2: the switch refuses flows: pod default/web: OFPBAC_BAD_OUT_PORT
node3: the agent does not answer: connection refused
node3: from node1, node2: the overlay does not answer
`, "", "status")
	api.wants(t, exitOK, `
NODE    READY   HOST-IP     SUBNET          PODS   FREE   FLOWS   DRIFT   VERSION   MODE          DATAPATH   OVS     LAST AUDIT             PEERS
node1   True    192.0.2.1   10.128.0.0/23   12     497    840     0       v1.2.0    multitenant   system     3.1.0   2026-11-26T04:00:00Z   2/2

Nodes ready: 1/1
Versions:    v1.2.0 (1)
Subnets:     1
VNIDs:       1 of 2 namespaces
Leader:      ovsdn-controller-abc
`, "", "status", "node1", "-o", "wide")
	api.wants(t, exitOK, "nodestatus.diagnostics.ovsdn.io/node1\n", "", "status", "node1", "-o", "name")
	api.wants(t, exitFailed, "nodestatus.diagnostics.ovsdn.io/node1\n", `node9: nodestatuses.diagnostics.ovsdn.io "node9" not found`, "status", "node1", "node9", "-o", "name")
	api.wants(t, exitUsage, "", "unable to match a printer", "status", "-o", "table9")
	api.wants(t, exitOK, `
true`, "", "status", "node1", "-o", "jsonpath={.status.ready}")
}

// What a node's own agent reports about Open vSwitch takes precedence over what its peers conclude, and over its own probes.
func TestStatus_switchFails(t *testing.T) {
	const failure = "Open vSwitch does not answer (check that ovsdb-server and ovs-vswitchd run): connection to the bridge lost"
	peers := func(nodes ...string) (problems []diagnostics.PeerProblem) {
		for _, node := range nodes {
			problems = append(problems, diagnostics.PeerProblem{Node: node, Problem: "neither the overlay nor the underlay answers"})
		}
		return problems
	}
	ready, failing, other := readyStatus(), readyStatus(), readyStatus()
	ready.PeerProblems, failing.PeerProblems, other.PeerProblems = peers("node2"), peers("node1", "node3"), peers("node2", "node4")
	failing.Ready, failing.NotReady, failing.SwitchError = false, failure+"\ntun0 has no address", failure
	api := newFakeAPI(t, map[string]any{diagnosticsPath + "/nodestatuses": nodeStatuses(ready, failing, other)})
	code, out, errOut := api.run(t.Context(), "status", "-o", "name")
	if want := "node2: " + failure + "\nnode2: not ready: tun0 has no address\nnode4: from node3: neither the overlay nor the underlay answers\n"; code != exitFailed || errOut != want {
		t.Errorf("got exit code %d, output %q and problems %q, want %q", code, out, errOut, want)
	}
}

func TestStatus_watch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	requests := 0
	api := newFakeAPI(t, map[string]any{diagnosticsPath + "/nodestatuses": func() any {
		if requests++; requests == 2 {
			cancel()
		}
		return nodeStatuses(readyStatus())
	}})
	code, out, errOut := api.run(ctx, "status", "--watch")
	if code != exitOK || strings.Count(out, "NODE ") < 1 || errOut != "" || requests < 2 {
		t.Errorf("got exit code %d after %d requests, %q\n%s", code, requests, errOut, out)
	}
}

func nodeFlows() diagnostics.NodeFlows {
	return diagnostics.NodeFlows{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Flows: []diagnostics.Flow{
		{Table: 20, TableName: "pod-ingress", Priority: 100, Match: "ip,in_port=3,nw_src=10.128.0.5", Actions: "load:0x11->NXM_NX_REG0[],goto_table:26",
			Cookie: "0x4aa", Owners: []string{"pod default/web"}, State: diagnostics.FlowInstalled, Packets: 7, Bytes: 700},
		{Table: 20, TableName: "pod-ingress", Actions: "drop", Cookie: "0x2bb", Owners: []string{"node node1"}, State: diagnostics.FlowMissing},
		{Table: 80, TableName: "isolation", Priority: 0, Actions: "output:2", Cookie: "0x2bb", Owners: []string{"node node1"}, State: diagnostics.FlowDifferent,
			Desired: "cookie=0x2bb,actions=drop", Packets: 1, Bytes: 42},
	}}
}

func TestFlows(t *testing.T) {
	flowsPath := diagnosticsPath + "/nodeflows/node1"
	api := newFakeAPI(t, map[string]any{flowsPath: nodeFlows()})
	api.wants(t, exitOK, `
Table 20 pod-ingress: packets of pods: MAC, IP and ARP must be the pod's own; loads its VNID and its bits of reg4
PRIORITY   PACKETS   BYTES   STATE       MATCH                            ACTIONS
100        7         700     Installed   ip,in_port=3,nw_src=10.128.0.5   load:0x11->NXM_NX_REG0[],goto_table:26
0          0         0       Missing     <any>                            drop

Table 80 isolation: isolation by VNIDs
PRIORITY   PACKETS   BYTES   STATE       MATCH   ACTIONS
0          1         42      Different   <any>   output:2
                             Desired             cookie=0x2bb,actions=drop
`, "", "flows", "node1")
	api.wants(t, exitFailed, `
Table 20 pod-ingress: packets of pods: MAC, IP and ARP must be the pod's own; loads its VNID and its bits of reg4
PRIORITY   PACKETS   BYTES   STATE     MATCH   ACTIONS   NAMES    OWNERS       COOKIE
0          0         0       Missing   <any>   drop      <none>   node node1   0x2bb
`, "", "flows", "node1", "pod/default/web", "--diff", "--table=20", "-o", "wide")
	if got := api.last.Load(); got != flowsPath+"?object=pod%2Fdefault%2Fweb" {
		t.Errorf("got the request %s", got)
	}
	api.wants(t, exitOK, "nodeflows.diagnostics.ovsdn.io/node1\n", "", "flows", "node1", "-o", "name")
	api.wants(t, exitOK, "", "No resources found", "flows", "node1", "--table=service")
	api.wants(t, exitOK, "", "", "flows", "node1", "--table=service", "--diff")
	for _, args := range [][]string{
		{}, {"node1", "x", "y"}, {"pod/default/web"}, {"node1", "deployment/default/web"}, {"node1", "pod/web"}, {"node1", "--watch", "--diff"}, {"node1", "--watch", "-o", "json"},
	} {
		if code, _, errOut := api.run(t.Context(), append([]string{"flows"}, args...)...); code != exitUsage || !strings.Contains(errOut, "--help") {
			t.Errorf("%v: got exit code %d, %q, want a usage error", args, code, errOut)
		}
	}
}

func TestShowRates(t *testing.T) {
	streams, _, out, _ := genericiooptions.NewTestIOStreams()
	l := &flowLister{IOStreams: streams}
	began := time.Now()
	flows := nodeFlows().Flows
	if err := l.showRates(flows, began); err != nil || out.Len() > 0 {
		t.Errorf("the first time: got %v and %q, want no rates", err, out)
	}
	flows = nodeFlows().Flows
	flows[0].Packets, flows[0].Bytes = 27, 2700
	flows[2].Packets = 0 // installed again
	if err := l.showRates(flows, began.Add(2*time.Second)); err != nil {
		t.Fatal(err)
	}
	want := "TABLE         PRIORITY   PACKETS/S   BYTES/S   MATCH\npod-ingress   100        10.0        1000      ip,in_port=3,nw_src=10.128.0.5\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

func TestDiagnostics_errors(t *testing.T) {
	const path = diagnosticsPath + "/nodeflows/node1"
	own := &metav1.StatusDetails{Group: diagnostics.Group, Kind: "nodeflows", Name: "node1"}
	for name, tc := range map[string]struct {
		answers map[string]any
		want    string
	}{
		"no API group": {nil, "apply deploy/base of this version"},
		"no backend":   {map[string]any{path: metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Message: "error trying to reach service"}}, "--enable-aggregator-routing"},
		"no right": {map[string]any{path: metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Details: own,
			Message: `nodeflows.diagnostics.ovsdn.io "node1" is forbidden: User "tenant" cannot get resource "nodeflows"`}}, `User "tenant" cannot get resource "nodeflows"`},
		"unknown node": {map[string]any{path: metav1.Status{Code: 404, Reason: metav1.StatusReasonNotFound, Details: own, Message: `nodeflows.diagnostics.ovsdn.io "node1" not found`}},
			`error: nodeflows.diagnostics.ovsdn.io "node1" not found` + "\n"},
		"an old agent": {map[string]any{path: metav1.Status{Code: 503, Reason: metav1.StatusReasonServiceUnavailable, Details: own, Message: "the agent of node1 (v1.0) does not support it"}},
			"error: the agent of node1 (v1.0) does not support it\n"},
	} {
		api := newFakeAPI(t, tc.answers)
		if code, out, errOut := api.run(t.Context(), "flows", "node1"); code != exitFailed || out != "" || !strings.Contains(errOut, tc.want) {
			t.Errorf("%s: got exit code %d, output %q, error output %q, want %q", name, code, out, errOut, tc.want)
		}
	}
}

func TestComplete(t *testing.T) {
	named := func(namespace string, names ...string) any {
		var items []any
		for _, name := range names {
			items = append(items, map[string]any{"metadata": map[string]any{"namespace": namespace, "name": name}})
		}
		return map[string]any{"items": items}
	}
	api := newFakeAPI(t, map[string]any{"/api/v1/nodes": named("", "node1", "node2", "other"), "/api/v1/pods": named("default", "web", "db")})
	for _, tc := range []struct{ begin, want string }{
		{"flows no", "node1\nnode2\n"}, {"flows node1 pod/default/w", "pod/default/web\n"}, {"flows node1 cl", "clusternetworkpolicy/\n"}, {"status o", "other\n"},
		{"trace no", "node/\n"}, {"trace pod/default/web s", "service/\n"}, {"trace pod/default/web pod/default/d", "pod/default/db\n"}, {"trace c", ""},
	} {
		_, out, _ := api.run(t.Context(), append([]string{"__complete"}, strings.Fields(tc.begin)...)...)
		if got, _, _ := strings.Cut(out, ":"); got != tc.want {
			t.Errorf("%s: got %q, want %q", tc.begin, got, tc.want)
		}
	}
}
