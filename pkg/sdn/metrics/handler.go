package metrics

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/pprof"
	runtimepprof "runtime/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	metricsPath  = "/metrics"
	profilesPath = "/debug/pprof/"

	maxScrapes    = 4 // at the same time
	scrapeTimeout = 10 * time.Second
	reviewTimeout = 5 * time.Second

	// failureLogInterval is the interval of log lines on failures that clients cause.
	failureLogInterval = time.Minute
)

// handler admits requests of clients with rights.
type handler struct {
	http.Handler
	reviewer *reviewer
	rest     *sources // the rate of requests without an accepted token
	scrapes  *sources // the rate of those with one, which others with the same source address do not use up
	routes   []Route
	failures FailureLog
}

func newHandler(kube kubernetes.Interface, gatherer prometheus.Gatherer) *handler {
	mux := http.NewServeMux()
	mux.Handle("GET "+metricsPath, promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{
		MaxRequestsInFlight: maxScrapes, Timeout: scrapeTimeout, ErrorHandling: promhttp.ContinueOnError,
	}))
	mux.HandleFunc("GET "+profilesPath, pprof.Index)
	for name, profile := range otherProfiles() {
		mux.HandleFunc("GET "+profilesPath+name, profile)
	}
	return &handler{
		Handler: mux, reviewer: newReviewer(kube),
		rest: newSources(sourceRate, sourceBurst, sourceLifetime), scrapes: newSources(sourceRate, sourceBurst, sourceLifetime),
	}
}

// otherProfiles are those that runtime/pprof does not know by name.
func otherProfiles() map[string]http.HandlerFunc {
	return map[string]http.HandlerFunc{"cmdline": pprof.Cmdline, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace}
}

// isServed reports whether the path exists. These are few, which bounds the reviews of one token.
func isServed(path string) bool {
	name, isProfile := strings.CutPrefix(path, profilesPath)
	return path == metricsPath || isProfile && (name == "" || otherProfiles()[name] != nil || runtimepprof.Lookup(name) != nil)
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	for _, route := range h.routes {
		if strings.HasPrefix(r.URL.Path, route.Prefix) {
			serveRoute(w, r, route.Handler)
			return
		}
	}
	source := addrOf(r.RemoteAddr)
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	token = strings.TrimSpace(token)
	verb, path := strings.ToLower(r.Method), r.URL.Path // as in RBAC
	rate := h.rest
	if h.reviewer.isKnown(token, verb, path) {
		rate = h.scrapes
	}
	switch {
	case !rate.allow(source):
		refuse(w, "too many requests from this address; retry later", http.StatusTooManyRequests)
		return
	case !isServed(path):
		refuse(w, "not found", http.StatusNotFound)
		return
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		refuse(w, "only GET is allowed", http.StatusMethodNotAllowed)
		return
	case !ok || token == "":
		w.Header().Set("WWW-Authenticate", "Bearer")
		refuse(w, "a bearer token is required", http.StatusUnauthorized)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	status, err := h.reviewer.review(ctx, source, token, verb, path)
	switch {
	case errors.Is(err, errTooManyReviews):
		refuse(w, err.Error(), http.StatusTooManyRequests)
	case err != nil:
		var keys []any
		if apierrors.IsForbidden(err) {
			keys = []any{"action", "apply deploy/rbac"}
		}
		h.failures.Log(ctx, err, "Failed to authenticate or authorize a request for metrics", keys...)
		refuse(w, "TokenReview or SubjectAccessReview failed; the log of this program has the error", http.StatusServiceUnavailable)
	case status == http.StatusUnauthorized:
		refuse(w, "the token is invalid or has expired; send a token of the API server's audience", status)
	case status != http.StatusOK:
		refuse(w, fmt.Sprintf("the user cannot %s path %s; grant it by RBAC (nonResourceURLs)", verb, path), status)
	default:
		if rate != h.scrapes {
			_ = h.scrapes.allow(source) // the first request with a token counts, too
		}
		h.Handler.ServeHTTP(w, r)
	}
}

func serveRoute(w http.ResponseWriter, r *http.Request, h http.Handler) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		refuse(w, "a client certificate is required", http.StatusUnauthorized)
		return
	}
	h.ServeHTTP(w, r)
}

// refuse answers with the status and closes the connection: the limits of connections then apply to the next request, before its TLS handshake.
func refuse(w http.ResponseWriter, message string, status int) {
	w.Header().Set("Connection", "close")
	http.Error(w, message, status)
}

// FailureLog logs failures that clients cause, once a minute. It is safe for concurrent use.
type FailureLog struct {
	mu         sync.Mutex
	logged     time.Time
	suppressed int
}

// Log logs the error with the message, which is constant, and key/value pairs.
func (f *FailureLog) Log(ctx context.Context, err error, message string, keys ...any) {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	if !f.logged.IsZero() && now.Sub(f.logged) < failureLogInterval {
		f.suppressed++
		return
	}
	keys = append([]any{"suppressed", f.suppressed}, keys...)
	f.logged, f.suppressed = now, 0
	klog.FromContext(ctx).Error(err, message, keys...)
}
