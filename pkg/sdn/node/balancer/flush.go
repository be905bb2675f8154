package balancer

import (
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// protocolUDP is IANA's number of UDP.
const protocolUDP = 17

// udpFrontends are the endpoints of services of UDP. A client of UDP that sends continuously would stay with an endpoint that was removed, so its
// connection is flushed. Connections of TCP end with their endpoint, as with kube-proxy.
type udpFrontends struct {
	endpoints map[udpFrontend]map[string]map[netip.AddrPort]struct{} // by service: two have a frontend while it changes from one to the other
	services  map[string][]udpFrontend
}

// udpFrontend is an address and port of a service; node ports have no address.
type udpFrontend struct {
	at      netip.AddrPort
	outside bool // for hosts outside
}

func newUDPFrontends() udpFrontends {
	return udpFrontends{endpoints: map[udpFrontend]map[string]map[netip.AddrPort]struct{}{}, services: map[string][]udpFrontend{}}
}

// set replaces the frontends of a service. It reports whether one of them lost an endpoint.
func (u udpFrontends) set(service string, frontends []pipeline.Frontend) (lost bool) {
	previous := map[udpFrontend]map[netip.AddrPort]struct{}{}
	for _, at := range u.services[service] {
		previous[at] = u.endpoints[at][service]
		if delete(u.endpoints[at], service); len(u.endpoints[at]) == 0 {
			delete(u.endpoints, at)
		}
	}
	delete(u.services, service)
	for _, f := range frontends {
		if f.Protocol != goovs.ProtocolUDPv4 {
			continue
		}
		at := udpFrontend{netip.AddrPortFrom(f.Addr, f.Port), f.Kind == pipeline.FromOutside}
		set := make(map[netip.AddrPort]struct{}, len(f.Endpoints))
		if len(f.Endpoints) == 0 {
			set[netip.AddrPort{}] = struct{}{} // rejected connections end when the frontend gets endpoints
		}
		for _, e := range f.Endpoints {
			set[e] = struct{}{}
		}
		if u.endpoints[at] == nil {
			u.endpoints[at] = map[string]map[netip.AddrPort]struct{}{}
		}
		u.endpoints[at][service] = set
		u.services[service] = append(u.services[service], at)
	}
	for at, had := range previous {
		for e := range had {
			if _, has := u.endpoints[at][service][e]; !has {
				return true
			}
		}
	}
	return false
}

// has reports whether a frontend has the endpoint.
func (u udpFrontends) has(at udpFrontend, endpoint netip.AddrPort) bool {
	for _, set := range u.endpoints[at] {
		if _, ok := set[endpoint]; ok {
			return true
		}
	}
	return false
}

// evaluateConnections is a flowstore.Evaluator of the zones of NAT.
func (b *Balancer) evaluateConnections(bool) func(ovs.Connection) bool {
	return func(c ovs.Connection) bool {
		if c.Protocol != protocolUDP {
			return false
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		to := udpFrontend{netip.AddrPortFrom(c.Original.Dst, c.Original.DstPort), pipeline.IsFromOutside(c)}
		nodePort := udpFrontend{at: netip.AddrPortFrom(netip.Addr{}, c.Original.DstPort)}
		if _, ok := b.flushed.endpoints[nodePort]; ok && !to.outside && b.isOwn(c.Original.Dst) {
			to = nodePort // precedes external addresses
		}
		endpoint := netip.AddrPortFrom(c.Reply.Src, c.Reply.SrcPort)
		if b.flushed.has(to, endpoint) {
			return false
		}
		// The host may have masqueraded a client outside.
		return !b.isOwn(c.Original.Src) || !b.flushed.has(udpFrontend{to.at, true}, endpoint)
	}
}

// isOwn reports whether the switch serves node ports at the address.
func (b *Balancer) isOwn(addr netip.Addr) bool {
	return addr == b.node.VTEP || slices.ContainsFunc(b.node.Subnets, func(subnet netip.Prefix) bool { return addr == config.Gateway(subnet) })
}
