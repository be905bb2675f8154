package oracle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// Services with --service-proxy=ovs (docs/decisions/0011-services.md). kubernetes.io describes which endpoints a connection may get ("Virtual IPs and Service
// Proxies", "Topology Aware Routing"); policies and VNIDs evaluate the endpoint.

// ServiceConnection is an attempt to open a connection to an address and port, which may be those of a service.
type ServiceConnection struct {
	From     Endpoint // a pod, a node itself, or a host outside: without Through
	At       string   // the node that gets the packet first: that of the client, or the one to which a host outside sends it
	To       netip.AddrPort
	Protocol corev1.Protocol
}

// ServiceOutcome is what the first node does with the connection.
type ServiceOutcome string

// Outcomes.
const (
	ServiceNone      ServiceOutcome = "no service" // the packet goes to the address itself
	ServiceForwarded ServiceOutcome = "forwarded"  // to one of the endpoints
	ServiceRejected  ServiceOutcome = "rejected"   // with an ICMP error
	ServiceDropped   ServiceOutcome = "dropped"
)

// ServiceVerdict is the outcome, and the rule that decided. Endpoints are those that may be selected, sorted by address and port.
type ServiceVerdict struct {
	Outcome   ServiceOutcome
	Why       string
	Endpoints []ServiceEndpoint
}

// ServiceEndpoint is an endpoint that may be selected, and whether policies and VNIDs allow the connection to it.
type ServiceEndpoint struct {
	Addr    netip.AddrPort
	Verdict Verdict
}

// EvaluateBalancedService applies the Service at the address, its EndpointSlices, and, to each endpoint, all that Evaluate applies.
func (c *Cluster) EvaluateBalancedService(conn ServiceConnection) ServiceVerdict {
	f, found := c.frontend(conn)
	switch {
	case !found && c.ServiceNetwork.Contains(conn.To.Addr()):
		return ServiceVerdict{Outcome: ServiceDropped, Why: "no service has the address and port"}
	case !found:
		return ServiceVerdict{Outcome: ServiceNone, Why: "no service has the address and port"}
	}
	if v, decided := c.restricted(f, conn); decided {
		return v
	}
	var usable []serviceEndpoint
	for _, local := range f.policies(conn.From) {
		var outcome ServiceOutcome
		if usable, outcome = c.usable(f, local, conn.At); outcome != ServiceForwarded {
			return ServiceVerdict{Outcome: outcome, Why: fmt.Sprintf("%s has no endpoint for clients at node %s", f, conn.At)}
		}
	}
	if conn.From.Node != "" && f.kind != clusterIP {
		conn.From.Addr = c.NodeAddrs[conn.At][1] // "their source becomes tun0's address"
	}
	v := ServiceVerdict{Outcome: ServiceForwarded, Why: f.String()}
	for _, e := range usable {
		v.Endpoints = append(v.Endpoints, ServiceEndpoint{e.addr, c.toEndpoint(conn, e.addr)})
	}
	slices.SortFunc(v.Endpoints, func(a, b ServiceEndpoint) int { return a.Addr.Compare(b.Addr) })
	v.Endpoints = slices.CompactFunc(v.Endpoints, func(a, b ServiceEndpoint) bool { return a.Addr == b.Addr })
	return v
}

// frontendKind is where a Service has an address. The order is that of precedence.
type frontendKind int

const (
	clusterIP frontendKind = iota
	nodePort
	loadBalancerIP
	externalIP
)

// frontend is a port of a Service at one of its addresses.
type frontend struct {
	service *corev1.Service
	port    corev1.ServicePort
	kind    frontendKind
}

func (f frontend) String() string {
	return fmt.Sprintf("port %d of service %s/%s", f.port.Port, f.service.Namespace, f.service.Name)
}

// frontend returns the frontend that gets the connection. "An address of a load balancer, which a controller has set, precedes an external IP; then the older
// service precedes"; "node ports precede external addresses".
func (c *Cluster) frontend(conn ServiceConnection) (first frontend, found bool) {
	for _, svc := range c.Services {
		for _, port := range svc.Spec.Ports {
			kind, ok := c.kindAt(svc, port, conn)
			if !ok || !isProxied(svc) || port.Protocol != conn.Protocol {
				continue
			}
			if f := (frontend{svc, port, kind}); !found || f.precedes(first) {
				first, found = f, true
			}
		}
	}
	return first, found
}

func (f frontend) precedes(other frontend) bool {
	return cmp.Or(cmp.Compare(f.kind, other.kind), f.service.CreationTimestamp.Compare(other.service.CreationTimestamp.Time)) < 0
}

// isProxied: headless Services and those of type ExternalName have no address, and those with the label are another proxy's.
func isProxied(svc *corev1.Service) bool {
	_, other := svc.Labels["service.kubernetes.io/service-proxy-name"]
	return !other && svc.Spec.Type != corev1.ServiceTypeExternalName && svc.Spec.ClusterIP != "" && svc.Spec.ClusterIP != corev1.ClusterIPNone
}

const vxlanPort = 4789

// kindAt returns which address of the Service's port the connection goes to. Pods reach node ports of their own node only: to other nodes they are packets to these.
func (c *Cluster) kindAt(svc *corev1.Service, port corev1.ServicePort, conn ServiceConnection) (kind frontendKind, ok bool) {
	addr, number := conn.To.Addr(), int32(conn.To.Port())
	switch {
	case number == port.Port && addr.String() == svc.Spec.ClusterIP:
		return clusterIP, true
	case port.Protocol == corev1.ProtocolUDP && number == vxlanPort:
		return 0, false // "No service has UDP ports equal to VXLAN's"
	case port.NodePort != 0 && number == port.NodePort && slices.Contains(c.NodeAddrs[conn.At], addr):
		return nodePort, true
	case number != port.Port || c.ServiceNetwork.Contains(addr) || contained(c.PodNetworks, addr):
		return 0, false
	case slices.ContainsFunc(svc.Status.LoadBalancer.Ingress, func(i corev1.LoadBalancerIngress) bool {
		return i.IP == addr.String() && (i.IPMode == nil || *i.IPMode == corev1.LoadBalancerIPModeVIP)
	}):
		return loadBalancerIP, true
	}
	// "External IPs with ports of clients, from 32,768 on, have no flows" for UDP and SCTP.
	isClientPort := port.Protocol != corev1.ProtocolTCP && port.Port >= 32768
	return externalIP, slices.Contains(svc.Spec.ExternalIPs, addr.String()) && !isClientPort
}

func contained(networks []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// restricted are the clients that may not use the frontend.
func (c *Cluster) restricted(f frontend, conn ServiceConnection) (v ServiceVerdict, decided bool) {
	isOutside := conn.From.Pod == nil && conn.From.Node == ""
	ranges := f.service.Spec.LoadBalancerSourceRanges
	switch {
	case isOutside && f.kind == clusterIP:
		return ServiceVerdict{Outcome: ServiceDropped, Why: "hosts outside have no cluster IPs"}, true
	case !c.isClient(f, conn) && f.kind == clusterIP:
		return ServiceVerdict{Outcome: ServiceDropped, Why: "the service has another VNID"}, true
	case !c.isClient(f, conn):
		return ServiceVerdict{Outcome: ServiceNone, Why: "the service does not take packets of this client"}, true
	case f.kind == loadBalancerIP && len(ranges) > 0 && !slices.ContainsFunc(ranges, func(cidr string) bool { return contains(cidr, conn.From.Addr) }):
		return ServiceVerdict{Outcome: ServiceDropped, Why: "loadBalancerSourceRanges do not have the client"}, true
	}
	return ServiceVerdict{}, false
}

// isClient is the rule of mode multitenant: "a service is reached by its own VNID on all of these, and by VNID 0 on addresses of load balancers and node ports";
// a service of VNID 0 by all. External IPs, which users choose, take no packets of the node's programs, nor to an address of the node. Hosts outside reach
// the services of all tenants.
func (c *Cluster) isClient(f frontend, conn ServiceConnection) bool {
	if c.VNIDs == nil {
		return true
	}
	if conn.From.Pod == nil {
		return f.kind != externalIP || conn.From.Node == "" && !slices.Contains(c.NodeAddrs[conn.At], conn.To.Addr())
	}
	from, to := c.vnid(conn.From), c.VNIDs[f.service.Namespace]
	return to == 0 || from == to || from == 0 && f.kind != externalIP
}
