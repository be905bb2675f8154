package pipeline

import (
	"fmt"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// A service with outside endpoints may have node ports, too, on any address of any node. What a pod with policies sends there, to the addresses of
// HostSubnets and those in the status of Nodes (nodeaddresses.go), is evaluated by the policies as what it sends to the node, and then by the outside
// endpoints, before it goes on by its route. In mode multitenant, table 61 evaluates the VNID of node ports after that; what pods of tenants send is evaluated,
// too, since an endpoint may be a node port of another VNID. External addresses of services are not evaluated by endpoints: several services may have the same.

// regDestination stores the destination of a packet while it is evaluated by endpoints.
const regDestination = "NXM_NX_REG7[]"

// unevaluated matches packets of pods with policies, and in mode multitenant of tenants' pods, that open connections and have not been evaluated by
// endpoints. What tenants' pods without policies reply is not known as replies.
func (n Node) unevaluated(fields ...ovs.Match) []ovs.Match {
	of := uint32(sourceJudged)
	if n.tenants() {
		of = sourceTenant
	}
	return append([]ovs.Match{ovs.RegBits(4, of, of|endpointsAllowed), goovs.ConnectionTrackingState("-rpl")}, fields...)
}

// frontends compiles the static part of the evaluation of node ports: the way of packets to this node's addresses through table 61, and back.
func (n Node) frontends(s *State) {
	own := n.gateways()
	if n.VTEP.Is4() {
		own = append(own, single(n.VTEP))
	}
	for _, addr := range own {
		s.add(tableRoute, 310, ip(n.unevaluated(ovs.IPDestination(addr))...), ovs.GotoTable(tableNodePort))
	}
	s.add(tableNodePort, 310, ip(n.unevaluated()...), goovs.Load("0x1", regEndpointsAllowed), goovs.Resubmit(0, tableRoute))
	s.add(tableEndpointVerdict, 10, ip(), goovs.Load("0x1", regEndpointsAllowed), goovs.Resubmit(0, tableRoute))
}

// frontendsOf compiles the way of packets to the addresses of another node through table 61.
func (n Node) frontendsOf(s *State, p Peer) {
	if !n.judges() || !p.IsNode {
		return
	}
	for _, addr := range append(gatewaysOf(p.Subnets), single(p.VTEP)) {
		s.add(tableRoute, 310, ip(n.unevaluated(ovs.IPDestination(addr))...), ovs.GotoTable(tableNodePort))
	}
}

// byFrontends compiles the evaluation of a service by its outside endpoints, for packets to its node ports.
func (n Node) byFrontends(s *State, svc Service) {
	if !n.judges() {
		return
	}
	for _, port := range svc.NodePorts {
		if port.Outside.Any() {
			s.add(tableNodePort, 320, match{protocol: port.Protocol, fields: n.unevaluated(goovs.TransportDestinationPort(port.Port))}, port.viaFrontend()...)
		}
	}
}

// viaFrontend returns the actions for a packet to a node port.
func (p ServicePort) viaFrontend() []ovs.Action {
	if p.Outside.closed() {
		return []ovs.Action{goovs.Drop()}
	}
	actions := []ovs.Action{goovs.Move("NXM_OF_IP_DST[]", regDestination)}
	actions = append(actions, p.Outside.probe(p.Protocol)...)
	return append(actions, goovs.Move(regDestination, "NXM_OF_IP_DST[]"), setPort(p.Protocol, p.Port), ovs.GotoTable(tableEndpointVerdict))
}

func setPort(protocol goovs.Protocol, port uint16) ovs.Action {
	return goovs.SetField(fmt.Sprint(port), string(protocol)+"_dst")
}

func setAddr(addr netip.Addr) ovs.Action { return goovs.SetField(addr.String(), "ip_dst") }
