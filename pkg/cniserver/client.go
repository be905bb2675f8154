package cniserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// maxAnswerBytes is the largest answer. A result is about a kilobyte.
const maxAnswerBytes = 1 << 20

const (
	// statusTimeout is how long STATUS is repeated while no agent answers or the agent starts: an upgrade takes some seconds, and after a failed STATUS
	// kubelet reports the Node as not ready, which removes its pods from all services. Kubelet waits 30 s for the answer of a runtime
	// (k8s.io/kubernetes/pkg/kubelet, maxWaitForContainerRuntime).
	statusTimeout = 10 * time.Second
	statusRetry   = 100 * time.Millisecond
)

// Call sends a request to the agent on the socket and waits for its answer, at most MaxTimeout. The result is nil for verbs without
// one. Errors are CNI errors: the agent's own, or ErrTryAgainLater if no agent answers (for STATUS, ErrPluginNotAvailable after
// statusTimeout, as the specification requires).
func Call(ctx context.Context, socket string, req *Request) (*current.Result, error) {
	if req.Command != CommandStatus {
		return call(ctx, socket, req)
	}
	return callStatus(ctx, socket, req, statusTimeout)
}

// callStatus repeats the request until the answer is not ErrTryAgainLater, or the timeout expires.
func callStatus(ctx context.Context, socket string, req *Request, timeout time.Duration) (*current.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	again := time.NewTicker(statusRetry)
	defer again.Stop()
	var last *types.Error
	for {
		result, err := call(ctx, socket, req)
		var temporary *types.Error
		if !errors.As(err, &temporary) || temporary.Code != types.ErrTryAgainLater {
			return result, err
		}
		if last == nil || ctx.Err() == nil { // the error of the timeout does not name the cause
			last = temporary
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			return nil, types.NewError(types.ErrPluginNotAvailable, last.Msg, last.Details)
		}
	}
}

func call(ctx context.Context, socket string, req *Request) (*current.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTimeout)
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok {
		req.TimeoutMillis = max(1, time.Until(deadline).Milliseconds())
	}
	request, err := json.Marshal(req)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the request can't be encoded", err.Error())
	}
	if len(request) >= maxRequestBytes {
		return nil, types.NewError(types.ErrDecodingFailure, "the request is too long",
			fmt.Sprintf("%d bytes, the agent takes %d", len(request), maxRequestBytes))
	}
	line, err := exchange(ctx, socket, append(request, '\n'))
	if err != nil {
		return nil, unavailable(req.Command, socket, err)
	}
	return decodeAnswer(req.Command, line)
}

// exchange sends a line and returns the line of the answer.
func exchange(ctx context.Context, socket string, request []byte) ([]byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_, writeErr := conn.Write(request)
	// An agent that refuses the caller answers without reading the request.
	line, err := readLine(conn, maxAnswerBytes)
	if err != nil {
		return nil, errors.Join(ctx.Err(), writeErr, err)
	}
	return line, nil
}

func decodeAnswer(command string, line []byte) (*current.Result, error) {
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		// For example that of an agent of another version during an upgrade.
		return nil, types.NewError(types.ErrTryAgainLater, "the agent's answer does not parse", err.Error())
	}
	switch {
	case a.Error != nil:
		return nil, a.Error
	case command == CommandAdd && a.Result == nil:
		return nil, types.NewError(types.ErrDecodingFailure, "the agent's answer to ADD has no result", string(line))
	}
	return a.Result, nil
}

// unavailable returns the error if the agent does not answer. The agent may have executed the request or a part of it: runtimes call DEL
// after a failed ADD, and repeat DEL until it succeeds.
func unavailable(command, socket string, cause error) error {
	msg := fmt.Sprintf("the node agent does not answer on %s", socket)
	if errors.Is(cause, context.DeadlineExceeded) {
		msg = fmt.Sprintf("the node agent on %s did not finish %s in time", socket, command)
	}
	return types.NewError(types.ErrTryAgainLater, msg, fmt.Sprintf(
		"%v; is ovsdn-node running on this node? See `kubectl -n ovsdn-system get pods -o wide`", cause))
}
