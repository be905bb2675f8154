package servicehealth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/connectionlimit"
)

// Limits of requests.
const (
	requestTimeout = 2 * time.Second
	maxHeader      = 4 << 10 // bytes
)

// listenTCP opens a TCP port at an address, HOST:PORT; without a host on all addresses of the node.
func listenTCP(ctx context.Context, address string) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", address)
}

// freePort returns what a user can do about a port that can't be opened.
func freePort(err error, port string) string {
	if !errors.Is(err, unix.EADDRINUSE) {
		return "the agent tries again"
	}
	return fmt.Sprintf("end the program that uses the port (ss -lntp 'sport = :%s' on the node)", port)
}

// server serves a listener until it is closed.
type server struct {
	http  *http.Server
	ended chan struct{} // closed when it no longer serves
}

// serve begins to serve the listener, which the server closes. Each connection ends with the first answer, so that idle ones do not use up the limit. failed is
// called if it ends without close.
func serve(l net.Listener, limits *connectionlimit.Limiter, h http.Handler, failed func(error)) *server {
	s := &server{ended: make(chan struct{}), http: &http.Server{
		Handler:     readOnly(h),
		ReadTimeout: requestTimeout, WriteTimeout: requestTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: log.New(io.Discard, "", 0), // any client could fill the log
	}}
	s.http.SetKeepAlivesEnabled(false)
	go func() {
		err := s.http.Serve(&limitedListener{Listener: l, limits: limits})
		close(s.ended)
		if !errors.Is(err, http.ErrServerClosed) {
			failed(err)
		}
	}()
	return s
}

// close closes the port and all connections, and waits until the server has ended.
func (s *server) close() {
	_ = s.http.Close()
	<-s.ended
}

// hasEnded reports whether the server no longer serves.
func (s *server) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// readOnly refuses other methods than GET and HEAD.
func readOnly(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, http.StatusText(http.StatusMethodNotAllowed), http.StatusMethodNotAllowed)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// reply answers with a value as JSON, and status 200 or 503.
func reply(w http.ResponseWriter, healthy bool, answer any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	status := http.StatusOK
	if !healthy {
		status = http.StatusServiceUnavailable
	}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // it fails only if the client disconnected
}
