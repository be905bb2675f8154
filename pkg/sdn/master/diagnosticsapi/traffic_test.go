package diagnosticsapi

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const trafficPath = versionPath + "/nodetraffics"

// A list has the answers of the agents and the reasons of those that do not answer, and continues after maxTrafficNodes nodes.
func TestServer_traffic(t *testing.T) {
	all := nodes(maxTrafficNodes + 2)
	all[2].NoAgent, all[2].IsExpected = "an external machine, which has no agent", true
	f := newFixture(t, all, agentFunc(func(_ context.Context, node, path string, query url.Values) (string, error) {
		if path != diagnostics.TrafficPath || len(query) > 0 {
			return "", fmt.Errorf("unexpected request %s %v", path, query)
		}
		if node == "node0001" {
			return "", &agentError{code: http.StatusNotFound, message: "404 page not found"}
		}
		return `{"metadata":{"name":"other"},"error":"e","noAgent":true,"unknown":1,"pods":[{"namespace":"ns","name":"a.b","ofPort":3,"age":"1m0.5s","in":{"bytes":1,"packets":2,"dropped":3},"out":{"bytes":18446744073709551615}}]}`, nil
	}))
	own := metav1.TypeMeta{Kind: "NodeTraffic", APIVersion: "diagnostics.ovsdn.io/v1alpha1"}
	pod := diagnostics.PodTraffic{
		Namespace: "ns", Name: "a.b", OFPort: 3, Age: metav1.Duration{Duration: 60500 * time.Millisecond},
		In: diagnostics.Traffic{Bytes: 1, Packets: 2, Dropped: 3}, Out: diagnostics.Traffic{Bytes: 1<<64 - 1},
	}
	want := []diagnostics.NodeTraffic{
		{TypeMeta: own, ObjectMeta: metav1.ObjectMeta{Name: "node0000"}, Pods: []diagnostics.PodTraffic{pod}},
		{TypeMeta: own, ObjectMeta: metav1.ObjectMeta{Name: "node0001"}, Pods: []diagnostics.PodTraffic{}, Error: "the agent of node0001 does not support it; upgrade the agent"},
		{TypeMeta: own, ObjectMeta: metav1.ObjectMeta{Name: "node0002"}, Pods: []diagnostics.PodTraffic{}, Error: "an external machine, which has no agent", NoAgent: true},
	}
	list := decode[diagnostics.NodeTrafficList](t, f.get(t, "admin", trafficPath, "Accept", acceptKubectl), http.StatusOK)
	if len(list.Items) != maxTrafficNodes || list.Continue == "" || list.Kind != "NodeTrafficList" {
		t.Fatalf("got %d nodes, continue %q, kind %s, want %d that continue", len(list.Items), list.Continue, list.Kind, maxTrafficNodes)
	}
	if diff := cmp.Diff(want, list.Items[:3]); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	rest := decode[diagnostics.NodeTrafficList](t, f.get(t, "admin", trafficPath+"?limit=5000&continue="+list.Continue), http.StatusOK)
	if len(rest.Items) != 2 || rest.Continue != "" {
		t.Errorf("got %d nodes, continue %q, want the last 2", len(rest.Items), rest.Continue)
	}
	one := decode[diagnostics.NodeTraffic](t, f.get(t, "admin", trafficPath+"/node0000"), http.StatusOK)
	if diff := cmp.Diff(want[0], one); diff != "" {
		t.Errorf("one node (-want +got):\n%s", diff)
	}
}

// An agent that answers another request is asked again, for statusTimeout.
func TestServer_trafficOfBusyAgent(t *testing.T) {
	requests := 0
	busy := func(until int) agentFunc {
		requests = 0
		return func(context.Context, string, string, url.Values) (string, error) {
			if requests++; requests <= until {
				return "", &agentError{code: http.StatusTooManyRequests, isStatus: true, message: "busy"}
			}
			return `{"pods":[]}`, nil
		}
	}
	f := newFixture(t, nodes(1), busy(0))
	synctest.Test(t, func(t *testing.T) {
		f.Agents = busy(2)
		if o := f.traffic(t.Context(), nodes(1)[0]); o.Error != "" || requests != 3 {
			t.Errorf("got error %q after %d requests, want none after 3", o.Error, requests)
		}
		f.Agents = busy(1000)
		start := time.Now()
		if o := f.traffic(t.Context(), nodes(1)[0]); !strings.Contains(o.Error, "busy") || time.Since(start) != statusTimeout {
			t.Errorf("got error %q after %v, want that of the agent after %v", o.Error, time.Since(start), statusTimeout)
		}
	})
}

func TestTrafficAnswer_hostile(t *testing.T) {
	for name, c := range map[string]struct{ answer, want string }{
		"not JSON":         {"<html>", "invalid answer"},
		"negative counter": {`{"pods":[{"in":{"bytes":-1}}]}`, "invalid answer"},
		"age":              {`{"pods":[{"age":"x"}]}`, "invalid answer"},
		"too large":        {`{"a":"` + strings.Repeat("x", maxTrafficAnswer) + `"}`, "larger than"},
	} {
		a := &trafficAnswer{}
		if err := a.decode(strings.NewReader(c.answer)); err == nil || !strings.Contains(explain("n", err), c.want) {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
	a := &trafficAnswer{}
	many := strings.Repeat(`{"namespace":"a","name":"b"},`, diagnostics.MaxTrafficPods-1)
	if err := a.decode(strings.NewReader(`{"pods":[{"namespace":"a","name":"\u001b[2J"},` + many + many + `{}]}`)); err != nil {
		t.Fatal(err)
	}
	if len(a.pods) != diagnostics.MaxTrafficPods-1 || cap(a.pods) > diagnostics.MaxTrafficPods || !a.truncated {
		t.Errorf("got %d pods, truncated %t, want %d without that of the invalid name, truncated", len(a.pods), a.truncated, diagnostics.MaxTrafficPods-1)
	}
	if err := a.decode(strings.NewReader(`{"pods":[` + many + `{"namespace":"a","name":"b"}]}`)); err != nil || len(a.pods) != diagnostics.MaxTrafficPods || a.truncated {
		t.Errorf("got %d pods, truncated %t, error %v, want %d", len(a.pods), a.truncated, err, diagnostics.MaxTrafficPods)
	}
}

// The answer of an agent is hostile input.
func FuzzTrafficAnswer(f *testing.F) {
	f.Add(`{"pods":[{"namespace":"ns","name":"a.b","ofPort":3,"age":"1m0.5s","in":{"bytes":1,"packets":2,"dropped":3},"out":{}},{}]}`)
	f.Add(`{"pods":null,"pods":[{"namespace":"\u001b"}],"error":"\u001b"}`)
	f.Fuzz(func(t *testing.T, answer string) {
		a := &trafficAnswer{}
		if err := a.decode(strings.NewReader(answer)); err != nil {
			return
		}
		for _, p := range a.pods {
			if len(validation.IsDNS1123Label(p.Namespace)) > 0 || len(validation.IsDNS1123Subdomain(p.Name)) > 0 {
				t.Errorf("got pod %q/%q, which has an invalid name", p.Namespace, p.Name)
			}
		}
	})
}
