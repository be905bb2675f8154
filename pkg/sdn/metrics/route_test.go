package metrics

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"
)

// serveRoutes serves the configuration with the route /apis/ until the test ends, and returns the address. The route accepts the client certificate.
func serveRoutes(t *testing.T, cfg Config, accepted *tls.Certificate) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := newHandler(newAPI(), NewRegistry())
	cfg.Routes = []Route{{Prefix: "/apis/", Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !slices.Equal(r.TLS.PeerCertificates[0].Raw, accepted.Certificate[0]) {
			refuse(w, "refused by the route", http.StatusForbidden)
			return
		}
		Accept(r)
		_, _ = fmt.Fprint(w, r.URL.Path)
	})}}
	h.routes = cfg.Routes
	ctx, stop := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := serveListener(ctx, l, cfg, h); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	t.Cleanup(func() { stop(); serving.Wait() })
	return l.Addr().String()
}

func selfSigned(t *testing.T) *tls.Certificate {
	t.Helper()
	pair, err := (&certificate{now: time.Now}).load()
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// session is a connection to the server.
type session struct {
	*tls.Conn
	reader *bufio.Reader
}

// dial connects with the certificates, if any. It returns nil if the server closes the connection before the handshake.
func dial(t *testing.T, address string, certificates ...tls.Certificate) *session {
	t.Helper()
	dialer := &tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, Certificates: certificates}} //nolint:gosec // self-signed
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		return nil
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &session{conn.(*tls.Conn), bufio.NewReader(conn)}
}

// get sends a request and returns the status code, the body, and whether the server announced to close the connection.
func (s *session) get(t *testing.T, path, token string) (status int, body string, closes bool) {
	t.Helper()
	if _, err := fmt.Fprintf(s, "GET %s HTTP/1.1\r\nHost: node\r\nAuthorization: Bearer %s\r\n\r\n", path, token); err != nil {
		t.Fatal(err)
	}
	answer, err := http.ReadResponse(s.reader, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	content, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, string(content), answer.Close
}

// A route gets requests with a client certificate only, whatever token they have. Metrics require no certificate, and a certificate is no token.
func TestServeListener_routes(t *testing.T) {
	controller, other := selfSigned(t), selfSigned(t)
	address := serveRoutes(t, Config{}, controller)
	for _, c := range []struct {
		name         string
		certificates []tls.Certificate
		path, token  string
		status       int
		closes       bool
	}{
		{"route", []tls.Certificate{*controller}, "/apis/x", "", http.StatusOK, false},
		{"route without a certificate", nil, "/apis/x", "token-of-reader", http.StatusUnauthorized, true},
		{"route with another certificate", []tls.Certificate{*other}, "/apis/x", "token-of-reader", http.StatusForbidden, true},
		{"metrics as Prometheus reads them", nil, "/metrics", "token-of-reader", http.StatusOK, false},
		{"metrics with a certificate", []tls.Certificate{*other}, "/metrics", "token-of-reader", http.StatusOK, false},
		{"metrics with a certificate in place of a token", []tls.Certificate{*controller}, "/metrics", "", http.StatusUnauthorized, true},
		{"path outside of routes", []tls.Certificate{*controller}, "/apis", "", http.StatusNotFound, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, body, closes := dial(t, address, c.certificates...).get(t, c.path, c.token); status != c.status || closes != c.closes {
				t.Errorf("got status %d, closes: %t, body %.100q, want %d, %t", status, closes, body, c.status, c.closes)
			}
		})
	}
}

// A source whose certificate a route accepted, or that is trusted, has larger limits of connections: kube-apiserver sends the requests of all users from one
// address.
func TestServeListener_acceptedSource(t *testing.T) {
	controller, other := selfSigned(t), selfSigned(t)
	for _, c := range []struct {
		name    string
		of      *tls.Certificate
		status  int
		trusted string
		maximum int
	}{
		{"accepted", controller, http.StatusOK, "192.0.2.1", acceptedConnections},
		{"trusted", other, http.StatusForbidden, "127.0.0.1", acceptedConnections},
		{"refused", other, http.StatusForbidden, "192.0.2.1", sourceConnections},
	} {
		t.Run(c.name, func(t *testing.T) {
			address := serveRoutes(t, Config{TrustedSource: func(addr netip.Addr) bool { return addr == netip.MustParseAddr(c.trusted) }}, controller)
			first := dial(t, address, *c.of)
			if status, _, _ := first.get(t, "/apis/x", ""); status != c.status {
				t.Fatalf("got status %d, want %d", status, c.status)
			}
			_ = first.Close()
			open := 0
			for range acceptedConnections + 4 {
				if dial(t, address) != nil {
					open++
				}
			}
			// The server may notice the end of the first connection late.
			if open < c.maximum-1 || open > c.maximum {
				t.Errorf("got %d connections, want %d", open, c.maximum)
			}
		})
	}
}

// The provided certificate is served if there is one and no file is configured.
func TestServeListener_providedCertificate(t *testing.T) {
	provided := selfSigned(t)
	var mu sync.Mutex
	var current *tls.Certificate
	address := serveRoutes(t, Config{Certificate: func() *tls.Certificate { mu.Lock(); defer mu.Unlock(); return current }}, provided)
	isServed := func() bool {
		return slices.Equal(dial(t, address).ConnectionState().PeerCertificates[0].Raw, provided.Certificate[0])
	}
	if isServed() {
		t.Error("got the provided certificate before it exists")
	}
	mu.Lock()
	current = provided
	mu.Unlock()
	if !isServed() {
		t.Error("got the self-signed certificate, want the provided one")
	}
	dir := t.TempDir()
	writePair(t, dir, "1")
	c := &certificate{certFile: dir + "/current/tls.crt", keyFile: dir + "/current/tls.key", provided: func() *tls.Certificate { return provided }, now: time.Now}
	config := c.config(t.Context())
	if got, err := config.GetCertificate(&tls.ClientHelloInfo{}); err != nil || got == provided {
		t.Errorf("with files: got the provided certificate, error %v", err)
	}
	provided.Leaf = &x509.Certificate{DNSNames: []string{"node1.agent.ovsdn.io"}}
	for name, want := range map[string]bool{"node1.agent.ovsdn.io": true, "node2.agent.ovsdn.io": false, "": false} {
		if got, err := config.GetCertificate(&tls.ClientHelloInfo{ServerName: name}); err != nil || (got == provided) != want {
			t.Errorf("with files, for %q: got the provided certificate: %t, error %v, want %t", name, got == provided, err, want)
		}
	}
}
