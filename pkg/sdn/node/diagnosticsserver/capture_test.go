package diagnosticsserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podcapture"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

const captureParameters = "pod=pod/default/web uid=u1 protocol=TCP port=80 durationSeconds=600"

// captureQuery returns the query of parameters that are separated by spaces.
func captureQuery(parameters string) string { return strings.ReplaceAll(parameters, " ", "&") }

func TestParseCapture_refuses(t *testing.T) {
	for parameters, want := range map[string]string{
		"":                                        `parameter pod is ""`,
		"pod=pod/default/web":                     "parameter uid is required",
		"pod=node/node1 uid=u1":                   "parameter pod is",
		"pod=pod/default uid=u1":                  "parameter pod is",
		"pod=pod/default/web uid=u1 uid=u2":       `parameter "uid" is set 2 times`,
		captureParameters + " interface=eth0":     `parameter "interface" is unknown`,
		captureParameters + " host=x":             "spec.host",
		captureParameters + " snapLength=9999999": "spec.snapLength",
		captureParameters + "%":                   "the query is invalid",
	} {
		_, err := parseCapture(captureQuery(parameters))
		var refused *failure
		if !errors.As(err, &refused) || refused.status != http.StatusBadRequest || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got error %v, want 400 with %s", parameters, err, want)
		}
	}
}

// fakeSession writes its content, flushes it, and waits for the context if it has no end.
type fakeSession struct {
	content string
	hasEnd  bool
	closed  chan struct{}
}

func (s *fakeSession) Run(ctx context.Context, out podcapture.Output) error {
	if _, err := io.WriteString(out, s.content); err != nil {
		return err
	}
	if err := out.Flush(); err != nil || s.hasEnd {
		return err
	}
	<-ctx.Done()
	return ctx.Err()
}

func (s *fakeSession) Close() error { close(s.closed); return nil }

// The agent captures at the interface of its own record of the pod.
func TestCapture(t *testing.T) {
	n := newNode(t)
	n.network.Pods = func() []sandbox.Pod { // an earlier pod of that name, whose sandbox still exists
		earlier := webPod()
		earlier.UID, earlier.Sandbox = "u0", "fedcba9876543210"
		return []sandbox.Pod{earlier, webPod()}
	}
	var opened podcapture.Capture
	var session *fakeSession
	var fault error
	n.network.Capture = func(c podcapture.Capture) (CaptureSession, error) {
		opened = c
		return session, fault
	}
	path := diagnostics.NodeCapturePath + "?" + captureQuery(captureParameters)
	session = &fakeSession{"the file", true, make(chan struct{})}
	w := n.do(t.Context(), http.MethodGet, path)
	want := podcapture.Capture{HostVeth: webPod().HostVeth(), Name: "pod/default/web", Spec: diagnostics.CaptureSpec{Protocol: "TCP", Port: 80, DurationSeconds: 600, MaxBytes: 16 << 20, SnapLength: 256}}
	if diff := cmp.Diff(want, opened); diff != "" || w.Code != http.StatusOK || w.Body.String() != "the file" || w.Header().Get("Content-Type") != "application/x-pcapng" || !w.Flushed {
		t.Errorf("got %d %v: %s, capture (-want +got):\n%s", w.Code, w.Header(), w.Body, diff)
	}
	<-session.closed

	refused := func(name, parameters string, code int, message string) {
		t.Helper()
		w := n.do(t.Context(), http.MethodGet, diagnostics.NodeCapturePath+"?"+captureQuery(parameters))
		var got metav1.Status
		if err := json.Unmarshal(w.Body.Bytes(), &got); w.Code != code || err != nil || !strings.Contains(got.Message, message) || (code == http.StatusTooManyRequests) != (w.Header().Get("Retry-After") != "") {
			t.Errorf("%s: got %d: %s, want %d: %s", name, w.Code, w.Body, code, message)
		}
	}
	n.captures = newPodLimits(maxCaptures, maxNamespaceCaptures, 100)
	refused("invalid", captureParameters+" port=x", http.StatusBadRequest, "parameter")
	refused("a pod of another node", strings.Replace(captureParameters, "web", "other", 1), http.StatusNotFound, "pod/default/other does not run on node node1")
	refused("another pod of that name", strings.Replace(captureParameters, "u1", "u2", 1), http.StatusNotFound, "pod/default/web does not run on node node1")
	fault = errors.New("no interface")
	refused("without an interface", captureParameters, http.StatusServiceUnavailable, "no packets of pod/default/web can be captured on node node1: no interface")
	first, second := n.captures.acquire("default"), n.captures.acquire("default")
	refused("a third one of the namespace", captureParameters, http.StatusTooManyRequests, "captures at 4 pods at the same time, 2 of one namespace, and begins 2 captures in a second; retry")
	first()
	second()
	n.SetNetwork(nil)
	refused("without a network", captureParameters, http.StatusServiceUnavailable, "is being set up")
}

// The file is sent while packets arrive, also when the time in which other answers are written has passed, and a client that disconnects ends the capture.
func TestCapture_streams(t *testing.T) {
	n := newNode(t)
	session := &fakeSession{"begin", false, make(chan struct{})}
	n.network.Capture = func(podcapture.Capture) (CaptureSession, error) {
		<-time.After(10 * time.Millisecond) // the server's time-outs have passed
		return session, nil
	}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.TLS = n.state()
		n.ServeHTTP(w, r)
	}))
	server.Config.WriteTimeout = time.Millisecond
	server.Start()
	defer server.Close()
	ctx, disconnect := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+diagnostics.NodeCapturePath+"?"+captureQuery(captureParameters), nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	got := make([]byte, len(session.content))
	if _, err := io.ReadFull(response.Body, got); err != nil || !bytes.Equal(got, []byte(session.content)) {
		t.Errorf("got %q, error %v", got, err)
	}
	disconnect()
	select {
	case <-session.closed:
	case <-time.After(time.Minute):
		t.Fatal("the capture of a client that has disconnected runs on")
	}
}

// A capture that is accepted has a pod, and limits.
func FuzzParseCapture(f *testing.F) {
	for _, parameters := range []string{captureParameters, captureParameters + " host=10.0.0.0/8 snapLength=64 maxBytes=4096 maxPackets=1", "pod=pod/a/b uid=x"} {
		f.Add(captureQuery(parameters))
	}
	f.Fuzz(func(t *testing.T, query string) {
		r, err := parseCapture(query)
		if err != nil {
			if len(err.Error()) > 2000+len(query) {
				t.Errorf("got an error of %d bytes", len(err.Error()))
			}
			return
		}
		if s := r.spec; r.pod.Kind != diagnostics.KindPod || r.uid == "" || s.DurationSeconds < 1 || s.DurationSeconds > 600 || s.MaxBytes < 1 || s.MaxBytes > 256<<20 ||
			s.SnapLength < 1 || s.SnapLength > 65535 || s.MaxPackets < 0 || s.Port < 0 || s.Port > 65535 || s.Host != "" && !s.Prefix().IsValid() {
			t.Errorf("%s: got %+v", query, r)
		}
	})
}
