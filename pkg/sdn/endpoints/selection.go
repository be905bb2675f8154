package endpoints

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Limits of the endpoints that are used. kube-proxy has none. Further endpoints are left out, those on other nodes first, and reported.
const (
	MaxEndpoints        = 10_000  // of a port of a Service
	MaxServiceEndpoints = 100_000 // of all its ports, of which each has the same share
)

// Node is the node for which endpoints are selected.
type Node struct {
	Name string
	Zone string // its label topology.kubernetes.io/zone, or ""
}

// Verdict is what happens to a new connection.
type Verdict uint8

// Verdicts.
const (
	Unused  Verdict = iota // the port has no frontend of this kind
	Forward                // to one of the endpoints
	Reject                 // with an ICMP error or TCP reset: the Service has no usable endpoint in the cluster
	Drop                   // silently: the traffic policy is Local and no usable endpoint is on this node
)

// Target is an endpoint to which connections are sent.
type Target struct {
	Addr  netip.AddrPort
	Local bool // on this node
}

// Targets are the endpoints to which frontends send connections. Slices of a Selection may share memory, and must not be changed.
type Targets struct {
	Verdict   Verdict
	Endpoints []Target // sorted by address and port, each once; none unless the verdict is Forward
}

// PortSelection has the endpoints of a port of a Service.
type PortSelection struct {
	// Internal is for connections to the cluster IP, by internalTrafficPolicy.
	Internal Targets

	// External is for connections from outside to node ports, external IPs and load balancer IPs, by externalTrafficPolicy. It is Unused if the
	// port has no such frontend.
	External Targets

	// ShortCircuit is for connections from pods, and from this node, to these frontends: whatever externalTrafficPolicy is, they reach the
	// endpoints of policy Cluster.
	ShortCircuit Targets
}

// Selection has the endpoints of a Service on one node.
type Selection struct {
	Ports []PortSelection // of Service.Ports, in the same order

	// LocalReady is the number of addresses of ready endpoints on this node, which the server of HealthCheckNodePort reports.
	LocalReady int

	// Empty is true if no port has a usable endpoint in the cluster.
	Empty bool

	// Problems reports that endpoints were left out.
	Problems Problems
}

// Select returns the endpoints of a Service on the node. Slices of other Services are ignored; their order does not matter. ok is false if the Service is
// not proxied, and has no frontends.
func Select(svc *Service, of []*Slice, node Node) (sel Selection, ok bool) {
	if !svc.Proxied {
		return Selection{}, false
	}
	of = slicesOf(svc, of)
	here := newPlace(node)
	limit := min(MaxEndpoints, MaxServiceEndpoints/max(len(svc.Ports), 1))
	localReady := map[netip.Addr]struct{}{}
	sel.Ports = make([]PortSelection, len(svc.Ports))
	for i, port := range svc.Ports {
		found, excess := collect(port, of, here, limit)
		if excess > 0 {
			sel.Problems.add(TooManyEndpoints, strconv.Itoa(limit+excess), "endpoints of port %d/%s", port.Number, port.Protocol)
		}
		for _, c := range found {
			if c.local && c.Ready() {
				localReady[c.Addr()] = struct{}{}
			}
		}
		sel.Ports[i] = svc.selectPort(port, found, here)
	}
	sel.LocalReady = len(localReady)
	sel.Empty = !slices.ContainsFunc(sel.Ports, func(p PortSelection) bool { return p.Internal.Verdict != Reject })
	return sel, true
}

// slicesOf returns the Service's slices, sorted by name: all nodes then choose the same of two endpoints with one address.
func slicesOf(svc *Service, of []*Slice) []*Slice {
	var out []*Slice
	for _, s := range of {
		if s.namespace == svc.namespace && s.Service == svc.name {
			out = append(out, s)
		}
	}
	slices.SortFunc(out, func(a, b *Slice) int { return strings.Compare(a.name, b.name) })
	return out
}

// selectPort applies the traffic policies of the Service to the endpoints of a port.
func (s *Service) selectPort(port ServicePort, found []candidate, here place) PortSelection {
	cluster := Targets{Verdict: Reject, Endpoints: clusterTargets(found, here)}
	if len(cluster.Endpoints) > 0 {
		cluster.Verdict = Forward
	}
	local := cluster
	if s.InternalLocal || s.ExternalLocal {
		local = Targets{Verdict: cluster.Verdict, Endpoints: localTargets(found)}
		if local.Verdict == Forward && len(local.Endpoints) == 0 {
			local.Verdict = Drop
		}
	}
	out := PortSelection{Internal: cluster}
	if s.InternalLocal {
		out.Internal = local
	}
	if s.isExternal(port) {
		out.External, out.ShortCircuit = cluster, cluster
		if s.ExternalLocal {
			out.External = local
		}
	}
	return out
}

// clusterTargets returns the endpoints for traffic policy Cluster: the ready ones that the hints allow, or, if none is ready, those that are still serving
// while they terminate. It returns none only if the cluster has neither.
func clusterTargets(found []candidate, here place) []Target {
	preferred := here.preference(found)
	out := targets(found, func(c candidate) bool { return c.Ready() && preferred(c.Endpoint) })
	if len(out) == 0 {
		out = targets(found, func(c candidate) bool { return c.draining() })
	}
	return out
}

// localTargets returns the endpoints for traffic policy Local, for which hints are ignored.
func localTargets(found []candidate) []Target {
	out := targets(found, func(c candidate) bool { return c.local && c.Ready() })
	if len(out) == 0 {
		out = targets(found, func(c candidate) bool { return c.local && c.draining() })
	}
	return out
}

func targets(found []candidate, use func(candidate) bool) []Target {
	var out []Target
	for _, c := range found {
		if use(c) {
			out = append(out, Target{Addr: c.addrPort(), Local: c.local})
		}
	}
	return out
}
