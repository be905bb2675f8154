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
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	// retryAfter is the pause after a failure to listen: the port may be in use, or the certificate's files may not exist yet.
	retryAfter = 10 * time.Second

	readTimeout  = 5 * time.Second
	idleTimeout  = 2 * time.Minute
	writeTimeout = 2 * time.Minute // a CPU profile takes 30 seconds by default

	maxHeader = 64 << 10 // bytes; the front proxy sends one header for each group of a user
)

// Config is the configuration of the server.
type Config struct {
	Address           string // host:port; "0": none
	CertFile, KeyFile string // PEM; empty: Certificate's, or else a self-signed certificate in memory

	// Certificate returns the certificate to serve if CertFile is empty, or if the client asks for one of its names; nil: a self-signed one. It is called for
	// each connection.
	Certificate func() *tls.Certificate
	// Routes are handlers of other paths. With at least one, the server requests a client certificate, and does not require it.
	Routes []Route
	// TrustedSource reports whether a source address has the limits of connections of accepted clients before it sends a certificate; nil: none has.
	TrustedSource func(netip.Addr) bool
}

// Route is a handler of the paths with a prefix. It authenticates clients by r.TLS.PeerCertificates: the server has verified that they have the private
// key of the first one, and nothing else. It gets no request without a client certificate: that is refused with 401. It calls Accept for each client that it
// accepts, and refuses others with the header "Connection: close".
type Route struct {
	Prefix  string // of the path, such as /apis/
	Handler http.Handler
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
	h.routes = cfg.Routes
	for ctx.Err() == nil {
		err := serve(ctx, cfg, h)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "Failed to serve metrics", "address", cfg.Address, "retryAfter", retryAfter,
			"action", "correct the certificate's files, or set --metrics-bind-address to a free port")
		pause.For(ctx, retryAfter)
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
	cert := &certificate{certFile: cfg.CertFile, keyFile: cfg.KeyFile, provided: cfg.Certificate, now: time.Now}
	if _, err := cert.load(); err != nil {
		return err
	}
	server := &http.Server{
		Handler: h, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ConnContext: withConnection,
		ErrorLog:    log.New(io.Discard, "", 0), // any client could fill the log
	}
	var closing sync.WaitGroup
	defer closing.Wait()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	closing.Go(func() {
		<-serving.Done()
		_ = server.Close()
	})
	config := cert.config(ctx)
	if len(cfg.Routes) > 0 {
		config.ClientAuth = tls.RequestClientCert // routes verify it: each has its own authority
	}
	return server.Serve(tls.NewListener(newListener(l, cfg.TrustedSource), config))
}
