package diagnosticsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/verification"
)

const (
	maxVerifications = 1 // that are answered at the same time: agents trace for one

	// kube-apiserver ends a request after a minute.
	verificationTimeout = 55 * time.Second
	verificationBudget  = 20 * time.Second // after which no further questions are asked
	settleTime          = 3 * time.Second  // until a difference is asked again

	batchTimeout     = 20 * time.Second // of one request to an agent, which answers a part in half of it
	batchBusy        = 15 * time.Second // while an agent answers another controller
	maxResultObjects = 8                // of a result, which are retained for thousands of questions
	maxBatchAnswer   = 4 << 20          // bytes
	anotherReason    = "an agent does not evaluate packets"
)

func newVerification() *creation {
	o := &diagnostics.Verification{}
	return &creation{
		resource: verifications, kind: "Verification", object: o, types: &o.TypeMeta, meta: &o.ObjectMeta, limit: func(s *Server) *userLimit { return s.verifies },
		create: func(s *Server, ctx context.Context, u user, namespace string, c *creation) error {
			return s.verify(ctx, u, namespace, c, o)
		},
		timeout: verificationTimeout,
	}
}

// validateVerification validates the spec.
func validateVerification(o *diagnostics.VerificationSpec) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	if o.Sample < 0 || o.Sample > diagnostics.MaxSample {
		errs = append(errs, field.Invalid(spec.Child("sample"), o.Sample, fmt.Sprintf("must be from 0 to %d", diagnostics.MaxSample)))
	}
	if !verification.ValidToken(o.Continue) {
		errs = append(errs, field.Invalid(spec.Child("continue"), printable(o.Continue, maxName), "must be that of an answer; start again: the controllers may be of different versions"))
	}
	return errs
}

// verify sets the status of a Verification. A user with the right at the cluster scope reads all names. Others have only pairs of the namespace, and read what a trace
// shows.
func (s *Server) verify(ctx context.Context, u user, namespace string, c *creation, o *diagnostics.Verification) error {
	if errs := validateVerification(&o.Spec); len(errs) > 0 {
		return c.invalid(printable(c.meta.Name, maxName), errs)
	}
	if !s.nodes.HasSynced() {
		return apierrors.NewServiceUnavailable("the controller has not read all HostSubnets yet; retry later")
	}
	rights := &traceRights{server: s, user: u, creation: c, known: map[access]bool{c.right(namespace): true}}
	isOperator := namespace == "" || rights.has(ctx, c.right(""))
	objects := &verificationObjects{server: s, namespace: namespace}
	if isOperator {
		objects.namespace = ""
	}
	if o.Spec.Packets {
		if err := s.authorize(ctx, u, access{verb: "create", resource: probes, namespace: objects.namespace}); err != nil {
			return err
		}
	}
	verifier := &verification.Verifier{
		Read: objects.read, Node: (&traceCluster{server: s}).Node, Agents: &batchAgents{server: s}, Settle: s.settle, Budget: verificationBudget,
	}
	result, err := verifier.Verify(ctx, verification.Request{
		Namespace: namespace, WithOthers: namespace != "" && isOperator, Sample: int(o.Spec.Sample), Continue: o.Spec.Continue, Packets: o.Spec.Packets,
	})
	if err != nil {
		return s.verificationError(ctx, c, err)
	}
	o.Status = result.Status
	var tracer *tracing.Tracer // that redacts
	if !isOperator {
		tracer = &tracing.Tracer{Sees: rights.sees}
		for i, reason := range o.Status.Unanswered {
			o.Status.Unanswered[i] = tracer.Sentence(ctx, reason, anotherReason)
		}
	}
	for i := range result.Differences {
		d := &result.Differences[i]
		if tracer != nil {
			tracer.RedactResult(ctx, &d.Result)
			d.ExpectedReason = ""
		}
		d.Reason, d.Objects, d.Flow = d.Result.Reason, d.Result.Objects, d.Result.Flow
		if d.ByPacket { // flows are not the cause
			packet := d.PacketReason
			if tracer != nil {
				packet = tracer.Sentence(ctx, packet, string(d.Actual))
			}
			d.Reason, d.Objects, d.Flow = fmt.Sprintf("a packet that was sent: %s; a trace: %s", packet, d.Reason), nil, nil
		}
		o.Status.Differences = append(o.Status.Differences, d.Difference)
	}
	return nil
}

// verificationError returns the error as one of the API.
func (s *Server) verificationError(ctx context.Context, c *creation, err error) error {
	var tooMany *verification.TooManyPairsError
	var tooLarge *tooManyObjectsError
	switch {
	case errors.As(err, &tooMany), errors.As(err, &tooLarge):
		return apierrors.NewBadRequest(err.Error())
	case errors.Is(err, context.DeadlineExceeded):
		return apierrors.NewTimeoutError("the nodes did not answer in time: use --namespace or a smaller --sample, and see kubectl ovsdn status for nodes that do not answer", retryAfterSeconds)
	}
	return s.creationError(ctx, c, "", err)
}

// batchAgents implements verification.Agents.
type batchAgents struct{ server *Server }

// Traces implements verification.Agents.
func (a *batchAgents) Traces(ctx context.Context, node tracing.Node, packets []diagnostics.TracePacket) ([]diagnostics.TraceResult, error) {
	return postBatch(ctx, a.server, node, diagnostics.NodeTracesPath, packets, func() results[diagnostics.TraceResult] { return &tracesAnswer{} })
}

// Probes implements verification.Agents.
func (a *batchAgents) Probes(ctx context.Context, node tracing.Node, packets []diagnostics.TracePacket) ([]diagnostics.ProbeStatus, error) {
	return postBatch(ctx, a.server, node, diagnostics.NodeProbesPath, packets, func() results[diagnostics.ProbeStatus] { return &probesAnswer{} })
}

// results decodes the results of packets.
type results[T any] interface {
	decoder
	results() []T
}

// postBatch posts a batch of packets to be traced or sent, and retries while the agent is busy. It returns the results of the first packets, at least of one.
func postBatch[T any](ctx context.Context, s *Server, node tracing.Node, path string, packets []diagnostics.TracePacket, newAnswer func() results[T]) ([]T, error) {
	var answer results[T]
	err := whileBusy(ctx, batchBusy, func() error {
		ctx, cancel := context.WithTimeout(ctx, batchTimeout)
		defer cancel()
		answer = newAnswer()
		return s.Agents.Post(ctx, node.Name, node.HostIP, path, diagnostics.PacketBatch{Packets: packets}, answer)
	})
	if n := len(answer.results()); err == nil && (n == 0 || n > len(packets)) {
		err = &invalidAnswerError{fmt.Errorf("%d results of %d packets", n, len(packets))}
	}
	if err != nil {
		return nil, &tracing.AgentError{Reason: explain(node.Name, err)}
	}
	return answer.results(), nil
}

// probesAnswer decodes NodeProbes of an agent within limits.
type probesAnswer struct{ Results []diagnostics.ProbeStatus }

func (a *probesAnswer) results() []diagnostics.ProbeStatus { return a.Results }

// decode implements decoder.
func (a *probesAnswer) decode(r io.Reader) error {
	content, err := readAll(r, maxBatchAnswer)
	if err != nil {
		return err
	}
	read := &struct { // beyond its size elements are ignored
		Results [diagnostics.MaxBatchPackets + 1]diagnostics.ProbeStatus `json:"results"`
	}{}
	if err := json.Unmarshal(content, read); err != nil {
		return &invalidAnswerError{err}
	}
	for _, s := range read.Results {
		if s.Verdict == "" {
			break // the end: each result has one
		}
		a.Results = append(a.Results, diagnostics.ProbeStatus{Verdict: diagnostics.Verdict(printable(string(s.Verdict), maxName)), Reason: printable(s.Reason, maxMessage), Reached: s.Reached})
	}
	return nil
}

// tracesAnswer decodes NodeTraces of an agent within limits.
type tracesAnswer struct{ Results []diagnostics.TraceResult }

func (a *tracesAnswer) results() []diagnostics.TraceResult { return a.Results }

// readResult is a diagnostics.TraceResult as it is decoded. Arrays have fixed sizes, beyond which elements are ignored: many short ones would take a hundred times the
// bytes of the answer.
type readResult struct {
	Verdict diagnostics.Verdict                       `json:"verdict"`
	Reason  string                                    `json:"reason"`
	Objects [maxResultObjects]diagnostics.TraceObject `json:"objects"`
	Outputs [maxTraceOutputs]diagnostics.TraceOutput  `json:"outputs"`
	Flow    *struct {
		diagnostics.TraceStep
		Objects [maxResultObjects]diagnostics.TraceObject `json:"objects"`
		Names   [maxResultObjects]string                  `json:"names"`
	} `json:"flow"`
}

// decode implements decoder. The results retain only what they need.
func (a *tracesAnswer) decode(r io.Reader) error {
	content, err := readAll(r, maxBatchAnswer)
	if err != nil {
		return err
	}
	read := &struct {
		Results [diagnostics.MaxBatchPackets + 1]readResult `json:"results"`
	}{}
	if err := json.Unmarshal(content, read); err != nil {
		return &invalidAnswerError{err}
	}
	for i := range read.Results {
		if read.Results[i].Verdict == "" {
			break // the end: each result has one
		}
		a.Results = append(a.Results, read.Results[i].limited())
	}
	return nil
}

// limited returns the result with texts that clients can print.
func (o *readResult) limited() diagnostics.TraceResult {
	name := func(s string) string { return printable(s, maxName) }
	r := diagnostics.TraceResult{Verdict: diagnostics.Verdict(name(string(o.Verdict))), Reason: printable(o.Reason, maxMessage), Objects: limitObjects(present(o.Objects[:]))}
	for _, out := range o.Outputs {
		if out.To == "" {
			break
		}
		p := out.Packet
		r.Outputs = append(r.Outputs, diagnostics.TraceOutput{To: printable(out.To, maxObject), HostIP: name(out.HostIP), VNID: out.VNID, Packet: diagnostics.TracePacket{
			Protocol: name(p.Protocol), Source: name(p.Source), Destination: name(p.Destination), SourcePort: p.SourcePort, DestinationPort: p.DestinationPort,
			EgressIP: name(p.EgressIP), Origin: diagnostics.PacketOrigin(name(string(p.Origin))),
		}})
	}
	if o.Flow != nil {
		step := o.Flow.TraceStep
		step.Objects, step.Names = present(o.Flow.Objects[:]), slices.DeleteFunc(slices.Clone(o.Flow.Names[:]), func(s string) bool { return s == "" })
		limitStep(&step)
		r.Flow = &step
	}
	return r
}

// present returns the objects of an array until the first one without a name.
func present(all []diagnostics.TraceObject) []diagnostics.TraceObject {
	if i := slices.IndexFunc(all, func(o diagnostics.TraceObject) bool { return o.Object == "" }); i >= 0 {
		all = all[:i]
	}
	return slices.Clone(all)
}
