// Package tracing follows a packet over the nodes of the pod network: it asks the agent of each node for the packet's path through the bridge, and adds what
// happens in between, on hosts (docs/decisions/0020-diagnostics.md). For a probe it asks one agent to send a packet. It does no I/O of its own.
package tracing

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// Node is a node of the pod network.
type Node struct {
	Name   string
	HostIP netip.Addr
	Subnet netip.Prefix
	// NoAgent is why the node has no agent; "" if it has one.
	NoAgent string
}

// gateway returns the address of tun0, the first of the subnet, by which the host reaches pods.
func (n Node) gateway() netip.Addr { return n.Subnet.Masked().Addr().Next() }

// Cluster has the objects of the cluster. Errors about objects that do not exist are those of k8s.io/apimachinery/pkg/api/errors.
type Cluster interface {
	Network(ctx context.Context) (*config.Network, error)
	Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Service(ctx context.Context, namespace, name string) (*corev1.Service, error)
	// Slices calls each with the EndpointSlices of a service, and reports whether it left out endpoints.
	Slices(ctx context.Context, namespace, service string, each func(*discoveryv1.EndpointSlice)) (isTruncated bool, err error)
	// Zone returns the zone of a Node, "" if it is not known.
	Zone(ctx context.Context, node string) string
	Node(name string) (Node, error)
	// NodeAt returns the node with that address, or with the subnet that contains it.
	NodeAt(addr netip.Addr) (Node, bool)
}

// Agents are the agents of nodes.
type Agents interface {
	// Trace returns the path of a packet through the bridge of the node. The error, which a user may read, is an *AgentError.
	Trace(ctx context.Context, node Node, packet diagnostics.TracePacket) (*diagnostics.NodeTrace, error)
	// Host returns what the host of the node does with a packet. The error is as that of Trace.
	Host(ctx context.Context, node Node, packet diagnostics.HostPacket) (*diagnostics.NodeHost, error)
	// Probe sends the packet from a pod of the node, and returns the answer. The error is as that of Trace.
	Probe(ctx context.Context, node Node, packet diagnostics.TracePacket, timeout time.Duration) (*diagnostics.NodeProbe, error)
}

// AgentError is why an agent did not answer.
type AgentError struct {
	Reason string
	// SkipNode is true if the node is not asked again in this trace.
	SkipNode bool
	// Unsupported is true if the agent does not know the request.
	Unsupported bool
}

// Error implements error.
func (e *AgentError) Error() string { return e.Reason }

// Tracer traces packets for one user.
type Tracer struct {
	Cluster Cluster
	Agents  Agents
	// Sees reports whether the user may read the object's name, and what flows are made of it.
	Sees func(ctx context.Context, o diagnostics.Object) bool
	// SeesHosts reports whether the user may read the routes of hosts, and the names of other programs' rules.
	SeesHosts func(ctx context.Context) bool
}

// run is one trace.
type run struct {
	*Tracer
	query               Query
	network             *config.Network
	source, destination place
	silent              map[string]string // why agents did not answer, by node
	withoutHost         map[string]string // why agents did not answer Agents.Host, by node; "" for those that do not know it
}

// Trace returns the path of the packet. The error is a *field.Error if the query does not fit the cluster.
func (t *Tracer) Trace(ctx context.Context, q Query) (*diagnostics.TraceStatus, error) {
	r, err := t.begin(ctx, q)
	if err != nil {
		return nil, err
	}
	if q.Destination.Object.Kind == diagnostics.KindService {
		return r.service(ctx)
	}
	if r.destination, err = r.resolve(ctx, field.NewPath("spec", "destination"), q.Destination); err != nil {
		return nil, err
	}
	return single(r.direct(ctx)), nil
}

// begin resolves the source.
func (t *Tracer) begin(ctx context.Context, q Query) (r *run, err error) {
	r = &run{Tracer: t, query: q, silent: map[string]string{}, withoutHost: map[string]string{}}
	if r.network, err = t.Cluster.Network(ctx); err != nil {
		return nil, err
	}
	r.source, err = r.resolve(ctx, field.NewPath("spec", "source"), q.Source)
	return r, err
}

// place is a resolved target.
type place struct {
	name    string     // of the object, or the address
	pod     string     // in the pod network, as in ObjectParameter; "" for others
	isHost  bool       // a node, or a pod in its network
	node    Node       // zero: outside of the cluster
	addr    netip.Addr // of its packets
	problem string     // why it has no packets
}

func (r *run) resolve(ctx context.Context, path *field.Path, target Target) (place, error) {
	switch o := target.Object; o.Kind {
	case diagnostics.KindPod:
		return r.resolvePod(ctx, o)
	case diagnostics.KindNode:
		n, err := r.Cluster.Node(o.Name)
		return place{name: o.String(), isHost: true, node: n, addr: n.HostIP}, err
	}
	n, ok := r.Cluster.NodeAt(target.Addr)
	switch {
	case ok && n.HostIP == target.Addr && n.NoAgent == "":
		return place{name: "node/" + n.Name, isHost: true, node: n, addr: n.HostIP}, nil
	case ok && n.HostIP != target.Addr || r.isInPodNetwork(target.Addr):
		return place{}, field.Invalid(path, target.Addr.String(), "is an address of the pod network; write pod/NAMESPACE/NAME")
	case r.network.ServiceNetwork.Contains(target.Addr):
		return place{}, field.Invalid(path, target.Addr.String(), "is an address of the service network; write service/NAMESPACE/NAME")
	}
	return place{name: target.Addr.String(), addr: target.Addr}, nil
}

func (r *run) resolvePod(ctx context.Context, o diagnostics.Object) (place, error) {
	pod, err := r.Cluster.Pod(ctx, o.Namespace, o.Name)
	if err != nil {
		return place{}, err
	}
	p := place{name: o.String(), isHost: pod.Spec.HostNetwork}
	switch {
	case pod.Spec.NodeName == "":
		p.problem = p.name + " is not scheduled to a node"
		return p, nil
	case pod.Status.Phase == corev1.PodSucceeded, pod.Status.Phase == corev1.PodFailed:
		p.problem = fmt.Sprintf("%s has ended (phase %s)", p.name, printable(string(pod.Status.Phase)))
		return p, nil
	}
	if p.node, err = r.Cluster.Node(pod.Spec.NodeName); err != nil {
		p.problem = fmt.Sprintf("node %s of %s has no HostSubnet", pod.Spec.NodeName, p.name)
		return p, nil
	}
	if p.isHost {
		p.addr = p.node.HostIP
		return p, nil
	}
	p.pod = p.name
	if p.addr, err = netip.ParseAddr(pod.Status.PodIP); err != nil || !p.addr.Is4() {
		p.problem = fmt.Sprintf("%s has no IPv4 address (phase %s)", p.name, printable(string(pod.Status.Phase)))
	}
	return p, nil
}

func (r *run) isInPodNetwork(addr netip.Addr) bool {
	for _, c := range r.network.ClusterNetworks {
		if c.Prefix.Contains(addr) {
			return true
		}
	}
	return false
}

// unknown returns a path without an answer.
func unknown(reason string) diagnostics.TracePath {
	return diagnostics.TracePath{Verdict: diagnostics.VerdictUnknown, Reason: reason}
}

// direct traces the packet to a destination that is not a service.
func (r *run) direct(ctx context.Context) diagnostics.TracePath {
	for _, p := range []place{r.source, r.destination} {
		if p.problem != "" {
			return unknown(p.problem)
		}
	}
	if r.source.pod == "" && r.destination.pod == "" {
		return unknown(fmt.Sprintf("a packet from %s to %s does not pass the pod network", r.source.name, r.destination.name))
	}
	node, packet := r.entry(r.destination.node)
	packet.Destination, packet.DestinationPort = r.destination.addr.String(), r.query.Port
	path := diagnostics.TracePath{NotEvaluated: r.outsideSource(node)}
	r.finish(ctx, &path, r.walk(ctx, node, packet), r.destination.pod)
	return path
}

// entry returns where the packet enters the pod network: on the node of its source, or, from outside, on the node of the destination.
func (r *run) entry(destination Node) (Node, diagnostics.TracePacket) {
	p := diagnostics.TracePacket{From: diagnostics.FromHost, Protocol: r.query.Protocol, Source: r.source.addr.String(), SourcePort: r.query.SourcePort}
	switch {
	case r.source.pod != "":
		p.From = r.source.pod
	case r.source.isHost:
		p.Source = r.source.node.gateway().String()
	default:
		p.Origin = diagnostics.OriginRouted
		return destination, p
	}
	return r.source.node, p
}

// outsideSource returns what is not evaluated of packets from outside.
func (r *run) outsideSource(entry Node) []string {
	if r.source.pod != "" || r.source.isHost {
		return nil
	}
	return []string{fmt.Sprintf("routes and firewalls between %s and node %s, and the firewall of that node: the trace begins where its host sends the packet to tun0", r.source.addr, entry.Name)}
}
