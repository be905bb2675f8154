// Package diagnosticsapi is the aggregated API server of the group diagnostics.ovsdn.io: it authenticates the front proxy of the API server, authorizes users
// by SubjectAccessReview, and asks the agents of nodes (docs/decisions/0020-diagnostics.md). It uses net/http alone: the delegating factories of
// k8s.io/apiserver would make the controller larger than the agent.
package diagnosticsapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions/network/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"

	networkdiscovery "github.com/ovsdn/ovsdn/pkg/sdn/discovery"
	"github.com/ovsdn/ovsdn/pkg/sdn/metrics"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// retryAfterSeconds is the pause of clients after they got 429.
const retryAfterSeconds = 2

// Prefixes returns the prefixes of all paths that the Server serves.
func Prefixes() []string { return []string{groupsPath, "/openapi/"} }

// Config is the configuration of a Server.
type Config struct {
	Kube    kubernetes.Interface
	Network networkclient.Interface
	// Policies reads ClusterNetworkPolicies.
	Policies policyclient.Interface
	Agents   Agents
	// Accept is called for each request whose client is the front proxy.
	Accept func(*http.Request)
}

// Server is an http.Handler. It answers requests of the front proxy while Run runs.
type Server struct {
	Config
	nodes      Nodes
	proxy      *frontProxy
	authorizer *authorizer
	documents  map[string]any // by path
	gets       chan struct{}  // an element for each status that is being answered
	lists      chan struct{}  // an element for each list that is being answered
	dumps      chan struct{}  // and for each NodeFlows
	samples    chan struct{}  // and for each NodeTraffic, or list of them
	traces     *userLimit     // and for each Trace
	probes     *userLimit     // and for each Probe
	verifies   *userLimit     // and for each Verification
	captures   *userLimit     // and for each Capture
	slices     chan struct{}  // an element while a Trace reads EndpointSlices
	settle     time.Duration  // until a Verification asks again
	failures   metrics.FailureLog

	configMap, subnets cache.SharedIndexInformer
}

// New returns a server. The context is that of its log.
func New(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Kube == nil || cfg.Network == nil || cfg.Policies == nil || cfg.Agents == nil || cfg.Accept == nil {
		return nil, errors.New("diagnosticsapi: required dependency is nil")
	}
	configMap := coreinformers.NewFilteredConfigMapInformer(cfg.Kube, authenticationNamespace, 0, cache.Indexers{}, reconcile.OnlyNamed(authenticationConfigMap))
	return newWithInformers(ctx, cfg, configMap, networkinformers.NewHostSubnetInformer(cfg.Network, 0, cache.Indexers{}))
}

func newWithInformers(ctx context.Context, cfg Config, configMap, subnets cache.SharedIndexInformer) (*Server, error) {
	if err := subnets.SetTransform(trim); err != nil {
		return nil, fmt.Errorf("transform HostSubnets: %w", err)
	}
	s := newServer(cfg, hostSubnets{subnets})
	s.configMap, s.subnets = configMap, subnets
	return s, s.proxy.watch(ctx, configMap)
}

// newServer returns a server without informers.
func newServer(cfg Config, nodes Nodes) *Server {
	return &Server{
		Config: cfg, nodes: nodes,
		proxy:      &frontProxy{hasRead: func() bool { return false }, now: time.Now},
		authorizer: newAuthorizer(cfg.Kube.AuthorizationV1().SubjectAccessReviews()),
		documents:  discovery(), gets: make(chan struct{}, maxGets), lists: make(chan struct{}, maxLists), dumps: make(chan struct{}, maxDumps), samples: make(chan struct{}, maxSamples), traces: newUserLimit(maxTraces, maxUserTraces),
		probes: newUserLimit(maxProbes, maxUserTraces), verifies: newUserLimit(maxVerifications, maxVerifications), captures: newUserLimit(maxCaptures, maxUserTraces),
		slices: make(chan struct{}, 1), settle: settleTime,
	}
}

// Run runs the informers until the context ends.
func (s *Server) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { s.configMap.RunWithContext(ctx) })
	if networkdiscovery.AwaitNetworkAPI(ctx, s.Network) == nil {
		s.subnets.RunWithContext(ctx)
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u, err := s.proxy.authenticate(r)
	if err != nil {
		writeError(w, apierrors.NewUnauthorized(printable(err.Error(), maxMessage)))
		return
	}
	s.Accept(r)
	if s.serveDiscovery(w, r) {
		return
	}
	created, namespace := creationAt(r.URL.Path)
	captured, isCapture := captureAt(r.URL.Path)
	resource, name, ok := objectOf(r.URL.Path)
	if !ok && created == nil && !isCapture {
		writeError(w, apierrors.NewGenericServerResponse(http.StatusNotFound, "get", resourceOf(""), "", "", 0, false))
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		writeError(w, apierrors.NewBadRequest(printable("invalid query: "+err.Error(), maxMessage)))
		return
	}
	if isCapture {
		if err := s.serveCapture(w, r, u, captured, query); err != nil {
			writeError(w, err)
		}
		return
	}
	if created != nil {
		if err := s.serveCreation(w, r, u, created, namespace, query); err != nil {
			writeError(w, err)
		}
		return
	}
	if err := s.serveResource(w, r, u, request{resource: resource, name: name, query: query}); err != nil {
		writeError(w, err)
	}
}

// request is a request for an object, or for a list if name is "".
type request struct {
	resource, name string
	query          url.Values
	selection      listSelection // of a list
}

// objectOf returns the resource and the name of a path; ok is false if the path does not exist.
func objectOf(path string) (resource, name string, ok bool) {
	rest, ok := strings.CutPrefix(path, versionPath+"/")
	resource, name, isObject := strings.Cut(rest, "/")
	ok = ok && (resource == statuses || resource == flows || resource == traffic) && (!isObject || name != "") && !strings.Contains(name, "/") && len(name) <= maxNodeName
	return resource, name, ok
}

// serveResource answers a request for objects.
func (s *Server) serveResource(w http.ResponseWriter, r *http.Request, u user, q request) error {
	verb := "get"
	if q.name == "" {
		verb = "list"
	}
	switch {
	case !isRead(r):
		verb = strings.ToLower(printable(r.Method, maxName))
		return apierrors.NewMethodNotSupported(resourceOf(q.resource), verb)
	case isTrue(q.query, "watch"):
		return apierrors.NewMethodNotSupported(resourceOf(q.resource), "watch")
	case q.resource == flows && verb == "list":
		return apierrors.NewMethodNotSupported(resourceOf(flows), verb)
	}
	wanted := access{verb: verb, resource: q.resource, name: q.name}
	if verb == "list" {
		var err error
		if q.selection, err = parseSelection(q.query); err != nil {
			return apierrors.NewBadRequest(printable(err.Error(), maxMessage))
		}
		wanted.name = q.selection.name // as the API server authorizes it
	}
	if err := s.authorize(r.Context(), u, wanted); err != nil {
		return err
	}
	if !s.nodes.HasSynced() {
		return apierrors.NewServiceUnavailable("the controller has not read all HostSubnets yet; retry later")
	}
	if q.resource == traffic {
		return s.getTraffic(w, r, q)
	}
	form, err := negotiate(r.Header, table())
	if err != nil {
		return err
	}
	switch {
	case q.resource == flows:
		return s.getFlows(w, r, q, form)
	case verb == "list":
		return s.listStatuses(w, r, q, form)
	}
	return s.getStatus(w, r, q, form)
}

// authorize returns the error for a user without the right.
func (s *Server) authorize(ctx context.Context, u user, wanted access) error {
	allowed, reason, err := s.authorizer.allowed(ctx, u, wanted)
	switch {
	case err != nil:
		s.failures.Log(ctx, err, "Failed to authorize a request for diagnostics", "action", "if the error is \"forbidden\", apply deploy/rbac")
		return apierrors.NewServiceUnavailable("SubjectAccessReview failed; the log of ovsdn-controller has the error")
	case allowed:
		return nil
	}
	cause := wanted.refusal(u)
	if reason != "" {
		cause += ": " + reason
	}
	return apierrors.NewForbidden(resourceOf(wanted.resourceName()), wanted.name, errors.New(cause))
}

// nodeNamed returns the node of that name.
func (s *Server) nodeNamed(resource, name string) (Node, error) {
	n, ok := s.nodes.Get(name)
	if !ok {
		return Node{}, apierrors.NewNotFound(resourceOf(resource), name)
	}
	return n, nil
}

// acquire takes an element of the semaphore, or returns the error that the client retries.
func acquire(semaphore chan struct{}, what string) (release func(), err error) {
	select {
	case semaphore <- struct{}{}:
		return func() { <-semaphore }, nil
	default:
		return nil, apierrors.NewTooManyRequests("the controller answers "+what+" of other clients; retry later", retryAfterSeconds)
	}
}
