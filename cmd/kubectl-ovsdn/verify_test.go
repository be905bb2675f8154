package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const (
	verificationsPath   = diagnosticsPath + "/verifications"
	shopVerifications   = diagnosticsPath + "/namespaces/shop/verifications"
	verifiedConnections = 60
)

func verified(differences ...diagnostics.Difference) diagnostics.Verification {
	return diagnostics.Verification{Status: diagnostics.VerificationStatus{
		Pods: 6, Questions: verifiedConnections, Duration: metav1.Duration{Duration: 1234 * time.Millisecond}, Differences: differences,
	}}
}

func difference() diagnostics.Difference {
	return diagnostics.Difference{
		Source: "pod/shop/web", Destination: "pod/shop/db", Protocol: "TCP", Port: 5432, Expected: diagnostics.VerdictDelivered, ExpectedReason: "nothing forbids it",
		Actual: diagnostics.VerdictDropped, Node: "node2", Reason: "table ingress-denied (83) dropped it", Objects: []diagnostics.TraceObject{{Object: "networkpolicy/shop/deny", Rule: "ingress 0"}},
		Flow: &diagnostics.TraceStep{Table: 83, TableName: "ingress-denied", Priority: 100, Match: "ip,nw_dst=10.129.0.7", Actions: "drop", Cookie: "0x4aa"},
	}
}

// Changed pairs, and a namespace without pods, are not verified.
func TestVerify_notCompared(t *testing.T) {
	changed, none := verified(), verified()
	changed.Status.Changed, none.Status.Questions = 1, 0
	api := newFakeAPI(t, map[string]any{verificationsPath: changed, shopVerifications: none})
	if code, out, errOut := api.run(t.Context(), "verify"); code != exitFailed || !strings.Contains(out, "Changed:     1, not counted as differences") || errOut != "" {
		t.Errorf("got exit code %d, %q, %q", code, out, errOut)
	}
	if code, _, errOut := api.run(t.Context(), "verify", "-n", "shop"); code != exitFailed || !strings.Contains(errOut, "No pairs of pods to compare") {
		t.Errorf("a namespace without pods: got exit code %d, %q", code, errOut)
	}
}

func TestVerify(t *testing.T) {
	api := newFakeAPI(t, map[string]any{verificationsPath: verified(), shopVerifications: verified(difference())})
	api.wants(t, exitOK, `
Pods:        6
Questions:   60 in 1.2s
Differences: 0
`, "", "verify")
	api.wants(t, exitFailed, `
SOURCE         DESTINATION   PORT       EXPECTED    ACTUAL    NODE    FLOW                                      OBJECTS
pod/shop/web   pod/shop/db   TCP 5432   Delivered   Dropped   node2   ingress-denied 100 ip,nw_dst=10.129.0.7   networkpolicy/shop/deny (ingress 0)

Pods:        6
Questions:   60 in 1.2s
Differences: 1
`, "", "verify", "-n", "shop")
	code, out, _ := api.run(t.Context(), "verify", "-n", "shop", "-o", "wide")
	if code != exitFailed || !strings.Contains(out, "drop      0x4aa    nothing forbids it   table ingress-denied (83) dropped it\n") {
		t.Errorf("got exit code %d and\n%s", code, out)
	}
	code, out, _ = api.run(t.Context(), "verify", "-n", "shop", "-o", "json")
	var o diagnostics.Verification
	if err := json.Unmarshal([]byte(out), &o); err != nil || code != exitFailed || o.Kind != "Verification" || len(o.Status.Differences) != 1 {
		t.Errorf("got exit code %d, error %v and\n%s", code, err, out)
	}
	unanswered := verified()
	unanswered.Status.Unknown, unanswered.Status.Changed, unanswered.Status.Unanswered = 10, 2, []string{"node node2: connection refused"}
	api.answers[verificationsPath] = unanswered
	api.wants(t, exitFailed, `
Pods:        6
Questions:   60 in 1.2s
Differences: 0
Changed:     2, not counted as differences: they did not differ the second time, or their objects changed
Unknown:     10, without an answer
`, "node node2: connection refused\n", "verify")
}

// A verification in parts has one answer. It ends after many differences.
func TestVerify_parts(t *testing.T) {
	parts, most := 0, 3
	differences := []diagnostics.Difference{difference()}
	api := newFakeAPI(t, nil)
	api.answers = map[string]any{verificationsPath: func() any {
		var sent diagnostics.Verification
		if err := json.Unmarshal(api.body.Load().([]byte), &sent); err != nil || (sent.Spec.Continue == "") != (parts == 0) {
			t.Errorf("got %+v, error %v in part %d", sent.Spec, err, parts)
		}
		o := verified(differences...)
		if parts++; parts < most {
			o.Status.Continue = strings.Repeat("x", parts)
		}
		return o
	}}
	code, out, _ := api.run(t.Context(), "verify")
	if code != exitFailed || parts != 3 || !strings.Contains(out, "Questions:   180 in 3.7s\nDifferences: 3\n") {
		t.Errorf("got exit code %d after %d requests, and\n%s", code, parts, out)
	}
	for range 9 {
		differences = append(differences, differences...)
	}
	parts, most = 0, 100
	code, out, errOut := api.run(t.Context(), "verify")
	if code != exitFailed || parts != 2 || !strings.Contains(out, "Differences: 1024\n") || !strings.Contains(errOut, "Stopped after 1024 differences") {
		t.Errorf("got exit code %d after %d requests, %s", code, parts, errOut)
	}
	repeated := verified()
	repeated.Status.Continue = "x"
	api.answers[verificationsPath] = repeated
	api.wants(t, exitFailed, "", "repeats its answer", "verify")
}

func TestVerify_requests(t *testing.T) {
	api := newFakeAPI(t, map[string]any{verificationsPath: verified()})
	api.run(t.Context(), "verify", "--sample=7")
	var sent struct{ Spec json.RawMessage }
	if err := json.Unmarshal(api.body.Load().([]byte), &sent); err != nil || string(sent.Spec) != `{"sample":7}` {
		t.Errorf("got spec %s, error %v", sent.Spec, err)
	}
	api.run(t.Context(), "verify", "--packets")
	sent.Spec = nil
	if err := json.Unmarshal(api.body.Load().([]byte), &sent); err != nil || string(sent.Spec) != `{"packets":true}` {
		t.Errorf("got error %v, spec %s", err, sent.Spec)
	}
	packet := difference()
	packet.ByPacket, packet.Flow, packet.Objects = true, nil, nil
	if code, _, errOut := api.run(t.Context(), "verify", "--packets"); code != exitFailed || !strings.Contains(errOut, "the controller does not support --packets; upgrade it") {
		t.Errorf("an older controller: got exit code %d, %q", code, errOut)
	}
	sentAll := verified(packet)
	sentAll.Spec.Packets = true
	sentAll.Status.Sent, sentAll.Status.Unconfirmed = 50, 3
	api.answers[verificationsPath] = sentAll
	if _, out, _ := api.run(t.Context(), "verify", "--packets"); !strings.Contains(out, "Delivered   Dropped (packet)   node2") ||
		!strings.Contains(out, "Packets:     50 sent; 3 allowed UDP connections without an answer, not confirmed\n") {
		t.Errorf("got\n%s", out)
	}
	skipped := verified()
	skipped.Status.Skipped = 7
	api.answers[verificationsPath] = skipped
	if code, out, _ := api.run(t.Context(), "verify", "--sample=2000"); code != exitFailed || !strings.Contains(out, "Skipped:     7 of the sample, not asked in time") {
		t.Errorf("a part of a sample: got exit code %d and\n%s", code, out)
	}
	for _, args := range []string{"verify pod/shop/web", "verify --sample=-1", "verify --sample=5001", "verify -o x"} {
		if code, _, errOut := api.run(t.Context(), strings.Fields(args)...); code != exitUsage || !strings.Contains(errOut, "--help") {
			t.Errorf("%s: got exit code %d, %q, want a usage error", args, code, errOut)
		}
	}
	api.answers[verificationsPath] = metav1.Status{Code: 400, Reason: metav1.StatusReasonBadRequest, Message: "the pods have 1009020 pairs"}
	api.wants(t, exitFailed, "", "the pods have 1009020 pairs", "verify")
}
