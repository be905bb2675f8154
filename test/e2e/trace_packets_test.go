package e2e

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/seed"
)

// TestTracesAgreeWithPackets draws pods and what they connect to, pods and services of their own and of other namespaces: packets are answered where the trace
// delivers them.
func TestTracesAgreeWithPackets(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has labs of its own; TestCapabilities compares some traces with packets")
	}
	for _, tc := range []struct {
		name     string
		shape    lab.Shape
		separate func(t *testing.T, c *cluster, namespaces []string)
	}{
		{"tenants with kube-proxy", lab.Shape{Mode: lab.Multitenant, ServiceProxy: lab.External}, func(t *testing.T, c *cluster, namespaces []string) {
			c.ChangeNetwork(t, namespaces[1], "join:"+namespaces[0])
			c.ChangeNetwork(t, namespaces[3], "global")
		}},
		{"policies with services in the switch", lab.Shape{Mode: lab.NetworkPolicy, ServiceProxy: lab.OVS}, func(t *testing.T, c *cluster, namespaces []string) {
			for i, ns := range namespaces[1:] {
				for _, p := range verifiedPolicies(ns, namespaces[i]) {
					c.SetPolicy(t, p)
				}
			}
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			shape := tc.shape
			shape.Nodes, shape.Install = 3, fixture.Install()
			w := newTracedWorld(t, ownCluster(t, "e2e-traces", shape))
			tc.separate(t, w.cluster, w.namespaces)
			w.compare(t)
		})
	}
}

// tracedWorld has pods on all nodes, and services, in some namespaces.
type tracedWorld struct {
	*cluster
	namespaces   []string
	pods         []tracedPod
	destinations []tracedDestination
}

type tracedPod struct {
	pod
	object string // pod/NAMESPACE/NAME
}

// tracedDestination is a pod or a service.
type tracedDestination struct {
	object    string
	addr      netip.Addr
	protocol  corev1.Protocol
	port      uint16
	endpoints map[string]netip.Addr // by the name of the pod; nil for a pod
}

func newTracedWorld(t *testing.T, c *cluster) *tracedWorld {
	t.Helper()
	const namespaces = 4
	w := &tracedWorld{cluster: c}
	for range namespaces {
		ns := c.Namespace(t)
		w.namespaces = append(w.namespaces, ns)
		var objects []*corev1.Pod
		for i, node := range c.Nodes() {
			p := fixture.Netexec(fmt.Sprint("p", i), node)
			p.Labels["team"] = fmt.Sprint(i)
			objects = append(objects, p)
		}
		pods := c.Run(t, ns, objects...)
		for _, p := range pods {
			object := "pod/" + ns + "/" + p.Name
			w.pods = append(w.pods, tracedPod{p, object})
			w.destinations = append(w.destinations,
				tracedDestination{object, p.Addr, corev1.ProtocolTCP, fixture.HTTPPort, nil}, tracedDestination{object, p.Addr, corev1.ProtocolUDP, fixture.UDPPort, nil})
		}
		w.expose(t, ns, "all", servicePort{Protocol: corev1.ProtocolTCP, Port: 80, Target: fixture.HTTPPort}, pods...)
		w.expose(t, ns, "one", servicePort{Protocol: corev1.ProtocolTCP, Port: 80, Target: fixture.HTTPPort}, pods[1])
		w.expose(t, ns, "udp", servicePort{Protocol: corev1.ProtocolUDP, Port: 53, Target: fixture.UDPPort}, pods[:2]...)
	}
	return w
}

// expose creates a service, and returns when all nodes balance it.
func (w *tracedWorld) expose(t *testing.T, ns, name string, p servicePort, pods ...pod) {
	t.Helper()
	to := tracedDestination{"service/" + ns + "/" + name, w.Expose(t, ns, name, p, pods...), p.Protocol, uint16(p.Port), map[string]netip.Addr{}} //nolint:gosec // a port
	for _, e := range pods {
		to.endpoints[e.Name] = e.Addr
	}
	w.destinations = append(w.destinations, to)
	for _, from := range w.pods[len(w.pods)-len(w.Nodes()):] { // of the namespace, one on each node
		fixture.Eventually(t, fixture.SyncTime, to.object+" answers "+from.object, func(ctx context.Context) error {
			_, err := to.ask(ctx, from.pod, time.Second)
			return err
		})
	}
}

// ask sends a packet, and returns the name of the pod that answered.
func (d *tracedDestination) ask(ctx context.Context, from pod, timeout time.Duration) (name string, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	if d.protocol == corev1.ProtocolUDP {
		return fixture.HostnameUDP(ctx, from.NetNS, d.addr, d.port)
	}
	return fixture.HostnameHTTP(ctx, from.NetNS, d.addr, d.port)
}

// compare draws questions, each of which takes half a second if the packet is dropped.
func (w *tracedWorld) compare(t *testing.T) {
	t.Helper()
	const questions, mostRepeated = 1000, 20
	random := seed.Rand(t)
	services := 0
	var answered, repeated atomic.Int64
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(maxTraces)
	for range questions {
		from, to := w.draw(random)
		if to.endpoints != nil {
			services++
		}
		group.Go(func() error {
			got, again, err := w.compareOne(ctx, from, to)
			if err != nil {
				t.Error(err)
			}
			if got {
				answered.Add(1)
			}
			repeated.Add(again)
			return ctx.Err()
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d questions, %d about services; %d packets were answered; %d questions were repeated", questions, services, answered.Load(), repeated.Load())
	if n := answered.Load(); n < questions/10 || n > questions*9/10 {
		t.Errorf("%d of %d packets were answered, want some of both", n, questions)
	}
	if n := repeated.Load(); n > mostRepeated {
		t.Errorf("%d questions were repeated, want at most %d", n, mostRepeated)
	}
}

// draw returns a pod and a destination, which is not the pod itself.
func (w *tracedWorld) draw(random *rand.Rand) (tracedPod, *tracedDestination) {
	for {
		from, to := w.pods[random.IntN(len(w.pods))], &w.destinations[random.IntN(len(w.destinations))]
		if from.object != to.object {
			return from, to
		}
	}
}

// compareOne reports whether the packet was answered. A difference is asked again, with more time: vswitchd may have been busy, or the agent was about to install flows.
func (w *tracedWorld) compareOne(ctx context.Context, from tracedPod, to *tracedDestination) (answered bool, repeated int64, err error) {
	for i, timeout := range []time.Duration{500 * time.Millisecond, 3 * time.Second, 10 * time.Second} {
		repeated = int64(i)
		var status *diagnostics.TraceStatus
		status, err = w.trace(ctx, diagnostics.TraceSpec{Source: from.object, Destination: to.object, Protocol: string(to.protocol), Port: int32(to.port)})
		if err != nil {
			continue
		}
		name, askErr := to.ask(ctx, from.pod, timeout)
		answered = askErr == nil
		if err = to.agree(status, name, askErr); err == nil {
			return answered, repeated, nil
		}
	}
	return answered, repeated, fmt.Errorf("%s %s from %s: %w", to.protocol, to.object, from.object, err)
}

// agree compares the trace with the answer of a pod, or with the error instead of an answer.
func (d *tracedDestination) agree(status *diagnostics.TraceStatus, name string, askErr error) error {
	if status.Verdict == diagnostics.VerdictUnknown || len(status.Paths) == 0 {
		return fmt.Errorf("the trace is %s: %s", status.Verdict, status.Reason)
	}
	if askErr != nil {
		if status.Verdict == diagnostics.VerdictDelivered {
			return fmt.Errorf("the trace is %s (%s), and the packet is not answered: %w", status.Verdict, status.Reason, askErr)
		}
		return nil
	}
	if d.endpoints == nil {
		if status.Verdict != diagnostics.VerdictDelivered {
			return fmt.Errorf("the trace is %s (%s), and the packet is answered", status.Verdict, status.Reason)
		}
		return nil
	}
	addr, ok := d.endpoints[name]
	if !ok {
		return fmt.Errorf("answered by %q, which is no endpoint", name)
	}
	for _, p := range status.Paths {
		if !strings.HasPrefix(p.Endpoint, addr.String()+":") {
			continue
		}
		if p.Verdict != diagnostics.VerdictDelivered {
			return fmt.Errorf("the trace to %s is %s (%s), and this endpoint answers", p.Endpoint, p.Verdict, p.Reason)
		}
		return nil
	}
	return errors.New("the trace has no path to the endpoint " + addr.String() + ", which answers")
}
