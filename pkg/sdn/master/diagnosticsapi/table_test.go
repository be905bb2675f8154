package diagnosticsapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// printed returns what kubectl prints for an answer with a table.
func printed(t *testing.T, r response, isWide bool) string {
	t.Helper()
	o := decode[metav1.Table](t, r, http.StatusOK)
	for _, row := range o.Rows {
		if len(row.Cells) != len(o.ColumnDefinitions) {
			t.Fatalf("got %d cells for %d columns", len(row.Cells), len(o.ColumnDefinitions))
		}
	}
	var out bytes.Buffer
	if err := printers.NewTablePrinter(printers.PrintOptions{Wide: isWide}).PrintObj(&o, &out); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// lines removes trailing spaces.
func lines(text string) (trimmed []string) {
	for line := range strings.Lines(text) {
		trimmed = append(trimmed, strings.TrimRight(line, " \n"))
	}
	return trimmed
}

func TestServer_tableOfStatuses(t *testing.T) {
	all := nodes(3)
	all[2].NoAgent, all[2].IsExpected = "an external machine, which has no agent", true
	f := newFixture(t, all, agentFunc(func(ctx context.Context, node, path string, query url.Values) (string, error) {
		if node == "node0001" {
			return "", errors.New("connection lost")
		}
		return answering("")(ctx, node, path, query)
	}))
	r := f.get(t, "admin", statusesPath, "Accept", acceptKubectl)
	if got := r.header.Get("Content-Type"); got != "application/json;g=meta.k8s.io;v=v1;as=Table" {
		t.Errorf("got Content-Type %q", got)
	}
	want := []string{
		"NAME       READY     HOST-IP     SUBNET          PODS   FLOWS   DRIFT   VERSION",
		"node0000   True      192.0.0.0   10.128.0.0/23   3      200     1       v1.0",
		"node0001   Unknown   192.0.0.1   10.128.0.0/23",
		"node0002   NoAgent   192.0.0.2   10.128.0.0/23",
	}
	if diff := cmp.Diff(want, lines(printed(t, r, false))); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	if text := printed(t, r, true); !strings.Contains(text, "connection lost") || !strings.Contains(text, "an external machine, which has no agent") || !strings.Contains(text, "MESSAGE") {
		t.Errorf("got\n%s\nwant the reasons in the wide table", text)
	}
	one := f.get(t, "admin", statusesPath+"/node0000", "Accept", acceptKubectl)
	if diff := cmp.Diff(strings.Fields(want[1]), strings.Fields(lines(printed(t, one, false))[1])); diff != "" {
		t.Errorf("table of one node (-want +got):\n%s", diff)
	}
	for policy, wanted := range map[string]string{"None": "null", "Metadata": "PartialObjectMetadata", "": "PartialObjectMetadata", "Object": `"agentVersion":"v1.0"`} {
		r := f.get(t, "admin", statusesPath+"/node0000?includeObject="+policy, "Accept", acceptKubectl)
		o := decode[struct {
			Rows []struct{ Object json.RawMessage }
		}](t, r, http.StatusOK)
		if got := string(o.Rows[0].Object); !strings.Contains(got, wanted) {
			t.Errorf("includeObject=%s: got %s, want %s", policy, got, wanted)
		}
	}
}

func TestServer_flows(t *testing.T) {
	answer := `{"kind":"Other","metadata":{"name":"other"},"object":"other","flows":[
		{"table":10,"tableName":"tunnel-ingress","priority":100,"match":"tun_src=192.0.2.1","actions":"goto_table:30","cookie":"0x1","owners":["node/a"],"state":"Installed","packets":7,"bytes":9},
		{"table":20,"tableName":"x","match":"","actions":"drop","state":"Missing","unknown":{"a":[1]}}],"truncated":true,"unknown":1}`
	f := newFixture(t, nodes(1), agentFunc(func(_ context.Context, _, path string, query url.Values) (string, error) {
		if path != diagnostics.FlowsPath || query.Get("object") != "pod/ns/p" || len(query) != 1 {
			return "", fmt.Errorf("unexpected request %s %v", path, query)
		}
		return answer, nil
	}))
	path := versionPath + "/nodeflows/node0000?object=pod/ns/p&pretty=1"
	o := decode[diagnostics.NodeFlows](t, f.get(t, "admin", path), http.StatusOK)
	want := diagnostics.NodeFlows{
		TypeMeta: metav1.TypeMeta{Kind: "NodeFlows", APIVersion: "diagnostics.ovsdn.io/v1alpha1"}, ObjectMeta: metav1.ObjectMeta{Name: "node0000"}, Object: "pod/ns/p", Truncated: true,
		Flows: []diagnostics.Flow{
			{Table: 10, TableName: "tunnel-ingress", Priority: 100, Match: "tun_src=192.0.2.1", Actions: "goto_table:30", Cookie: "0x1", Owners: []string{"node/a"}, State: "Installed", Packets: 7, Bytes: 9},
			{Table: 20, TableName: "x", Actions: "drop", State: "Missing"},
		},
	}
	if diff := cmp.Diff(want, o); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
	text := printed(t, f.get(t, "admin", path, "Accept", acceptKubectl), false)
	if diff := cmp.Diff([]string{
		"TABLE            PRIORITY   STATE       PACKETS   MATCH               ACTIONS",
		"tunnel-ingress   100        Installed   7         tun_src=192.0.2.1   goto_table:30",
		"x                0          Missing     0                             drop",
	}, lines(text)); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
	answer = `{"flows":[]}`
	if r := f.get(t, "admin", path); !strings.Contains(r.body, `"flows":[]`) {
		t.Errorf("no flows: got %s", r.body)
	}
	if text := printed(t, f.get(t, "admin", path, "Accept", acceptKubectl), false); strings.Contains(text, "drop") {
		t.Errorf("no flows: got %s", text)
	}
}

// An agent of a compromised node reports what it likes. Clients must be able to read the answers of the others, and print all of them.
func TestServer_limitsHostileStatus(t *testing.T) {
	hostile := `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"node0001","namespace":"x","labels":{"a":"b"},"managedFields":[{}]},"status":{"error":"e","ready":true,
		"agentVersion":"\u001b[2Jv1\n` + strings.Repeat("x", 1000) + `","hostIP":"203.0.113.9","subnet":"0.0.0.0/0","notReady":"\u202egnp","switchError":"\u202egnp","started":"9999-12-31T23:59:59-01:00",
		"lastWrite":"0000-01-01T00:00:00+01:00","lastAudit":"2026-01-01T00:00:00Z","refusedFlows":[` + strings.Repeat(`"\u0000",`, 1000) + `"x"],
		"egressIPsNotPlaced":[` + strings.Repeat(`{"ip":"\u0000"},`, 1000) + `{"problem":"` + strings.Repeat("x", 5000) + `"}]}}`
	f := newFixture(t, nodes(2), agentFunc(func(ctx context.Context, node, path string, query url.Values) (string, error) {
		if node == "node0000" {
			return hostile, nil
		}
		return answering("")(ctx, node, path, query)
	}))
	r := f.get(t, "admin", statusesPath)
	o := decode[diagnostics.NodeStatusList](t, r, http.StatusOK)
	s := o.Items[0].Status
	if diff := cmp.Diff(metav1.ObjectMeta{Name: "node0000"}, o.Items[0].ObjectMeta); diff != "" || o.Items[0].Kind != "NodeStatus" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if s.HostIP != "192.0.0.0" || s.Subnet != "10.128.0.0/23" || s.Error != "" || !s.Started.IsZero() || s.LastWrite != nil || s.LastAudit == nil || len(s.RefusedFlows) != maxRefusedFlows ||
		len(s.EgressIPsNotPlaced) != maxEgressIPs {
		t.Errorf("got %+v", s)
	}
	if len(r.body) > 15000 || o.Items[1].Status.AgentVersion != "v1.0" {
		t.Errorf("got %d bytes, want few: %s", len(r.body), r.body)
	}
	for _, text := range []string{s.AgentVersion, s.NotReady, s.SwitchError, s.RefusedFlows[0], s.EgressIPsNotPlaced[0].IP, printed(t, f.get(t, "admin", statusesPath, "Accept", acceptKubectl), true)} {
		if strings.ContainsAny(text, "\x1b\x00\u202e") {
			t.Errorf("got control characters in %q", text)
		}
	}
}

func TestFlowsAnswer_hostile(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"not JSON":           {"<html>", "invalid answer"},
		"array":              {"[]", "it is not an object of kind NodeFlows"},
		"flows no array":     {`{"flows":{"a":1}}`, "it is not an object of kind NodeFlows"},
		"flow no object":     {`{"flows":[1]}`, "invalid answer"},
		"table out of range": {`{"flows":[{"table":256}]}`, "invalid answer"},
		"end":                {`{"flows":[{}`, "EOF"},
		"large flow":         {`{"flows":[{},{"match":"` + strings.Repeat("x", 2*maxFlow) + `"}]}`, "larger than"},
		"large other field":  {`{"a":"` + strings.Repeat("x", 2*maxFlow) + `","flows":[]}`, "larger than"},
		"large key":          {`{"` + strings.Repeat("x", 2*maxFlow) + `":1,"flows":[]}`, "larger than"},
		"white space":        {`{"flows":[` + strings.Repeat(" ", 8*maxFlow) + `]}`, "larger than"},
	} {
		a := &flowsAnswer{}
		if err := a.decode(strings.NewReader(c.answer)); err == nil || !strings.Contains(explain("n", err)+err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	a := &flowsAnswer{}
	if err := a.decode(strings.NewReader(`{"flows":[` + strings.Repeat(`{},`, diagnostics.MaxFlows+500) + `{}]}`)); err != nil || len(a.flows) != diagnostics.MaxFlows || !a.truncated {
		t.Errorf("too many flows: got %d, truncated %v, %v", len(a.flows), a.truncated, err)
	}
	a = &flowsAnswer{}
	owners := strings.Repeat(`"o",`, 1000)
	if err := a.decode(strings.NewReader(`{"flows":[{"match":"\u001b[31m","desired":"\u001b[2J","owners":[` + owners + `"o"]}],"flows":null,"truncated":true,"truncated":false}`)); err != nil || len(a.flows) != 1 {
		t.Fatalf("got %v, %v", a.flows, err)
	}
	if f := a.flows[0]; strings.Contains(f.Match+f.Desired, "\x1b") || len(f.Owners) != maxOwners || cap(f.Owners) != maxOwners || !a.truncated {
		t.Errorf("got %+v", f)
	}
}
