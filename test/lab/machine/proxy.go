package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Proxy is an HTTP CONNECT proxy of PID 1, on a unix socket: its clients connect from the machine's network, wherever they run.
type Proxy struct {
	// Socket is where the proxy listens, by path.
	Socket string
	// Via is a pattern of other proxies' sockets. Connections to addresses outside of Direct go through the first that accepts. Empty means that
	// all connections are direct.
	Via string `json:",omitempty"`
	// Direct are the addresses that the proxy connects to itself if Via is set.
	Direct netip.Prefix
}

// Time limits of a proxy, for the client's request and for the connection to the server.
const (
	proxyRequestTimeout = 10 * time.Second
	proxyDialTimeout    = 30 * time.Second
)

// duplex is a connection whose directions close separately.
type duplex interface {
	io.ReadWriteCloser
	CloseWrite() error
}

// serve accepts clients until the context ends.
func (p *Proxy) serve(ctx context.Context) error {
	if err := os.Remove(p.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("remove an old proxy socket: %w", err)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "unix", p.Socket)
	if err != nil {
		return fmt.Errorf("listen for clients of the proxy: %w", err)
	}
	acceptEach(ctx, listener, "a client of the proxy", func(conn net.Conn) { p.handle(ctx, conn.(*net.UnixConn)) })
	return nil
}

// handle serves one client. An error is the reason phrase of the response, which kube-apiserver repeats in its own error.
func (p *Proxy) handle(ctx context.Context, client *net.UnixConn) {
	defer client.Close()
	server, response, err := p.connect(ctx, client)
	if err != nil {
		fmt.Fprintf(client, "HTTP/1.1 502 %s\r\nContent-Length: 0\r\n\r\n", strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	defer server.Close()
	if _, err := io.WriteString(client, response); err != nil {
		return
	}
	splice(client, server)
}

// connect reads the client's request, and returns a connection to its server and the response. The response is empty if another proxy sends it.
func (p *Proxy) connect(ctx context.Context, client *net.UnixConn) (server duplex, response string, err error) {
	if err := client.SetReadDeadline(time.Now().Add(proxyRequestTimeout)); err != nil {
		return nil, "", err
	}
	// The client sends nothing more before it has the response, so the reader's buffer is empty afterwards.
	request, err := http.ReadRequest(bufio.NewReader(client))
	if err != nil {
		return nil, "", fmt.Errorf("read the request: %w", err)
	}
	if request.Method != http.MethodConnect {
		return nil, "", fmt.Errorf("method %s: want %s", request.Method, http.MethodConnect)
	}
	if err := client.SetReadDeadline(time.Time{}); err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, proxyDialTimeout)
	defer cancel()
	if p.isDirect(request.Host) {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", request.Host)
		if err != nil {
			return nil, "", err
		}
		return conn.(*net.TCPConn), "HTTP/1.1 200 OK\r\n\r\n", nil
	}
	next, err := p.dialVia(ctx)
	if err != nil {
		return nil, "", err
	}
	if _, err := fmt.Fprintf(next, "CONNECT %s HTTP/1.1\r\nHost: %[1]s\r\n\r\n", request.Host); err != nil {
		return nil, "", errors.Join(err, next.Close())
	}
	return next, "", nil
}

// isDirect reports whether the proxy connects to the address itself.
func (p *Proxy) isDirect(address string) bool {
	if p.Via == "" {
		return true
	}
	addr, err := netip.ParseAddrPort(address)
	return err == nil && p.Direct.Contains(addr.Addr())
}

// dialVia connects to the first of the other proxies that accepts. Sockets of machines that do not run refuse.
func (p *Proxy) dialVia(ctx context.Context) (*net.UnixConn, error) {
	sockets, err := filepath.Glob(p.Via)
	if err != nil {
		return nil, fmt.Errorf("list the proxies: %w", err)
	}
	for _, socket := range sockets {
		conn, dialErr := new(net.Dialer).DialContext(ctx, "unix", socket)
		if dialErr == nil {
			return conn.(*net.UnixConn), nil
		}
		err = errors.Join(err, dialErr)
	}
	return nil, errors.Join(fmt.Errorf("no proxy of %s accepts", p.Via), err)
}

// acceptEach calls the function for each connection, in a goroutine of its own, until the context ends.
func acceptEach(ctx context.Context, listener net.Listener, what string, do func(net.Conn)) {
	context.AfterFunc(ctx, func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				if ctx.Err() == nil {
					fmt.Fprintf(os.Stderr, "accept %s: %v\n", what, err)
				}
				return
			}
			go do(conn)
		}
	}()
}

// splice copies in both directions, and returns when both sides have closed.
func splice(client, server duplex) {
	var both sync.WaitGroup
	for _, way := range [][2]duplex{{client, server}, {server, client}} {
		both.Go(func() {
			// A connection that breaks is the two ends' business.
			_, _ = io.Copy(way[1], way[0])
			_ = way[1].CloseWrite()
		})
	}
	both.Wait()
}
