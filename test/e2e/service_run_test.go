package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/lab"
	"github.com/ovsdn/ovsdn/test/reference"
)

var updateBehaviours = flag.Bool("update", false, "write the table of docs/services.md") //nolint:gochecknoglobals // a test binary parses its flags before any test runs

// TestServiceBehaviours runs serviceBehaviours with kube-proxy, and with the same Services after the change to the switch, in a lab of its own.
func TestServiceBehaviours(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: has a lab of its own")
	}
	shape := lab.Shape{ServiceProxy: lab.External, Mode: lab.NetworkPolicy, Install: fixture.Install()}
	s := newServicesUnderTest(t, trioOn(t, &cluster{fixture.Own(t, "e2e-behave", shape)}))
	t.Run("kube-proxy", func(t *testing.T) { s.run(t, config.ServiceProxyExternal) })
	change, nodes := &proxyChange{trio: s.trio}, []string{fixture.Node1, fixture.Node2}
	change.set(t, config.ServiceProxyOVS, nodes)
	for _, node := range nodes {
		change.stopKubeProxy(t, node)
	}
	t.Run("ovs", func(t *testing.T) { s.run(t, config.ServiceProxyOVS) })
}

// TestServiceBehavioursDocument compares docs/services.md with the table.
func TestServiceBehavioursDocument(t *testing.T) {
	const path = "../../docs/services.md"
	table := reference.NewTable("Service", "address", "pod `a` on node1", "pod `b` on node1", "pod `d` on node2", "program of node1", "host outside")
	for _, b := range serviceBehaviours() {
		feature := b.feature
		for _, l := range b.lines {
			cells := []string{feature, string(l.at)}
			for _, want := range l.answers() {
				cells = append(cells, string(want))
			}
			table.Add(cells...)
			feature = ""
		}
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want, err := reference.Replace(string(text), map[string]string{"behaviours": table.String()})
	if err != nil {
		t.Fatal(err)
	}
	if *updateBehaviours {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil { //nolint:gosec // documents are public
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(string(text), "\n"), strings.Split(want, "\n")); diff != "" {
		t.Errorf("%s differs from the table: run `go test -short ./test/e2e -run TestServiceBehavioursDocument -update` (-document +table):\n%s", path, diff)
	}
}

// namedEndpoint is a server.
type namedEndpoint struct {
	addr netip.Addr
	node string // "" outside of the cluster
	host bool   // in the network of its machine
}

// placeFrom is the endpoint's place, seen from a node.
func (e namedEndpoint) placeFrom(node string) int {
	switch here := e.node == node; {
	case e.host && here:
		return hostHere
	case e.host:
		return hostElsewhere
	case here:
		return podHere
	default:
		return podElsewhere
	}
}

// servicesUnderTest has the Services of serviceBehaviours, in the same order.
type servicesUnderTest struct {
	*trio
	clients   []serviceClient // in the order of line.answers
	endpoints map[answer]namedEndpoint
	gateways  map[string]netip.Addr
	services  []*corev1.Service
}

func newServicesUnderTest(t *testing.T, x *trio) *servicesUnderTest {
	t.Helper()
	d := x.Run(t, x.namespace, fixture.Netexec("d", fixture.Node2))[0]
	e := x.runUnready(t, "e", fixture.Node2)
	one, two := x.Addr(t, fixture.Node1), x.Addr(t, fixture.Node2)
	s := &servicesUnderTest{
		trio: x,
		clients: []serviceClient{
			{"pod a", podClient, x.a.NetNS, x.a.Addr, fixture.Node1},
			{"pod b", podClient, x.b.NetNS, x.b.Addr, fixture.Node1},
			{"pod d", podClient, d.NetNS, d.Addr, fixture.Node2},
			{"program of node1", programClient, x.node1.NetNS, one, fixture.Node1},
			{"host outside", hostClient, x.outside.NetNS, fabricOutside(), fixture.Node1},
		},
		endpoints: map[answer]namedEndpoint{
			"b": {addr: x.b.Addr, node: fixture.Node1}, "c": {addr: x.c.Addr, node: fixture.Node2}, "e": {addr: e.Addr, node: fixture.Node2},
			"node1": {one, fixture.Node1, true}, "node2": {two, fixture.Node2, true}, "outside": {lab.OutsideAddr(), "", true},
		},
		gateways: map[string]netip.Addr{fixture.Node1: x.a.Gateway(), fixture.Node2: d.Gateway()},
	}
	for _, p := range []pod{x.b, x.c, e} {
		serveName(t, p.Name, p.NetNS, netip.AddrPortFrom(p.Addr, answersPort))
	}
	serveName(t, x.b.Name, x.b.NetNS, netip.AddrPortFrom(x.b.Addr, directPort))
	serveName(t, fixture.Node1, x.node1.NetNS, netip.AddrPortFrom(one, answersPort))
	serveName(t, "outside", x.outside.NetNS, netip.AddrPortFrom(lab.OutsideAddr(), answersPort))
	for _, name := range []string{x.b.Name, x.c.Name} {
		label := []byte(`{"metadata":{"labels":{"pair":"yes"}}}`)
		if _, err := x.Kube.CoreV1().Pods(x.namespace).Patch(t.Context(), name, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		label := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, corev1.LabelTopologyZone, node)
		if _, err := x.Kube.CoreV1().Nodes().Patch(t.Context(), node, types.MergePatchType, label, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	x.Output(t, lab.Outside, "ip", "route", "replace", "198.51.100.0/24", "via", one.String())
	for i, b := range serviceBehaviours() {
		s.services = append(s.services, s.create(t, i, b))
	}
	return s
}

// runUnready starts a pod that never becomes ready.
func (x *trio) runUnready(t *testing.T, name, node string) pod {
	t.Helper()
	object := fixture.Netexec(name, node)
	object.Spec.Containers[0].ReadinessProbe.HTTPGet.Port = intstr.FromInt32(1)
	x.Create(t, x.namespace, object)
	fixture.Eventually(t, fixture.PodTime, "pod "+name+" runs", func(ctx context.Context) (err error) {
		object, err = x.Kube.CoreV1().Pods(x.namespace).Get(ctx, name, metav1.GetOptions{})
		if err == nil && (object.Status.PodIP == "" || object.Status.Phase != corev1.PodRunning) {
			err = errors.New("it does not")
		}
		return err
	})
	return x.Attached(t, object)
}

// create creates the Service of a behaviour, with addresses by its index.
func (s *servicesUnderTest) create(t *testing.T, index int, b behaviour) *corev1.Service {
	t.Helper()
	external, alone := netip.AddrFrom4([4]byte{198, 51, 100, byte(100 + index)}), netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + index)})
	target := intstr.FromInt32(answersPort)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("behaviour-%d", index)},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{
			{Name: "tcp", Protocol: corev1.ProtocolTCP, Port: servicePort80, TargetPort: target},
			{Name: "udp", Protocol: corev1.ProtocolUDP, Port: servicePort80, TargetPort: target},
		}},
	}
	if b.set != nil {
		b.set(svc, external.String(), alone.String())
	}
	if slices.ContainsFunc(b.lines, func(l line) bool { return l.at == aloneIP || l.at == aloneBalancer }) {
		s.Output(t, lab.Outside, "ip", "address", "add", alone.String()+"/32", "dev", "lo")
		serveName(t, "outside", s.outside.NetNS, netip.AddrPortFrom(alone, servicePort80))
	}
	if len(b.endpoints) > 0 { // first: kube-proxy would reject packets until it has endpoints, and has continued to do so afterwards
		s.createSlice(t, svc, b.endpoints)
	}
	status, services := svc.Status, s.Kube.CoreV1().Services(s.namespace)
	created, err := services.Create(t.Context(), svc, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(status.LoadBalancer.Ingress) > 0 {
		created.Status = status
		if created, err = services.UpdateStatus(t.Context(), created, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return created
}

func (s *servicesUnderTest) createSlice(t *testing.T, svc *corev1.Service, states []endpointState) {
	t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: svc.Name, Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for _, state := range states {
		e := s.endpoints[answer(state.name)]
		slice.Endpoints = append(slice.Endpoints, state.endpoint(e.addr.String(), e.node))
	}
	port := int32(answersPort)
	for _, p := range svc.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Protocol: &p.Protocol, Port: &port})
	}
	if _, err := s.Kube.DiscoveryV1().EndpointSlices(s.namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// cellsAtOnce limits the cells that are checked side by side: most of the time of dropped packets is waiting.
const cellsAtOnce = 200

// refusalTime is for ICMP errors, of which a client gets one per second.
const refusalTime = time.Minute

// run checks all cells, and reports them by feature.
func (s *servicesUnderTest) run(t *testing.T, proxy config.ServiceProxy) {
	behaviours := serviceBehaviours()
	cells := make([][]*cell, len(behaviours))
	for i, b := range behaviours {
		for _, l := range b.lines {
			for at, want := range l.answers() {
				cells[i] = append(cells[i], s.cells(t, proxy, s.services[i], l.at, s.clients[at], want.forProxy(proxy))...)
			}
		}
	}
	all := slices.Concat(cells...)
	checkAll(t, fixture.SyncTime, slices.DeleteFunc(slices.Clone(all), (*cell).refuses))
	// Then the proxy has all Services: before, a packet can be dropped because it does not have one.
	checkAll(t, refusalTime, slices.DeleteFunc(all, func(c *cell) bool { return !c.refuses() }))
	for i, b := range behaviours {
		t.Run(strings.ReplaceAll(b.feature, "`", ""), func(t *testing.T) {
			for _, c := range cells[i] {
				if c.err != nil {
					t.Errorf("%s: %v", c.describe(), c.err)
				}
			}
		})
	}
}

func checkAll(t *testing.T, within time.Duration, cells []*cell) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var checks errgroup.Group
	checks.SetLimit(cellsAtOnce)
	for _, c := range cells {
		checks.Go(func() error {
			c.err = c.check(ctx)
			return nil
		})
	}
	if err := checks.Wait(); err != nil {
		t.Fatal(err)
	}
}

// cells are the questions of a client at an address: one for each protocol.
func (s *servicesUnderTest) cells(t *testing.T, proxy config.ServiceProxy, svc *corev1.Service, at address, from serviceClient, want answer) (all []*cell) {
	t.Helper()
	if want == none {
		return nil
	}
	from = s.entering(t, from, at)
	for _, protocol := range []corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP} {
		c := &cell{client: from, protocol: protocol, at: at, to: s.target(t, svc, at, protocol), want: want, sources: map[answer]netip.Addr{}, got: map[string]int{}}
		for _, name := range c.endpoints() {
			e, ok := s.endpoints[name]
			if !ok {
				continue
			}
			var err error
			if c.sources[name], err = s.source(proxy, from, at.kind(svc), e); err != nil {
				t.Fatal(err)
			}
		}
		all = append(all, c)
		if at == healthOfNode1 || at == healthOfNode2 {
			break // HTTP
		}
	}
	return all
}

// entering returns the client as the node that translates its packets observes it: clients at a node port of another node are hosts outside, with their node's address.
func (s *servicesUnderTest) entering(t *testing.T, from serviceClient, at address) serviceClient {
	t.Helper()
	node, ok := map[address]string{nodePort1: fixture.Node1, nodePort2: fixture.Node2}[at]
	if !ok || node == from.node {
		return from
	}
	if from.kind != hostClient {
		from.addr = s.Addr(t, from.node)
	}
	from.kind, from.node = hostClient, node
	return from
}

func (at address) kind(svc *corev1.Service) addressKind {
	switch at {
	case clusterIP, otherPort:
		return internalKind
	case aloneIP, aloneBalancer, endpointItself:
		return directKind
	default:
		if svc.Spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal {
			return externalLocalKind
		}
		return externalKind
	}
}

// target is the address and port of a Service.
func (s *servicesUnderTest) target(t *testing.T, svc *corev1.Service, at address, protocol corev1.Protocol) netip.AddrPort {
	t.Helper()
	parse := func(text string, port int32) netip.AddrPort {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			t.Fatal(err)
		}
		return netip.AddrPortFrom(addr, uint16(port))
	}
	onNode := func(node string, port int32) netip.AddrPort { return netip.AddrPortFrom(s.Addr(t, node), uint16(port)) }
	port := svc.Spec.Ports[slices.IndexFunc(svc.Spec.Ports, func(p corev1.ServicePort) bool { return p.Protocol == protocol })]
	switch at {
	case clusterIP:
		return parse(svc.Spec.ClusterIP, port.Port)
	case otherPort:
		return parse(svc.Spec.ClusterIP, port.Port+1)
	case externalIP, aloneIP:
		return parse(svc.Spec.ExternalIPs[0], port.Port)
	case balancerIP, aloneBalancer:
		return parse(svc.Status.LoadBalancer.Ingress[0].IP, port.Port)
	case nodePort1:
		return onNode(fixture.Node1, port.NodePort)
	case nodePort2:
		return onNode(fixture.Node2, port.NodePort)
	case healthOfNode1:
		return onNode(fixture.Node1, svc.Spec.HealthCheckNodePort)
	case healthOfNode2:
		return onNode(fixture.Node2, svc.Spec.HealthCheckNodePort)
	default: // endpointItself
		return netip.AddrPortFrom(s.b.Addr, directPort)
	}
}
