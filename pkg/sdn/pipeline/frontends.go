package pipeline

import (
	"fmt"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// A service with outside endpoints may have node ports, too, on any address of any node. Packets of a pod with policies to these, at the addresses of
// HostSubnets and those in the status of Nodes (nodeaddresses.go), are evaluated by the policies as packets to the node, and then by the outside
// endpoints, before they are routed. In mode multitenant, table 61 evaluates the VNID of node ports after that; packets of tenants' pods are evaluated,
// too, since an endpoint may be a node port of another VNID. External addresses of services are not evaluated by endpoints: several services may have the same.

// unevaluated matches packets of pods with policies, and in mode multitenant of tenants' pods, that open connections and have not been evaluated by
// endpoints. Replies of tenants' pods without policies match, too: no conntrack lookup marks them as replies.
func (n Node) unevaluated(fields ...ovs.Match) []ovs.Match {
	of := uint32(sourceEvaluated)
	if n.tenants() {
		of = sourceTenant
	}
	return append([]ovs.Match{ovs.RegBits(4, of, of|endpointsAllowed), goovs.ConnectionTrackingState("-rpl")}, fields...)
}

// frontends compiles the static part of the evaluation of node ports: packets to this node's addresses pass table 61, and return to table 30.
func (n Node) frontends(s *State) {
	own := n.gateways()
	if n.VTEP.Is4() {
		own = append(own, single(n.VTEP))
	}
	for _, addr := range own {
		// table=30,priority=310,ct_state=-rpl,ip,reg4=0x1/0x2001,nw_dst=10.128.0.1,actions=goto_table:61
		s.add(tableRoute, 310, ip(n.unevaluated(ovs.IPDestination(addr))...), ovs.GotoTable(tableNodePort))
	}
	// table=61,priority=310,ct_state=-rpl,ip,reg4=0x1/0x2001,actions=load:0x1->NXM_NX_REG4[13],resubmit(,30)
	s.add(tableNodePort, 310, ip(n.unevaluated()...), goovs.Load("0x1", regEndpointsAllowed), goovs.Resubmit(0, tableRoute))
	// table=63,priority=10,ip,actions=load:0x1->NXM_NX_REG4[13],resubmit(,30)
	s.add(tableEndpointVerdict, 10, ip(), goovs.Load("0x1", regEndpointsAllowed), goovs.Resubmit(0, tableRoute))
}

// frontendsOf compiles that packets to the addresses of another node pass table 61.
func (n Node) frontendsOf(s *State, p Peer) {
	if !n.evaluates() || n.BalancesServices || !p.IsNode {
		return
	}
	for _, addr := range append(gatewaysOf(p.Subnets), single(p.VTEP)) {
		// table=30,priority=310,ct_state=-rpl,ip,reg4=0x1/0x2001,nw_dst=10.129.0.1,actions=goto_table:61
		s.add(tableRoute, 310, ip(n.unevaluated(ovs.IPDestination(addr))...), ovs.GotoTable(tableNodePort))
	}
}

// byFrontends compiles the evaluation of a service by its outside endpoints, for packets to its node ports.
func (n Node) byFrontends(s *State, svc Service) {
	if !n.evaluates() {
		return
	}
	for _, port := range svc.NodePorts {
		if port.Outside.Any() {
			// table=61,priority=320,ct_state=-rpl,tcp,reg4=0x1/0x2001,tp_dst=30443,
			//     actions=move:NXM_OF_IP_DST[]->NXM_NX_REG7[],set_field:192.0.2.7->ip_dst,set_field:8443->tcp_dst,resubmit(,62),
			//     move:NXM_NX_REG7[]->NXM_OF_IP_DST[],set_field:30443->tcp_dst,goto_table:63
			// table=61,priority=320,ct_state=-rpl,tcp,reg4=0x1/0x2001,tp_dst=30080,actions=drop
			s.add(tableNodePort, 320, match{protocol: port.Protocol, fields: n.unevaluated(goovs.TransportDestinationPort(port.Port))}, port.viaFrontend()...)
		}
	}
}

// viaFrontend returns the actions for a packet to a node port.
func (p ServicePort) viaFrontend() []ovs.Action {
	if p.Outside.closed() {
		return []ovs.Action{goovs.Drop()}
	}
	actions := []ovs.Action{goovs.Move("NXM_OF_IP_DST[]", regOriginal)}
	actions = append(actions, p.Outside.evaluateEach(p.Protocol)...)
	return append(actions, goovs.Move(regOriginal, "NXM_OF_IP_DST[]"), setPort(p.Protocol, p.Port), ovs.GotoTable(tableEndpointVerdict))
}

func setPort(protocol goovs.Protocol, port uint16) ovs.Action {
	return goovs.SetField(fmt.Sprint(port), string(protocol)+"_dst")
}

func setAddr(addr netip.Addr) ovs.Action { return goovs.SetField(addr.String(), "ip_dst") }
