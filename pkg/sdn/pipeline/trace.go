package pipeline

import (
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Tables by which the way of a packet is explained; drops.go has others.
const (
	PodIngressTable     = tablePodIngress
	ServiceReturnTable  = tableServiceReturn
	RouteTable          = tableRoute
	ServiceTable        = tableService
	EndpointTable       = tableEndpoint // begins the evaluation of the packet with an outside endpoint of a service as its destination
	TranslateTable      = tableTranslate
	RejectTable         = tableReject
	LocalPodTable       = tableLocalPod
	RemoteTable         = tableRemote
	EgressIPTable       = tableEgressIP
	CommitTable         = tableCommit
	ServiceReplyTable   = tableServiceReply // the only one that translates packets after all verdicts
	EgressIPOutputTable = tableEgressIPOutput
)

// ReplyToProxyPriority is that of the flow of CommitTable that returns replies to the host's proxy.
const ReplyToProxyPriority = 300

// TunnelID returns the name of the tunnel's VNI that the actions load and move have.
func TunnelID() string { return tunID }

// EndpointKey returns the key of the flow of TranslateTable for the endpoint of a service that the switch balances.
func EndpointKey(protocol goovs.Protocol, endpoint netip.AddrPort) (ovs.Key, error) {
	return ovs.FlowKey(&ovs.Flow{Table: tableTranslate, Priority: endpointPriority, Protocol: protocol, Matches: isEndpoint(endpoint)})
}

const endpointPriority = 100 // of endpoints in table 67
