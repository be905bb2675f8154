package diagnosticsapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
)

// An agent that answers another request is asked again.
func TestTraceAgents_retry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, tc := range []struct {
			busy, code int
			want       string
			silent     bool
		}{
			{2, http.StatusTooManyRequests, "", false},
			{1000, http.StatusTooManyRequests, "the agent answers 429: ", true},
			{1000, http.StatusNotFound, "the agent of n does not support it; upgrade the agent", true},
			{1000, http.StatusBadRequest, "the agent answers 400: ", false},
		} {
			requests := 0
			s := &Server{Config: Config{Agents: agentFunc(func(ctx context.Context, _, _ string, query url.Values) (string, error) {
				if requests++; requests <= tc.busy {
					return "", &agentError{code: tc.code}
				}
				return `{"verdict":"Dropped","reason":"` + query.Encode() + `"}`, ctx.Err()
			})}}
			packet := diagnostics.TracePacket{From: "pod/a/b", VNID: 7, Protocol: "TCP", Source: "10.128.0.5", Destination: "10.128.0.6", SourcePort: 1, DestinationPort: 2, Conntrack: diagnostics.ConntrackReply, EgressIP: "192.0.2.9", Endpoint: "10.128.0.6:8080", Origin: diagnostics.OriginNodePort}
			began := time.Now()
			answer, err := (&traceAgents{server: s}).Trace(t.Context(), tracing.Node{Name: "n"}, packet)
			if time.Since(began) > agentTraceTimeout {
				t.Errorf("%d: took %v", tc.code, time.Since(began))
			}
			var failure *tracing.AgentError
			if tc.want == "" {
				const want = "conntrack=reply&destination=10.128.0.6&destinationPort=2&egressIP=192.0.2.9&endpoint=10.128.0.6%3A8080&from=pod%2Fa%2Fb&origin=nodePort&protocol=TCP&source=10.128.0.5&sourcePort=1&vnid=7"
				if err != nil || answer.Reason != want {
					t.Errorf("got %+v, %v", answer, err)
				}
			} else if !errors.As(err, &failure) || failure.Reason != tc.want || failure.SkipNode != tc.silent || failure.Unsupported != (tc.code == http.StatusNotFound) {
				t.Errorf("%d: got error %#v, want %s", tc.code, err, tc.want)
			}
		}
	})
}

// The answers of all agents of one trace have a limit.
func TestTraceAgents_limitsAllAnswers(t *testing.T) {
	large := `{"verdict":"Dropped","reason":"` + strings.Repeat("x", maxTraceAnswer-100) + `"}`
	s := &Server{Config: Config{Agents: agentFunc(func(context.Context, string, string, url.Values) (string, error) { return large, nil })}}
	a := &traceAgents{server: s}
	for i := range maxTraceAnswers/maxTraceAnswer + 2 {
		_, err := a.Trace(t.Context(), tracing.Node{Name: "n"}, diagnostics.TracePacket{})
		if wantError := i*(len(large)) > maxTraceAnswers-len(large); wantError != (err != nil) {
			t.Errorf("answer %d: got error %v", i, err)
		}
	}
}

// What an agent of a compromised node reports has limits.
func TestLimitTrace(t *testing.T) {
	long := strings.Repeat("x", 2<<10)
	many := strings.TrimSuffix(strings.Repeat(`{"tableName":"\u001b[2J","match":"`+long+`","objects":[{"object":"`+long+`"}]},`, 300), ",")
	a := &traceAnswer{limit: maxTraceAnswer}
	if err := a.decode(strings.NewReader(`{"verdict":"Dropped","reason":"\u001b","steps":[` + many + `]}`)); err == nil {
		t.Error("got an answer of 600 KiB, want an error")
	}
	few := strings.TrimSuffix(strings.Repeat(`{"tableName":"\u001b[2J","names":["\u001b"],"objects":[{"object":"`+long[:700]+`"}]},`, 300), ",")
	if err := a.decode(strings.NewReader(`{"verdict":"Dropped","reason":"\u001b","steps":[` + few + `]}`)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(`"\x1b"`, a.Reason); diff != "" || len(a.Steps) != maxTraceSteps || a.Steps[0].TableName != `"\x1b[2J"` || a.Steps[0].Names[0] != `"\x1b"` || len(a.Steps[0].Objects[0].Object) > maxObject+3 {
		t.Errorf("got %d steps, reason %s", len(a.Steps), a.Reason)
	}
}

// What an agent answers about its host has limits, and counts as an answer of the trace.
func TestTraceAgents_host(t *testing.T) {
	packet := diagnostics.HostPacket{From: diagnostics.FromTun0, Translated: true, Protocol: "TCP", Source: "10.128.0.5", Destination: "203.0.113.5", DestinationPort: 443}
	answer := `{"rule":"\u001b","others":["\u001b[2J"` + strings.Repeat(`,"x"`, 100) + `]}`
	var asked string
	s := &Server{Config: Config{Agents: agentFunc(func(_ context.Context, _, path string, query url.Values) (string, error) {
		asked = path + "?" + query.Encode()
		return answer, nil
	})}}
	a := &traceAgents{server: s}
	got, err := a.Host(t.Context(), tracing.Node{Name: "n"}, packet)
	if err != nil {
		t.Fatal(err)
	}
	const want = "/diagnostics/v1alpha1/host?destination=203.0.113.5&destinationPort=443&from=tun0&protocol=TCP&source=10.128.0.5&translated=true"
	if asked != want || got.Rule != `"\x1b"` || len(got.Others) != diagnostics.MaxHostRules || got.Others[0] != `"\x1b[2J"` || a.read != int64(len(answer)) {
		t.Errorf("asked %s: got %+v, and %d bytes read", asked, got, a.read)
	}
	for _, answer = range []string{`{"rule":"` + strings.Repeat("x", maxHostAnswer) + `"}`, `{"rule":7}`} {
		var failure *tracing.AgentError
		if _, err := a.Host(t.Context(), tracing.Node{Name: "n"}, packet); !errors.As(err, &failure) || failure.Unsupported {
			t.Errorf("an answer of %d bytes: got error %v", len(answer), err)
		}
	}
}

// The route of a host is shown by the right to get NodeStatuses, which one trace reviews once.
func TestTraces_hosts(t *testing.T) {
	agents := agentFunc(func(ctx context.Context, node, path string, query url.Values) (string, error) {
		if path != diagnostics.NodeHostPath {
			return tracingAgents(ctx, node, path, query)
		}
		content, err := json.Marshal(diagnostics.NodeHost{
			Packet: diagnostics.HostPacket{From: query.Get("from"), Protocol: query.Get("protocol"), Source: query.Get("source"), Destination: query.Get("destination")},
			Route:  diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "eth7"}, Source: "192.0.2.1", Masqueraded: true, Others: []string{"filter/FORWARD X"},
		})
		return string(content), err
	})
	for right, want := range map[string][2]string{
		"u get nodestatuses":       {"by the host of node node1, by eth7, with", "rules of the host of node node1: filter/FORWARD X"},
		"u list nodestatuses":      {"by the host of node node1, with", "rules of other programs on the host of node node1"},
		"u get nodestatuses node1": {"by the host of node node1, with", "rules of other programs on the host of node node1"},
	} {
		f := newTraceFixtureOf(t, agents, "u create traces a", right)
		got := decode[diagnostics.Trace](t, f.post(t, "u", "a", diagnostics.TraceSpec{Source: "pod/a/web", Destination: "203.0.113.5", Protocol: "ICMP"}), http.StatusCreated).Status
		if !strings.Contains(got.Reason, want[0]) || len(got.Paths) != 1 || !slices.Contains(got.Paths[0].NotEvaluated, want[1]) {
			t.Errorf("%s: got %+v", right, got)
		}
		if reviews := f.countReviews(); reviews != 2 {
			t.Errorf("%s: got %d reviews, want 2", right, reviews)
		}
	}
}

// The answer of an agent about its host is hostile input.
func FuzzHostAnswer(f *testing.F) {
	f.Add(`{"route":{"kind":"forwarded","interface":"eth0"},"rule":"x","others":["\u001b[2J"]}`)
	f.Add(`{"source":"fe80::1%\u001b[2J","route":{"kind":"\u001b","interface":"\u202e","gateway":"fe80::1%\u001b[2J","network":"\u001b"}}`)
	f.Add(`{"others":null,"others":[7]}`)
	f.Fuzz(func(t *testing.T, answer string) {
		a := &hostAnswer{limit: maxHostAnswer}
		if a.decode(strings.NewReader(answer)) != nil {
			return
		}
		for _, text := range append([]string{a.Rule, a.Source, string(a.Route.Kind), a.Route.Interface, a.Route.Gateway, a.Route.Network}, a.Others...) {
			if strings.ContainsFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }) {
				t.Errorf("got %q, which is not printable", text)
			}
		}
	})
}
