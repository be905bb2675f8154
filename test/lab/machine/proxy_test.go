package machine

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// serveProxies runs the control plane's proxy and a node's, and returns the control plane's socket.
func serveProxies(t *testing.T, direct string, node bool) string {
	t.Helper()
	// Not t.TempDir, whose path may be too long for a unix socket.
	dir, err := os.MkdirTemp("", "proxy")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() {
		cancel()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	plane := &Proxy{Socket: filepath.Join(dir, "plane.sock"), Via: filepath.Join(dir, "node*.sock"), Direct: netip.MustParsePrefix(direct)}
	proxies := []*Proxy{plane}
	// A socket without a listener is that of a machine that does not run.
	if err := os.WriteFile(filepath.Join(dir, "node1.sock"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if node {
		proxies = append(proxies, &Proxy{Socket: filepath.Join(dir, "node2.sock")})
	}
	for _, p := range proxies {
		if err := p.serve(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return plane.Socket
}

// connectBy requests a connection from the proxy, and returns it with the status of the response, such as "200 OK".
func connectBy(t *testing.T, socket, request string) (*net.UnixConn, string) {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, request); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: http.MethodConnect})
	if err != nil {
		t.Fatal(err)
	}
	if err := response.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.UnixConn), response.Status
}

// echo returns the address of a server that returns what it receives.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	acceptEach(t.Context(), listener, "a connection", func(conn net.Conn) {
		defer conn.Close()
		_, _ = io.Copy(conn, conn)
	})
	return listener.Addr().String()
}

func TestProxyConnects(t *testing.T) {
	for name, direct := range map[string]string{"directly": "127.0.0.0/8", "through a node": "192.0.2.0/24"} {
		t.Run(name, func(t *testing.T) {
			server := echo(t)
			conn, status := connectBy(t, serveProxies(t, direct, true), fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", server))
			if !strings.HasPrefix(status, "200 ") {
				t.Fatalf("got %s, want 200", status)
			}
			if _, err := io.WriteString(conn, "hello"); err != nil {
				t.Fatal(err)
			}
			if err := conn.CloseWrite(); err != nil {
				t.Fatal(err)
			}
			if got, err := io.ReadAll(conn); err != nil || string(got) != "hello" {
				t.Errorf("got %q, %v, want hello", got, err)
			}
		})
	}
}

func TestProxyRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		request string
		node    bool
		want    string // part of the status
	}{
		"no node runs":       {"CONNECT 10.128.0.2:80 HTTP/1.1\r\nHost: 10.128.0.2:80\r\n\r\n", false, "no proxy of"},
		"no server":          {"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n", true, "refused"},
		"another method":     {"GET / HTTP/1.1\r\nHost: x\r\n\r\n", true, "method GET"},
		"no request of HTTP": {"hello\r\n\r\n", true, "read the request"},
	} {
		t.Run(name, func(t *testing.T) {
			_, status := connectBy(t, serveProxies(t, "192.0.2.0/24", test.node), test.request)
			if !strings.HasPrefix(status, "502 ") || !strings.Contains(status, test.want) {
				t.Errorf("got %s, want 502 with %q", status, test.want)
			}
		})
	}
}
