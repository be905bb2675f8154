package balancer

import (
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// protocolUDP is IANA's number of UDP.
const protocolUDP = 17

// udpFrontends are the endpoints of services of UDP. A client of UDP that sends continuously would stay with an endpoint that was removed, so its
// connection is flushed. Connections of TCP end with their endpoint, as with kube-proxy.
type udpFrontends struct {
	endpoints map[netip.AddrPort]map[netip.AddrPort]struct{} // by address and port of the service
	services  map[string][]netip.AddrPort                    // frontends by service
}

func newUDPFrontends() udpFrontends {
	return udpFrontends{endpoints: map[netip.AddrPort]map[netip.AddrPort]struct{}{}, services: map[string][]netip.AddrPort{}}
}

// set replaces the frontends of a service. It reports whether one of them lost an endpoint.
func (u udpFrontends) set(service string, frontends []pipeline.Frontend) (lost bool) {
	previous := map[netip.AddrPort]map[netip.AddrPort]struct{}{}
	for _, at := range u.services[service] {
		previous[at] = u.endpoints[at]
		delete(u.endpoints, at)
	}
	delete(u.services, service)
	for _, f := range frontends {
		if f.Protocol != goovs.ProtocolUDPv4 {
			continue
		}
		at := netip.AddrPortFrom(f.Addr, f.Port)
		set := make(map[netip.AddrPort]struct{}, len(f.Endpoints))
		for _, e := range f.Endpoints {
			set[e] = struct{}{}
		}
		u.endpoints[at] = set
		u.services[service] = append(u.services[service], at)
	}
	for at, had := range previous {
		for e := range had {
			if _, has := u.endpoints[at][e]; !has {
				return true
			}
		}
	}
	return false
}

// evaluateConnections is a store.Evaluator of the zones of NAT.
func (b *Balancer) evaluateConnections(bool) func(ovs.Connection) bool {
	return func(c ovs.Connection) bool {
		if c.Protocol != protocolUDP {
			return false
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		endpoints := b.flushed.endpoints[netip.AddrPortFrom(c.Original.Dst, c.Original.DstPort)]
		_, exists := endpoints[netip.AddrPortFrom(c.Reply.Src, c.Reply.SrcPort)]
		return !exists
	}
}
