package diagnosticsapi

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
			} else if !errors.As(err, &failure) || failure.Reason != tc.want || failure.SkipNode != tc.silent {
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
