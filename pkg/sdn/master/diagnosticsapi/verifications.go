package diagnosticsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	batchTimeout   = 20 * time.Second // of one request to an agent, which answers a part in less
	batchBusy      = 15 * time.Second // while an agent answers another controller
	maxBatchAnswer = 4 << 20          // bytes
	maxContinue    = 1024
	anotherReason  = "an agent does not evaluate packets"
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
	if len(o.Continue) > maxContinue {
		errs = append(errs, field.TooLong(spec.Child("continue"), "", maxContinue))
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
	verifier := &verification.Verifier{
		Read: objects.read, Node: (&traceCluster{server: s}).Node, Agents: &batchAgents{server: s}, Settle: s.settle, Budget: verificationBudget,
	}
	result, err := verifier.Verify(ctx, verification.Request{
		Namespace: namespace, WithOthers: namespace != "" && isOperator, Sample: int(o.Spec.Sample), Continue: o.Spec.Continue,
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
		return apierrors.NewTimeoutError("the nodes did not answer in time; choose a namespace, or a sample", retryAfterSeconds)
	}
	return s.creationError(ctx, c, "", err)
}

// batchAgents implements verification.Agents.
type batchAgents struct{ server *Server }

// Traces implements verification.Agents.
func (a *batchAgents) Traces(ctx context.Context, node tracing.Node, packets []diagnostics.TracePacket) ([]diagnostics.TraceResult, error) {
	var answer *batchAnswer
	err := whileBusy(ctx, batchBusy, func() error {
		ctx, cancel := context.WithTimeout(ctx, batchTimeout)
		defer cancel()
		answer = &batchAnswer{}
		return a.server.Agents.Post(ctx, node.Name, node.HostIP, diagnostics.NodeTracesPath, diagnostics.TraceBatch{Packets: packets}, answer)
	})
	if err == nil && (len(answer.Results) == 0 || len(answer.Results) > len(packets)) {
		err = &invalidAnswerError{fmt.Errorf("%d results of %d packets", len(answer.Results), len(packets))}
	}
	if err != nil {
		return nil, &tracing.AgentError{Reason: explain(node.Name, err)}
	}
	return answer.Results, nil
}

// batchAnswer decodes NodeTraces of an agent within limits.
type batchAnswer struct{ diagnostics.NodeTraces }

// decode implements decoder.
func (a *batchAnswer) decode(r io.Reader) error {
	content, err := readAll(r, maxBatchAnswer)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(content, &a.NodeTraces); err != nil {
		return &invalidAnswerError{err}
	}
	for i := range a.Results {
		o := &a.Results[i]
		o.Reason, o.Objects = printable(o.Reason, maxMessage), limitObjects(o.Objects)
		o.Outputs = o.Outputs[:min(len(o.Outputs), maxTraceOutputs)]
		for j := range o.Outputs {
			o.Outputs[j].To = printable(o.Outputs[j].To, maxObject)
		}
		if o.Flow != nil {
			limitStep(o.Flow)
		}
	}
	return nil
}
