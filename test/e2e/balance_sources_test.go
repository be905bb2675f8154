package e2e

import (
	"bufio"
	"context"
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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// hostHTTPPort is the port of a server on a machine.
const hostHTTPPort = 18080

// serveClientIP answers /clientip on a machine as netexec does, until the test ends.
func serveClientIP(t *testing.T, m machine) {
	t.Helper()
	l, err := m.NetNS.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", hostHTTPPort))
	if err != nil {
		t.Fatal(err)
	}
	serve(t, l, &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.RemoteAddr) }), // the client reports a lost answer
	})
}

// serve runs a server until the test ends, by TLS if it has a certificate. Each request needs a new connection.
func serve(t *testing.T, l net.Listener, server *http.Server) {
	t.Helper()
	server.ReadHeaderTimeout = fixture.PacketTime
	server.SetKeepAlivesEnabled(false)
	run := server.Serve
	if server.TLSConfig != nil {
		run = func(l net.Listener) error { return server.ServeTLS(l, "", "") }
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := run(l); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve at %s: %v", l.Addr(), err)
		}
	}()
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		<-done
	})
}

// clientIP returns the client's address that the endpoint of a service sees.
func clientIP(ctx context.Context, from wire.NetNS, to netip.AddrPort) (netip.Addr, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := from.DialContext(ctx, "tcp4", to.String())
	if err != nil {
		return netip.Addr{}, err
	}
	defer conn.Close()
	return clientIPBy(ctx, conn)
}

func clientIPBy(ctx context.Context, conn net.Conn) (netip.Addr, error) {
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return netip.Addr{}, err
	}
	if _, err := io.WriteString(conn, "GET /clientip HTTP/1.0\r\n\r\n"); err != nil {
		return netip.Addr{}, err
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return netip.Addr{}, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return netip.Addr{}, err
	}
	seen, err := netip.ParseAddrPort(string(body))
	return seen.Addr(), err
}

// sees returns when the endpoint at an address sees the source.
func sees(t *testing.T, what string, from wire.NetNS, to netip.AddrPort, want netip.Addr) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
		got, err := clientIP(ctx, from, to)
		if err == nil && got != want {
			err = fmt.Errorf("the endpoint sees %s, want %s", got, want)
		}
		return err
	})
}

// Endpoints of testBalancedSources: a pod of each node, and each node itself.
const (
	onB = iota
	onC
	onNode1
	onNode2
	endpointCount
)

// sourceCase is a client, how it reaches services, and the source that each endpoint sees.
type sourceCase struct {
	from  end
	via   string // a node, or "": the cluster IP
	seen  [endpointCount]netip.Addr
	local bool // externalTrafficPolicy applies: if it is Local, only endpoints of the node answer
}

// sourceCases are the rows of the table in docs/decisions/0011-services.md.
func (x *trio) sourceCases(t *testing.T) []sourceCase {
	t.Helper()
	one, two, outside := x.Addr(t, fixture.Node1), x.Addr(t, fixture.Node2), fabricOutside()
	gateway1, gateway2 := x.a.Gateway(), x.c.Gateway()
	hairpin, node, host := netip.MustParseAddr("169.254.0.10"), netip.MustParseAddr("169.254.0.11"), netip.MustParseAddr("169.254.0.12")
	a, b, c := x.a.Addr, x.b.Addr, x.c.Addr
	client := end{Name: "outside", NetNS: x.outside.NetNS, Addr: outside}
	node1 := x.nodeEnd(t, x.node1)
	type seen = [endpointCount]netip.Addr
	return []sourceCase{
		{from: x.a.End(), seen: seen{a, a, a, one}},
		{from: x.a.End(), via: fixture.Node1, seen: seen{a, a, a, one}},
		{from: x.a.End(), via: fixture.Node2, seen: seen{gateway2, one, two, host}, local: true},
		{from: x.b.End(), seen: seen{hairpin, b, b, one}},
		{from: x.b.End(), via: fixture.Node1, seen: seen{hairpin, b, b, one}},
		{from: x.c.End(), seen: seen{c, hairpin, two, c}},
		{from: node1, seen: seen{gateway1, gateway1, node, one}},
		{from: node1, via: fixture.Node1, seen: seen{gateway1, gateway1, node, one}, local: true},
		{from: client, via: fixture.Node1, seen: seen{outside, gateway1, host, one}, local: true},
		{from: client, via: fixture.Node2, seen: seen{gateway2, outside, two, host}, local: true},
	}
}

// fabricOutside is the source of the host outside towards nodes.
func fabricOutside() netip.Addr { return netip.MustParseAddr("172.31.0.254") }

// testBalancedSources: each endpoint sees the source of the table, with both values of externalTrafficPolicy.
func testBalancedSources(t *testing.T, x *trio) {
	for _, m := range []machine{x.node1, x.node2} {
		serveClientIP(t, m)
	}
	cases := x.sourceCases(t)
	names, nodes := [endpointCount]string{"pod b", "pod c", fixture.Node1, fixture.Node2}, endpointNodes()
	for _, policy := range []corev1.ServiceExternalTrafficPolicy{corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal} {
		for i, name := range names {
			t.Run(string(policy)+" "+name, func(t *testing.T) {
				addr, nodePort := x.sourceService(t, fmt.Sprintf("sources-%s-%d", strings.ToLower(string(policy)), i), policy, i)
				for _, tc := range cases {
					dst := netip.AddrPortFrom(addr, 80)
					if tc.via != "" {
						dst = netip.AddrPortFrom(x.Addr(t, tc.via), nodePort)
					}
					what := tc.from.Name + " to " + dst.String()
					if dropped := tc.local && policy == corev1.ServiceExternalTrafficPolicyLocal && tc.via != nodes[i]; !dropped {
						sees(t, what, tc.from.NetNS, dst, tc.seen[i])
						continue
					}
					x.loses(t, what, tc.from, dst, netip.AddrPortFrom(x.Addr(t, nodes[i]), nodePort))
				}
			})
		}
	}
}

// loses checks that a client gets no answer from an address, while the host outside gets one from another address.
func (x *trio) loses(t *testing.T, what string, from end, to, control netip.AddrPort) {
	t.Helper()
	try := func(from wire.NetNS, to netip.AddrPort) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := clientIP(ctx, from, to)
			return err
		}
	}
	fixture.Stops(t, fixture.SyncTime, what+" is dropped", func(ctx context.Context) (answered, other error) {
		if try(from.NetNS, to)(ctx) == nil {
			answered = errors.New("got an answer")
		}
		return answered, try(x.outside.NetNS, control)(ctx)
	})
	fixture.MustNotReach(t, what, try(from.NetNS, to), try(x.outside.NetNS, control))
}

// endpointNodes are the nodes of the endpoints.
func endpointNodes() [endpointCount]string {
	return [endpointCount]string{fixture.Node1, fixture.Node2, fixture.Node1, fixture.Node2}
}

// sourceService makes a service of type NodePort with one endpoint, and returns its address and node port.
func (x *trio) sourceService(t *testing.T, name string, policy corev1.ServiceExternalTrafficPolicy, endpoint int) (netip.Addr, uint16) {
	t.Helper()
	p := servicePort{Protocol: corev1.ProtocolTCP, Port: 80, Target: fixture.HTTPPort}
	var addr netip.Addr
	switch endpoint {
	case onB:
		addr = x.Expose(t, x.namespace, name, p, x.b)
	case onC:
		addr = x.Expose(t, x.namespace, name, p, x.c)
	default:
		p.Target = hostHTTPPort
		addr = x.exposeNode(t, name, p, endpointNodes()[endpoint])
	}
	svc := x.patchService(t, name, fmt.Sprintf(`{"spec":{"type":"NodePort","externalTrafficPolicy":%q}}`, policy))
	return addr, uint16(svc.Spec.Ports[0].NodePort)
}

// exposeNode makes a service whose endpoint is a node, as Kubernetes does it for a pod in the host's network.
func (x *trio) exposeNode(t *testing.T, name string, p servicePort, node string) netip.Addr {
	t.Helper()
	addr, portName := x.CreateService(t, x.namespace, name, p, nil), ""
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{x.Addr(t, node).String()}, NodeName: &node}},
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &p.Protocol, Port: &p.Target}},
	}
	if _, err := x.Kube.DiscoveryV1().EndpointSlices(x.namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return addr
}

// outsideService makes a service whose endpoint is a server on the host outside, which answers /clientip, and returns its address.
func (x *trio) outsideService(t *testing.T, name string) netip.AddrPort {
	t.Helper()
	p := servicePort{Protocol: corev1.ProtocolTCP, Port: 80, Target: hostHTTPPort}
	return netip.AddrPortFrom(x.ExposeAddr(t, x.namespace, name, p, lab.OutsideAddr()), 80)
}
