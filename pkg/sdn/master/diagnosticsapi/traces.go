package diagnosticsapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
)

const (
	maxTraces     = 8 // that are answered at the same time
	maxUserTraces = 2 // of them for one user, and for one namespace
	traceTimeout  = 20 * time.Second

	maxTraceBody = 16 << 10 // bytes; a Trace has some hundred
	maxWarnings  = 8        // of unknown fields
)

// serveTraces answers the creation of a Trace in a namespace.
func (s *Server) serveTraces(w http.ResponseWriter, r *http.Request, u user, namespace string, query url.Values) error {
	if r.Method != http.MethodPost {
		return apierrors.NewMethodNotSupported(resourceOf(traces), strings.ToLower(printable(r.Method, maxName)))
	}
	if err := s.authorize(r.Context(), u, createTraces(namespace)); err != nil {
		return err
	}
	form, err := negotiate(r.Header)
	if err != nil {
		return err
	}
	o, warnings, err := decodeTrace(http.MaxBytesReader(w, r.Body, maxTraceBody), r.Header.Get("Content-Type"), query)
	if err != nil {
		return err
	}
	release, err := s.traces.acquire(u, namespace, "traces") // after the body: a slow client must not occupy it
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), traceTimeout)
	defer cancel()
	if err := s.trace(ctx, u, namespace, o); err != nil {
		return err
	}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	for _, warning := range warnings {
		w.Header().Add("Warning", fmt.Sprintf("299 - %q", warning))
	}
	writeJSON(w, form, http.StatusCreated, o)
	return nil
}

// createTraces is the right to create Traces in the namespace.
func createTraces(namespace string) access {
	return access{verb: "create", resource: traces, namespace: namespace}
}

// trace sets the status of the Trace, after it has validated and authorized the spec.
func (s *Server) trace(ctx context.Context, u user, namespace string, o *diagnostics.Trace) error {
	if o.Namespace != "" && o.Namespace != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	name := printable(o.Name, maxName)
	query, errs := tracing.ParseSpec(&o.Spec)
	if len(errs) == 0 {
		errs = validateNamespace(namespace, query)
	}
	if len(errs) > 0 {
		return invalidTrace(name, errs)
	}
	for _, other := range []string{query.Source.Namespace(), query.Destination.Namespace()} {
		if other == "" || other == namespace {
			continue
		}
		if err := s.authorize(ctx, u, createTraces(other)); err != nil {
			return err
		}
	}
	if !s.nodes.HasSynced() {
		return apierrors.NewServiceUnavailable("the controller has not read all HostSubnets yet; retry later")
	}
	rights := &traceRights{server: s, user: u, known: map[access]bool{createTraces(namespace): true}}
	tracer := &tracing.Tracer{Cluster: &traceCluster{server: s}, Agents: &traceAgents{server: s}, Sees: rights.sees}
	status, err := tracer.Trace(ctx, query)
	if err != nil {
		return s.traceError(ctx, name, err)
	}
	o.TypeMeta, o.ObjectMeta, o.Status = typeMeta("Trace"), metav1.ObjectMeta{Namespace: namespace, Name: name}, *status
	o.Spec.Protocol = query.Protocol
	return nil
}

// validateNamespace returns an error if the namespace of the request is not that of the source, or, if that is no pod, of the destination.
func validateNamespace(namespace string, q tracing.Query) field.ErrorList {
	name, target := "source", q.Source
	if target.Namespace() == "" {
		name, target = "destination", q.Destination
	}
	if target.Namespace() == namespace {
		return nil
	}
	return field.ErrorList{field.Invalid(field.NewPath("spec", name), target.String(), fmt.Sprintf("must be in the namespace of the request, %q", namespace))}
}

func invalidTrace(name string, errs field.ErrorList) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: diagnostics.Group, Kind: "Trace"}, name, errs)
}

// traceError returns the error of a trace as one of the API.
func (s *Server) traceError(ctx context.Context, name string, err error) error {
	var fault *field.Error
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &fault):
		return invalidTrace(name, field.ErrorList{fault})
	case apierrors.IsNotFound(err) && errors.As(err, &known):
		missing := apierrors.NewNotFound(resourceOf(traces), name)
		missing.ErrStatus.Message = known.Status().Message
		return missing
	}
	s.failures.Log(ctx, err, "Failed to read objects for a trace", "action", "if the error is \"forbidden\", apply deploy/rbac")
	return apierrors.NewServiceUnavailable("the controller can't read the objects of the trace; its log has the error")
}

// decodeTrace decodes the body of a request. Unknown and duplicate fields are ignored, returned as warnings, or an error, as the query's fieldValidation asks.
func decodeTrace(body io.Reader, contentType string, query url.Values) (*diagnostics.Trace, []string, error) {
	if media, _, err := mime.ParseMediaType(contentType); contentType != "" && (err != nil || media != contentTypeJSON) {
		return nil, nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
			Message: "the body of the request was in an unknown format; only " + contentTypeJSON + " is accepted",
		}}
	}
	validation := query.Get("fieldValidation")
	switch validation {
	case "", metav1.FieldValidationIgnore, metav1.FieldValidationWarn, metav1.FieldValidationStrict:
	default:
		return nil, nil, apierrors.NewBadRequest(printable(fmt.Sprintf("invalid query: fieldValidation: %q is not Ignore, Warn or Strict", validation), maxMessage))
	}
	content, err := readAll(body, maxTraceBody)
	var tooLarge *http.MaxBytesError
	var alsoTooLarge *tooLargeError
	switch {
	case errors.As(err, &tooLarge), errors.As(err, &alsoTooLarge):
		return nil, nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", maxTraceBody))
	case err != nil:
		return nil, nil, apierrors.NewBadRequest("the body of the request can't be read")
	}
	o := &diagnostics.Trace{}
	strict, err := kjson.UnmarshalStrict(content, o)
	if err != nil {
		return nil, nil, apierrors.NewBadRequest(printable("the object provided is no Trace: "+err.Error(), maxMessage))
	}
	if want := typeMeta("Trace"); o.Kind != "" && o.Kind != want.Kind || o.APIVersion != "" && o.APIVersion != want.APIVersion {
		return nil, nil, apierrors.NewBadRequest(printable(fmt.Sprintf("the object provided is of kind %s of %s, not %s of %s", o.Kind, o.APIVersion, want.Kind, want.APIVersion), maxMessage))
	}
	var warnings []string
	for _, e := range strict[:min(len(strict), maxWarnings)] {
		warnings = append(warnings, printable(e.Error(), maxMessage))
	}
	switch {
	case validation == metav1.FieldValidationIgnore:
		warnings = nil
	case validation == metav1.FieldValidationStrict && len(warnings) > 0:
		return nil, nil, apierrors.NewBadRequest("strict decoding error: " + strings.Join(warnings, ", "))
	}
	return o, warnings, nil
}

// traceRights are the rights of the user of one trace.
type traceRights struct {
	server *Server
	user   user
	known  map[access]bool
}

// maxTraceReviews is the number of rights that one trace reviews: agents name the objects. Without a review the user has no right.
const maxTraceReviews = 32

// sees reports whether the user may read the object: those of a namespace in which the user may create Traces, and ClusterNetworkPolicies by the right to get
// them.
func (t *traceRights) sees(ctx context.Context, o diagnostics.Object) bool {
	var want access
	switch o.Kind {
	case diagnostics.KindNode:
		return true
	case diagnostics.KindNamespace:
		want = createTraces(o.Name)
	case diagnostics.KindClusterNetworkPolicy:
		want = access{verb: "get", resource: "clusternetworkpolicies", name: o.Name, group: "policy.networking.k8s.io"}
	default:
		want = createTraces(o.Namespace)
	}
	allowed, known := t.known[want]
	if !known && len(t.known) < maxTraceReviews {
		var err error
		if allowed, _, err = t.server.authorizer.allowed(ctx, t.user, want); err != nil {
			t.server.failures.Log(ctx, err, "Failed to authorize a request for diagnostics", "action", "if the error is \"forbidden\", apply deploy/rbac")
			allowed = false
		}
		t.known[want] = allowed
	}
	return allowed
}
