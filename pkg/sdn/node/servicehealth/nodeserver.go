package servicehealth

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// DefaultAddress is where load balancers ask for the health of kube-proxy.
const DefaultAddress = "0.0.0.0:10256"

// listenInterval is the pause after a failure to listen.
const listenInterval = 10 * time.Second

// NodeServerOptions are the dependencies of a NodeServer.
type NodeServerOptions struct {
	Address  string // HOST:PORT
	NodeName string
	Nodes    cache.SharedIndexInformer // of this node's Node; others are ignored
	Flows    Flows
	Rules    Rules
	Events   NodeEvents
}

// NodeServer answers at /healthz whether load balancers should use the node, and at /livez whether it is in sync with the services.
type NodeServer struct {
	address     string
	sync        *nodeSync
	eligibility *eligibility
	events      NodeEvents
	last        reconcile.LastError // of the server

	listen func(ctx context.Context, address string) (net.Listener, error) // replaced in tests
}

// NewNodeServer returns a NodeServer that watches the informer.
func NewNodeServer(o NodeServerOptions) (*NodeServer, error) {
	e, err := newEligibility(o.NodeName, o.Nodes)
	if err != nil {
		return nil, err
	}
	return &NodeServer{address: o.Address, sync: newNodeSync(o.Flows, o.Rules), eligibility: e, events: o.Events, listen: listenTCP}, nil
}

// Run serves until the context ends. It tries again after failures, and reports each that differs from the previous one: the network of pods does not depend on it.
func (n *NodeServer) Run(ctx context.Context) {
	for {
		err := n.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if n.last.Set(err) {
			n.report(ctx, err)
		}
		if !pause.For(ctx, listenInterval) {
			return
		}
	}
}

func (n *NodeServer) report(ctx context.Context, err error) {
	_, port, _ := net.SplitHostPort(n.address) // it is valid, as the configuration is
	action := freePort(err, port) + ", or set --service-healthz-bind-address"
	klog.FromContext(ctx).Error(err, "Failed to serve --service-healthz-bind-address", "address", n.address, "retryAfter", listenInterval, "action", action)
	n.events.WarnNode(eventreason.HealthCheckPortFailed, fmt.Sprintf("load balancers get no answer at %s: %v; %s", n.address, err, action))
}

// serve serves until the context ends, or the listener fails.
func (n *NodeServer) serve(ctx context.Context) error {
	listener, err := n.listen(ctx, n.address)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	s := serve(listener, newLimiter(), n.handler(), func(err error) { failed <- err })
	defer s.close()
	n.last.Set(nil)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-failed:
		return err
	}
}

// nodeHealth is what kube-proxy answers.
type nodeHealth struct {
	LastUpdated  time.Time `json:"lastUpdated"`
	CurrentTime  time.Time `json:"currentTime"`
	NodeEligible *bool     `json:"nodeEligible,omitempty"`
}

func (n *NodeServer) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, r *http.Request) {
		eligible := n.eligibility.eligible.Load()
		n.answer(w, r, &eligible)
	})
	mux.HandleFunc("/livez", func(w http.ResponseWriter, r *http.Request) { n.answer(w, r, nil) })
	return mux
}

// answer answers with the state of the node and, unless it is nil, whether the node is eligible.
func (n *NodeServer) answer(w http.ResponseWriter, r *http.Request, eligible *bool) {
	state := n.sync.state(r.Context())
	healthy := state.err == nil && (eligible == nil || *eligible)
	a := nodeHealth{LastUpdated: state.updated.UTC(), CurrentTime: state.at.UTC(), NodeEligible: eligible}
	if healthy { // as kube-proxy: the node has now what the objects require
		a.LastUpdated = a.CurrentTime
	}
	reply(w, healthy, a)
}
