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

// maxAnswerBytes bounds an answer. A result is about a kilobyte.
const maxAnswerBytes = 1 << 20

const (
	// statusPatience is how long STATUS is asked again while the agent is away, or starts: one that is replaced is so for some seconds, and a
	// STATUS that fails makes kubelet call the node not ready, whose pods then are taken out of all services. Kubelet itself takes a runtime
	// for dead that has not answered for 30 s (k8s.io/kubernetes/pkg/kubelet, maxWaitForContainerRuntime).
	statusPatience = 10 * time.Second
	statusAgain    = 100 * time.Millisecond
)

// Call sends a request to the agent that listens on the socket and waits for its answer, MaxTimeout at most. The result
// is nil for verbs that have none. Errors are CNI errors: the agent's own; ErrTryAgainLater when no agent answers
// (for STATUS ErrPluginNotAvailable, as the specification has it, and after a while).
func Call(ctx context.Context, socket string, req *Request) (*current.Result, error) {
	if req.Command != CommandStatus {
		return call(ctx, socket, req)
	}
	return callStatus(ctx, socket, req, statusPatience)
}

// callStatus asks until an agent answers that does not want to be asked again, or the patience ends.
func callStatus(ctx context.Context, socket string, req *Request, patience time.Duration) (*current.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	again := time.NewTicker(statusAgain)
	defer again.Stop()
	var last *types.Error
	for {
		result, err := call(ctx, socket, req)
		var passing *types.Error
		if !errors.As(err, &passing) || passing.Code != types.ErrTryAgainLater {
			return result, err
		}
		if last == nil || ctx.Err() == nil { // that the time is over says nothing of what is wrong
			last = passing
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

// exchange sends a line and returns the one that comes back.
func exchange(ctx context.Context, socket string, request []byte) ([]byte, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	_, writeErr := conn.Write(request)
	// An agent that refuses the caller says so without reading.
	line, err := readLine(conn, maxAnswerBytes)
	if err != nil {
		return nil, errors.Join(ctx.Err(), writeErr, err)
	}
	return line, nil
}

func decodeAnswer(command string, line []byte) (*current.Result, error) {
	var a answer
	if err := json.Unmarshal(line, &a); err != nil {
		// As an agent of another version would: it is about to be replaced, or this plugin is.
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

// unavailable is the answer when the agent gave none. What it did of a request that it took is unknown: runtimes follow a
// failed ADD with DEL, and repeat DEL until it succeeds.
func unavailable(command, socket string, cause error) error {
	msg := fmt.Sprintf("the node agent does not answer on %s", socket)
	if errors.Is(cause, context.DeadlineExceeded) {
		msg = fmt.Sprintf("the node agent on %s did not finish %s in time", socket, command)
	}
	return types.NewError(types.ErrTryAgainLater, msg, fmt.Sprintf(
		"%v; is ovsdn-node running on this node? See `kubectl -n ovsdn-system get pods -o wide`", cause))
}
