package endpoints

import "net/netip"

// FrontendKind is the source of a frontend.
type FrontendKind uint8

// Kinds of frontends.
const (
	ClusterIP    FrontendKind = iota // for clients in the cluster: PortSelection.Internal
	LoadBalancer                     // status.loadBalancer, limited to Service.SourceRanges, or closed by NoSources: PortSelection.External
	ExternalIP                       // spec.externalIPs: PortSelection.External
	NodePort                         // the addresses of nodes: PortSelection.External
)

// Frontend is an address and port on which clients reach a port of a Service.
type Frontend struct {
	Kind FrontendKind
	Addr netip.Addr // not valid for NodePort: any address of this node on which node ports are open
	Port uint16     // 1 to 65535
	Of   int        // index of the port in Service.Ports and Selection.Ports
}

// Frontends returns the frontends of the Service, sorted by port and kind: that of the cluster IP for each port, and the first ones of other kinds up to a number,
// since a Service can have half a million. more is true if there are others. An address that is in several fields has one frontend, of the first kind: so SourceRanges
// apply to an external IP that is also an address of the load balancer.
func (s *Service) Frontends(others int) (all []Frontend, more bool) {
	if !s.Proxied {
		return nil, false
	}
	var addrs []Frontend
	used := map[netip.Addr]bool{s.ClusterIP: true}
	add := func(kind FrontendKind, of []netip.Addr) {
		for _, addr := range of {
			if !used[addr] {
				used[addr] = true
				addrs = append(addrs, Frontend{Kind: kind, Addr: addr})
			}
		}
	}
	add(LoadBalancer, s.LoadBalancerIPs)
	add(ExternalIP, s.ExternalIPs)

	for i, port := range s.Ports {
		all = append(all, Frontend{Kind: ClusterIP, Addr: s.ClusterIP, Port: port.Number, Of: i})
		n := min(len(addrs), others)
		for _, f := range addrs[:n] {
			f.Port, f.Of = port.Number, i
			all = append(all, f)
		}
		more, others = more || n < len(addrs), others-n
		switch {
		case port.NodePort == 0:
		case others == 0:
			more = true
		default:
			all, others = append(all, Frontend{Kind: NodePort, Port: port.NodePort, Of: i}), others-1
		}
	}
	return all, more
}

// isExternal reports whether a port is reached on other addresses than the cluster IP.
func (s *Service) isExternal(port ServicePort) bool {
	return port.NodePort != 0 || len(s.LoadBalancerIPs) > 0 || len(s.ExternalIPs) > 0
}
