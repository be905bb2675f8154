package balancer

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/servicenat"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// frontend is a frontend of a service that this node serves.
type frontend struct {
	endpoints.Frontend
	sources []netip.Prefix // the only clients, if there are any
	closed  bool           // to all clients
}

// candidate is a service before its claims are compared with those of others.
type candidate struct {
	key     string
	service *endpoints.Service // nil: it was deleted
	usable  []frontend
	report  report // of frontends that are not usable
}

// candidate returns a service, nil if it was deleted.
func (b *Balancer) candidate(key string, svc *endpoints.Service) candidate {
	c := candidate{key: key, service: svc}
	if svc != nil {
		c.usable = b.usable(svc, &c.report)
	}
	return c
}

// claim replaces the claims of a service by those of its usable frontends, none if it was deleted, and queues other services that gain or lose one by that. It returns
// the frontends whose packets the service gets.
func (b *Balancer) claim(key string, svc *endpoints.Service, usable []frontend) (held []frontend) {
	wanted := map[claim]rank{}
	for _, f := range usable {
		if c, ok := claimOf(svc, f.Frontend); ok {
			wanted[c] = rank{f.Kind, svc.Created}
		}
	}
	b.mu.Lock()
	others := b.claims.set(key, wanted)
	for _, f := range usable {
		if c, external := claimOf(svc, f.Frontend); !external || b.claims.holders[c] == key {
			held = append(held, f)
		}
	}
	b.mu.Unlock()
	for _, other := range others {
		b.loop.Add(other)
	}
	return held
}

// maxExternal is the number of external addresses, each with a port, and of node ports of a service that are used.
const maxExternal = 1024

// maxSourceFlows is the number of flows by the client's address of a service, one for each source range and frontend; in mode multitenant of each of the two VNIDs. The
// host's set of clients has as many elements.
const maxSourceFlows = 4096

// usable returns the frontends of a service that get flows: not more than maxExternal outside of the service network, and none that would take other packets than
// those to the service. It adds to the report that there are others. Frontends whose clients would need too many flows are closed.
func (b *Balancer) usable(svc *endpoints.Service, found *report) (usable []frontend) {
	all, more := svc.Frontends(maxExternal)
	found.limits[limitNumber] = more
	sourceFlows := 0
	for _, f := range all {
		if l, ok := b.isUsable(svc, f); !ok {
			found.limits[l] = true
			continue
		}
		of := frontend{Frontend: f}
		if f.Kind == endpoints.LoadBalancer {
			of.sources, of.closed = svc.SourceRanges, svc.NoSources
			found.limits[limitSources] = found.limits[limitSources] || svc.NoSources
			if sourceFlows += len(of.sources); sourceFlows > maxSourceFlows {
				of.sources, of.closed = nil, true
				found.limits[limitSources] = true
			}
		}
		usable = append(usable, of)
	}
	return usable
}

// isUsable reports whether packets to a frontend may be sent to its service, and the limit if they may not. An address of the pod network is that of a pod or node,
// one of the service network the cluster IP of another service. The API server's address and port would give a tenant the nodes' connections to it. UDP has no flag
// by which replies of a pod differ from packets that open connections: a service may not take those to ports of clients. The host must not translate VXLAN,
// which an external IP that is a node's address would have it do.
func (b *Balancer) isUsable(svc *endpoints.Service, f endpoints.Frontend) (limit, bool) {
	isTCP := svc.Ports[f.Of].Protocol == corev1.ProtocolTCP
	switch {
	case f.Kind == endpoints.ClusterIP:
		return 0, true
	case svc.Ports[f.Of].Protocol == corev1.ProtocolUDP && f.Port == b.node.VXLANPort:
		return limitTunnel, false
	case f.Kind == endpoints.NodePort:
		return 0, true
	case isTCP && slices.Contains(b.reserved, netip.AddrPortFrom(f.Addr, f.Port)),
		b.node.ServiceNetwork.Contains(f.Addr), slices.ContainsFunc(b.node.ClusterNetworks, func(p netip.Prefix) bool { return p.Contains(f.Addr) }):
		return limitAddress, false
	case !isTCP && f.Kind == endpoints.ExternalIP && f.Port >= pipeline.FirstClientPort:
		return limitClientPort, false
	}
	return 0, true
}

// portEndpoints are the endpoints of a port that this node uses: for the cluster IP, for pods by external addresses and node ports, and for hosts outside.
type portEndpoints struct {
	internal, shortCircuit, external []netip.AddrPort
}

// portEndpoints returns the endpoints of each port of a service, which its frontends share. found gets limitLocal if a port has too many, all on
// this node.
func (b *Balancer) portEndpoints(selected endpoints.Selection, found *report) []portEndpoints {
	ports := make([]portEndpoints, len(selected.Ports))
	for i, port := range selected.Ports {
		for _, all := range [][]endpoints.Target{port.Internal.Endpoints, port.ShortCircuit.Endpoints, port.External.Endpoints} {
			if len(all) > pipeline.MaxEndpoints && !slices.ContainsFunc(all, func(t endpoints.Target) bool { return !t.Local }) {
				found.limits[limitLocal] = true
			}
		}
		ports[i] = portEndpoints{b.addrs(port.Internal), b.addrs(port.ShortCircuit), b.addrs(port.External)}
	}
	return ports
}

// addrs returns the endpoints that this node uses.
func (b *Balancer) addrs(targets endpoints.Targets) (addrs []netip.AddrPort) {
	for _, t := range endpoints.Subset(targets.Endpoints, b.nodeName, pipeline.MaxEndpoints) {
		addrs = append(addrs, t.Addr)
	}
	return addrs
}

// hostTranslates reports whether the host sends connections from outside to the cluster IP of a service. It routes only those in the service network to the switch.
func (b *Balancer) hostTranslates(svc *endpoints.Service) bool {
	return b.host != nil && b.node.ServiceNetwork.Contains(svc.ClusterIP)
}

// hostFrontends returns what the host translates for other clients than pods.
func (b *Balancer) hostFrontends(svc *endpoints.Service, held []frontend, selected endpoints.Selection, idled bool) (all []servicenat.Frontend) {
	for _, f := range held {
		port := svc.Ports[f.Of]
		verdict := selected.Ports[f.Of].External.Verdict
		if f.Kind == endpoints.ClusterIP || protocol(port.Protocol) == pipeline.ProtocolSCTP && b.node.Userspace {
			continue
		}
		if idled {
			verdict = endpoints.Forward // to the switch, which sends the packet to the agent
		}
		if f.closed {
			verdict = endpoints.Drop
		}
		all = append(all, servicenat.Frontend{
			Addr: f.Addr, Protocol: port.Protocol, Port: f.Port, Verdict: verdict, To: netip.AddrPortFrom(svc.ClusterIP, port.Number), Sources: f.sources,
			TenantAddress: f.Kind == endpoints.ExternalIP && b.node.Mode == config.ModeMultitenant, // as for clients of VNID 0: tenants choose it
		})
	}
	return all
}
