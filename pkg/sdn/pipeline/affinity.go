package pipeline

import (
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Limits of the clients for which endpoints are learned: hosts outside can forge sources. Further clients get an endpoint for each connection. A node has fewer pods.
const (
	maxAffine        = 1024      // of each endpoint of a frontend
	maxServiceAffine = 64 * 1024 // of a service, as long as each of its endpoints may have minAffine of each frontend
	minAffine        = 8
)

// affineClients returns for how many clients each endpoint of each frontend of a service is learned. It is a power of two, so that few changes of the endpoints
// change it, and with it all flows of table 66.
func affineClients(frontends []Frontend) int {
	flows, clients := 0, maxAffine
	for _, f := range frontends {
		if f.Affinity > 0 {
			flows += len(f.Endpoints)
		}
	}
	for flows*clients > maxServiceAffine && clients > minAffine {
		clients /= 2
	}
	return clients
}

// learn returns the action that learns the client's endpoint. Open vSwitch deletes what it learned with the flow that has the action: a client's
// endpoint that the service loses is not used again.
func (f Frontend) learn(endpoint netip.AddrPort) ovs.Action {
	ofPacket := func(field string) ovs.Match { return goovs.FieldMatch(field, field) }
	return goovs.Learn(&goovs.LearnedFlow{
		Table: tableAffinity, Priority: defaultPriority, IdleTimeout: int(f.Affinity), DeleteLearned: true, Limit: f.clients,
		Cookie: Owner{KindAffinity, f.String() + " " + endpoint.String()}.Cookie(),
		Matches: []ovs.Match{
			goovs.DataLinkType(etherTypeIPv4), goovs.NetworkProtocol(f.protocolNumber()), ofPacket("NXM_OF_IP_SRC[]"), ofPacket("NXM_OF_IP_DST[]"), ofPacket(f.portField()),
		},
		Actions: []ovs.Action{goovs.Load(regEndpointAddr, regEndpointAddr), goovs.Load(regEndpointPort, regEndpointPort)},
	})
}

const etherTypeIPv4 = 0x0800

// protocolNumber returns IANA's number of the protocol.
func (f Frontend) protocolNumber() uint8 {
	switch f.Protocol {
	case goovs.ProtocolUDPv4:
		return 17
	case ProtocolSCTP:
		return 132
	}
	return 6
}

// portField returns the destination port by the name that learn takes.
func (f Frontend) portField() string {
	switch f.Protocol {
	case goovs.ProtocolUDPv4:
		return "NXM_OF_UDP_DST[]"
	case ProtocolSCTP:
		return "OXM_OF_SCTP_DST[]"
	}
	return "NXM_OF_TCP_DST[]"
}
