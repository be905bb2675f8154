package apiserver

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync/atomic"
)

// nameSetting wraps the transport of a client that reaches the API server by the address of service "kubernetes": errors of its connections name the setting with which
// it needs no service.
func nameSetting(next http.RoundTripper) http.RoundTripper { return &serviceTransport{next} }

type serviceTransport struct{ http.RoundTripper }

// RoundTrip sends a request.
func (t *serviceTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	ctx := httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }})
	resp, err := t.RoundTripper.RoundTrip(req.WithContext(ctx))
	failed, is := errors.AsType[*net.OpError](err)
	// A router that drops the packets lets the request's deadline end the connection.
	if is && failed.Op == "dial" || errors.Is(err, context.DeadlineExceeded) && !connected.Load() {
		err = &serviceAddressError{err}
	}
	return resp, err
}

// WrappedRoundTripper returns the transport that sends the requests: client-go looks for its TLS configuration.
func (t *serviceTransport) WrappedRoundTripper() http.RoundTripper { return t.RoundTripper }

// serviceAddressError reports that no connection to the address of service "kubernetes" was established.
type serviceAddressError struct{ err error }

func (e *serviceAddressError) Error() string {
	return e.err.Error() + " (the address of service kubernetes: without kube-proxy it does not answer until ovsdn-node runs on the node; " +
		"set kube-apiserver in network.env, --kube-apiserver, to the URL of the API server itself, and apply again)"
}

func (e *serviceAddressError) Unwrap() error { return e.err }

// Timeout reports whether the connection had a timeout, which clients find by this method only.
func (e *serviceAddressError) Timeout() bool {
	var timeout net.Error
	return errors.As(e.err, &timeout) && timeout.Timeout()
}
