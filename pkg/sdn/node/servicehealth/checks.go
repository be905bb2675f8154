// Package servicehealth answers what load balancers ask the service proxy of a node (--service-proxy=ovs): whether the node has endpoints of a Service, at its
// healthCheckNodePort, and whether the node itself can be used, at kube-proxy's /healthz.
package servicehealth

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"sync"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/connectionlimit"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// workers bounds how many ports are opened at once.
const workers = 4

// reportedFailure is the number of the attempt whose failure is reported in an Event: the first may come before the port of a deleted Service is closed.
const reportedFailure = 2

// Options are the dependencies of Checks.
type Options struct {
	NodeName string
	Flows    Flows
	Rules    Rules
	Events   Events
}

// Checks has an HTTP server for each Service with a healthCheckNodePort.
type Checks struct {
	nodeName string
	sync     *nodeSync
	events   Events
	limits   *connectionlimit.Limiter
	loop     *reconcile.Loop

	listen func(ctx context.Context, address string) (net.Listener, error) // replaced in tests

	mu     sync.Mutex
	wanted map[string]*check   // by Service; the pointer changes with the port
	ports  map[string]openPort // by Service; only its worker changes an entry
}

// openPort is a server that runs.
type openPort struct {
	check  *check
	server *server
}

// New returns Checks without Services.
func New(o Options) *Checks {
	c := &Checks{
		nodeName: o.NodeName, sync: newNodeSync(o.Flows, o.Rules), events: o.Events, listen: listenTCP, limits: newLimiter(),
		wanted: map[string]*check{}, ports: map[string]openPort{},
	}
	c.loop = reconcile.New("service health checks", c.reconcile)
	return c
}

// SetService updates the number of ready endpoints of a Service on this node; nil: it was deleted, or is not proxied. It costs nothing for a Service without a
// healthCheckNodePort. Calls for one key must not overlap.
func (c *Checks) SetService(key string, svc *endpoints.Service, localReady int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	current := c.wanted[key]
	if svc == nil || svc.HealthCheckNodePort == 0 {
		if current != nil {
			delete(c.wanted, key)
			c.loop.Add(key)
		}
		return
	}
	uid := svc.GetObjectMeta().GetUID()
	if current == nil || current.port != svc.HealthCheckNodePort || current.uid != uid {
		current = &check{namespace: svc.GetNamespace(), name: svc.GetName(), uid: uid, port: svc.HealthCheckNodePort, sync: c.sync}
		c.wanted[key] = current
		c.loop.Add(key)
	}
	current.local.Store(int64(localReady))
}

// Run opens and closes ports until the context ends. Then it closes all.
func (c *Checks) Run(ctx context.Context) {
	c.loop.Run(ctx, workers)
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, open := range c.ports {
		delete(c.ports, key)
		open.server.close()
	}
}

// reconcile opens the port of a Service, after it has closed the previous one. The loop tries again if that fails.
func (c *Checks) reconcile(ctx context.Context, key string) error {
	c.mu.Lock()
	wanted, open := c.wanted[key], c.ports[key]
	c.mu.Unlock()
	if open.server != nil {
		if open.check == wanted && !open.server.hasEnded() {
			return nil
		}
		open.server.close()
		c.set(key, openPort{})
		klog.FromContext(ctx).V(2).Info("Closed port of health checks", "service", key, "port", open.check.port)
	}
	if wanted == nil {
		return nil
	}
	listener, err := c.listen(ctx, net.JoinHostPort("", strconv.Itoa(int(wanted.port))))
	if err != nil {
		if wanted.failures++; wanted.failures == reportedFailure {
			c.events.WarnService(wanted.namespace, wanted.name, wanted.uid, eventreason.HealthCheckPortFailed, fmt.Sprintf("load balancers get no answer at "+
				"healthCheckNodePort %d of node %s: %v; %s", wanted.port, c.nodeName, err, freePort(err, strconv.Itoa(int(wanted.port)))))
		}
		return fmt.Errorf("open healthCheckNodePort %d: %w", wanted.port, err)
	}
	wanted.failures = 0
	log := klog.FromContext(ctx).WithValues("service", key, "port", wanted.port)
	c.set(key, openPort{check: wanted, server: serve(listener, c.limits, wanted, func(err error) {
		log.Info("Failed to serve health checks", "err", err, "action", "none, the agent opens the port again")
		c.loop.Add(key)
	})})
	log.V(2).Info("Opened port of health checks")
	return nil
}

// set stores the server of a Service; the zero value: none.
func (c *Checks) set(key string, open openPort) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if open.server == nil {
		delete(c.ports, key)
		return
	}
	c.ports[key] = open
}
