package metrics

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

const (
	// retryAfter is the pause after a failure to listen: the port may be in use, or the certificate's files may not exist yet.
	retryAfter = 10 * time.Second

	readTimeout   = 5 * time.Second
	idleTimeout   = 2 * time.Minute
	reviewTimeout = 5 * time.Second
	writeTimeout  = 2 * time.Minute // a CPU profile takes 30 seconds by default

	maxScrapes = 4 // at the same time
)

// Config is the configuration of the server.
type Config struct {
	Address           string // host:port; "0": none
	CertFile, KeyFile string // PEM; empty: a self-signed certificate in memory
}

// Validate returns all errors of the configuration.
func (c Config) Validate() error {
	var errs []error
	if c.Address != "0" {
		if _, err := net.ResolveTCPAddr("tcp", c.Address); err != nil || c.Address == "" {
			errs = append(errs, fmt.Errorf("--metrics-bind-address: %q is not an address: write [HOST]:PORT, or 0 for none", c.Address))
		}
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("--metrics-tls-cert-file, --metrics-tls-private-key-file: set both, or none for a self-signed certificate"))
	}
	return errors.Join(errs...)
}

// Run serves metrics and profiles until the context ends. Failures are logged and retried: the pod network does not depend on metrics.
func Run(ctx context.Context, cfg Config, kube kubernetes.Interface, gatherer prometheus.Gatherer) {
	if cfg.Address == "0" {
		return
	}
	h := newHandler(kube, gatherer)
	for ctx.Err() == nil {
		err := serve(ctx, cfg, h)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "Failed to serve metrics", "address", cfg.Address, "retryAfter", retryAfter)
		pause := time.NewTimer(retryAfter)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
	}
}

func serve(ctx context.Context, cfg Config, h http.Handler) error {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return err
	}
	return serveListener(ctx, l, cfg, h)
}

// serveListener serves the listener, which it closes.
func serveListener(ctx context.Context, l net.Listener, cfg Config, h http.Handler) error {
	defer l.Close()
	cert := &certificate{certFile: cfg.CertFile, keyFile: cfg.KeyFile, now: time.Now}
	if _, err := cert.load(); err != nil {
		return err
	}
	server := &http.Server{
		Handler: h, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0), // any client could fill the log
	}
	var closing sync.WaitGroup
	defer closing.Wait()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	closing.Go(func() {
		<-serving.Done()
		_ = server.Close()
	})
	return server.Serve(tls.NewListener(newListener(l), cert.config(ctx)))
}

// handler admits requests of clients with rights.
type handler struct {
	http.Handler
	reviewer *reviewer
	sources  *sources
}

func newHandler(kube kubernetes.Interface, gatherer prometheus.Gatherer) *handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{MaxRequestsInFlight: maxScrapes, ErrorHandling: promhttp.ContinueOnError}))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return &handler{Handler: mux, reviewer: newReviewer(kube), sources: newSources()}
}

// ServeHTTP implements http.Handler.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !h.sources.allow(addrOf(r.RemoteAddr)) {
		http.Error(w, "too many requests", http.StatusTooManyRequests)
		return
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if token = strings.TrimSpace(token); !ok || token == "" {
		w.Header().Set("WWW-Authenticate", "Bearer")
		http.Error(w, "a bearer token is required", http.StatusUnauthorized)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), reviewTimeout)
	defer cancel()
	verb := strings.ToLower(r.Method) // as in RBAC
	status, err := h.reviewer.review(ctx, token, verb, r.URL.Path)
	switch {
	case errors.Is(err, errTooManyReviews):
		http.Error(w, err.Error(), http.StatusTooManyRequests)
	case err != nil:
		klog.FromContext(ctx).Error(err, "Failed to review a request for metrics")
		http.Error(w, "the API server does not answer reviews", http.StatusServiceUnavailable)
	case status == http.StatusUnauthorized:
		http.Error(w, "the token is not valid", status)
	case status != http.StatusOK:
		http.Error(w, fmt.Sprintf("the user has no right to %s %s", verb, r.URL.Path), status)
	default:
		h.Handler.ServeHTTP(w, r)
	}
}
