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
// For each of these endpoints, the flow of the service port sets the packet's destination and resubmits it to table 62. The packet passes the tables
// of a packet to that destination, with the bit evaluatingEndpoint of reg4, which is cleared where the packet would be output to the host. A packet
// that is denied on the way retains the bit, with which table 62 evaluates no further endpoint and table 63 drops the packet.

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

// isEvaluatingEndpoint matches packets that are evaluated as if one of a service's endpoints was their destination; isNotEvaluatingEndpoint matches
// the others.
func isEvaluatingEndpoint() ovs.Match    { return ovs.RegBits(4, evaluatingEndpoint, evaluatingEndpoint) }
func isNotEvaluatingEndpoint() ovs.Match { return ovs.RegBits(4, 0, evaluatingEndpoint) }

// evaluated matches packets of this node's pods to services that are evaluated by endpoints: in mode multitenant all of them, since an endpoint
// may be a node port of another VNID.
func (n Node) evaluated() ovs.Match {
	if n.tenants() {
		return ovs.RegBits(3, localZones, localZoneMask)
	}
	return ovs.RegBits(4, sourceEvaluated, sourceEvaluated)
}

// evaluateEndpoints compiles the static part of the evaluation by endpoints.
func (n Node) evaluateEndpoints(s *State) {
	if n.evaluates() && !n.BalancesServices {
		// table=62,priority=100,ip,reg4=0/0x1000,
		//     actions=ct_clear,load:0x0->NXM_NX_REG4[6],load:0x0->NXM_NX_REG4[13],load:0x1->NXM_NX_REG4[12],resubmit(,27)
		s.add(tableEndpoint, 100, ip(isNotEvaluatingEndpoint()), ovs.CTClear(), goovs.Load("0x0", regEgressPassed),
			goovs.Load("0x0", regEndpointsAllowed), goovs.Load("0x1", regEvaluatingEndpoint), goovs.Resubmit(0, tableEgressPolicy))
		// table=63,priority=100,ip,reg4=0x1000/0x1000,actions=drop
		s.add(tableEndpointVerdict, 100, ip(isEvaluatingEndpoint()), goovs.Drop())
		// table=63,priority=50,ip,reg2=0x2,actions=load:0x0->NXM_NX_REG4[9],goto_table:80
		s.add(tableEndpointVerdict, 50, ip(ovs.Reg(2, PortTun)), goovs.Load("0x0", regMidstream), ovs.GotoTable(tableIsolation))

		isAllowed := goovs.Load("0x0", regEvaluatingEndpoint)
		for _, gateway := range n.gateways() {
			// table=30,priority=410,ip,reg4=0x1000/0x1000,nw_dst=10.128.0.1,actions=load:0x0->NXM_NX_REG4[12]
			s.add(tableRoute, 410, ip(isEvaluatingEndpoint(), ovs.IPDestination(gateway)), isAllowed)
		}
		// An endpoint that is a service's address is another name for the endpoints of that service.
		for _, network := range append(slices.Clone(n.ClusterNetworks), n.ServiceNetwork, multicastRange()) {
			// table=30,priority=400,ip,reg4=0x1000/0x1000,nw_dst=10.128.0.0/14,actions=drop
			s.add(tableRoute, 400, ip(isEvaluatingEndpoint(), ovs.IPDestination(network)), goovs.Drop())
		}
		// table=101,priority=400,ip,reg4=0x1000/0x1000,actions=load:0x0->NXM_NX_REG4[12]
		s.add(tableEgressIP, egressEndpoint, ip(isEvaluatingEndpoint()), isAllowed)
		n.frontends(s)
	}
	// table=62,priority=0,actions=drop
	s.add(tableEndpoint, 0, anything(), goovs.Drop())
	// table=63,priority=0,actions=drop
	s.add(tableEndpointVerdict, 0, anything(), goovs.Drop())
}

// byEndpoints compiles the evaluation of a service by its outside endpoints, for packets to one of its addresses.
func (n Node) byEndpoints(s *State, svc Service, addr netip.Addr) {
	var all OutsideEndpoints
	for _, port := range svc.Ports {
		all.Addrs, all.Closed = append(all.Addrs, port.Outside.Addrs...), all.Closed || port.Outside.Closed
	}
	if !n.evaluates() || !all.Any() {
		return
	}
	for _, port := range svc.Ports {
		m := match{protocol: port.Protocol, fields: []ovs.Match{
			n.evaluated(), ovs.IPDestination(single(addr)), goovs.TransportDestinationPort(port.Port),
		}}
		// table=60,priority=210,tcp,reg4=0x1/0x1,nw_dst=172.30.0.10,tp_dst=443,
		//     actions=set_field:172.31.0.11->ip_dst,set_field:6443->tcp_dst,resubmit(,62),set_field:172.31.0.12->ip_dst,set_field:6443->tcp_dst,
		//     resubmit(,62),set_field:172.30.0.10->ip_dst,set_field:443->tcp_dst,load:0xabcdef->NXM_NX_REG1[],load:2->NXM_NX_REG2[],goto_table:63
		// table=60,priority=210,tcp,reg4=0x1/0x1,nw_dst=172.30.0.10,tp_dst=80,actions=drop
		s.add(tableService, 210, m, port.Outside.evaluate(svc.VNID, port.Protocol, netip.AddrPortFrom(addr, port.Port))...)
	}
	// Conntrack reassembles fragments. That of the userspace datapath passes them on unchanged: the later ones have no port, and pass only if all
	// ports do.
	for _, fragment := range []goovs.IPFragFlag{goovs.IPFragFlagFirst, goovs.IPFragFlagLater} {
		m := []ovs.Match{n.evaluated(), ovs.IPDestination(single(addr)), goovs.IPFrag(fragment)}
		// table=60,priority=220,ct_state=-trk,ip,reg4=0x1/0x1,nw_dst=172.30.0.10,nw_frag=first,actions=ct(table=60,zone=NXM_NX_REG3[0..15])
		s.add(tableService, 220, ip(append(m, goovs.ConnectionTrackingState("-trk"))...),
			goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=NXM_NX_REG3[0..15]", tableService)))
		actions := []ovs.Action{goovs.Drop()}
		if n.Userspace {
			actions = all.withoutPorts().evaluate(svc.VNID, goovs.ProtocolIPv4, netip.AddrPortFrom(addr, 0))
		}
		// table=60,priority=205,ip,reg4=0x1/0x1,nw_dst=172.30.0.10,nw_frag=later,actions=drop
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
	actions := o.evaluateEach(protocol)
	if len(o.Addrs) > 0 {
		actions = append(actions, setDestination(protocol, to)...)
	}
	return append(actions, loadVNID(vnid, regDestVNID), loadPort(PortTun), ovs.GotoTable(tableEndpointVerdict))
}

// evaluateEach returns the actions that evaluate each endpoint.
func (o OutsideEndpoints) evaluateEach(protocol goovs.Protocol) []ovs.Action {
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
