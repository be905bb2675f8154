package pipeline

import (
	"fmt"
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// The host's proxy sends a pod's packet to an endpoint of its choice. If the endpoint is in the pod network, the packet comes back through tun0
// and is evaluated with the endpoint as its destination. Other endpoints are evaluated before the packet goes to the proxy: it passes only if the
// pod may reach all of them (docs/decisions/0008-services-and-egress-policies.md).
//
// For each of these endpoints, the flow of the service port sets the packet's destination and resubmits it to table 62. The packet takes the way
// of a packet to that destination, with the bit probing of reg4, which is cleared where the packet would be sent to the host. What is denied on
// the way is dropped there and retains the bit, with which table 62 passes no further endpoint and table 63 drops the packet.

// MaxOutsideEndpoints is the number of outside endpoints of a service port that are evaluated. A port with more of them is closed. It bounds the
// work for the first packet: Open vSwitch gives up after 4,096 resubmits, and drops the packet. An endpoint costs up to 12 of them.
const MaxOutsideEndpoints = 256

// OutsideEndpoints are the endpoints of a service port whose packets the host does not send back through tun0. The zero value is none.
type OutsideEndpoints struct {
	Addrs  []netip.AddrPort // sorted, each once
	Closed bool             // they are unknown, or too many: the port is closed for packets that are evaluated
}

// Any reports whether packets to the port are evaluated.
func (o OutsideEndpoints) Any() bool { return o.Closed || len(o.Addrs) > 0 }

// IsOutside reports whether the host does not send packets to an endpoint with the address back through tun0: it is outside of the cluster
// network, or is an address of tun0 itself.
func (n Node) IsOutside(addr netip.Addr) bool {
	return !slices.ContainsFunc(n.ClusterNetworks, func(p netip.Prefix) bool { return p.Contains(addr) }) ||
		slices.ContainsFunc(n.Subnets, func(p netip.Prefix) bool { return config.Gateway(p) == addr })
}

// probe matches packets that are evaluated as if one of a service's endpoints was their destination; notProbed matches the others.
func probe() ovs.Match     { return ovs.RegBits(4, probing, probing) }
func notProbed() ovs.Match { return ovs.RegBits(4, 0, probing) }

// evaluated matches packets of this node's pods to services that are evaluated by endpoints: in mode multitenant all of them, since an endpoint
// may be a node port of another VNID.
func (n Node) evaluated() ovs.Match {
	if n.tenants() {
		return ovs.RegBits(3, localZones, localZoneMask)
	}
	return ovs.RegBits(4, sourceJudged, sourceJudged)
}

// probes compiles the static part of the evaluation by endpoints.
func (n Node) probes(s *State) {
	if n.judges() {
		s.add(tableEndpoint, 100, ip(notProbed()), ovs.CTClear(), goovs.Load("0x0", regEgressPassed),
			goovs.Load("0x0", regEndpointsAllowed), goovs.Load("0x1", regProbing), goovs.Resubmit(0, tableEgressPolicy))
		s.add(tableEndpointVerdict, 100, ip(probe()), goovs.Drop())
		s.add(tableEndpointVerdict, 50, ip(ovs.Reg(2, PortTun)), goovs.Load("0x0", regMidstream), ovs.GotoTable(tableIsolation))

		isAllowed := goovs.Load("0x0", regProbing)
		for _, gateway := range n.gateways() {
			s.add(tableRoute, 410, ip(probe(), ovs.IPDestination(gateway)), isAllowed)
		}
		// An endpoint that is a service's address is another name for the endpoints of that service.
		for _, network := range append(slices.Clone(n.ClusterNetworks), n.ServiceNetwork, multicastRange()) {
			s.add(tableRoute, 400, ip(probe(), ovs.IPDestination(network)), goovs.Drop())
		}
		s.add(tableEgressIP, 10, ip(probe()), isAllowed)
		n.frontends(s)
	}
	s.add(tableEndpoint, 0, anything(), goovs.Drop())
	s.add(tableEndpointVerdict, 0, anything(), goovs.Drop())
}

// byEndpoints compiles the evaluation of a service by its outside endpoints, for packets to one of its addresses.
func (n Node) byEndpoints(s *State, svc Service, addr netip.Addr) {
	var all OutsideEndpoints
	for _, port := range svc.Ports {
		all.Addrs, all.Closed = append(all.Addrs, port.Outside.Addrs...), all.Closed || port.Outside.Closed
	}
	if !n.judges() || !all.Any() {
		return
	}
	for _, port := range svc.Ports {
		m := match{protocol: port.Protocol, fields: []ovs.Match{
			n.evaluated(), ovs.IPDestination(single(addr)), goovs.TransportDestinationPort(port.Port),
		}}
		s.add(tableService, 210, m, port.Outside.evaluate(svc.VNID, port.Protocol, netip.AddrPortFrom(addr, port.Port))...)
	}
	// The tracker puts fragments together. The userspace datapath hands them on as they were: the later ones have no port, and may go only
	// where all ports may.
	for _, fragment := range []goovs.IPFragFlag{goovs.IPFragFlagFirst, goovs.IPFragFlagLater} {
		m := []ovs.Match{n.evaluated(), ovs.IPDestination(single(addr)), goovs.IPFrag(fragment)}
		s.add(tableService, 220, ip(append(m, goovs.ConnectionTrackingState("-trk"))...),
			goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=NXM_NX_REG3[0..15]", tableService)))
		actions := []ovs.Action{goovs.Drop()}
		if n.LaterFragments {
			actions = all.withoutPorts().evaluate(svc.VNID, goovs.ProtocolIPv4, netip.AddrPortFrom(addr, 0))
		}
		s.add(tableService, 205, ip(m...), actions...)
	}
}

// withoutPorts returns the addresses of the endpoints, each once.
func (o OutsideEndpoints) withoutPorts() OutsideEndpoints {
	addrs := make([]netip.AddrPort, len(o.Addrs))
	for i, a := range o.Addrs {
		addrs[i] = netip.AddrPortFrom(a.Addr(), 0)
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return OutsideEndpoints{Addrs: slices.Compact(addrs), Closed: o.Closed}
}

// closed reports whether no packet that is evaluated passes.
func (o OutsideEndpoints) closed() bool { return o.Closed || len(o.Addrs) > MaxOutsideEndpoints }

// evaluate returns the actions for a packet to a cluster IP and port: each endpoint in turn, then the verdict of table 63. Protocol IPv4 sets no port.
func (o OutsideEndpoints) evaluate(vnid config.VNID, protocol goovs.Protocol, to netip.AddrPort) []ovs.Action {
	if o.closed() {
		return []ovs.Action{goovs.Drop()}
	}
	actions := o.probe(protocol)
	if len(o.Addrs) > 0 {
		actions = append(actions, setDestination(protocol, to)...)
	}
	return append(actions, loadVNID(vnid, regDestVNID), loadPort(PortTun), ovs.GotoTable(tableEndpointVerdict))
}

// probe returns the actions that evaluate each endpoint.
func (o OutsideEndpoints) probe(protocol goovs.Protocol) []ovs.Action {
	var actions []ovs.Action
	for _, endpoint := range o.Addrs {
		actions = append(actions, setDestination(protocol, endpoint)...)
		actions = append(actions, goovs.Resubmit(0, tableEndpoint))
	}
	return actions
}

func setDestination(protocol goovs.Protocol, to netip.AddrPort) []ovs.Action {
	if protocol == goovs.ProtocolIPv4 {
		return []ovs.Action{setAddr(to.Addr())}
	}
	return []ovs.Action{setAddr(to.Addr()), setPort(protocol, to.Port())}
}
