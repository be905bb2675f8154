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
	NodePorts  []ServicePort // that every node has for it
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

// Service compiles who may reach the service through the host's proxy: its VNID is judged in table 80 with tun0 as
// the output port. Before that, packets of pods are evaluated by the endpoints outside of the pod network.
func (n Node) Service(svc Service) State {
	var s State
	toProxy := []ovs.Action{loadVNID(svc.VNID, regDestVNID), loadPort(PortTun), ovs.GotoTable(tableIsolation)}
	for _, addr := range svc.ClusterIPs {
		for _, port := range svc.Ports {
			s.add(tableService, 100, match{protocol: port.Protocol, fields: []ovs.Match{
				ovs.IPDestination(single(addr)), goovs.TransportDestinationPort(port.Port),
			}}, toProxy...)
		}
		n.byEndpoints(&s, svc, addr)
		// Fragments have no port, the first one neither (ovs-ofctl(8), set-frags: normal).
		for _, fragment := range []goovs.IPFragFlag{goovs.IPFragFlagFirst, goovs.IPFragFlagLater} {
			s.add(tableService, 100, ip(ovs.IPDestination(single(addr)), goovs.IPFrag(fragment)), toProxy...)
		}
	}
	n.byFrontends(&s, svc)
	n.nodePorts(&s, svc)
	return s
}

// nodePorts compiles who may reach the service through another node, in mode multitenant: it would come back to the cluster as that
// node's own. Through this node, the host keeps the client's address, and table 25 knows it.
func (n Node) nodePorts(s *State, svc Service) {
	if !n.tenants() || svc.VNID.IsGlobal() {
		return
	}
	for _, port := range svc.NodePorts {
		to := goovs.TransportDestinationPort(port.Port)
		s.add(tableNodePort, 110, match{protocol: port.Protocol, fields: []ovs.Match{ovs.Reg(0, uint32(svc.VNID)), to}},
			ovs.GotoTable(tableEgressFirewall))
		s.add(tableNodePort, 100, match{protocol: port.Protocol, fields: []ovs.Match{to}}, goovs.Drop())
	}
}
