package tracing

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
)

// maxAddresses is the number of external addresses of a service that a trace names.
const maxAddresses = 4

// isBySwitch reports whether switches balance services (--service-proxy=ovs).
func (r *run) isBySwitch() bool { return r.network.ServiceProxy == config.ServiceProxyOVS }

// toClusterIP returns the packet to the cluster IP as it enters the bridge of its source's node. It returns false if none enters: those of hosts outside have another
// destination, and those of a node do not leave its host if the host has a service proxy.
func (s *serviceRun) toClusterIP() (diagnostics.TracePacket, bool) {
	packet, _ := s.packetToClusterIP(s.source.node)
	return packet, s.source.pod != "" || s.source.isHost && s.isBySwitch()
}

// packetToClusterIP returns the packet to the cluster IP as it enters the bridge, and on which node: that of the source or, of a packet from outside, the given one.
func (s *serviceRun) packetToClusterIP(by Node) (diagnostics.TracePacket, Node) {
	node, packet := s.entry(by)
	packet.Destination, packet.DestinationPort = s.service.ClusterIP.String(), s.port.Number
	if s.isOutside() {
		packet.Origin = diagnostics.OriginNodePort
	}
	return packet, node
}

// unselected returns the path of a packet to a cluster IP that the switch of the node sends back to its host.
func (s *serviceRun) unselected(node Node, hops ...diagnostics.Hop) diagnostics.TracePath {
	const reason = "the switch of node %s selects no endpoint of %s, and sends the packet to the host, which rejects it unless it has another service proxy"
	path := unknown(fmt.Sprintf(reason, node.Name, s.name))
	path.Hops = hops
	return path
}

// fromOutside traces the packet of a host outside to an endpoint. It enters by the endpoint's own node, whose host translates it to the cluster IP.
func (s *serviceRun) fromOutside(ctx context.Context, path *diagnostics.TracePath, endpoint netip.AddrPort) {
	at, isNode := s.Cluster.NodeAt(endpoint.Addr())
	if !isNode {
		path.Verdict, path.Reason = diagnostics.VerdictUnknown, "no node has the endpoint: by which node the packet enters is not known"
		return
	}
	packet, node := s.packetToClusterIP(at)
	packet.Endpoint = endpoint.String()
	path.NotEvaluated = append(path.NotEvaluated, s.outsideSource(node)...)
	path.NotEvaluated = append(path.NotEvaluated, s.translation(node), "other nodes by which the packet may enter: the trace begins on the endpoint's own node")
	a := s.walk(ctx, node, packet)
	if a.to == diagnostics.FromHost && a.verdict == diagnostics.VerdictDelivered && a.packet.Destination == packet.Destination {
		p := s.unselected(node, a.hops...)
		path.Verdict, path.Reason, path.Hops = p.Verdict, p.Reason, p.Hops
		return
	}
	s.finish(ctx, path, a, "")
}

// translation returns what the host of the node translates to the cluster IP.
func (s *serviceRun) translation(node Node) string {
	open, isLimited := s.addresses()
	if len(open) > maxAddresses {
		open = append(open[:maxAddresses], "further addresses")
	}
	to := netip.AddrPortFrom(s.service.ClusterIP, s.port.Number)
	text := fmt.Sprintf("the nftables table ip ovsdn-services of node %s, which translates %s to %s", node.Name, strings.Join(open, ", "), to)
	if isLimited {
		text += fmt.Sprintf("; it drops packets of %s to addresses of the load balancer, since loadBalancerSourceRanges do not include it", s.source.addr)
	}
	return text
}

// addresses returns the external addresses of the service's port that are open to the source, and whether loadBalancerSourceRanges close others to it.
func (s *serviceRun) addresses() (open []string, isLimited bool) {
	svc := s.service
	isClient := !svc.NoSources && (len(svc.SourceRanges) == 0 || slices.ContainsFunc(svc.SourceRanges, func(p netip.Prefix) bool { return p.Contains(s.source.addr) }))
	if s.port.NodePort != 0 {
		open = append(open, fmt.Sprintf("node port %d", s.port.NodePort))
	}
	for _, addr := range svc.ExternalIPs {
		if !slices.Contains(svc.LoadBalancerIPs, addr) { // of an address that is both, the ranges apply
			open = append(open, netip.AddrPortFrom(addr, s.port.Number).String())
		}
	}
	if !isClient {
		return open, len(svc.LoadBalancerIPs) > 0
	}
	for _, addr := range svc.LoadBalancerIPs {
		open = append(open, netip.AddrPortFrom(addr, s.port.Number).String())
	}
	return open, false
}

// closed returns the answer for a service of the switch all of whose external addresses are closed to the source, nil for others.
func (s *serviceRun) closed() *diagnostics.TraceStatus {
	if !s.isOutside() || !s.isBySwitch() {
		return nil
	}
	if open, isLimited := s.addresses(); len(open) > 0 || !isLimited {
		return nil
	}
	const reason = "the loadBalancerSourceRanges of %s do not include %s, and it has no other external address"
	return &diagnostics.TraceStatus{Verdict: diagnostics.VerdictDropped, Reason: fmt.Sprintf(reason, s.name, s.source.addr)}
}
