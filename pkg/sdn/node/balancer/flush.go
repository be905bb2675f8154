package balancer

import (
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// flushedProtocol returns IANA's number of a protocol whose connections are flushed when their endpoint is removed, else 0. A client of UDP that sends continuously,
// or one of SCTP that always uses the same port, would stay with the removed endpoint. Connections of TCP end with their endpoint, as with kube-proxy.
func flushedProtocol(p goovs.Protocol) uint8 {
	switch p {
	case goovs.ProtocolUDPv4:
		return ovs.ProtocolNumberUDP
	case pipeline.ProtocolSCTP:
		return ovs.ProtocolNumberSCTP
	default:
		return 0
	}
}

// flushedFrontends are the endpoints of services whose connections are flushed.
type flushedFrontends struct {
	endpoints map[flushedFrontend]map[string]map[netip.AddrPort]struct{} // by service: two have a frontend while it changes from one to the other
	services  map[string][]flushedFrontend
}

// flushedFrontend is an address and port of a service; node ports have no address.
type flushedFrontend struct {
	protocol uint8
	at       netip.AddrPort
	outside  bool // for hosts outside
}

func newFlushedFrontends() flushedFrontends {
	return flushedFrontends{endpoints: map[flushedFrontend]map[string]map[netip.AddrPort]struct{}{}, services: map[string][]flushedFrontend{}}
}

// set replaces the frontends of a service. It reports whether one of them lost an endpoint.
func (all flushedFrontends) set(service string, frontends []pipeline.Frontend) (lost bool) {
	previous := map[flushedFrontend]map[netip.AddrPort]struct{}{}
	for _, at := range all.services[service] {
		previous[at] = all.endpoints[at][service]
		if delete(all.endpoints[at], service); len(all.endpoints[at]) == 0 {
			delete(all.endpoints, at)
		}
	}
	delete(all.services, service)
	for _, f := range frontends {
		protocol := flushedProtocol(f.Protocol)
		if protocol == 0 {
			continue
		}
		at := flushedFrontend{protocol, netip.AddrPortFrom(f.Addr, f.Port), f.Kind == pipeline.FromOutside}
		set := make(map[netip.AddrPort]struct{}, len(f.Endpoints))
		if len(f.Endpoints) == 0 && !f.Idled {
			set[netip.AddrPort{}] = struct{}{} // rejected connections end when the frontend gets endpoints, or is idled
		}
		for _, e := range f.Endpoints {
			set[e] = struct{}{}
		}
		if all.endpoints[at] == nil {
			all.endpoints[at] = map[string]map[netip.AddrPort]struct{}{}
		}
		all.endpoints[at][service] = set
		all.services[service] = append(all.services[service], at)
	}
	for at, had := range previous {
		for e := range had {
			if _, has := all.endpoints[at][service][e]; !has {
				return true
			}
		}
	}
	return false
}

// has reports whether a frontend has the endpoint.
func (all flushedFrontends) has(at flushedFrontend, endpoint netip.AddrPort) bool {
	for _, set := range all.endpoints[at] {
		if _, ok := set[endpoint]; ok {
			return true
		}
	}
	return false
}

// evaluateConnections is a flowstore.Evaluator of the zones of NAT.
func (b *Balancer) evaluateConnections(bool) func(ovs.Connection) bool {
	return func(c ovs.Connection) bool {
		if c.Protocol != ovs.ProtocolNumberUDP && c.Protocol != ovs.ProtocolNumberSCTP {
			return false
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		to := flushedFrontend{c.Protocol, netip.AddrPortFrom(c.Original.Dst, c.Original.DstPort), pipeline.IsFromOutside(c)}
		nodePort := flushedFrontend{protocol: c.Protocol, at: netip.AddrPortFrom(netip.Addr{}, c.Original.DstPort)}
		if _, ok := b.flushed.endpoints[nodePort]; ok && !to.outside && b.node.ServesNodePorts(c.Original.Dst) {
			to = nodePort // precedes external addresses
		}
		endpoint := netip.AddrPortFrom(c.Reply.Src, c.Reply.SrcPort)
		if b.flushed.has(to, endpoint) {
			return false
		}
		// The host may have masqueraded a client outside.
		return !b.isOwn(c.Original.Src) || !b.flushed.has(flushedFrontend{c.Protocol, to.at, true}, endpoint)
	}
}

// isOwn reports whether the node's own packets to services may have the address as their source.
func (b *Balancer) isOwn(addr netip.Addr) bool {
	return addr == b.node.VTEP || slices.ContainsFunc(b.node.Subnets, func(subnet netip.Prefix) bool { return addr == config.Gateway(subnet) })
}
