package e2e

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
)

// testBadServices: Services and EndpointSlices that the API server accepts, and that are invalid, very large or change very often. In the meantime no connection to
// another service fails.
func testBadServices(t *testing.T, x *trio) {
	to := netip.AddrPortFrom(x.Expose(t, x.namespace, "undisturbed", webPort(), x.b, x.c), 80)
	reachesBoth(t, func(ctx context.Context) (string, error) {
		return fixture.HostnameHTTP(ctx, x.a.NetNS, to.Addr(), to.Port())
	})
	load := x.startLoad(t, x.a.End(), to, offeredRate)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *trio)
	}{
		{"one external address", testSharedExternalAddress}, // first: Events about limits of services have a minimum interval
		{"5,000 endpoints", testManyEndpoints},
		{"endpoint that changes", testChangingEndpoint},
		{"invalid endpoints", testInvalidEndpoints},
		{"cluster IP of another service", testForeignClusterIP},
		{"other service network", testOtherServiceNetwork},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, x) })
	}
	load.stop(t)
	fastEnough(t, load)
}

func webPort() servicePort {
	return servicePort{Protocol: corev1.ProtocolTCP, Port: 80, Target: fixture.HTTPPort}
}

// answersOnly waits until an endpoint answers a client. Then it answers all of the client's connections.
func answersOnly(t *testing.T, from end, to netip.AddrPort, want string) {
	t.Helper()
	what := from.Name + " to " + to.String()
	ask := func(ctx context.Context) error {
		got, err := fixture.HostnameHTTP(ctx, from.NetNS, to.Addr(), to.Port())
		if err == nil && got != want {
			err = fmt.Errorf("got an answer of %q, want %q", got, want)
		}
		return err
	}
	fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return ask(ctx)
	})
	for range 20 {
		if fixture.Within(t, fixture.PacketTime, what, ask); t.Failed() {
			return
		}
	}
}

// sliceOf returns an EndpointSlice of a service with one port.
func sliceOf(service, name string, port int32, addrs ...netip.Addr) *discoveryv1.EndpointSlice {
	portName, protocol := "", corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &protocol, Port: &port}},
	}
	for _, addr := range addrs {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr.String()}})
	}
	return slice
}

func (x *trio) addSlice(t *testing.T, slice *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	t.Helper()
	created, err := x.Kube.DiscoveryV1().EndpointSlices(x.namespace).Create(t.Context(), slice, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create EndpointSlice %s: %v", slice.Name, err)
	}
	return created
}

// deleteSlices deletes the EndpointSlices of a service, and returns when its clients are refused.
func (x *trio) deleteSlices(t *testing.T, service string, to netip.AddrPort, clients ...end) {
	t.Helper()
	selector := metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + service}
	if err := x.Kube.DiscoveryV1().EndpointSlices(x.namespace).DeleteCollection(t.Context(), metav1.DeleteOptions{}, selector); err != nil {
		t.Fatal(err)
	}
	for _, from := range clients {
		fixture.Eventually(t, fixture.SyncTime, from.Name+" is refused", func(ctx context.Context) error { return refused(ctx, from, to) })
	}
}

// Endpoints of testManyEndpoints.
const (
	manyPort     = hostHTTPPort + 1
	manySlices   = 5
	perSlice     = 1000 // the most that the API server accepts
	manyRequests = 600  // by which a client reaches 230 of 256 endpoints on average
)

// testManyEndpoints: of 5,000 endpoints each node uses as many as it supports, and all of these answer. All are addresses of the host outside.
func testManyEndpoints(t *testing.T, x *trio) {
	network := netip.MustParsePrefix("198.18.0.0/16")
	x.Output(t, lab.Outside, "ip", "route", "replace", "local", network.String(), "dev", "lo")
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		x.Output(t, node, "ip", "route", "replace", network.String(), "via", fabricOutside().String())
	}
	x.serveServerIP(t, x.outside)
	to := netip.AddrPortFrom(x.CreateService(t, x.namespace, "many", servicePort{Protocol: corev1.ProtocolTCP, Port: 80, Target: manyPort}, nil), 80)
	next, inLast := network.Addr(), map[string]bool{}
	for i := range manySlices {
		addrs := make([]netip.Addr, perSlice)
		for j := range addrs {
			next = next.Next()
			addrs[j], inLast[next.String()] = next, i == manySlices-1
		}
		x.addSlice(t, sliceOf("many", fmt.Sprintf("many-%d", i), manyPort, addrs...))
	}
	clients := []end{x.a.End(), x.c.End(), x.nodeEnd(t, x.node1)}
	for _, from := range clients {
		t.Run(from.Name, func(t *testing.T) {
			ask := func(ctx context.Context) (string, error) {
				return fixture.HostnameHTTP(ctx, from.NetNS, to.Addr(), to.Port())
			}
			fixture.Eventually(t, fixture.SyncTime, "an endpoint of the last slice answers", func(ctx context.Context) error {
				ctx, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				got, err := ask(ctx)
				if err == nil && !inLast[got] {
					err = fmt.Errorf("got an answer of %s", got)
				}
				return err
			})
			seen := map[string]int{}
			for range manyRequests {
				fixture.Within(t, fixture.PacketTime, to.String(), func(ctx context.Context) error {
					got, err := ask(ctx)
					seen[got]++
					return err
				})
				if t.Failed() {
					return
				}
			}
			if got := len(seen); got <= pipeline.MaxEndpoints/2 || got > pipeline.MaxEndpoints {
				t.Errorf("endpoints that answer %d connections: got %d, want more than %d, and not more than %d", manyRequests, got, pipeline.MaxEndpoints/2, pipeline.MaxEndpoints)
			}
		})
	}
	x.deleteSlices(t, "many", to, clients...)
}

// serveServerIP answers with the address to which the client has connected, until the test ends.
func (x *trio) serveServerIP(t *testing.T, m machine) {
	t.Helper()
	l, err := m.NetNS.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", manyPort))
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		local, _ := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
		_, _ = io.WriteString(w, local.AddrPort().Addr().Unmap().String()) // the client reports a lost answer
	})})
}

// Changes of testChangingEndpoint, and how long an agent may take for the last one.
const (
	changeCount    = 2000
	changeInterval = 10 * time.Millisecond
	catchUpTime    = 10 * time.Second
)

// testChangingEndpoint: an endpoint becomes ready and not ready a hundred times per second. Seconds after the last change the switches have it.
func testChangingEndpoint(t *testing.T, x *trio) {
	to := netip.AddrPortFrom(x.CreateService(t, x.namespace, "changing", webPort(), nil), 80)
	slice := x.addSlice(t, sliceOf("changing", "changing", fixture.HTTPPort, x.c.Addr))
	clients := []end{x.a.End(), x.c.End(), x.nodeEnd(t, x.node1)}
	for _, from := range clients {
		answersOnly(t, from, to, x.c.Name)
	}
	set := func(addr netip.Addr, ready bool) {
		t.Helper()
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{addr.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}}
		var err error
		if slice, err = x.Kube.DiscoveryV1().EndpointSlices(x.namespace).Update(t.Context(), slice, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	began, tick := time.Now(), time.NewTicker(changeInterval)
	defer tick.Stop()
	for i := range changeCount {
		<-tick.C
		set(x.c.Addr, i%2 == 1)
	}
	took := time.Since(began)
	set(x.b.Addr, true) // for the first time: an agent that is behind has another endpoint, or none
	last := time.Now()
	for _, from := range clients {
		fixture.Eventually(t, catchUpTime, from.Name+" gets the last endpoint", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			got, err := fixture.HostnameHTTP(ctx, from.NetNS, to.Addr(), to.Port())
			if err == nil && got != x.b.Name {
				err = fmt.Errorf("got an answer of %q, want %q", got, x.b.Name)
			}
			return err
		})
	}
	t.Logf("%d changes in %.1fs; all clients had the last one after %.2fs", changeCount, took.Seconds(), time.Since(last).Seconds())
	for _, from := range clients {
		answersOnly(t, from, to, x.b.Name)
	}
}

// testInvalidEndpoints: one valid endpoint, in two EndpointSlices, answers; ports out of range, no port, and what is no address that a pod or host can have get no
// connection. Without the valid one clients are refused.
func testInvalidEndpoints(t *testing.T, x *trio) {
	to := netip.AddrPortFrom(x.CreateService(t, x.namespace, "invalid", webPort(), nil), 80)
	noPort := sliceOf("invalid", "no-port", 0, x.c.Addr)
	noPort.Ports[0].Port = nil
	domain := sliceOf("invalid", "domain", fixture.HTTPPort)
	domain.AddressType = discoveryv1.AddressTypeFQDN
	domain.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"endpoint.example.com"}}}
	portNames := sliceOf("invalid", "port-names", fixture.HTTPPort, x.c.Addr)
	first, second := "first", "second" // two ports with one number, neither of the service
	portNames.Ports = append(portNames.Ports, portNames.Ports[0])
	portNames.Ports[0].Name, portNames.Ports[1].Name = &first, &second
	for _, slice := range []*discoveryv1.EndpointSlice{
		sliceOf("invalid", "port-0", 0, x.c.Addr), sliceOf("invalid", "port-70000", 70000, x.c.Addr), sliceOf("invalid", "port-negative", -1, x.c.Addr),
		noPort, domain, portNames,
		sliceOf("invalid", "addresses", fixture.HTTPPort, x.apiAddr(), netip.MustParseAddr("255.255.255.255")),
		sliceOf("invalid", "valid", fixture.HTTPPort, x.b.Addr), sliceOf("invalid", "valid-again", fixture.HTTPPort, x.b.Addr, x.b.Addr),
	} {
		x.addSlice(t, slice)
	}
	clients := []end{x.a.End(), x.c.End(), x.nodeEnd(t, x.node1)}
	for _, from := range clients {
		answersOnly(t, from, to, x.b.Name)
	}
	for _, name := range []string{"valid", "valid-again"} {
		if err := x.Kube.DiscoveryV1().EndpointSlices(x.namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, from := range clients {
		fixture.Eventually(t, fixture.SyncTime, from.Name+" is refused", func(ctx context.Context) error { return refused(ctx, from, to) })
	}
}

// testOtherServiceNetwork: a cluster IP outside of the service network, of a further ServiceCIDR, is not reached (docs/unsupported.md).
func testOtherServiceNetwork(t *testing.T, x *trio) {
	const name = "in-other-network"
	addr, control := netip.MustParseAddr("10.96.1.10"), x.Expose(t, x.namespace, "in-service-network", webPort(), x.b)
	cidr := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{"10.96.1.0/24"}}}
	if _, err := x.Kube.NetworkingV1().ServiceCIDRs().Create(t.Context(), cidr, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	defer x.deleteServiceCIDR(t, name)
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: addr.String(), Selector: map[string]string{"service-in-service-network": "yes"},
		Ports: []corev1.ServicePort{{Protocol: corev1.ProtocolTCP, Port: 80, TargetPort: intstr.FromInt32(fixture.HTTPPort)}},
	}}
	fixture.Eventually(t, fixture.SyncTime, "the API server allocates the address", func(ctx context.Context) error { // once the ServiceCIDR is ready
		_, err := x.Kube.CoreV1().Services(x.namespace).Create(ctx, service, metav1.CreateOptions{})
		return err
	})
	fixture.Eventually(t, fixture.SyncTime, "the agent has the service", func(ctx context.Context) error {
		flows, err := x.TryOutput(ctx, fixture.Node1, "ovs-ofctl", "-O", "OpenFlow15", "dump-flows", "br0", "table=60,tcp,nw_dst="+addr.String())
		if err == nil && !strings.Contains(flows, addr.String()) {
			err = fmt.Errorf("got flows %q, want one of %s", flows, addr)
		}
		return err
	})
	fixture.MustNotReach(t, "a cluster IP in another network", fixture.AsksHTTP(x.a.NetNS, addr, 80), fixture.AsksHTTP(x.a.NetNS, control, 80))
}

// deleteServiceCIDR deletes a ServiceCIDR with the service of the same name, and returns when it no longer exists: other services would get its addresses.
func (x *trio) deleteServiceCIDR(t *testing.T, name string) {
	t.Helper()
	err := x.Kube.CoreV1().Services(x.namespace).Delete(t.Context(), name, metav1.DeleteOptions{})
	if err = errors.Join(err, x.Kube.NetworkingV1().ServiceCIDRs().Delete(t.Context(), name, metav1.DeleteOptions{})); err != nil {
		t.Fatal(err)
	}
	fixture.Eventually(t, fixture.SyncTime, "ServiceCIDR "+name+" is deleted", func(ctx context.Context) error {
		_, err := x.Kube.NetworkingV1().ServiceCIDRs().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return cmp.Or(err, errors.New("it exists"))
	})
}

// setExternalIPs sets the external IPs of a service.
func (x *trio) setExternalIPs(t *testing.T, service string, addrs ...netip.Addr) *corev1.Service {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"externalIPs": addrs}})
	if err != nil {
		t.Fatal(err)
	}
	svc, err := x.Kube.CoreV1().Services(x.namespace).Patch(t.Context(), service, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return svc
}

// testSharedExternalAddress: of two services with one external IP and port the older one gets all connections, until it is deleted. An Event has the younger one.
func testSharedExternalAddress(t *testing.T, x *trio) {
	began, external := time.Now(), netip.MustParseAddr("198.51.100.20")
	to := netip.AddrPortFrom(external, 80)
	x.Output(t, lab.Outside, "ip", "route", "replace", external.String(), "via", x.Addr(t, fixture.Node1).String())
	const older, younger = "shared-2", "shared-1" // by name, of services of the same second, the other one would precede
	x.Expose(t, x.namespace, older, webPort(), x.b)
	created := x.setExternalIPs(t, older, external).CreationTimestamp
	fixture.Eventually(t, fixture.SyncTime, "the next second", func(context.Context) error { // the resolution of creation times
		if time.Now().Unix() <= created.Unix()+1 {
			return errors.New("it is the same")
		}
		return nil
	})
	own := netip.AddrPortFrom(x.Expose(t, x.namespace, younger, webPort(), x.c), 80)
	x.setExternalIPs(t, younger, external)
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		x.Warned(t, began, "Node", node, x.namespace+"/"+younger, "another service has the same external address and port")
	}
	clients := []end{x.a.End(), x.c.End(), x.nodeEnd(t, x.node1), {Name: "outside", NetNS: x.outside.NetNS, Addr: lab.OutsideAddr()}}
	answersOnly(t, x.a.End(), own, x.c.Name)
	for _, from := range clients {
		answersOnly(t, from, to, x.b.Name)
	}
	if err := x.Kube.CoreV1().Services(x.namespace).Delete(t.Context(), older, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, from := range clients {
		answersOnly(t, from, to, x.c.Name)
	}
}

// testForeignClusterIP: a service whose external IP is the cluster IP of another one gets none of its connections.
func testForeignClusterIP(t *testing.T, x *trio) {
	victim := netip.AddrPortFrom(x.Expose(t, x.namespace, "victim", webPort(), x.b), 80)
	x.Expose(t, x.namespace, "foreign", webPort(), x.c)
	own := netip.MustParseAddrPort("198.51.100.21:80") // answers once the agent has both addresses
	x.setExternalIPs(t, "foreign", victim.Addr(), own.Addr())
	clients := []end{x.a.End(), x.c.End(), x.nodeEnd(t, x.node1)}
	for _, from := range clients {
		answersOnly(t, from, own, x.c.Name)
		answersOnly(t, from, victim, x.b.Name)
	}
}
