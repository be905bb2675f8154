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
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/master/tracing"
)

const (
	maxTraces     = 8  // that are answered at the same time
	maxProbes     = 32 // likewise: they mostly wait
	maxUserTraces = 2  // of them for one user, and for one namespace
	traceTimeout  = 20 * time.Second

	maxTraceBody = 16 << 10 // bytes; a Trace has some hundred
	maxWarnings  = 8        // of unknown fields
)

// creation is the creation of an object in a namespace, which is answered and not stored.
type creation struct {
	resource, kind string
	object         any // that is decoded, and sent with its status
	types          *metav1.TypeMeta
	meta           *metav1.ObjectMeta

	parse   func() (tracing.Query, field.ErrorList)                     // validates the spec of a Trace or a Probe
	answer  func(context.Context, *tracing.Tracer, tracing.Query) error // sets its status
	create  func(s *Server, ctx context.Context, u user, namespace string, c *creation) error
	limit   func(*Server) *userLimit
	timeout time.Duration
}

// creationAt returns the creation of a path and its namespace, "" at the cluster scope; nil for other paths.
func creationAt(path string) (c *creation, namespace string) {
	if path == versionPath+"/"+verifications {
		return newVerification(), ""
	}
	rest, ok := strings.CutPrefix(path, versionPath+"/namespaces/")
	namespace, resource, _ := strings.Cut(rest, "/")
	switch {
	case !ok || len(validation.IsDNS1123Label(namespace)) > 0:
	case resource == traces:
		c = newTrace()
	case resource == probes:
		c = newProbe()
	case resource == verifications:
		c = newVerification()
	}
	return c, namespace
}

func newTrace() *creation {
	o := &diagnostics.Trace{}
	return &creation{
		resource: traces, kind: "Trace", object: o, types: &o.TypeMeta, meta: &o.ObjectMeta, limit: func(s *Server) *userLimit { return s.traces },
		create: (*Server).createTrace, timeout: traceTimeout,
		parse: func() (tracing.Query, field.ErrorList) { return tracing.ParseSpec(&o.Spec) },
		answer: func(ctx context.Context, t *tracing.Tracer, q tracing.Query) error {
			status, err := t.Trace(ctx, q)
			if err == nil {
				o.Spec.Protocol, o.Status = q.Protocol, *status
			}
			return err
		},
	}
}

func newProbe() *creation {
	o := &diagnostics.Probe{}
	return &creation{
		resource: probes, kind: "Probe", object: o, types: &o.TypeMeta, meta: &o.ObjectMeta, limit: func(s *Server) *userLimit { return s.probes },
		create: (*Server).createTrace, timeout: traceTimeout,
		parse: func() (tracing.Query, field.ErrorList) { return tracing.ParseProbe(&o.Spec) },
		answer: func(ctx context.Context, t *tracing.Tracer, q tracing.Query) error {
			status, err := t.Probe(ctx, q)
			if err == nil {
				o.Spec.Protocol, o.Status = q.Protocol, *status
			}
			return err
		},
	}
}

// serveCreation answers the creation of an object in a namespace.
func (s *Server) serveCreation(w http.ResponseWriter, r *http.Request, u user, c *creation, namespace string, query url.Values) error {
	if r.Method != http.MethodPost {
		return apierrors.NewMethodNotSupported(resourceOf(c.resource), strings.ToLower(printable(r.Method, maxName)))
	}
	if err := s.authorize(r.Context(), u, c.right(namespace)); err != nil {
		return err
	}
	form, err := negotiate(r.Header)
	if err != nil {
		return err
	}
	warnings, err := c.decode(http.MaxBytesReader(w, r.Body, maxTraceBody), r.Header.Get("Content-Type"), query)
	if err != nil {
		return err
	}
	release, err := c.limit(s).acquire(u, namespace, c.resource) // after the body: a slow client must not occupy it
	if err != nil {
		return err
	}
	defer release()
	ctx, cancel := context.WithTimeout(r.Context(), c.timeout)
	defer cancel()
	if c.meta.Namespace != "" && c.meta.Namespace != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	if err := c.create(s, ctx, u, namespace, c); err != nil {
		return err
	}
	*c.types, *c.meta = typeMeta(c.kind), metav1.ObjectMeta{Namespace: namespace, Name: printable(c.meta.Name, maxName)}
	if r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client has disconnected
	}
	for _, warning := range warnings {
		w.Header().Add("Warning", fmt.Sprintf("299 - %q", warning))
	}
	writeJSON(w, form, http.StatusCreated, c.object)
	return nil
}

// right is the right to create such objects in the namespace.
func (c *creation) right(namespace string) access {
	return access{verb: "create", resource: c.resource, namespace: namespace}
}

// createTrace sets the status of a Trace or a Probe, after it has validated and authorized the spec.
func (s *Server) createTrace(ctx context.Context, u user, namespace string, c *creation) error {
	name := printable(c.meta.Name, maxName)
	query, errs := c.parse()
	if len(errs) == 0 {
		errs = validateNamespace(namespace, query)
	}
	if len(errs) > 0 {
		return c.invalid(name, errs)
	}
	for _, other := range []string{query.Source.Namespace(), query.Destination.Namespace()} {
		if other == "" || other == namespace {
			continue
		}
		if err := s.authorize(ctx, u, c.right(other)); err != nil {
			return err
		}
	}
	if !s.nodes.HasSynced() {
		return apierrors.NewServiceUnavailable("the controller has not read all HostSubnets yet; retry later")
	}
	rights := &traceRights{server: s, user: u, creation: c, known: map[access]bool{c.right(namespace): true}}
	tracer := &tracing.Tracer{Cluster: &traceCluster{server: s}, Agents: &traceAgents{server: s}, Sees: rights.sees, SeesHosts: rights.seesHosts}
	if err := c.answer(ctx, tracer, query); err != nil {
		return s.creationError(ctx, c, name, err)
	}
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

func (c *creation) invalid(name string, errs field.ErrorList) error {
	return apierrors.NewInvalid(schema.GroupKind{Group: diagnostics.Group, Kind: c.kind}, name, errs)
}

// creationError returns the error of a trace or a probe as one of the API.
func (s *Server) creationError(ctx context.Context, c *creation, name string, err error) error {
	var fault *field.Error
	var known apierrors.APIStatus
	switch {
	case errors.As(err, &fault):
		return c.invalid(name, field.ErrorList{fault})
	case apierrors.IsNotFound(err) && errors.As(err, &known):
		missing := apierrors.NewNotFound(resourceOf(c.resource), name)
		missing.ErrStatus.Message = known.Status().Message
		return missing
	}
	s.failures.Log(ctx, err, "Failed to read objects for a request for diagnostics", "action", "if the error is \"forbidden\", apply deploy/rbac")
	return apierrors.NewServiceUnavailable("the controller can't read the objects of the request; its log has the error")
}

// decode decodes the body of a request. Unknown and duplicate fields are ignored, returned as warnings, or an error, as the query's fieldValidation asks.
func (c *creation) decode(body io.Reader, contentType string, query url.Values) (warnings []string, err error) {
	if media, _, err := mime.ParseMediaType(contentType); contentType != "" && (err != nil || media != contentTypeJSON) {
		return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusUnsupportedMediaType, Reason: metav1.StatusReasonUnsupportedMediaType,
			Message: "the body of the request was in an unknown format; only " + contentTypeJSON + " is accepted",
		}}
	}
	validation := query.Get("fieldValidation")
	switch validation {
	case "", metav1.FieldValidationIgnore, metav1.FieldValidationWarn, metav1.FieldValidationStrict:
	default:
		return nil, apierrors.NewBadRequest(printable(fmt.Sprintf("invalid query: fieldValidation: %q is not Ignore, Warn or Strict", validation), maxMessage))
	}
	content, err := readAll(body, maxTraceBody)
	var tooLarge *http.MaxBytesError
	var alsoTooLarge *tooLargeError
	switch {
	case errors.As(err, &tooLarge), errors.As(err, &alsoTooLarge):
		return nil, apierrors.NewRequestEntityTooLargeError(fmt.Sprintf("limit is %d bytes", maxTraceBody))
	case err != nil:
		return nil, apierrors.NewBadRequest("the body of the request can't be read")
	}
	strict, err := kjson.UnmarshalStrict(content, c.object)
	if err != nil {
		return nil, apierrors.NewBadRequest(printable("the object provided is no "+c.kind+": "+err.Error(), maxMessage))
	}
	if o, want := c.types, typeMeta(c.kind); o.Kind != "" && o.Kind != want.Kind || o.APIVersion != "" && o.APIVersion != want.APIVersion {
		return nil, apierrors.NewBadRequest(printable(fmt.Sprintf("the object provided is of kind %s of %s, not %s of %s", o.Kind, o.APIVersion, want.Kind, want.APIVersion), maxMessage))
	}
	for _, e := range strict[:min(len(strict), maxWarnings)] {
		warnings = append(warnings, printable(e.Error(), maxMessage))
	}
	switch {
	case validation == metav1.FieldValidationIgnore:
		warnings = nil
	case validation == metav1.FieldValidationStrict && len(warnings) > 0:
		return nil, apierrors.NewBadRequest("strict decoding error: " + strings.Join(warnings, ", "))
	}
	return warnings, nil
}

// traceRights are the rights of the user of one trace or probe.
type traceRights struct {
	server *Server
	user   user
	*creation
	known map[access]bool
}

// maxTraceReviews is the number of rights that one trace reviews: agents name the objects. Without a review the user has no right.
const maxTraceReviews = 32

// sees reports whether the user may read the object: those of a namespace in which the user may create such objects, and ClusterNetworkPolicies by the right to get
// them.
func (t *traceRights) sees(ctx context.Context, o diagnostics.Object) bool {
	var want access
	switch o.Kind {
	case diagnostics.KindNode:
		return true
	case diagnostics.KindNamespace:
		want = t.right(o.Name)
	case diagnostics.KindClusterNetworkPolicy:
		want = access{verb: "get", resource: "clusternetworkpolicies", name: o.Name, group: "policy.networking.k8s.io"}
	default:
		want = t.right(o.Namespace)
	}
	return t.has(ctx, want)
}

// seesHosts reports whether the user may read the routes of hosts and the names of other programs' rules: by the right of operators for all nodes.
func (t *traceRights) seesHosts(ctx context.Context) bool {
	return t.has(ctx, access{verb: "get", resource: statuses})
}

// has reports whether the user has the right.
func (t *traceRights) has(ctx context.Context, want access) bool {
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
