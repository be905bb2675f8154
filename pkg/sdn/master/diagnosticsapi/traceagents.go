package diagnosticsapi

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	agentTraceTimeout = 5 * time.Second
	agentRetry        = 200 * time.Millisecond // after 429: an agent answers few requests at the same time

	maxTraceAnswer  = 512 << 10 // bytes of an agent's answer
	maxTraceAnswers = 4 << 20   // of all answers of one trace
	maxTraceSteps   = 256
	maxTraceObjects = 64 // of a step
	maxTraceOutputs = 16

	maxHostAnswer = 16 << 10 // bytes
)

// traceAgents implements tracing.Agents for one trace or probe.
type traceAgents struct {
	server *Server
	read   int64 // bytes of answers
}

// Trace implements tracing.Agents.
func (a *traceAgents) Trace(ctx context.Context, node tracing.Node, packet diagnostics.TracePacket) (*diagnostics.NodeTrace, error) {
	var answer *traceAnswer
	err := a.ask(ctx, agentTraceTimeout, node, diagnostics.NodeTracePath, packet.Query(), func() any {
		answer = &traceAnswer{limit: min(maxTraceAnswer, maxTraceAnswers-a.read)}
		return answer
	})
	if err != nil {
		return nil, err
	}
	a.read += answer.size
	return &answer.NodeTrace, nil
}

// Host implements tracing.Agents.
func (a *traceAgents) Host(ctx context.Context, node tracing.Node, packet diagnostics.HostPacket) (*diagnostics.NodeHost, error) {
	var answer *hostAnswer
	err := a.ask(ctx, agentTraceTimeout, node, diagnostics.NodeHostPath, packet.Query(), func() any {
		answer = &hostAnswer{limit: min(maxHostAnswer, maxTraceAnswers-a.read)}
		return answer
	})
	if err != nil {
		return nil, err
	}
	a.read += answer.size
	return &answer.NodeHost, nil
}

// Probe implements tracing.Agents.
func (a *traceAgents) Probe(ctx context.Context, node tracing.Node, packet diagnostics.TracePacket, timeout time.Duration) (*diagnostics.NodeProbe, error) {
	query := packet.Query()
	query.Set(diagnostics.TimeoutParameter, strconv.Itoa(int(timeout/time.Second)))
	var answer *diagnostics.NodeProbe
	err := a.ask(ctx, agentTraceTimeout+timeout, node, diagnostics.NodeProbePath, query, func() any {
		answer = &diagnostics.NodeProbe{}
		return answer
	})
	if err != nil {
		return nil, err
	}
	answer.Status.Reason = printable(answer.Status.Reason, maxMessage)
	return answer, nil
}

// ask requests the path while the agent is busy, for up to agentTraceTimeout. timeout is that of each request. Each answer is decoded into a new value.
func (a *traceAgents) ask(ctx context.Context, timeout time.Duration, node tracing.Node, path string, query url.Values, newAnswer func() any) error {
	err := whileBusy(ctx, agentTraceTimeout, func() error {
		ctx, cancel := context.WithTimeout(ctx, timeout)
		defer cancel()
		return a.server.Agents.Get(ctx, node.Name, node.HostIP, path, query, newAnswer())
	})
	if err == nil {
		return nil
	}
	status, isStatus := errors.AsType[*agentError](err)
	isUsable := isStatus && status.code != http.StatusTooManyRequests && !status.isUnsupported()
	return &tracing.AgentError{Reason: explain(node.Name, err), SkipNode: !isUsable, Unsupported: isStatus && status.isUnsupported()}
}

// whileBusy sends a request again, for up to most, while the agent answers others (429). It returns the last error.
func whileBusy(ctx context.Context, most time.Duration, request func() error) error {
	retries, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for {
		err := request()
		status, isStatus := errors.AsType[*agentError](err)
		if !isStatus || status.code != http.StatusTooManyRequests || !pause.For(retries, agentRetry) {
			return err
		}
	}
}

// traceAnswer decodes NodeTrace of an agent within limits.
type traceAnswer struct {
	diagnostics.NodeTrace
	limit, size int64 // bytes
}

// decode implements decoder.
func (a *traceAnswer) decode(r io.Reader) error {
	content, err := readAll(r, a.limit)
	if err != nil {
		return err
	}
	a.size = int64(len(content))
	if err := json.Unmarshal(content, &a.NodeTrace); err != nil {
		return &invalidAnswerError{err}
	}
	limitTrace(&a.NodeTrace)
	return nil
}

// hostAnswer decodes NodeHost of an agent within limits.
type hostAnswer struct {
	diagnostics.NodeHost
	limit, size int64 // bytes
}

// decode implements decoder.
func (a *hostAnswer) decode(r io.Reader) error {
	content, err := readAll(r, a.limit)
	if err != nil {
		return err
	}
	a.size = int64(len(content))
	if err := json.Unmarshal(content, &a.NodeHost); err != nil {
		return &invalidAnswerError{err}
	}
	a.Rule, a.Source = printable(a.Rule, maxName), printable(a.Source, maxName)
	route := &a.Route
	route.Kind = diagnostics.RouteKind(printable(string(route.Kind), maxName))
	route.Interface, route.Gateway, route.Network = printable(route.Interface, maxName), printable(route.Gateway, maxName), printable(route.Network, maxName)
	a.Others = a.Others[:min(len(a.Others), diagnostics.MaxHostRules)]
	for i := range a.Others {
		a.Others[i] = printable(a.Others[i], maxName)
	}
	return nil
}

// limitTrace limits what an agent reports to what clients can print.
func limitTrace(o *diagnostics.NodeTrace) {
	o.Reason, o.Objects = printable(o.Reason, maxMessage), limitObjects(o.Objects)
	o.Steps = o.Steps[:min(len(o.Steps), maxTraceSteps)]
	for i := range o.Steps {
		limitStep(&o.Steps[i])
	}
	o.Outputs = o.Outputs[:min(len(o.Outputs), maxTraceOutputs)]
}

func limitStep(step *diagnostics.TraceStep) {
	step.Match, step.Actions = printable(step.Match, maxText), printable(step.Actions, maxText)
	step.TableName, step.Cookie = printable(step.TableName, maxName), printable(step.Cookie, maxName)
	step.Conntrack, step.Objects = diagnostics.ConntrackState(printable(string(step.Conntrack), maxName)), limitObjects(step.Objects)
	step.Names = step.Names[:min(len(step.Names), maxOwners)]
	for i := range step.Names {
		step.Names[i] = printable(step.Names[i], maxMessage)
	}
}

func limitObjects(objects []diagnostics.TraceObject) []diagnostics.TraceObject {
	objects = objects[:min(len(objects), maxTraceObjects)]
	for i := range objects {
		objects[i].Object, objects[i].Rule = printable(objects[i].Object, maxObject), printable(objects[i].Rule, maxMessage)
	}
	return objects
}
