package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const probesPath = diagnosticsPath + "/namespaces/shop/probes"

func probeAnswer(verdict diagnostics.Verdict, reason string) diagnostics.Probe {
	return diagnostics.Probe{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop"},
		Spec:       diagnostics.ProbeSpec{Source: "pod/shop/web", Destination: "pod/shop/db", Protocol: "TCP", Port: 5432},
		Status:     diagnostics.ProbeStatus{Verdict: verdict, Reason: reason, Duration: &metav1.Duration{Duration: 800 * time.Microsecond}},
	}
}

func TestProbe(t *testing.T) {
	api := newFakeAPI(t, map[string]any{probesPath: probeAnswer(diagnostics.VerdictAnswered, "connected after 0.8 ms")})
	arguments := []string{"probe", "pod/shop/web", "pod/shop/db", "--tcp=5432"}
	api.wants(t, exitOK, "Answered: pod/shop/web to pod/shop/db, TCP port 5432: connected after 0.8 ms\n", "", arguments...)
	code, out, _ := api.run(t.Context(), append(arguments, "-o", "json")...)
	var o diagnostics.Probe
	if err := json.Unmarshal([]byte(out), &o); err != nil || code != exitOK || o.Kind != "Probe" || o.Status.Verdict != diagnostics.VerdictAnswered || o.Status.Duration.Duration != 800*time.Microsecond {
		t.Errorf("got exit code %d, error %v and\n%s", code, err, out)
	}
	for _, verdict := range []diagnostics.Verdict{diagnostics.VerdictRefused, diagnostics.VerdictNoAnswer, diagnostics.VerdictUnknown} {
		api.answers[probesPath] = probeAnswer(verdict, "why")
		api.wants(t, exitFailed, string(verdict)+": pod/shop/web to pod/shop/db, TCP port 5432: why\n", "", arguments...)
	}
	api.answers[probesPath] = metav1.Status{Code: 403, Reason: metav1.StatusReasonForbidden, Message: `User "u" cannot create resource "probes"`}
	api.wants(t, exitFailed, "", `User "u" cannot create resource "probes"`, arguments...)
}

func TestProbe_requests(t *testing.T) {
	api := newFakeAPI(t, map[string]any{probesPath: probeAnswer(diagnostics.VerdictAnswered, "answered")})
	for args, want := range map[string]string{
		"pod/shop/web pod/other/db --udp 53 --timeout 10s": `{"source":"pod/shop/web","destination":"pod/other/db","protocol":"UDP","port":53,"timeoutSeconds":10}`,
		"pod/web service/db -n shop":                       `{"source":"pod/shop/web","destination":"service/shop/db","timeoutSeconds":3}`,
		"pod/shop/web pod/other/db":                        `{"source":"pod/shop/web","destination":"pod/other/db","protocol":"ICMP","timeoutSeconds":3}`,
		"pod/shop/web 203.0.113.5 --icmp":                  `{"source":"pod/shop/web","destination":"203.0.113.5","protocol":"ICMP","timeoutSeconds":3}`,
	} {
		code, _, errOut := api.run(t.Context(), append([]string{"probe"}, strings.Fields(args)...)...)
		var sent struct{ Spec json.RawMessage }
		if err := json.Unmarshal(api.body.Load().([]byte), &sent); err != nil || string(sent.Spec) != want || code != exitOK {
			t.Errorf("%s: got exit code %d, %s, spec %s, want %s", args, code, errOut, sent.Spec, want)
		}
	}
	for _, args := range []string{
		"", "pod/shop/web", "node/node1 pod/shop/db --icmp", "203.0.113.5 pod/shop/db --icmp", "pod/shop/web pod/shop/db --sctp 7", "pod/shop/web pod/shop/db --tcp 0",
		"pod/shop/web pod/shop/db --tcp 1 --icmp", "pod/shop/web pod/shop/db --icmp --timeout 11s", "pod/shop/web pod/shop/db --icmp --timeout 1500ms", "pod/shop/web pod/shop/db --icmp --timeout 0s",
	} {
		if code, _, errOut := api.run(t.Context(), append([]string{"probe"}, strings.Fields(args)...)...); code != exitUsage || !strings.Contains(errOut, "--help") {
			t.Errorf("%s: got exit code %d, %q, want a usage error", args, code, errOut)
		}
	}
}
