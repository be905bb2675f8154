package tracing

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// fakeCluster implements Cluster and Agents: three nodes, whose agents deliver packets to pods by their addresses.
type fakeCluster struct {
	network  config.Network
	nodes    []Node
	pods     map[string]*corev1.Pod
	services map[string]*corev1.Service
	slices   map[string][]discoveryv1.EndpointSlice

	// answers replace the agent's own answers, by "NODE>DESTINATION", and "NODE<SOURCE" for replies.
	answers  map[string]func(*diagnostics.NodeTrace) error
	bySwitch bool // --service-proxy=ovs
	asked    []string

	// hosts change the agent's answer about the host, by "NODE>DESTINATION"; nodes without one have an agent that does not know the request.
	hosts      map[string]func(*diagnostics.NodeHost) error
	askedHosts []string

	isTruncated bool // Slices leaves out endpoints
	hidesHosts  bool // from the user

	// probed changes the agent's answer to a probe; nil leaves it.
	probed func(*diagnostics.NodeProbe) error
}

func newCluster() *fakeCluster {
	c := &fakeCluster{
		network: config.Network{
			Mode: config.ModeNetworkPolicy, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16"),
			ClusterNetworks: []config.ClusterNetwork{{Prefix: netip.MustParsePrefix("10.128.0.0/14"), HostBits: 9}},
		},
		pods: map[string]*corev1.Pod{}, services: map[string]*corev1.Service{}, slices: map[string][]discoveryv1.EndpointSlice{},
		answers: map[string]func(*diagnostics.NodeTrace) error{},
	}
	for i := range 3 {
		c.nodes = append(c.nodes, Node{
			Name: fmt.Sprintf("node%d", i+1), HostIP: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, byte(2 * i), 0}), 23),
		})
	}
	c.addPod("a/web", "node1", "10.128.0.5")
	c.addPod("a/db", "node1", "10.128.0.6")
	c.addPod("b/db", "node2", "10.128.2.7")
	c.addPod("c/x", "node3", "10.128.4.8")
	c.addPod("a/proxy", "node2", "192.0.2.2").Spec.HostNetwork = true
	c.addService("a/api", "172.30.0.9", "10.128.0.6", "10.128.2.7", "10.128.4.8")
	return c
}

func (c *fakeCluster) addPod(name, node, addr string) *corev1.Pod {
	pod := &corev1.Pod{Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: addr}}
	c.pods[name] = pod
	return pod
}

// addService adds a service with port 80, and its endpoints with port 8080.
func (c *fakeCluster) addService(name, clusterIP string, endpoints ...string) *corev1.Service {
	namespace, short, _ := strings.Cut(name, "/")
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: short},
		Spec:       corev1.ServiceSpec{ClusterIP: clusterIP, Ports: []corev1.ServicePort{{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80}}},
	}
	c.services[name] = svc
	port, portName := int32(8080), "http"
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: short + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: short}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	for _, addr := range endpoints {
		e := discoveryv1.Endpoint{Addresses: []string{addr}}
		if n, ok := c.NodeAt(netip.MustParseAddr(addr)); ok {
			e.NodeName = &n.Name
		}
		for name, pod := range c.pods {
			if ns, short, _ := strings.Cut(name, "/"); pod.Status.PodIP == addr && ns == namespace {
				e.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: ns, Name: short}
			}
		}
		slice.Endpoints = append(slice.Endpoints, e)
	}
	c.slices[name] = []discoveryv1.EndpointSlice{slice}
	return svc
}

func (c *fakeCluster) Network(context.Context) (*config.Network, error) { return &c.network, nil }
func (c *fakeCluster) Zone(context.Context, string) string              { return "" }

func (c *fakeCluster) Pod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	if pod := c.pods[namespace+"/"+name]; pod != nil {
		return pod, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, name)
}

func (c *fakeCluster) Service(_ context.Context, namespace, name string) (*corev1.Service, error) {
	if svc := c.services[namespace+"/"+name]; svc != nil {
		return svc, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "services"}, name)
}

func (c *fakeCluster) Slices(_ context.Context, namespace, name string, each func(*discoveryv1.EndpointSlice)) (isTruncated bool, err error) {
	for i := range c.slices[namespace+"/"+name] {
		each(&c.slices[namespace+"/"+name][i])
	}
	return c.isTruncated, nil
}

func (c *fakeCluster) Node(name string) (Node, error) {
	if i := slices.IndexFunc(c.nodes, func(n Node) bool { return n.Name == name }); i >= 0 {
		return c.nodes[i], nil
	}
	return Node{}, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
}

func (c *fakeCluster) NodeAt(addr netip.Addr) (Node, bool) {
	i := slices.IndexFunc(c.nodes, func(n Node) bool { return n.HostIP == addr || n.Subnet.Contains(addr) })
	if i < 0 {
		return Node{}, false
	}
	return c.nodes[i], true
}

// Trace implements Agents.
func (c *fakeCluster) Trace(_ context.Context, node Node, p diagnostics.TracePacket) (*diagnostics.NodeTrace, error) {
	c.asked = append(c.asked, strings.TrimSpace(fmt.Sprintf("%s %s %s:%d>%s:%d %s%s %s%s%s", node.Name, p.From, p.Source, p.SourcePort, p.Destination, p.DestinationPort, p.Protocol, p.Conntrack, p.Endpoint, p.EgressIP, p.Origin)))
	answer := c.route(node, p)
	answer.Packet = p
	if p.Conntrack == "" {
		answer.Packet.Conntrack = diagnostics.ConntrackNew
	}
	for _, key := range []string{node.Name + ">" + p.Destination, node.Name + "<" + p.Source} {
		isReply := p.Conntrack == diagnostics.ConntrackReply
		if change := c.answers[key]; change != nil && isReply == strings.Contains(key, "<") {
			if err := change(answer); err != nil {
				return nil, err
			}
		}
	}
	return answer, nil
}

// Host implements Agents: all addresses but the node's own are behind its default route, and it masquerades pods.
func (c *fakeCluster) Host(_ context.Context, node Node, p diagnostics.HostPacket) (*diagnostics.NodeHost, error) {
	c.askedHosts = append(c.askedHosts, strings.TrimSpace(fmt.Sprintf("%s %s %s>%s:%d %s %v", node.Name, p.From, p.Source, p.Destination, p.DestinationPort, p.Protocol, p.Translated)))
	change := c.hosts[node.Name+">"+p.Destination]
	if change == nil {
		return nil, &AgentError{Reason: "the agent does not support it; upgrade the agent", SkipNode: true, Unsupported: true}
	}
	answer := &diagnostics.NodeHost{
		Packet: p, Route: diagnostics.HostRoute{Kind: diagnostics.RouteForwarded, Interface: "eth0", Gateway: "192.0.2.254", Network: "0.0.0.0/0"}, Source: node.HostIP.String(), Masqueraded: true,
	}
	if p.Destination == node.HostIP.String() || p.Destination == node.gateway().String() {
		answer.Route, answer.Source, answer.Masqueraded, answer.Rule = diagnostics.HostRoute{Kind: diagnostics.RouteLocal}, p.Source, false, "OVSDN-INPUT (from pods)"
	}
	return answer, change(answer)
}

// Probe implements Agents: each packet is answered.
func (c *fakeCluster) Probe(_ context.Context, node Node, p diagnostics.TracePacket, timeout time.Duration) (*diagnostics.NodeProbe, error) {
	c.asked = append(c.asked, fmt.Sprintf("%s %s>%s:%d %s %v", node.Name, p.From, p.Destination, p.DestinationPort, p.Protocol, timeout))
	answer := &diagnostics.NodeProbe{Packet: p, Status: diagnostics.ProbeStatus{Verdict: diagnostics.VerdictAnswered, Reason: "connected after 0.8 ms"}}
	answer.Packet.Source, answer.Packet.Conntrack = c.pods[strings.TrimPrefix(p.From, podPrefix)].Status.PodIP, diagnostics.ConntrackNew
	if c.probed != nil {
		if err := c.probed(answer); err != nil {
			return nil, err
		}
	}
	return answer, nil
}

func (c *fakeCluster) route(node Node, p diagnostics.TracePacket) *diagnostics.NodeTrace {
	answer := &diagnostics.NodeTrace{Verdict: diagnostics.VerdictForwarded, Reason: "by its destination", Steps: []diagnostics.TraceStep{{TableName: "classify", Match: "in_port=3", Actions: "goto_table:20"}}}
	if c.bySwitch && p.Destination == "172.30.0.9" {
		answer.Steps = append(answer.Steps, diagnostics.TraceStep{Table: 67, TableName: "translate", Match: "reg8=1"})
		p.Destination, p.DestinationPort = "10.128.0.6", 8080
		if p.Endpoint != "" {
			endpoint := netip.MustParseAddrPort(p.Endpoint)
			p.Destination, p.DestinationPort = endpoint.Addr().String(), endpoint.Port()
		}
	}
	out := diagnostics.TraceOutput{To: diagnostics.FromHost, Packet: p}
	out.Packet.From = ""
	addr := netip.MustParseAddr(p.Destination)
	at, ok := c.NodeAt(addr)
	switch {
	case ok && at.Subnet.Contains(addr) && at.Name != node.Name:
		out.To, out.VNID, out.HostIP = "node/"+at.Name, 17, at.HostIP.String()
	case ok && at.Subnet.Contains(addr) && addr != at.gateway():
		for name, pod := range c.pods {
			if pod.Status.PodIP == p.Destination {
				out.To, answer.Verdict = "pod/"+name, diagnostics.VerdictDelivered
			}
		}
	}
	answer.Outputs = []diagnostics.TraceOutput{out}
	return answer
}

// denied makes an agent drop the packet.
func denied(reason string, objects ...diagnostics.TraceObject) func(*diagnostics.NodeTrace) error {
	return func(answer *diagnostics.NodeTrace) error {
		answer.Verdict, answer.Reason, answer.Objects, answer.Outputs = diagnostics.VerdictDropped, reason, objects, nil
		answer.Steps = append(answer.Steps, diagnostics.TraceStep{Table: 83, TableName: "ingress-denied", Match: "secret", Actions: "drop", Objects: objects})
		return nil
	}
}

// trace traces a packet for a user who sees the namespaces.
func (c *fakeCluster) trace(t *testing.T, spec diagnostics.TraceSpec, namespaces ...string) *diagnostics.TraceStatus {
	t.Helper()
	status, err := c.tryTrace(t, spec, namespaces...)
	if err != nil {
		t.Fatal(err)
	}
	return status
}

func (c *fakeCluster) tryTrace(t *testing.T, spec diagnostics.TraceSpec, namespaces ...string) (*diagnostics.TraceStatus, error) {
	t.Helper()
	query, errs := ParseSpec(&spec)
	if len(errs) > 0 {
		t.Fatal(errs.ToAggregate())
	}
	c.asked, c.askedHosts = nil, nil
	tracer := &Tracer{Cluster: c, Agents: c, Sees: func(_ context.Context, o diagnostics.Object) bool { return slices.Contains(namespaces, o.Namespace) }}
	tracer.SeesHosts = func(context.Context) bool { return !c.hidesHosts }
	return tracer.Trace(t.Context(), query)
}
