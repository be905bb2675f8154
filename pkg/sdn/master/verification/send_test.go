package verification

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

// With packets each connection is sent once by the node of its source, and right answers are no differences.
func TestVerify_packets(t *testing.T) {
	f := newFakeNodes()
	f.batch = 7
	result, found := f.verify(t, Request{Packets: true})
	if s := result.Status; len(found) > 0 || s.Questions != 60 || s.Sent != 60 || s.Unconfirmed+s.Unknown+s.Changed != 0 || f.reads != 1 {
		t.Errorf("got %+v, differences %v after %d reads", s, found, f.reads)
	}
	if len(f.sent) != 60 || f.sent["n2 TCP b/web a/db 80"] != 1 {
		t.Errorf("got %d packets: %v", len(f.sent), f.sent)
	}
	f = newFakeNodes()
	if f.verify(t, Request{}); len(f.sent) > 0 {
		t.Errorf("got packets without being asked for: %v", f.sent)
	}
}

// A packet that contradicts the objects, while the trace does not, is a difference; one of UDP without an answer is none.
func TestVerify_packetDifferences(t *testing.T) {
	noAnswer := &diagnostics.ProbeStatus{Verdict: diagnostics.VerdictNoAnswer, Reason: "no answer within 2s"}
	answered := &diagnostics.ProbeStatus{Verdict: diagnostics.VerdictAnswered, Reason: "connected after 0.3 ms", Reached: true}
	refused := &diagnostics.ProbeStatus{Verdict: diagnostics.VerdictRefused, Reason: "connection refused after 0.3 ms", Reached: true}
	unreachable := &diagnostics.ProbeStatus{Verdict: diagnostics.VerdictRefused, Reason: "host unreachable"}
	for name, tc := range map[string]struct {
		packet string
		status *diagnostics.ProbeStatus
		want   []string
	}{
		"lost":                              {"n2 TCP b/web a/db 80", noAnswer, []string{"b/web a/db 80 Delivered Dropped n2"}},
		"unreachable":                       {"n2 TCP b/web a/db 80", unreachable, []string{"b/web a/db 80 Delivered Dropped n2"}},
		"answered by an isolated pod":       {"n2 TCP a/web a/db 80", answered, []string{"a/web a/db 80 Dropped Delivered n2"}},
		"refused by an isolated pod":        {"n2 TCP a/web a/db 80", refused, []string{"a/web a/db 80 Dropped Delivered n2"}},
		"allowed and answered":              {"n2 TCP b/web a/db 80", answered, []string{}},
		"denied, and unreachable":           {"n2 TCP a/web a/db 80", unreachable, []string{}},
		"UDP without an answer":             {"n1 UDP b/db b/web 53", noAnswer, []string{}},
		"UDP unreachable":                   {"n1 UDP b/db b/web 53", unreachable, []string{"b/db b/web 53 Delivered Dropped n1"}},
		"UDP answered by an isolated pod":   {"n1 UDP c/db a/db 53", answered, []string{"c/db a/db 53 Dropped Delivered n1"}},
		"UDP of an isolated pod, no answer": {"n1 UDP c/db a/db 53", noAnswer, []string{}},
	} {
		f := newFakeNodes()
		for _, p := range f.objects.Pods {
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: 53, Protocol: corev1.ProtocolUDP})
		}
		f.probe = func(_ int, packet string) *diagnostics.ProbeStatus {
			if packet == tc.packet {
				return tc.status
			}
			return nil
		}
		result, found := f.verify(t, Request{Packets: true})
		if diff := cmp.Diff(tc.want, found); diff != "" || result.Status.Unknown > 0 || f.sent[tc.packet] == 0 {
			t.Errorf("%s: got %+v, sent %d times (-want +got):\n%s", name, result.Status, f.sent[tc.packet], diff)
			continue
		}
		if isUnconfirmed := name == "UDP without an answer"; (result.Status.Unconfirmed == 1) != isUnconfirmed {
			t.Errorf("%s: got %+v", name, result.Status)
		}
		for _, d := range result.Differences {
			if !d.ByPacket || d.PacketReason != tc.status.Reason {
				t.Errorf("%s: got %+v", name, d)
			}
		}
	}
}

// What a trace already contradicts is not sent, what differs once only is no difference, and SCTP is not sent.
func TestVerify_packetsNotSent(t *testing.T) {
	f := newFakeNodes()
	f.corrupt = func(_ int, _, from, to string, port uint16) *diagnostics.TraceResult {
		if from == "b/web" && to == "a/db" && port == 80 {
			return &diagnostics.TraceResult{Verdict: dropped, Reason: "wrong"}
		}
		return nil
	}
	f.objects.Pods[1].Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 7, Protocol: corev1.ProtocolSCTP}}
	result, found := f.verify(t, Request{Packets: true})
	if len(found) != 1 || result.Differences[0].ByPacket || f.sent["n2 TCP b/web a/db 80"] > 0 {
		t.Errorf("got differences %v, packets %v", found, f.sent)
	}
	for packet := range f.sent {
		if strings.Contains(packet, "SCTP") {
			t.Errorf("got packet %s", packet)
		}
	}

	f = newFakeNodes()
	f.probe = func(reads int, packet string) *diagnostics.ProbeStatus {
		if packet == "n2 TCP b/web a/db 80" && reads == 1 {
			return &diagnostics.ProbeStatus{Verdict: diagnostics.VerdictNoAnswer}
		}
		return nil
	}
	if result, found := f.verify(t, Request{Packets: true}); len(found) > 0 || result.Status.Changed != 1 {
		t.Errorf("lost once: got %+v, differences %v", result.Status, found)
	}
}

func TestVerify_silentPackets(t *testing.T) {
	f := newFakeNodes()
	f.silent = map[string]error{"packets of n2": errors.New("does not support it")}
	f.probe = func(_ int, packet string) *diagnostics.ProbeStatus {
		switch packet {
		case "n1 TCP a/db b/db 80":
			return &diagnostics.ProbeStatus{Verdict: unknownV, Reason: "no namespace"}
		case "n1 TCP a/db c/db 80":
			return &diagnostics.ProbeStatus{Verdict: "Other"}
		}
		return nil
	}
	result, found := f.verify(t, Request{Packets: true})
	reasons := slices.Sorted(slices.Values(result.Status.Unanswered))
	want := []string{"no namespace", "node n1: invalid answer of the agent", "node n2: does not support it"}
	if diff := cmp.Diff(want, reasons); diff != "" || len(found) > 0 || result.Status.Unknown != 32 {
		t.Errorf("got %+v, differences %v, reasons (-want +got):\n%s", result.Status, found, diff)
	}
}

// slowAgents answer 16 packets in a second, as agents do if none of these arrives.
type slowAgents struct {
	*fakeNodes
	hangs string // traces of this node
	calls atomic.Int32
}

func (s *slowAgents) Traces(ctx context.Context, node tracing.Node, packets []diagnostics.TracePacket) ([]diagnostics.TraceResult, error) {
	if node.Name == s.hangs {
		s.calls.Add(1)
		if !pause.For(ctx, 20*time.Second) {
			return nil, ctx.Err()
		}
		return nil, errors.New("timeout")
	}
	return s.fakeNodes.Traces(ctx, node, packets)
}

func (s *slowAgents) Probes(ctx context.Context, node tracing.Node, packets []diagnostics.TracePacket) ([]diagnostics.ProbeStatus, error) {
	packets = packets[:min(len(packets), 160)]
	if !pause.For(ctx, time.Duration(len(packets))*time.Second/16) {
		return nil, ctx.Err()
	}
	return s.fakeNodes.Probes(ctx, node, packets)
}

// Whatever is not answered in time is asked by the next request: no question is Unknown, and none is left out.
func TestVerify_slowPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newManyPods()
		v := f.verifier()
		v.Agents, v.Budget = &slowAgents{fakeNodes: f}, 20*time.Second
		requests, questions, token := 0, 0, ""
		for {
			begin := time.Now()
			result, err := v.Verify(t.Context(), Request{Continue: token, Packets: true})
			if s := result.Status; err != nil || len(result.Differences)+s.Unknown+s.Skipped > 0 || s.Questions == 0 || s.Sent != s.Questions || time.Since(begin) > 31*time.Second {
				t.Fatalf("got %+v, error %v after %v", s, err, time.Since(begin))
			}
			requests++
			questions += result.Status.Questions
			if token = result.Status.Continue; token == "" {
				break
			}
		}
		if questions != 46*45*2 || requests < 3 {
			t.Errorf("got %d questions in %d requests, want %d", questions, requests, 46*45*2)
		}
		result, err := v.Verify(t.Context(), Request{Sample: 4000, Packets: true})
		if s := result.Status; err != nil || s.Unknown > 0 || s.Questions == 0 || s.Questions+s.Skipped != 4000 || s.Continue != "" {
			t.Errorf("a sample: got %+v, error %v", s, err)
		}
	})
}

// A node that does not answer is asked once, and the packets of the others are sent.
func TestVerify_hangingNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakeNodes()
		agents := &slowAgents{fakeNodes: f, hangs: "n2"}
		v := f.verifier()
		v.Agents, v.Budget = agents, 25*time.Second
		result, err := v.Verify(t.Context(), Request{Packets: true})
		if s := result.Status; err != nil || len(result.Differences) > 0 || agents.calls.Load() != 1 || s.Sent == 0 || s.Sent+s.Unknown != s.Questions || len(s.Unanswered) != 1 || s.Unanswered[0] != "node n2: timeout" {
			t.Errorf("got %+v, error %v after %d calls", result.Status, err, agents.calls.Load())
		}
	})
}
