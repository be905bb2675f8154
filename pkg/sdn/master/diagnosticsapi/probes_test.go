package diagnosticsapi

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
)

// probingAgents answer probes with the query as the reason.
func probingAgents(_ context.Context, _, path string, query url.Values) (string, error) {
	if path != diagnostics.NodeProbePath {
		return "", &agentError{code: http.StatusNotFound} // as an agent that does not know it
	}
	answer := diagnostics.NodeProbe{Packet: queriedPacket(query), Status: diagnostics.ProbeStatus{
		Verdict: diagnostics.VerdictRefused, Reason: "timeout " + query.Get(diagnostics.TimeoutParameter) + "\x1b", Duration: &metav1.Duration{Duration: time.Millisecond},
	}}
	answer.Packet.Source = "10.128.0.5"
	content, err := json.Marshal(answer)
	return string(content), err
}

func (f *fixture) postProbe(t *testing.T, namespace string, spec diagnostics.ProbeSpec) response {
	t.Helper()
	content, err := json.Marshal(diagnostics.Probe{Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return f.postBody(t, "u", "/namespaces/"+namespace+"/probes", string(content))
}

func TestProbes(t *testing.T) {
	f := newTraceFixture(t, "u create probes a")
	f.Agents = agentFunc(probingAgents)
	o := decode[diagnostics.Probe](t, f.postProbe(t, "a", diagnostics.ProbeSpec{Source: "pod/a/web", Destination: "pod/a/db", Port: 80, TimeoutSeconds: 7}), http.StatusCreated)
	if o.Kind != "Probe" || o.APIVersion != "diagnostics.ovsdn.io/v1alpha1" || o.Namespace != "a" || o.Spec.Protocol != "TCP" || o.Status.Verdict != diagnostics.VerdictRefused ||
		o.Status.Reason != `"timeout 7\x1b"` || o.Status.Duration.Duration != time.Millisecond {
		t.Errorf("got %+v", o)
	}
	f.Agents = agentFunc(func(ctx context.Context, node, _ string, query url.Values) (string, error) {
		return probingAgents(ctx, node, "", query)
	})
	o = decode[diagnostics.Probe](t, f.postProbe(t, "a", diagnostics.ProbeSpec{Source: "pod/a/web", Destination: "pod/a/db", Port: 80}), http.StatusCreated)
	if o.Status.Verdict != diagnostics.VerdictUnknown || o.Status.Reason != "node node1: the agent of node1 does not support it; upgrade the agent" {
		t.Errorf("an old agent: got %+v", o.Status)
	}
}

// The right to create traces is none to create probes, and both namespaces need it.
func TestProbes_access(t *testing.T) {
	spec := func(source, destination string) diagnostics.ProbeSpec {
		return diagnostics.ProbeSpec{Source: source, Destination: destination, Port: 80}
	}
	const ofTraces = "u create traces a\nu create traces b"
	forbidden := func(namespace string) string {
		return `probes.diagnostics.ovsdn.io is forbidden: User "u" cannot create resource "probes" in API group "diagnostics.ovsdn.io" in the namespace "` + namespace + `"`
	}
	for name, tc := range map[string]struct {
		rights    string
		namespace string
		spec      diagnostics.ProbeSpec
		code      int
		want      string // in the message
	}{
		"traces only":                  {ofTraces, "a", spec("pod/a/web", "pod/a/db"), http.StatusForbidden, forbidden("a")},
		"not in the other's namespace": {ofTraces + "\nu create probes a", "a", spec("pod/a/web", "pod/b/db"), http.StatusForbidden, forbidden("b")},
		"not for a service":            {"u create probes a", "a", spec("pod/a/web", "service/b/db"), http.StatusForbidden, forbidden("b")},
		"a missing pod of others":      {"u create probes a", "a", spec("pod/a/web", "pod/b/missing"), http.StatusForbidden, forbidden("b")},
		"only the other's":             {"u create probes b", "a", spec("pod/a/web", "pod/b/db"), http.StatusForbidden, forbidden("a")},
		"by the destination":           {"u create probes a\nu create probes b", "b", spec("pod/a/web", "pod/b/db"), http.StatusUnprocessableEntity, "must be in the namespace of the request"},
		"from a node":                  {"u create probes b", "b", spec("node/node1", "pod/b/db"), http.StatusUnprocessableEntity, "a probe is sent from a pod"},
		"address of a pod of others":   {"u create probes a", "a", spec("pod/a/web", "10.128.2.7"), http.StatusUnprocessableEntity, "is an address of the pod network"},
		"missing pod":                  {"u create probes a", "a", spec("pod/a/web", "pod/a/missing"), http.StatusNotFound, `pods "missing" not found`},
	} {
		f := newTraceFixture(t, strings.Split(tc.rights, "\n")...)
		f.Agents = agentFunc(func(context.Context, string, string, url.Values) (string, error) {
			t.Errorf("%s: an agent was asked", name)
			return "", nil
		})
		r := f.postProbe(t, tc.namespace, tc.spec)
		if got := decode[metav1.Status](t, r, tc.code).Message; !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
}

// Probes have limits of their own: they wait for answers longer than traces.
func TestProbes_limits(t *testing.T) {
	f := newTraceFixture(t, "u create probes a", "u create traces a")
	f.Agents = agentFunc(probingAgents)
	spec := diagnostics.ProbeSpec{Source: "pod/a/web", Destination: "pod/a/db", Port: 80}
	for range maxUserTraces {
		release, err := f.probes.acquire(user{name: "u"}, "a", probes)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
	if r := f.postProbe(t, "a", spec); r.code != http.StatusTooManyRequests || r.header.Get("Retry-After") == "" {
		t.Errorf("a third probe: got status %d with %s, want 429", r.code, r.body)
	}
	f.Agents = agentFunc(tracingAgents)
	if r := f.post(t, "u", "a", diagnostics.TraceSpec{Source: "pod/a/web", Destination: "pod/a/db", Port: 80}); r.code != http.StatusCreated {
		t.Errorf("a trace: got status %d with %s", r.code, r.body)
	}
}

// The agent gets the time until which it waits, and the controller waits longer, also after the agent has refused a request.
func TestTraceAgents_probe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		requests := 0
		s := &Server{Config: Config{Agents: agentFunc(func(ctx context.Context, node, path string, query url.Values) (string, error) {
			if requests++; requests <= 10 {
				return "", &agentError{code: http.StatusTooManyRequests}
			}
			deadline, _ := ctx.Deadline()
			if left := time.Until(deadline); left != agentTraceTimeout+7*time.Second || path != diagnostics.NodeProbePath {
				t.Errorf("got %v for %s", left, path)
			}
			return probingAgents(ctx, node, path, query)
		})}}
		a := &traceAgents{server: s}
		packet := diagnostics.TracePacket{From: "pod/a/web", Protocol: "UDP", Destination: "10.128.0.6", DestinationPort: 53, Conntrack: diagnostics.ConntrackNew}
		got, err := a.Probe(t.Context(), tracing.Node{Name: "n", HostIP: netip.MustParseAddr("192.0.2.1")}, packet, 7*time.Second)
		packet.Source = "10.128.0.5"
		if err != nil || got.Packet != packet || got.Status.Reason != `"timeout 7\x1b"` {
			t.Errorf("got %+v, %v", got, err)
		}
	})
}
