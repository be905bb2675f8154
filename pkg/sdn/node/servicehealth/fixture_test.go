package servicehealth

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
	"github.com/ovsdn/ovsdn/test/await"
)

const timeout = 90 * time.Second

func TestMain(m *testing.M) { await.VerifyTestMain(m) }

// fixture has ports of a fake node: each is a port of 127.0.0.1 that the kernel chooses.
type fixture struct {
	*testing.T

	mu           sync.Mutex
	statistics   flowstore.Statistics
	untranslated bool              // the host's rules are not written yet
	addresses    map[string]string // of the listeners, by the address that was asked for
	used         map[string]bool   // addresses that another program uses
	listens      int
	reconciled   int
	events       []string
}

func newFixture(t *testing.T) *fixture {
	return &fixture{T: t, statistics: flowstore.Statistics{LastWrite: time.Now()}, addresses: map[string]string{}, used: map[string]bool{}}
}

// Statistics implements Flows.
func (f *fixture) Statistics() flowstore.Statistics {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.statistics
}

func (f *fixture) setStatistics(s flowstore.Statistics) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.statistics = s
}

// Synced implements Rules.
func (f *fixture) Synced() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return !f.untranslated
}

func (f *fixture) setSynced(synced bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.untranslated = !synced
}

// WarnService implements Events.
func (f *fixture) WarnService(namespace, name string, uid types.UID, reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, fmt.Sprintf("%s/%s %s %s %s", namespace, name, uid, reason, message))
}

// WarnNode implements NodeEvents.
func (f *fixture) WarnNode(reason, message string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.events = append(f.events, reason+" "+message)
}

// Reconciled implements reconcile.Observer.
func (f *fixture) Reconciled(string, time.Duration, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reconciled++
}

// Settled implements reconcile.Observer.
func (f *fixture) Settled(string, time.Duration) {}

func (f *fixture) setUsed(address string, used bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.used[address] = used
}

// listen replaces listenTCP.
func (f *fixture) listen(ctx context.Context, address string) (net.Listener, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.listens++
	if f.used[address] {
		return nil, &net.OpError{Op: "listen", Net: "tcp", Err: syscall.EADDRINUSE}
	}
	l, err := listenTCP(ctx, "127.0.0.1:0")
	if err == nil {
		f.addresses[address] = l.Addr().String()
	}
	return l, err
}

// at returns where a port of the node is; "": it was never opened.
func (f *fixture) at(address string) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.addresses[address]
}

// new returns Checks that open the node's ports.
func (f *fixture) new() *Checks {
	c := New(Options{NodeName: "n1", Flows: f, Rules: f, Events: f})
	c.listen = f.listen
	return c
}

// run runs Checks until the test ends.
func (f *fixture) run() *Checks {
	c := f.new()
	f.start(c.Run)
	return c
}

func (f *fixture) start(run func(context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(reconcile.WithObserver(f.Context(), f))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = func() { cancel(); running.Wait() }
	f.Cleanup(stop)
	return stop
}

// response is an answer with its body.
type response struct {
	status int
	closes bool // the connection
	header http.Header
	body   string
}

// get sends a request to a port of the node.
func (f *fixture) get(ctx context.Context, method, address, path string) (response, error) {
	at := f.at(address)
	if at == "" {
		return response{}, fmt.Errorf("%s was never opened", address)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://"+at+path, nil)
	if err != nil {
		return response{}, err
	}
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	r, err := transport.RoundTrip(req)
	if err != nil {
		return response{}, err
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	return response{r.StatusCode, r.Close, r.Header, strings.TrimSpace(string(body))}, err
}

// expect waits until GET / of a port of the node has a status and a body; status 0: until the port is closed.
func (f *fixture) expect(when, address string, status int, body string) {
	f.Helper()
	await.OK(f, timeout, func(ctx context.Context) error {
		r, err := f.get(ctx, http.MethodGet, address, "/")
		switch {
		case status == 0 && err == nil:
			return fmt.Errorf("%s: port %s answers %d, want it closed", when, address, r.status)
		case status == 0:
			return nil
		case err != nil:
			return fmt.Errorf("%s: %w", when, err)
		case r.status != status || r.body != body:
			return fmt.Errorf("%s: got %d %s, want %d %s", when, r.status, r.body, status, body)
		}
		return nil
	})
}

// service returns a Service of type LoadBalancer with externalTrafficPolicy Local.
func service(name string, port int32, change func(*corev1.Service)) *endpoints.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "uid"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "172.30.0.10", ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicyLocal, HealthCheckNodePort: port,
		Ports: []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: 80}},
	}}
	if change != nil {
		change(svc)
	}
	return endpoints.NewService(svc)
}

// endpoint returns an endpoint on a node.
func endpoint(node, addr string, ready, serving, terminating bool) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{
		Addresses: []string{addr}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &ready, Serving: &serving, Terminating: &terminating},
	}
}

// set passes a Service with endpoints to the checks of node n1, as the balancer does.
func set(c *Checks, svc *endpoints.Service, all ...discoveryv1.Endpoint) {
	port, protocol, number := "web", corev1.ProtocolTCP, int32(8080)
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: "slice", Labels: map[string]string{discoveryv1.LabelServiceName: svc.GetName()}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: all, Ports: []discoveryv1.EndpointPort{{Name: &port, Protocol: &protocol, Port: &number}},
	}
	selected, _ := endpoints.Select(svc, []*endpoints.Slice{endpoints.NewSlice(slice, netip.MustParsePrefix("172.30.0.0/16"))}, endpoints.Node{Name: "n1"})
	c.SetService("ns/"+svc.GetName(), svc, selected.LocalReady)
}

// body returns the answer about Service ns/NAME.
func body(name string, local int, healthy bool) string {
	return fmt.Sprintf(`{"service":{"namespace":"ns","name":"%s"},"localEndpoints":%d,"serviceProxyHealthy":%t}`, name, local, healthy)
}

// idleConn is a connection of the source 127.0.0.N that sends nothing.
type idleConn struct {
	net.Conn
	n byte
}

// RemoteAddr implements net.Conn.
func (c idleConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, c.n)} }

// Close implements net.Conn.
func (c idleConn) Close() error { return nil }
