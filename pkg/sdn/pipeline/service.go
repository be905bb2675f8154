package pipeline

import (
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Service is a service that the host's proxy balances.
type Service struct {
	ClusterIPs []netip.Addr
	Ports      []ServicePort
	NodePorts  []ServicePort // open on every node
	VNID       config.VNID
}

// ServicePort is one port of a service.
type ServicePort struct {
	Protocol goovs.Protocol // tcp, udp or sctp
	Port     uint16
	Outside  OutsideEndpoints
}

// ProtocolSCTP is the OVS name that go-openvswitch lacks.
const ProtocolSCTP goovs.Protocol = "sctp"

// Service compiles the access to a service through the host's proxy: table 80 evaluates its VNID with tun0 as the output port.
// Before that, packets of pods are evaluated by the endpoints outside of the pod network.
func (n Node) Service(svc Service) State {
	var s State
	toProxy := []ovs.Action{loadVNID(svc.VNID, regDestVNID), loadPort(PortTun), ovs.GotoTable(tableIsolation)}
	for _, addr := range svc.ClusterIPs {
		for _, port := range svc.Ports {
			// table=60,priority=100,tcp,nw_dst=172.30.0.10,tp_dst=443,actions=load:0xabcdef->NXM_NX_REG1[],load:2->NXM_NX_REG2[],goto_table:80
			s.add(tableService, 100, match{protocol: port.Protocol, fields: []ovs.Match{
				ovs.IPDestination(single(addr)), goovs.TransportDestinationPort(port.Port),
			}}, toProxy...)
		}
		n.byEndpoints(&s, svc, addr)
		// No fragment has a port, including the first one (ovs-ofctl(8), set-frags: normal).
		for _, fragment := range []goovs.IPFragFlag{goovs.IPFragFlagFirst, goovs.IPFragFlagLater} {
			// table=60,priority=100,ip,nw_dst=172.30.0.10,nw_frag=first,actions=load:0xabcdef->NXM_NX_REG1[],load:2->NXM_NX_REG2[],goto_table:80
			s.add(tableService, 100, ip(ovs.IPDestination(single(addr)), goovs.IPFrag(fragment)), toProxy...)
		}
	}
	n.byFrontends(&s, svc)
	for _, port := range svc.NodePorts {
		n.nodePort(&s, svc.VNID, port.Protocol, port.Port)
	}
	return s
}

// toProxy compiles that VNID 0 reaches every service through the host's proxy. Pods with policies reach known services only.
func (n Node) toProxy(s *State) {
	switch {
	case n.BalancesServices:
	case n.evaluates():
		// table=60,priority=230,ip,reg0=0,reg4=0/0x1,actions=output:2
		s.add(tableService, 230, ip(ovs.Reg(0, 0), ovs.RegBits(4, 0, sourceEvaluated)), goovs.Output(PortTun))
	default:
		// table=60,priority=200,ip,reg0=0,actions=output:2
		s.add(tableService, 200, ip(ovs.Reg(0, 0)), goovs.Output(PortTun))
	}
}

// routeServices compiles packets to services that have not passed table 60. If this node balances services, its pods and the node itself do not
// send such packets.
func (n Node) routeServices(s *State) {
	action := ovs.GotoTable(tableService)
	if n.BalancesServices {
		action = goovs.Drop()
		// The host would return them to the switch, until their TTL ends.
		for _, hairpin := range hairpins() {
			// table=30,priority=420,ip,nw_dst=169.254.0.10/31,actions=drop
			s.add(tableRoute, 420, ip(ovs.IPDestination(hairpin)), goovs.Drop())
		}
	}
	// table=30,priority=100,ip,nw_dst=172.30.0.0/16,actions=goto_table:60
	// table=30,priority=100,ip,nw_dst=172.30.0.0/16,actions=drop
	s.add(tableRoute, 100, ip(ovs.IPDestination(n.ServiceNetwork)), action)
}

// nodePort compiles the access to a node port of a service through another node, in mode multitenant: that node would send the packet to the pod network as its
// own. Through this node, the host does not change the client's address, by which table 25 identifies the pod.
func (n Node) nodePort(s *State, vnid config.VNID, protocol goovs.Protocol, port uint16) {
	if !n.tenants() || vnid.IsGlobal() {
		return
	}
	to := goovs.TransportDestinationPort(port)
	// table=61,priority=110,tcp,reg0=0xabcdef,tp_dst=30080,actions=goto_table:100
	s.add(tableNodePort, 110, match{protocol: protocol, fields: []ovs.Match{ovs.Reg(0, uint32(vnid)), to}}, ovs.GotoTable(tableEgressFirewall))
	// table=61,priority=100,tcp,tp_dst=30080,actions=drop
	s.add(tableNodePort, 100, match{protocol: protocol, fields: []ovs.Match{to}}, goovs.Drop())
}
