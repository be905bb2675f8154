package cniserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
)

// Call sends a request to the agent that listens on the socket and waits for its answer, MaxTimeout at most. The result
// is nil for verbs that have none. Errors are CNI errors: the agent's own; ErrTryAgainLater when no agent answers
// (for STATUS ErrPluginNotAvailable, as the specification has it).
func Call(ctx context.Context, socket string, req *Request) (*current.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, MaxTimeout)
	defer cancel()
	if deadline, ok := ctx.Deadline(); ok {
		req.TimeoutMillis = max(1, time.Until(deadline).Milliseconds())
	}
	body, err := json.Marshal(req)
	if err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the request can't be encoded", err.Error())
	}
	// The host is never looked up: the dialer goes to the socket.
	post, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://ovsdn-node"+requestPath, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("make a request: %w", err)
	}
	transport := &http.Transport{
		DisableKeepAlives: true, // one request a process
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	response, err := transport.RoundTrip(post)
	if err != nil {
		return nil, unavailable(req.Command, socket, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, unavailable(req.Command, socket, err)
	}
	return decodeAnswer(req.Command, response.StatusCode, answer)
}

func decodeAnswer(command string, status int, answer []byte) (*current.Result, error) {
	if status != http.StatusOK {
		e := new(types.Error)
		if err := json.Unmarshal(answer, e); err != nil || e.Msg == "" {
			return nil, types.NewError(types.ErrInternal,
				fmt.Sprintf("the agent answered HTTP %d without a CNI error", status), string(answer))
		}
		return nil, e
	}
	if command != CommandAdd {
		return nil, nil //nolint:nilnil // only ADD has a result
	}
	result := new(current.Result)
	if err := json.Unmarshal(answer, result); err != nil {
		return nil, types.NewError(types.ErrDecodingFailure, "the agent's result does not parse", err.Error())
	}
	return result, nil
}

// unavailable is the answer when the agent gave none. What it did of a request that it took is unknown: runtimes follow a
// failed ADD with DEL, and repeat DEL until it succeeds.
func unavailable(command, socket string, cause error) error {
	code := types.ErrTryAgainLater
	if command == CommandStatus {
		code = types.ErrPluginNotAvailable
	}
	msg := fmt.Sprintf("the node agent does not answer on %s", socket)
	if errors.Is(cause, context.DeadlineExceeded) {
		msg = fmt.Sprintf("the node agent on %s did not finish %s in time", socket, command)
	}
	return types.NewError(code, msg, fmt.Sprintf(
		"%v; is ovsdn-node running on this node? See `kubectl -n ovsdn-system get pods -o wide`", cause))
}
