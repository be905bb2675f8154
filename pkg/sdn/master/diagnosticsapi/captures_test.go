package diagnosticsapi

import (
	"bufio"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

const (
	captureRight = "u create captures/attach a"
	webRight     = captureRight + "web" // of one pod, as the API server authorizes each
)

// newCaptureFixture is newTraceFixture, whose pods have UIDs.
func newCaptureFixture(t *testing.T, rights ...string) *fixture {
	t.Helper()
	f := newTraceFixture(t, rights...)
	host, ended, pending, foreign := tracedPod("a", "host", "node1", "192.0.2.1"), tracedPod("a", "ended", "node1", ""), tracedPod("a", "pending", "", ""), tracedPod("a", "foreign", "node9", "")
	host.Spec.HostNetwork, ended.Status.Phase = true, corev1.PodFailed
	web := tracedPod("a", "static", "node1", "10.128.0.9")
	web.UID, web.Annotations = "mirror", map[string]string{corev1.MirrorPodAnnotationKey: "static-uid"}
	for _, pod := range []*corev1.Pod{host, ended, pending, foreign, web} {
		if err := f.kube.Tracker().Add(pod); err != nil {
			t.Fatal(err)
		}
	}
	return f
}

func capturePath(namespace, pod string) string {
	return "/namespaces/" + namespace + "/captures/" + pod + "/attach"
}

func (f *fixture) postCapture(t *testing.T, namespace, pod string, spec diagnostics.CaptureSpec) response {
	t.Helper()
	content, err := json.Marshal(diagnostics.Capture{TypeMeta: typeMeta("Capture"), Spec: spec})
	if err != nil {
		t.Fatal(err)
	}
	return f.postBody(t, "u", capturePath(namespace, pod), string(content))
}

func TestCaptures(t *testing.T) {
	f := newCaptureFixture(t, captureRight+"static")
	var asked url.Values
	f.Agents = agentFunc(func(_ context.Context, node, path string, query url.Values) (string, error) {
		if asked = query; node != "node1" || path != "/diagnostics/v1alpha1/capture" {
			t.Errorf("got a request for %s of %s", path, node)
		}
		return "the file", nil
	})
	r := f.postCapture(t, "a", "static", diagnostics.CaptureSpec{DurationSeconds: 5, Protocol: "TCP", Host: "10.1.2.3"})
	if r.code != http.StatusOK || r.body != "the file" || r.header.Get("Content-Type") != "application/x-pcapng" {
		t.Errorf("got %d %v: %s", r.code, r.header, r.body)
	}
	if got, want := asked.Encode(), "durationSeconds=5&host=10.1.2.3%2F32&maxBytes=16777216&pod=pod%2Fa%2Fstatic&protocol=TCP&snapLength=256&uid=static-uid"; got != want {
		t.Errorf("got parameters %s, want %s", got, want)
	}
}

// The agent is asked only for a valid capture of a pod with a network of its own, by a user with the right to capture at it.
func TestCaptures_refuses(t *testing.T) {
	valid := diagnostics.CaptureSpec{}
	for name, tc := range map[string]struct {
		right, namespace, pod string
		spec                  diagnostics.CaptureSpec
		code                  int
		want                  string
	}{
		"probes only":       {"u create probes a", "a", "web", valid, http.StatusForbidden, `User "u" cannot create resource "captures/attach" in API group "diagnostics.ovsdn.io" in the namespace "a"`},
		"captures only":     {"u create captures aweb", "a", "web", valid, http.StatusForbidden, "captures/attach"},
		"another namespace": {webRight, "b", "web", valid, http.StatusForbidden, `in the namespace "b"`},
		"another pod":       {webRight, "a", "db", valid, http.StatusForbidden, `cannot create resource "captures/attach"`},
		"missing":           {captureRight + "missing", "a", "missing", valid, http.StatusNotFound, `pods "missing" not found`},
		"host network":      {captureRight + "host", "a", "host", valid, http.StatusUnprocessableEntity, "the pod is on the host network"},
		"ended":             {captureRight + "ended", "a", "ended", valid, http.StatusBadRequest, "pod/a/ended has ended"},
		"pending":           {captureRight + "pending", "a", "pending", valid, http.StatusBadRequest, "pod/a/pending is not scheduled yet"},
		"foreign node":      {captureRight + "foreign", "a", "foreign", valid, http.StatusServiceUnavailable, "node node9 has no HostSubnet"},
		"too long":          {webRight, "a", "web", diagnostics.CaptureSpec{DurationSeconds: 601}, http.StatusUnprocessableEntity, "spec.durationSeconds"},
		"a port of ICMP":    {webRight, "a", "web", diagnostics.CaptureSpec{Protocol: "ICMP", Port: 1}, http.StatusUnprocessableEntity, "ICMP has no ports"},
		"no name of a pod":  {webRight, "a", "Web", valid, http.StatusNotFound, ""},
	} {
		f := newCaptureFixture(t, tc.right)
		f.Agents = agentFunc(func(context.Context, string, string, url.Values) (string, error) {
			t.Errorf("%s: an agent was asked", name)
			return "", nil
		})
		if got := decode[metav1.Status](t, f.postCapture(t, tc.namespace, tc.pod, tc.spec), tc.code).Message; !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %s, want %s", name, got, tc.want)
		}
	}
	f := newCaptureFixture(t, webRight)
	for body, code := range map[string]int{
		`{"metadata":{"name":"db"}}`: http.StatusBadRequest, `{"metadata":{"namespace":"b"}}`: http.StatusBadRequest, `x`: http.StatusBadRequest, `{"kind":"Probe"}`: http.StatusBadRequest,
	} {
		if r := f.postBody(t, "u", capturePath("a", "web"), body); r.code != code {
			t.Errorf("%s: got %d %s, want %d", body, r.code, r.body, code)
		}
	}
	if r := f.get(t, "u", versionPath+capturePath("a", "web")); r.code != http.StatusMethodNotAllowed {
		t.Errorf("GET: got %d, want 405", r.code)
	}
}

// What agents answer instead of a file is a Status.
func TestCaptures_agentErrors(t *testing.T) {
	for want, err := range map[int]error{
		http.StatusNotFound: &agentError{code: 404, isStatus: true, message: "pod/a/web does not run"}, http.StatusServiceUnavailable: &agentError{code: 404},
		http.StatusTooManyRequests: &agentError{code: 429, isStatus: true, message: "captures at 4 pods"}, http.StatusBadRequest: &agentError{code: 400, isStatus: true, message: "unknown"},
	} {
		f := newCaptureFixture(t, webRight)
		f.Agents = agentFunc(func(context.Context, string, string, url.Values) (string, error) { return "", err })
		if got := decode[metav1.Status](t, f.postCapture(t, "a", "web", diagnostics.CaptureSpec{}), want); got.Kind != "Status" || got.Message == "" {
			t.Errorf("%v: got %+v", err, got)
		}
	}
	f := newCaptureFixture(t, webRight)
	for range maxUserTraces {
		release, err := f.captures.acquire(user{name: "u"}, "a", captures)
		if err != nil {
			t.Fatal(err)
		}
		defer release()
	}
	if r := f.postCapture(t, "a", "web", diagnostics.CaptureSpec{}); r.code != http.StatusTooManyRequests || r.header.Get("Retry-After") == "" {
		t.Errorf("a third capture: got status %d with %s, want 429", r.code, r.body)
	}
}

// streamingAgents answer with the parts of a file, which end by the error.
type streamingAgents struct {
	agentFunc
	parts  chan string
	ended  error
	closed chan struct{} // closed when the controller has closed a body
	once   sync.Once
}

type streamedBody struct {
	*streamingAgents
	ctx  context.Context
	rest string
}

func (a *streamingAgents) Stream(ctx context.Context, _ string, _ netip.Addr, _ string, _ url.Values) (io.ReadCloser, error) {
	return &streamedBody{streamingAgents: a, ctx: ctx}, nil
}

func (b *streamedBody) Read(p []byte) (int, error) {
	for b.rest == "" {
		select {
		case part, ok := <-b.parts:
			if !ok {
				return 0, b.ended
			}
			b.rest = part
		case <-b.ctx.Done():
			return 0, b.ctx.Err()
		}
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

func (b *streamedBody) Close() error {
	b.once.Do(func() { close(b.closed) })
	return nil
}

// stream requests a capture, and returns its body.
func (f *fixture) stream(ctx context.Context, t *testing.T) io.Reader {
	t.Helper()
	client := f.client(t, f.proxy.Issue(t, "front-proxy-client", x509.ExtKeyUsageClientAuth))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, f.url+versionPath+capturePath("a", "web"), strings.NewReader(`{"spec":{"maxBytes":4096}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("X-Remote-User", "u")
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	return answer.Body
}

// Packets are sent on as they arrive, an answer that breaks off or is too large is not complete, and a client that disconnects ends the capture.
func TestCaptures_streams(t *testing.T) {
	for name, tc := range map[string]struct {
		end        func(agents *streamingAgents, disconnect func())
		isComplete bool
	}{
		"complete":     {func(a *streamingAgents, _ func()) { a.ended = io.EOF; close(a.parts) }, true},
		"broken off":   {func(a *streamingAgents, _ func()) { a.ended = io.ErrUnexpectedEOF; close(a.parts) }, false},
		"too large":    {func(a *streamingAgents, _ func()) { a.parts <- strings.Repeat("x", 5000) }, false},
		"disconnected": {func(_ *streamingAgents, disconnect func()) { disconnect() }, false},
	} {
		f := newCaptureFixture(t, webRight)
		agents := &streamingAgents{parts: make(chan string), closed: make(chan struct{})}
		f.Agents = agents
		ctx, disconnect := context.WithCancel(t.Context())
		defer disconnect()
		go func() { agents.parts <- "one\n" }()
		body := bufio.NewReader(f.stream(ctx, t))
		if line, err := body.ReadString('\n'); err != nil || line != "one\n" {
			t.Errorf("%s: got %q, error %v while the capture runs", name, line, err)
		}
		tc.end(agents, disconnect)
		if _, err := io.ReadAll(body); (err == nil) != tc.isComplete {
			t.Errorf("%s: got error %v, want a complete answer: %v", name, err, tc.isComplete)
		}
		select {
		case <-agents.closed:
		case <-time.After(time.Minute):
			t.Fatalf("%s: the agent's answer is still read", name)
		}
	}
}

// An agent that does not begin the file in time does not occupy the user's captures.
func TestOpenCapture_late(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, agent := range map[string]agentFunc{
			"no answer": func(ctx context.Context, _, _ string, _ url.Values) (string, error) {
				<-ctx.Done()
				return "", ctx.Err()
			},
			"late answer": func(ctx context.Context, _, _ string, _ url.Values) (string, error) { <-ctx.Done(); return "", nil },
		} {
			ctx, cancel := context.WithCancel(t.Context())
			began := time.Now()
			s := &Server{Config: Config{Agents: agent}}
			if _, err := s.openCapture(ctx, cancel, tracedNodes()[0], nil); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != captureOpenTimeout {
				t.Errorf("%s: got error %v after %v, want DeadlineExceeded after %v", name, err, time.Since(began), captureOpenTimeout)
			}
			cancel()
		}
	})
}
