package diagnosticsserver

import (
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podcapture"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

const (
	maxCaptures          = 4 // at the same time
	maxNamespaceCaptures = 2 // of them of pods of one namespace
	capturesPerSecond    = 2 // the end of each waits for all processors

	// captureWriteTimeout is the time in which the client reads some of the file. In the meantime the kernel drops packets.
	captureWriteTimeout = 30 * time.Second
)

// captureRequest is a valid request for a capture.
type captureRequest struct {
	pod  diagnostics.Object
	uid  string
	spec diagnostics.CaptureSpec
}

func parseCapture(query string) (*captureRequest, error) {
	values, err := url.ParseQuery(query)
	if err != nil {
		return nil, failf(http.StatusBadRequest, "the query is invalid: %w", err)
	}
	spec, others, err := diagnostics.ParseCaptureQuery(values)
	if err != nil {
		return nil, failf(http.StatusBadRequest, "%w", err)
	}
	pod, err := diagnostics.ParseObject(others[diagnostics.PodParameter])
	if err != nil || pod.Kind != diagnostics.KindPod {
		return nil, failf(http.StatusBadRequest, "parameter %s is %.*q, but must be pod/NAMESPACE/NAME", diagnostics.PodParameter, diagnostics.MaxQuoted, others[diagnostics.PodParameter])
	}
	r := &captureRequest{pod: pod, uid: others[diagnostics.PodUIDParameter], spec: spec}
	if r.uid == "" {
		return nil, failf(http.StatusBadRequest, "parameter %s is required", diagnostics.PodUIDParameter)
	}
	return r, nil
}

// serveCapture captures packets of a pod of the node until a limit of the request, or until the client disconnects.
func (h *Handler) serveCapture(w http.ResponseWriter, r *http.Request) {
	request, err := parseCapture(r.URL.RawQuery)
	if err != nil {
		refuse(w, err)
		return
	}
	release := h.captures.acquire(request.pod.Namespace)
	if release == nil {
		refuse(w, failf(http.StatusTooManyRequests, "the agent of node %s captures at %d pods at the same time, %d of one namespace, and begins %d captures in a second; retry",
			h.options.NodeName, maxCaptures, maxNamespaceCaptures, capturesPerSecond))
		return
	}
	defer release()
	session, err := h.openCapture(request)
	if err != nil {
		refuse(w, err)
		return
	}
	defer session.Close()
	w.Header().Set("Content-Type", diagnostics.ContentTypePcapng)
	if err := session.Run(r.Context(), &stream{w, http.NewResponseController(w)}); err != nil {
		panic(http.ErrAbortHandler) // the client gets an incomplete answer, which it reports
	}
}

// openCapture opens a capture. The agent's own record has the interface of the pod: no parameter names one.
func (h *Handler) openCapture(r *captureRequest) (CaptureSession, error) {
	n, err := h.ready()
	if err != nil {
		return nil, err
	}
	pods := n.Pods()
	i := slices.IndexFunc(pods, func(p sandbox.Pod) bool {
		return p.Namespace == r.pod.Namespace && p.Name == r.pod.Name && p.UID == r.uid && p.OFPort > 0
	})
	if i < 0 {
		return nil, failf(http.StatusNotFound, "%s does not run on node %s, is being set up, or is on the host network", r.pod, h.options.NodeName)
	}
	session, err := n.Capture(podcapture.Capture{HostVeth: pods[i].HostVeth(), Name: r.pod.String(), Spec: r.spec})
	if err != nil {
		return nil, failf(http.StatusServiceUnavailable, "no packets of %s can be captured on node %s: %w", r.pod, h.options.NodeName, err)
	}
	return session, nil
}

// stream sends an answer of any duration: each write has a time-out of its own.
type stream struct {
	http.ResponseWriter
	controller *http.ResponseController
}

// Write implements io.Writer.
func (s *stream) Write(content []byte) (int, error) {
	_ = s.controller.SetWriteDeadline(time.Now().Add(captureWriteTimeout)) // test recorders have none
	return s.ResponseWriter.Write(content)
}

// Flush implements podcapture.Output.
func (s *stream) Flush() error {
	_ = s.controller.SetWriteDeadline(time.Now().Add(captureWriteTimeout))
	return s.controller.Flush()
}
