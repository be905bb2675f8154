package servicehealth

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/connectionlimit"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/test/await"
)

func ready(node, addr string) discoveryv1.Endpoint { return endpoint(node, addr, true, true, false) }

// The answer follows the ready endpoints of the node.
func TestChecks_endpoints(t *testing.T) {
	f := newFixture(t)
	c := f.run()
	for _, tc := range []struct {
		name   string
		all    []discoveryv1.Endpoint
		status int
		local  int
	}{
		{"none", nil, 503, 0},
		{"one on the node", []discoveryv1.Endpoint{ready("n1", "10.128.0.5")}, 200, 1},
		{"two on the node, one on another", []discoveryv1.Endpoint{ready("n1", "10.128.0.5"), ready("n1", "10.128.0.6"), ready("n2", "10.129.0.5")}, 200, 2},
		{"terminating only", []discoveryv1.Endpoint{endpoint("n1", "10.128.0.5", false, true, true)}, 503, 0},
		{"terminating and ready", []discoveryv1.Endpoint{endpoint("n1", "10.128.0.5", false, true, true), ready("n1", "10.128.0.6")}, 200, 1},
		{"not ready", []discoveryv1.Endpoint{endpoint("n1", "10.128.0.5", false, false, false)}, 503, 0},
		{"on another node only", []discoveryv1.Endpoint{ready("n2", "10.129.0.5")}, 503, 0},
	} {
		set(c, service("web", 30001, nil), tc.all...)
		f.expect(tc.name, ":30001", tc.status, body("web", tc.local, true))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listens != 1 || len(f.events) > 0 {
		t.Errorf("got %d listeners and Events %q, want one and none", f.listens, f.events)
	}
}

// The answer has the headers of kube-proxy's, for each path, and closes the connection; other methods are refused.
func TestChecks_answer(t *testing.T) {
	f := newFixture(t)
	set(f.run(), service("web", 30001, nil), ready("n1", "10.128.0.5"), ready("n1", "10.128.0.6"))
	f.expect("opened", ":30001", 200, body("web", 2, true))
	for _, path := range []string{"/", "/healthz", "//x/../y?z=1"} {
		r, err := f.get(t.Context(), http.MethodGet, ":30001", path)
		if err != nil {
			t.Fatal(err)
		}
		if r.status != http.StatusOK || r.body != body("web", 2, true) || !r.closes {
			t.Errorf("%s: got %d %s, end of the connection: %t; want 200, the Service and the end", path, r.status, r.body, r.closes)
		}
		for name, want := range map[string]string{
			"X-Load-Balancing-Endpoint-Weight": "2", "Content-Type": "application/json", "X-Content-Type-Options": "nosniff",
		} {
			if got := r.header.Get(name); got != want {
				t.Errorf("%s: header %s: got %q, want %q", path, name, got, want)
			}
		}
	}
	for method, want := range map[string]int{http.MethodHead: http.StatusOK, http.MethodPost: http.StatusMethodNotAllowed, "GUESS": http.StatusMethodNotAllowed} {
		if r, err := f.get(t.Context(), method, ":30001", "/"); err != nil || r.status != want {
			t.Errorf("%s: got %d, %v, want %d", method, r.status, err, want)
		}
	}
}

// The node is healthy once flows are installed, while none waits for the switch for two minutes.
func TestChecks_flowsNotInSync(t *testing.T) {
	f := newFixture(t)
	set(f.run(), service("web", 30001, nil), ready("n1", "10.128.0.5"))
	now := time.Now()
	for _, tc := range []struct {
		name    string
		flows   flowstore.Statistics
		healthy bool
	}{
		{"in sync", flowstore.Statistics{LastWrite: now}, true},
		{"no flows yet", flowstore.Statistics{}, false},
		{"a new change", flowstore.Statistics{LastWrite: now, PendingSince: now}, true},
		{"an old change", flowstore.Statistics{LastWrite: now, PendingSince: now.Add(-maxPending)}, false},
	} {
		f.setStatistics(tc.flows)
		status := http.StatusServiceUnavailable
		if tc.healthy {
			status = http.StatusOK
		}
		f.expect(tc.name, ":30001", status, body("web", 1, tc.healthy))
	}
}

// A node that does not translate external addresses gets no connections from load balancers.
func TestChecks_rulesNotWritten(t *testing.T) {
	f := newFixture(t)
	f.setSynced(false)
	set(f.run(), service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("before the first rules", ":30001", 503, body("web", 1, false))
	f.setSynced(true)
	f.expect("rules written", ":30001", 200, body("web", 1, true))
}

// Nor does one whose host can't.
func TestChecks_withoutRules(t *testing.T) {
	f := newFixture(t)
	c := New(Options{Flows: f, Events: f})
	c.listen = f.listen
	f.start(c.Run)
	set(c, service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("without nftables", ":30001", 503, body("web", 1, false))
}

// The port is opened, changed and closed with the Service.
func TestChecks_portChanges(t *testing.T) {
	f := newFixture(t)
	c := f.run()
	set(c, service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("created", ":30001", 200, body("web", 1, true))
	set(c, service("web", 30002, nil), ready("n1", "10.128.0.5"))
	f.expect("another port", ":30002", 200, body("web", 1, true))
	f.expect("another port", ":30001", 0, "")
	for name, change := range map[string]func(*corev1.Service){
		"policy Cluster": func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster },
		"type NodePort":  func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeNodePort },
		"no port":        func(s *corev1.Service) { s.Spec.HealthCheckNodePort = 0 },
		"another proxy":  func(s *corev1.Service) { s.Labels = map[string]string{endpoints.ProxyNameLabel: "other"} },
	} {
		set(c, service("web", 30002, change), ready("n1", "10.128.0.5"))
		f.expect(name, ":30002", 0, "")
		set(c, service("web", 30002, nil), ready("n1", "10.128.0.5"))
		f.expect("after "+name, ":30002", 200, body("web", 1, true))
	}
	c.SetService("ns/web", nil, 0)
	f.expect("deleted", ":30002", 0, "")
}

// A port in use is reported once on the Service, and opened when it is free.
func TestChecks_portInUse(t *testing.T) {
	f := newFixture(t)
	c := f.run()
	f.setUsed(":30001", true)
	set(c, service("web", 30001, nil), ready("n1", "10.128.0.5"))
	await.OK(t, timeout, func(context.Context) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.listens <= reportedFailure {
			return fmt.Errorf("got %d attempts, want more than %d", f.listens, reportedFailure)
		}
		return nil
	})
	f.setUsed(":30001", false)
	f.expect("free again", ":30001", 200, body("web", 1, true))
	f.mu.Lock()
	defer f.mu.Unlock()
	want := "ns/web uid HealthCheckPortFailed load balancers get no answer at healthCheckNodePort 30001 of node n1: listen tcp: address already in use; " +
		"end the program that uses the port (ss -lntp 'sport = :30001' on the node)"
	if got := strings.Join(f.events, "\n"); got != want {
		t.Errorf("got Events:\n%s\nwant:\n%s", got, want)
	}
}

// A Service gets the port of a deleted one at once: the first failure is no Event.
func TestChecks_portOfDeletedService(t *testing.T) {
	f := newFixture(t)
	f.setUsed(":30001", true)
	c := f.new()
	c.listen = func(ctx context.Context, address string) (net.Listener, error) {
		l, err := f.listen(ctx, address)
		f.setUsed(":30001", false)
		return l, err
	}
	f.start(c.Run)
	set(c, service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("free at the second attempt", ":30001", 200, body("web", 1, true))
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) > 0 {
		t.Errorf("got Events %q, want none", f.events)
	}
}

// A port whose listener fails is opened again.
func TestChecks_listenerFails(t *testing.T) {
	f := newFixture(t)
	opened := make(chan net.Listener, 2)
	c := f.new()
	c.listen = func(ctx context.Context, address string) (net.Listener, error) {
		l, err := f.listen(ctx, address)
		opened <- l
		return l, err
	}
	f.start(c.Run)
	set(c, service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("opened", ":30001", 200, body("web", 1, true))
	if err := (<-opened).Close(); err != nil {
		t.Fatal(err)
	}
	<-opened
	f.expect("opened again", ":30001", 200, body("web", 1, true))
}

// All ports are closed when the agent stops.
func TestChecks_stop(t *testing.T) {
	f := newFixture(t)
	c := f.new()
	stop := f.start(c.Run)
	set(c, service("a", 30001, nil))
	set(c, service("b", 30002, nil))
	f.expect("a", ":30001", 503, body("a", 0, true))
	f.expect("b", ":30002", 503, body("b", 0, true))
	stop()
	for _, address := range []string{":30001", ":30002"} {
		if r, err := f.get(t.Context(), http.MethodGet, address, "/"); err == nil {
			t.Errorf("%s: got %d, want a closed port", address, r.status)
		}
	}
}

// Events of other Services, and of the endpoints of a Service, cause no work beside the number.
func TestChecks_costOfOthers(t *testing.T) {
	f := newFixture(t)
	c := f.run()
	set(c, service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("opened", ":30001", 200, body("web", 1, true))
	for i := range 10_000 {
		c.SetService(fmt.Sprint("ns/other", i), service(fmt.Sprint("other", i), 0, nil), 1)
	}
	for i := range 100 {
		c.SetService("ns/web", service("web", 30001, nil), i)
	}
	f.expect("after the changes", ":30001", 200, body("web", 99, true))
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listens != 1 || f.reconciled > 1 || len(c.wanted) != 1 || len(c.ports) != 1 {
		t.Errorf("got %d listeners opened, %d reconciliations, %d Services and %d ports, want one of each", f.listens, f.reconciled, len(c.wanted), len(c.ports))
	}
}

// A client over the limit is refused at once; the limit counts open connections only.
func TestServe_refusesConnectionsOverLimit(t *testing.T) {
	f := newFixture(t)
	c := f.run()
	set(c, service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("opened", ":30001", 200, body("web", 1, true))
	var idle *connectionlimit.Conn
	for range maxSourceConnections {
		if conn, ok := c.limits.Admit(idleConn{n: 1}); ok { // the fixture's address
			idle = conn
		}
	}
	await.OK(t, timeout, func(ctx context.Context) error {
		if r, err := f.get(ctx, http.MethodGet, ":30001", "/"); err == nil {
			return fmt.Errorf("got %d, want a closed connection", r.status)
		}
		return nil
	})
	_ = idle.Close()
	f.expect("after a connection was closed", ":30001", 200, body("web", 1, true))
}

// A few sources with idle connections do not use up the limit of all: a load balancer gets its answer.
func TestServe_evictsIdleConnections(t *testing.T) {
	f := newFixture(t)
	c := f.run()
	set(c, service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("opened", ":30001", 200, body("web", 1, true))
	for n := range byte(maxConnections/maxSourceConnections + 1) {
		for range maxSourceConnections {
			_, _ = c.limits.Admit(idleConn{n: n + 2})
		}
	}
	if got := c.limits.Open(); got != maxConnections {
		t.Fatalf("got %d connections, want %d", got, maxConnections)
	}
	f.expect("with idle connections", ":30001", 200, body("web", 1, true))
}

// A request line over the limit is refused. The answer is lost if the kernel resets the connection, of which the server has not read all.
func TestServe_limitsRequestLine(t *testing.T) {
	f := newFixture(t)
	set(f.run(), service("web", 30001, nil), ready("n1", "10.128.0.5"))
	f.expect("opened", ":30001", 200, body("web", 1, true))
	r, err := f.get(t.Context(), http.MethodGet, ":30001", "/"+strings.Repeat("x", 64<<10))
	closed := errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
	if !closed && (err != nil || r.status != http.StatusRequestHeaderFieldsTooLarge) {
		t.Errorf("got %d, %v, want %d or a closed connection", r.status, err, http.StatusRequestHeaderFieldsTooLarge)
	}
}

// A client that sends nothing is disconnected.
func TestServe_disconnectsSilentClient(t *testing.T) {
	f := newFixture(t)
	set(f.run(), service("web", 30001, nil))
	f.expect("opened", ":30001", 503, body("web", 0, true))
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", f.at(":30001"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		t.Fatal(err)
	}
	var failure net.Error
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.As(err, &failure) && failure.Timeout() {
		t.Errorf("got %v, want the end of the connection", err)
	}
}
