// Package diagnosticsserver answers the controllers' requests for the state of the node, the traffic of its pods, the flows of its bridge, the way of
// packets through them and the host, probes from its pods, and captures of their packets (docs/decisions/0020-diagnostics.md).
package diagnosticsserver

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/certificates"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Prefix is that of the paths of Handler.
const Prefix = "/diagnostics/"

const (
	answerTimeout = 30 * time.Second // to read the switch, and again to send the answer
	retryAfter    = "2"              // seconds, after 429
)

// Options are the parts of the agent that exist without a network.
type Options struct {
	NodeName string
	Datapath string                // of the bridge
	CAs      func() *x509.CertPool // of the diagnostics CA; nil: none is known, and no client is accepted
	Ready    func() error          // the check of /readyz
	Version  func(*http.Request) (agent, ovs string)
}

// Handler is the http.Handler of the paths of package diagnostics. It is safe for concurrent use.
type Handler struct {
	options  Options
	started  metav1.Time
	mux      *http.ServeMux
	network  atomic.Pointer[Network]
	dumping  atomic.Bool   // a request for flows is being answered
	sampling atomic.Bool   // the counters of ports are being read
	tracing  chan struct{} // has an element for each request for a trace that is being answered
	batching atomic.Bool   // the packets of a request are being traced, not before nextTraces
	sending  atomic.Bool   // the packets of a request are being sent
	limiter  *rate.Limiter // of traces on the switch
	probes   *podLimits

	hosting     chan struct{} // as tracing, for requests about the host
	hostLimiter *rate.Limiter // of packets on the host
	sendLimiter *rate.Limiter // of probes of batches
	captures    *podLimits
	nextTraces  time.Time // guarded by batching
	tables      map[int]string
	parser      *ovs.TraceParser
}

// New returns a handler of a node without a network.
func New(o Options) *Handler {
	h := &Handler{
		probes: newPodLimits(maxProbes, maxNamespaceProbes, probesPerSecond), captures: newPodLimits(maxCaptures, maxNamespaceCaptures, capturesPerSecond),
		options: o, started: metav1.Now(), mux: http.NewServeMux(), tracing: make(chan struct{}, maxTraces),
		hosting: make(chan struct{}, maxHosts), hostLimiter: rate.NewLimiter(hostsPerSecond, hostBurst),
		sendLimiter: rate.NewLimiter(batchProbesPerSecond, batchProbes), limiter: rate.NewLimiter(tracesPerSecond, traceBurst), tables: pipeline.TableNames(), parser: ovs.NewTraceParser(pipeline.TableNames()),
	}
	h.mux.HandleFunc(diagnostics.StatusPath, h.serveStatus)
	h.mux.HandleFunc(diagnostics.FlowsPath, h.serveFlows)
	h.mux.HandleFunc(diagnostics.TrafficPath, h.serveTraffic)
	h.mux.HandleFunc(diagnostics.NodeTracePath, h.serveTrace)
	h.mux.HandleFunc(diagnostics.NodeHostPath, h.serveHost)
	h.mux.HandleFunc(diagnostics.NodeTracesPath, h.serveTraces)
	h.mux.HandleFunc(diagnostics.NodeProbePath, h.serveProbe)
	h.mux.HandleFunc(diagnostics.NodeProbesPath, h.serveProbes)
	h.mux.HandleFunc(diagnostics.NodeCapturePath, h.serveCapture)
	return h
}

// SetNetwork sets the network that was set up; nil while there is none.
func (h *Handler) SetNetwork(n *Network) { h.network.Store(n) }

// ServeHTTP implements http.Handler.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	err := h.authenticate(r)
	switch _, pattern := h.mux.Handler(r); {
	case err != nil:
		refuse(w, err)
	case pattern == "":
		// Not a Status: so does an agent without this handler.
		w.Header().Set("Connection", "close")
		http.NotFound(w, r)
	case r.Method != methodOf(pattern):
		w.Header().Set("Allow", methodOf(pattern))
		refuse(w, failf(http.StatusMethodNotAllowed, "only %s is allowed", methodOf(pattern)))
	default:
		h.mux.ServeHTTP(w, r)
	}
}

// methodOf returns the method of requests for a path.
func methodOf(path string) string {
	if path == diagnostics.NodeTracesPath || path == diagnostics.NodeProbesPath {
		return http.MethodPost
	}
	return http.MethodGet
}

// authenticate accepts a certificate of the diagnostics CA for clients, with the name of controllers. The TLS server does not verify it, since clients with
// tokens have none.
func (h *Handler) authenticate(r *http.Request) error {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return failf(http.StatusUnauthorized, "a client certificate is required; users read this by `kubectl ovsdn`")
	}
	roots := h.options.CAs()
	if roots == nil {
		return failf(http.StatusUnauthorized, "the agent of node %s does not know the diagnostics CA yet; check ConfigMap ovsdn-diagnostics and the agent's log", h.options.NodeName)
	}
	if err := certificates.VerifyClient(r.TLS.PeerCertificates, roots, certificates.ControllerName); err != nil {
		return failf(http.StatusForbidden, "only %s may read this: %w", certificates.ControllerName, err)
	}
	metrics.Accept(r)
	return nil
}

// failure is an error with its HTTP status.
type failure struct {
	status int
	err    error
}

func failf(status int, format string, args ...any) error {
	return &failure{status, fmt.Errorf(format, args...)}
}

func (f *failure) Error() string { return f.err.Error() }

func (f *failure) Unwrap() error { return f.err }

// refuse answers with the error as a Status, and closes the connection.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	if f, ok := errors.AsType[*failure](err); ok {
		code = f.status
	}
	if code == http.StatusTooManyRequests {
		w.Header().Set("Retry-After", retryAfter)
	}
	w.Header().Set("Connection", "close")
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // the client closed the connection
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure, Code: int32(code), Message: err.Error(), //nolint:gosec // three digits
	})
}

// send answers with the object.
func send(w http.ResponseWriter, object any) {
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerTimeout)) // test recorders have none
	_ = json.NewEncoder(w).Encode(object)                                             // the client closed the connection
}

func (h *Handler) typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: diagnostics.Group + "/" + diagnostics.Version, Kind: kind}
}
