package diagnosticsapi

import (
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/fakeca"
)

// agentServer is an agent at 127.0.0.1, and the client of it.
type agentServer struct {
	*HTTPSAgents
	ca          *fakeca.Authority // of agents and controllers
	connections atomic.Int32
	port        uint16
}

// newAgentServer serves an agent with a certificate of the name.
func newAgentServer(t *testing.T, name string, h http.HandlerFunc) *agentServer {
	t.Helper()
	a := &agentServer{ca: fakeca.New(t, "diagnostics")}
	server := httptest.NewUnstartedServer(h)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{a.ca.Issue(t, name, x509.ExtKeyUsageServerAuth)}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: a.ca.Pool(), MinVersion: tls.VersionTLS12,
	}
	server.Config.ConnState = func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			a.connections.Add(1)
		}
	}
	server.StartTLS()
	t.Cleanup(server.Close)
	a.port = netip.MustParseAddrPort(server.Listener.Addr().String()).Port()
	a.connect(t, a.ca, a.ca)
	return a
}

// connect replaces the client by one that trusts the CA and has a certificate of the other.
func (a *agentServer) connect(t *testing.T, trusted, own *fakeca.Authority) {
	t.Helper()
	certificate := own.Issue(t, "ovsdn-controller", x509.ExtKeyUsageClientAuth)
	a.HTTPSAgents = NewHTTPSAgents(a.port, func(string) *tls.Config {
		return &tls.Config{RootCAs: trusted.Pool(), Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	})
	t.Cleanup(a.Close)
}

// issueConfig returns the TLS configuration of a controller.
func (a *agentServer) issueConfig(t *testing.T) *tls.Config {
	t.Helper()
	return &tls.Config{
		RootCAs: a.ca.Pool(), Certificates: []tls.Certificate{a.ca.Issue(t, "ovsdn-controller", x509.ExtKeyUsageClientAuth)}, MinVersion: tls.VersionTLS12,
	}
}

// status requests the status of the node at the address.
func (a *agentServer) status(t *testing.T, node, address string) (diagnostics.NodeStatus, error) {
	t.Helper()
	o := diagnostics.NodeStatus{}
	return o, a.Get(t.Context(), node, netip.MustParseAddr(address), diagnostics.StatusPath, url.Values{"object": {"a/b"}}, &o)
}

func TestHTTPSAgents_reusesConnectionsOfNode(t *testing.T) {
	var hosts []string
	a := newAgentServer(t, "node1", func(w http.ResponseWriter, r *http.Request) {
		hosts = append(hosts, r.Host+" "+r.RequestURI+" "+r.TLS.PeerCertificates[0].Subject.CommonName)
		fmt.Fprint(w, `{}`)
	})
	t.Setenv("HTTPS_PROXY", "http://192.0.2.1:1")
	for range 3 {
		if _, err := a.status(t, "node1", "127.0.0.1"); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.connections.Load(); got != 1 {
		t.Errorf("got %d connections, want 1", got)
	}
	if want := "node1 /diagnostics/v1alpha1/status?object=a%2Fb ovsdn-controller"; hosts[0] != want {
		t.Errorf("got request %q, want %q", hosts[0], want)
	}
	// The same address for another node must not use the verified connection.
	var invalid *tls.CertificateVerificationError
	if _, err := a.status(t, "node2", "127.0.0.1"); !errors.As(err, &invalid) {
		t.Errorf("node2: got %v, want an invalid certificate", err)
	}
	certified := a.issueConfig(t)
	a.HTTPSAgents = NewHTTPSAgents(a.port, func(node string) *tls.Config {
		c := certified.Clone()
		c.ServerName = node + ".other"
		return c
	})
	if _, err := a.status(t, "node1", "127.0.0.1"); !errors.As(err, &invalid) {
		t.Errorf("another name than the configuration's: got %v, want an invalid certificate", err)
	}
	if len(hosts) != 3 {
		t.Errorf("got requests %q, want 3: an agent without the node's certificate must not get one", hosts)
	}
}

// What operators read about agents that do not answer.
func TestHTTPSAgents_explainsFailures(t *testing.T) {
	body := func(code int, contentType, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", contentType)
			w.Header().Set("Location", "/")
			w.WriteHeader(code)
			fmt.Fprint(w, text)
		}
	}
	other := fakeca.New(t, "diagnostics")
	for name, c := range map[string]struct {
		h       http.HandlerFunc
		prepare func(*agentServer)
		want    string
		is      func(error) bool // of the API's error
	}{
		"unknown path":    {body(404, "text/plain", "404 page not found\n"), nil, "the agent of node1 does not support it; upgrade the agent", apierrors.IsServiceUnavailable},
		"missing object":  {body(404, contentTypeJSON, `{"kind":"Status","message":"no pod a/b on this node"}`), nil, "the agent answers 404: no pod a/b on this node", apierrors.IsNotFound},
		"invalid object":  {body(400, contentTypeJSON, `{"kind":"Status","message":"not an object"}`), nil, "the agent answers 400: not an object", apierrors.IsBadRequest},
		"busy":            {body(429, "text/plain", "busy"), nil, "the agent answers 429: busy", apierrors.IsTooManyRequests},
		"control":         {body(500, "text/plain", "\x1b[2J"), nil, `the agent answers 500: "\x1b[2J"`, apierrors.IsServiceUnavailable},
		"redirect":        {body(302, "text/plain", "elsewhere"), nil, "the agent answers 302: elsewhere", apierrors.IsServiceUnavailable},
		"large error":     {body(500, "text/plain", strings.Repeat("x", 1<<20)), nil, "the agent answers 500: ", apierrors.IsServiceUnavailable},
		"large":           {body(200, contentTypeJSON, `{"a":"`+strings.Repeat("x", maxStatusAnswer)+`"}`), nil, "the agent's answer is larger than 65536 bytes", apierrors.IsServiceUnavailable},
		"not JSON":        {body(200, contentTypeJSON, "<html>"), nil, "invalid answer of the agent: ", apierrors.IsServiceUnavailable},
		"large header":    {func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("A", strings.Repeat("x", 1<<20)) }, nil, "", apierrors.IsServiceUnavailable},
		"aborted":         {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, nil, "the agent closed the connection", apierrors.IsServiceUnavailable},
		"foreign agent":   {body(200, contentTypeJSON, "{}"), func(a *agentServer) { a.connect(t, other, a.ca) }, "certificate not valid for the agent of node1: ", apierrors.IsServiceUnavailable},
		"refused client":  {body(200, contentTypeJSON, "{}"), func(a *agentServer) { a.connect(t, a.ca, other) }, "the agent refuses the controller's certificate: ", apierrors.IsServiceUnavailable},
		"no listener":     {body(200, contentTypeJSON, "{}"), func(a *agentServer) { a.HTTPSAgents.port = "1" }, "connection refused", apierrors.IsServiceUnavailable},
		"no certificates": {body(200, contentTypeJSON, "{}"), func(a *agentServer) { a.HTTPSAgents = NewHTTPSAgents(a.port, func(string) *tls.Config { return nil }) }, "the controller has no certificate", apierrors.IsServiceUnavailable},
		"compressed": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(make([]byte, 1<<20))
			_ = z.Close()
		}, nil, "invalid answer of the agent", apierrors.IsServiceUnavailable},
	} {
		t.Run(name, func(t *testing.T) {
			a := newAgentServer(t, "node1", c.h)
			if c.prepare != nil {
				c.prepare(a)
			}
			_, err := a.status(t, "node1", "127.0.0.1")
			if err == nil {
				t.Fatal("got no error")
			}
			if got := explain("node1", err); !strings.HasPrefix(got, c.want) || len(got) > maxMessage+8 || strings.ContainsRune(got, 0x1b) || strings.Contains(got, "7f000001") {
				t.Errorf("got %q, want %q", got, c.want)
			}
			if got := statusOf(flows, "node1", err); !c.is(got) {
				t.Errorf("got API error %v", got)
			}
		})
	}
}

func TestHTTPSAgents_endsWithContext(t *testing.T) {
	for name, silent := range map[string]bool{"no answer": false, "no handshake": true} {
		began, ended := make(chan struct{}), make(chan struct{})
		a := newAgentServer(t, "node1", func(_ http.ResponseWriter, r *http.Request) {
			close(began)
			<-r.Context().Done()
			close(ended)
		})
		if silent {
			l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0") // accepts, and sends nothing
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			_, a.HTTPSAgents.port, _ = net.SplitHostPort(l.Addr().String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := a.Get(ctx, "node1", netip.MustParseAddr("127.0.0.1"), diagnostics.StatusPath, nil, new(diagnostics.NodeStatus))
		if got := explain("node1", err); !strings.HasPrefix(got, "timeout") {
			t.Errorf("%s: got %q, want timeout", name, got)
		}
		select {
		case <-began:
			<-ended
		default: // without a handshake, also that of a slow machine
		}
	}
}
