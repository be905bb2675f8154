package tracing

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

// selectsEndpoint reports whether the packet passes the step after the switch has selected an endpoint of a service (--service-proxy=ovs).
func selectsEndpoint(step diagnostics.TraceStep) bool {
	return step.TableName == "translate" || step.TableName == "translated"
}

// serviceRun is the trace of a packet to a service.
type serviceRun struct {
	*run
	name    string
	service *endpoints.Service
	port    endpoints.ServicePort
	targets endpoints.Targets
	pods    map[netip.Addr]string // of endpoints, as EndpointSlices name them

	isTruncated bool // endpoints were not read
}

// service traces the packet to each endpoint of the service.
func (r *run) service(ctx context.Context) (*diagnostics.TraceStatus, error) {
	s, status, err := r.readService(ctx)
	if err != nil || status != nil {
		return status, err
	}
	if r.source.problem != "" {
		return single(unknown(r.source.problem)), nil
	}
	var first *diagnostics.Hop
	if packet, ok := s.toClusterIP(); ok {
		hop, outputs := r.hop(ctx, r.source.node, packet)
		if isSelected(&hop, outputs) {
			return s.eachEndpoint(ctx, nil, &packet), nil
		}
		if hop.Verdict == diagnostics.VerdictDropped || hop.Verdict == diagnostics.VerdictUnknown {
			path := diagnostics.TracePath{}
			r.finish(ctx, &path, arrival{hops: []diagnostics.Hop{hop}, verdict: hop.Verdict, reason: hop.Reason, node: r.source.node}, "")
			return single(path), nil
		}
		if r.source.isHost {
			return single(s.unselected(r.source.node, hop)), nil
		}
		first = &hop
	}
	return s.eachEndpoint(ctx, first, nil), nil
}

// single returns the status of the only path.
func single(path diagnostics.TracePath) *diagnostics.TraceStatus {
	return &diagnostics.TraceStatus{Verdict: path.Verdict, Reason: path.Reason, Paths: []diagnostics.TracePath{path}}
}

// isSelected reports whether the switch selected an endpoint.
func isSelected(hop *diagnostics.Hop, outputs []diagnostics.TraceOutput) bool {
	return slices.ContainsFunc(hop.Steps, selectsEndpoint) || len(outputs) > 0 && outputs[0].To != diagnostics.FromHost
}

// readService reads the service and its endpoints. The status is the answer if no endpoint has to be traced.
func (r *run) readService(ctx context.Context) (*serviceRun, *diagnostics.TraceStatus, error) {
	o := r.query.Destination.Object
	s, i, problem, err := r.readPort(ctx)
	if err != nil {
		return nil, nil, err
	}
	if problem != "" {
		return nil, single(unknown(problem)), nil
	}
	var all []*endpoints.Slice
	s.isTruncated, err = r.Cluster.Slices(ctx, o.Namespace, o.Name, func(slice *discoveryv1.EndpointSlice) {
		all = append(all, endpoints.NewSlice(slice, r.network.ServiceNetwork))
		s.addPods(slice)
	})
	if err != nil {
		return nil, nil, err
	}
	node := endpoints.Node{Name: r.source.node.Name}
	if node.Name != "" {
		node.Zone = r.Cluster.Zone(ctx, node.Name)
	}
	selection, _ := endpoints.Select(s.service, all, node)
	if s.targets = selection.Ports[i].Internal; r.isOutside() {
		s.targets = selection.Ports[i].ShortCircuit // of all nodes: the one by which the packet enters is not known
	}
	return s, s.withoutEndpoints(), nil
}

// readPort reads the service, and finds its port. The problem is why it has none.
func (r *run) readPort(ctx context.Context) (s *serviceRun, i int, problem string, err error) {
	o := r.query.Destination.Object
	object, err := r.Cluster.Service(ctx, o.Namespace, o.Name)
	if err != nil {
		return nil, 0, "", err
	}
	s = &serviceRun{run: r, name: o.String(), service: endpoints.NewService(object), pods: map[netip.Addr]string{}}
	if !s.service.Proxied {
		return nil, 0, s.name + " has no IPv4 cluster IP that a proxy serves: clients reach what its DNS name resolves to", nil
	}
	i, fault := s.portIndex()
	if fault != nil {
		return nil, 0, "", fault
	}
	s.port = s.service.Ports[i]
	return s, i, "", nil
}

func (r *run) isOutside() bool { return r.source.pod == "" && !r.source.isHost }

// withoutEndpoints returns the answer for a service that sends the packet to no endpoint, nil for others.
func (s *serviceRun) withoutEndpoints() *diagnostics.TraceStatus {
	reason := ""
	switch s.targets.Verdict {
	case endpoints.Unused:
		reason = s.name + " has no node port, external IP or load balancer: hosts outside have no address of it"
	case endpoints.Reject:
		reason = s.name + " has no ready endpoints: the host rejects the connection"
	case endpoints.Drop:
		reason = fmt.Sprintf("the internalTrafficPolicy of %s is Local, and no endpoint is ready on node %s", s.name, s.source.node.Name)
	default:
		return s.closed()
	}
	if s.isTruncated && s.targets.Verdict != endpoints.Unused {
		return &diagnostics.TraceStatus{Verdict: diagnostics.VerdictUnknown, Reason: s.name + " has too many endpoints: none of those that were read gets the packet", Truncated: true}
	}
	return &diagnostics.TraceStatus{Verdict: diagnostics.VerdictDropped, Reason: reason}
}

// portIndex returns the port of the service that the query names.
func (s *serviceRun) portIndex() (int, *field.Error) {
	path := field.NewPath("spec", "port")
	var found []int
	var ports, candidates []string
	for i, p := range s.service.Ports {
		port := fmt.Sprintf("%d/%s", p.Number, p.Protocol)
		ports = append(ports, port)
		if p.Protocol == corev1.Protocol(s.query.Protocol) && (s.query.Port == 0 || s.query.Port == p.Number) {
			found, candidates = append(found, i), append(candidates, port)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case s.query.Port == 0 && len(found) == 0:
		return 0, field.Required(path, fmt.Sprintf("%s has no %s port; specify protocol and port of one of: %s", s.name, s.query.Protocol, strings.Join(ports, ", ")))
	case s.query.Port == 0:
		return 0, field.Required(path, fmt.Sprintf("%s has several %s ports; specify one of: %s", s.name, s.query.Protocol, strings.Join(candidates, ", ")))
	}
	return 0, field.Invalid(path, s.query.Port, fmt.Sprintf("%s has no such port of %s; it has %s", s.name, s.query.Protocol, strings.Join(ports, ", ")))
}

// addPods adds the pods of a slice's endpoints.
func (s *serviceRun) addPods(slice *discoveryv1.EndpointSlice) {
	for _, e := range slice.Endpoints {
		if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" && len(e.Addresses) > 0 {
			if addr, err := netip.ParseAddr(e.Addresses[0]); err == nil {
				s.pods[addr] = diagnostics.Object{Kind: diagnostics.KindPod, Namespace: slice.Namespace, Name: ref.Name}.String()
			}
		}
	}
}

// eachEndpoint traces the packet to each endpoint. first is the hop of the packet to the host's proxy, bySwitch the packet to a service that the switch balances;
// both are nil if the packet enters the pod network behind the proxy.
func (s *serviceRun) eachEndpoint(ctx context.Context, first *diagnostics.Hop, bySwitch *diagnostics.TracePacket) *diagnostics.TraceStatus {
	status := &diagnostics.TraceStatus{Truncated: s.isTruncated}
	targets := s.targets.Endpoints
	if len(targets) > diagnostics.MaxTracePaths {
		targets, status.Truncated = targets[:diagnostics.MaxTracePaths], true
	}
	for _, target := range targets {
		path := s.endpoint(ctx, target.Addr, first, bySwitch)
		if s.service.Affinity > 0 {
			path.NotEvaluated = append(path.NotEvaluated, "session affinity: later connections of the client reach the endpoint of its first one")
		}
		status.Paths = append(status.Paths, path)
	}
	s.summarize(status)
	return status
}

// endpoint traces the packet to one endpoint.
func (s *serviceRun) endpoint(ctx context.Context, endpoint netip.AddrPort, first *diagnostics.Hop, bySwitch *diagnostics.TracePacket) diagnostics.TracePath {
	path := diagnostics.TracePath{Endpoint: endpoint.String()}
	if pod := s.pods[endpoint.Addr()]; pod != "" && s.shown(ctx, pod) == pod {
		path.Endpoint += " " + pod
	}
	if bySwitch != nil {
		packet := *bySwitch
		packet.Endpoint = endpoint.String()
		s.finish(ctx, &path, s.walk(ctx, s.source.node, packet), "")
		return path
	}
	if s.isOutside() && s.isBySwitch() {
		s.fromOutside(ctx, &path, endpoint)
		return path
	}
	if first != nil {
		path.Hops = append(path.Hops, *first)
	}
	at, isNode := s.Cluster.NodeAt(endpoint.Addr())
	packet := diagnostics.TracePacket{
		From: diagnostics.FromHost, Protocol: s.query.Protocol, SourcePort: s.query.SourcePort, Destination: endpoint.Addr().String(), DestinationPort: endpoint.Port(),
	}
	node := s.source.node
	if s.isOutside() {
		path.NotEvaluated = append(path.NotEvaluated, s.outsideSource(at)...)
		path.NotEvaluated = append(path.NotEvaluated, "the service proxy of hosts, by node port or load balancer: the trace begins on the endpoint's own node")
		node = at
	}
	packet.Source, packet.Origin = s.sourceOf(endpoint.Addr(), node)
	switch {
	case s.isInPodNetwork(endpoint.Addr()) && !isNode:
		path.Verdict, path.Reason = diagnostics.VerdictUnknown, "no node has the subnet of the endpoint"
	case s.isInPodNetwork(endpoint.Addr()):
		s.finish(ctx, &path, s.walk(ctx, node, packet), "")
	case node.Name == "":
		path.Verdict, path.Reason = diagnostics.VerdictUnknown, "the packet does not pass the pod network"
	default: // the host of the node sends the packet itself
		s.atHost(ctx, &path, arrival{hops: []diagnostics.Hop{{Packet: packet}}, start: packet, node: node, to: diagnostics.FromHost, packet: packet}, s.hostEntry())
	}
	return path
}

// hostEntry returns how the packet gets to the host of the source, whose service proxy has translated it.
func (s *serviceRun) hostEntry() hostEntry {
	entry := hostEntry{translated: true}
	switch {
	case s.source.pod != "":
		entry.from = diagnostics.FromTun0
	case s.source.isHost:
		entry.from = diagnostics.FromHost
	}
	return entry
}

// sourceOf returns the packet's source behind the service proxy of the node, and the origin by which the host marks it.
func (s *serviceRun) sourceOf(endpoint netip.Addr, node Node) (source string, origin diagnostics.PacketOrigin) {
	own, masqueraded := s.source.addr.String(), node.gateway().String() // docs/masquerade.md
	switch {
	case s.isOutside() && s.service.ExternalLocal:
		return own, diagnostics.OriginNodePort
	case s.isOutside():
		return masqueraded, diagnostics.OriginNodePort
	case s.source.pod != "" && s.source.addr == endpoint:
		return masqueraded, diagnostics.OriginHairpin
	case s.source.isHost, s.network.Mode == config.ModeSubnet && s.isInPodNetwork(endpoint):
		return masqueraded, ""
	}
	return own, ""
}

// summarize sets the verdict of a service's paths.
func (s *serviceRun) summarize(status *diagnostics.TraceStatus) {
	count := map[diagnostics.Verdict]int{}
	var worst *diagnostics.TracePath
	for i := range status.Paths {
		p := &status.Paths[i]
		count[p.Verdict]++
		if p.Verdict == diagnostics.VerdictDropped && (worst == nil || worst.Verdict != p.Verdict) || p.Verdict != diagnostics.VerdictDelivered && worst == nil {
			worst = p
		}
	}
	status.Verdict = diagnostics.VerdictDelivered
	status.Reason = fmt.Sprintf("%s: %d of %d endpoints get the packet", s.name, count[diagnostics.VerdictDelivered], len(status.Paths))
	if worst != nil {
		status.Verdict = worst.Verdict
		status.Reason += fmt.Sprintf("; %s: %s", worst.Endpoint, worst.Reason)
	} else if len(status.Paths) == 1 {
		status.Reason += ": " + status.Paths[0].Reason
	}
	if !status.Truncated {
		return
	}
	total := strconv.Itoa(len(s.targets.Endpoints))
	if s.isTruncated {
		total = "more than " + total
	}
	status.Reason += fmt.Sprintf("; only %d of %s endpoints were traced", len(status.Paths), total)
	if status.Verdict == diagnostics.VerdictDelivered {
		status.Verdict = diagnostics.VerdictUnknown
	}
}
