package diagnosticsapi

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"syscall"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// tlsAlert is the operation of errors by which package tls reports that the other side refused the handshake.
const tlsAlert = "remote error"

// errNoCertificate is the error of requests before the controller has the CA of agents and a client certificate.
var errNoCertificate = errors.New("the controller has no certificate for agents yet; retry later")

// agentError is an answer of an agent other than 200.
type agentError struct {
	code     int
	isStatus bool   // the answer is a Status
	message  string // of the agent, printable
}

// Error implements error.
func (e *agentError) Error() string {
	return fmt.Sprintf("the agent answers %d: %s", e.code, e.message)
}

// tooLargeError is the error of an answer that has more bytes than its limit.
type tooLargeError struct{ limit int64 }

// Error implements error.
func (e *tooLargeError) Error() string {
	return fmt.Sprintf("the agent's answer is larger than %d bytes", e.limit)
}

// invalidAnswerError is the error of an answer that is not the expected object.
type invalidAnswerError struct{ err error }

// Error implements error.
func (e *invalidAnswerError) Error() string { return "invalid answer of the agent: " + e.err.Error() }

// Unwrap returns the cause.
func (e *invalidAnswerError) Unwrap() error { return e.err }

// explain returns why the agent of the node did not answer, for an operator. It is printable.
func explain(node string, err error) string {
	var answer *agentError
	var tooLarge *tooLargeError
	var invalid *invalidAnswerError
	var certificate *tls.CertificateVerificationError
	var operation *net.OpError
	var record tls.RecordHeaderError
	var network net.Error
	message := ""
	switch {
	case errors.As(err, &answer) && answer.isUnsupported():
		message = fmt.Sprintf("the agent of %s does not support it; upgrade the agent", node)
	case errors.As(err, &answer), errors.As(err, &tooLarge), errors.As(err, &invalid), errors.Is(err, errNoCertificate), errors.Is(err, errNotAsked):
		message = err.Error()
	case errors.As(err, &certificate):
		message = fmt.Sprintf("certificate not valid for the agent of %s: %v", node, certificate.Err)
	case errors.As(err, &operation) && operation.Op == tlsAlert:
		message = "the agent refuses the controller's certificate: " + operation.Err.Error()
	case errors.As(err, &record):
		message = "the port does not serve TLS: another program than the agent uses it"
	case errors.Is(err, syscall.ECONNREFUSED):
		message = "connection refused; the agent does not run, or does not serve its metrics port"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		message = "no route to the node"
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &network) && network.Timeout():
		message = "timeout; the node is down, a firewall drops connections to the agent's metrics port, or the agent is overloaded"
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET):
		message = "the agent closed the connection; it restarts, or limits connections"
	default:
		message = err.Error()
	}
	return printable(message, maxMessage)
}

// isUnsupported reports whether the agent does not know the path. An agent that does reports objects that do not exist as a Status.
func (e *agentError) isUnsupported() bool {
	return e.code == http.StatusNotFound && !e.isStatus
}

// statusOf returns the error as one of the API, for a request about one node.
func statusOf(resource, node string, err error) error {
	message := fmt.Sprintf("%s %q: %s", resource, node, explain(node, err))
	var answer *agentError
	if errors.As(err, &answer) {
		switch {
		case answer.isUnsupported():
		case answer.code == http.StatusNotFound:
			message := answer.message
			e := apierrors.NewNotFound(resourceOf(resource), node)
			e.ErrStatus.Message = message
			return e
		case answer.code == http.StatusBadRequest:
			return apierrors.NewBadRequest(answer.message)
		case answer.code == http.StatusTooManyRequests:
			return apierrors.NewTooManyRequests(message, retryAfterSeconds)
		}
	}
	return apierrors.NewServiceUnavailable(message)
}
