package pipeline

// Reasons for which static flows, and those of remote nodes and egress firewalls, drop packets. The first three are forged, or come from a machine that is no node.
const (
	DropUnknownPeer   = "unknown-peer"        // VXLAN from an address that is no VTEP
	DropForeignSource = "foreign-source"      // VXLAN of a node with an inner source that is not the node's
	DropSpoofedSource = "spoofed-source"      // a pod's packet or ARP with a MAC or an address that is not the pod's
	DropPodTunnel     = "pod-tunnel"          // VXLAN that a pod sent
	DropIsolation     = "isolation"           // the VNIDs differ
	DropNoRoute       = "no-route"            // no flow has the destination
	DropEndpoint      = "endpoint"            // a policy denies an endpoint of the service
	DropEgress        = "egress-firewall"     // an EgressNetworkPolicy denies a host outside
	DropCollision     = "collision"           // a second connection with the same addresses and ports
	DropTranslation   = "service-translation" // a packet to a service could not be translated: the zone of the client is full, or no port is free
	DropOther         = "other"               // all other flows, such as those that drop IPv6

	// DropPolicy is that of the tables of denied packets, which have a metric of their own.
	DropPolicy = "policy" // a NetworkPolicy or ClusterNetworkPolicy denies it

	DropEgressIPUnassigned  = "egress-ip-unassigned"  // no node hosts the egress IP, or this one does not and another node sends it the packet
	DropEgressIPUnsolicited = "egress-ip-unsolicited" // a packet to an egress IP that is no reply
	DropEgressIPTranslation = "egress-ip-translation" // the source could not be translated to the egress IP: no free port, a full zone, or an invalid packet
)

// DropReasons are all reasons.
func DropReasons() []string {
	return []string{
		DropUnknownPeer, DropForeignSource, DropSpoofedSource, DropPodTunnel, DropIsolation, DropNoRoute, DropEndpoint, DropEgress, DropCollision, DropTranslation, DropOther,
		DropEgressIPUnassigned, DropEgressIPUnsolicited, DropEgressIPTranslation,
	}
}

// TunnelIngressTable has the drops of HostSubnets, which depend on the node's peers.
const TunnelIngressTable = tableTunnelIngress

// EgressFirewallTable has the drops of egress firewalls.
const EgressFirewallTable = tableEgressFirewall

// IsolationTable has the verdicts of VNIDs.
const IsolationTable = tableIsolation

// EndpointVerdictTable ends the evaluation of a packet with each outside endpoint of a service as its destination. If a flow there drops the packet, one before it has
// denied an endpoint.
const EndpointVerdictTable = tableEndpointVerdict

// The tables whose packets are all denied by policies.
const (
	IngressDeniedTable = tableIngressDenied
	EgressDeniedTable  = tableEgressDenied
)

// DropReason returns the reason for which a flow of that table and priority drops packets, if it drops any.
func DropReason(table, priority int) string {
	switch {
	case table == tableTunnelIngress && priority == 0:
		return DropUnknownPeer
	case table == tableTunnelIngress:
		return DropForeignSource
	case table == tablePodIngress && priority == 0:
		return DropSpoofedSource
	case table == tablePodIngress:
		return DropPodTunnel
	case table == tableIsolation && priority == 0:
		return DropIsolation
	case table == tableTranslated && priority < translatedTunnel, table == tableRoute && priority == routeUnmasqueraded, table == tableReject && priority == rejectUntranslated:
		return DropTranslation
	case priority == 0 && (table == tableRoute || table == tableLocalPod || table == tableRemote || table == tableARPLocal || table == tableARPRemote):
		return DropNoRoute
	case table == tableEndpointVerdict:
		return DropEndpoint
	case table == tableEgressFirewall:
		return DropEgress
	case table == tableCollision:
		return DropCollision
	case table == tableEgressIP:
		return DropEgressIPUnassigned
	case table == tableEgressIPReply:
		return DropEgressIPUnsolicited
	case table == tableOutput || table == tableEgressIPOutput:
		return DropEgressIPTranslation
	}
	return DropOther
}

// ExplainDrop returns the cause for which a flow of that table and priority drops packets, for the end of a sentence.
func ExplainDrop(table, priority int) string {
	switch reason := DropReason(table, priority); reason {
	case DropUnknownPeer:
		return "the packet came through the tunnel from an address that is the hostIP of no HostSubnet"
	case DropForeignSource:
		return "spoofed source: it is in no subnet of the node that sent the packet through the tunnel"
	case DropSpoofedSource:
		return "spoofed source: the MAC or the address is not the pod's"
	case DropPodTunnel:
		return "pods may not send VXLAN"
	case DropIsolation:
		return "the VNID of the source may not reach that of the destination"
	case DropNoRoute:
		return explainNoRoute(table)
	case DropEndpoint:
		return "the pod may not reach all endpoints of the service that are outside of the pod network"
	case DropEgress:
		return explainFirewall(priority)
	case DropCollision:
		return "another connection of the pod has the same addresses and ports: one is direct or through a service in the switch, the other through the host (kube-proxy or a host port)"
	case DropTranslation:
		return explainTranslation(table)
	case DropEgressIPUnassigned:
		if priority >= egressTunnel {
			return "this node does not host the egress IP to which another node sends the packet"
		}
		return "no node hosts the egress IP of the namespace"
	case DropEgressIPUnsolicited:
		return "it is no reply to a packet that left with the egress IP"
	case DropEgressIPTranslation:
		return "the source could not be translated to the egress IP"
	}
	return explainOther(table, priority)
}

func explainNoRoute(table int) string {
	switch table {
	case tableLocalPod:
		return "no pod of this node has the destination"
	case tableRemote:
		return "no HostSubnet has a subnet with the destination, or its fixed VNID is another one"
	}
	return "no route has the destination"
}

func explainFirewall(priority int) string {
	if priority < firewallBase {
		return "the rules of the namespace's egress firewall are missing: the switch refused them"
	}
	return "egress firewall: an EgressNetworkPolicy of the namespace denies the destination"
}

func explainTranslation(table int) string {
	switch table {
	case tableRoute:
		return "the source of a connection from outside to a service could not be translated: the conntrack zone is full (ovs-appctl dpctl/ct-get-limits), or no port is free"
	case tableReject:
		return "the service has no endpoints, and the packet could not be rejected: the conntrack zone of the client is full (ovs-appctl dpctl/ct-get-limits)"
	}
	return "the destination could not be translated to an endpoint: the conntrack zone of the client is full (ovs-appctl dpctl/ct-get-limits), or the packet is " +
		"invalid, such as a FIN or RST of a connection that conntrack no longer has"
}

// explainOther explains the drops of DropOther.
func explainOther(table, priority int) string {
	switch table {
	case tableServiceReturn:
		return "no pod of this node has the source"
	case tableEgressDenied:
		return "egress policies of the source deny it"
	case tableIngressDenied:
		return "ingress policies of the destination deny it"
	case tableService:
		switch {
		case priority == serviceLimited:
			return "the service's loadBalancerSourceRanges do not have the source"
		case priority == serviceUnopened:
			return "the service port is not open to hosts outside, or has no endpoints for them on this node"
		case priority >= servicePort:
			return "the service port is closed: its traffic policy is Local and this node has no endpoint, its loadBalancerSourceRanges have no client, " +
				"or its endpoints are unknown, or too many"
		}
		return "no service that the VNID of the source may use has the address and port"
	case tableNodePort:
		return "the VNID of the source may not use the node port of another VNID, or the service port is closed"
	case tableRoute:
		return "packets to services or to link-local addresses do not pass here"
	case tableMulticastEgress, tableMulticastNodes, tableMulticastPods:
		return "multicast is not enabled for the VNID, or it has no receivers"
	case tableReject:
		if priority > 0 {
			return "the service is idled, and the packet opens no connection"
		}
	case tableIdled:
		if priority > 0 {
			return "the service is idled: the agent holds the packet until the service has an endpoint, if it has room"
		}
	case tableTranslated:
		return "the endpoint's port is that of VXLAN"
	case tableClassify:
		return "packets of that kind do not enter the bridge by this port"
	}
	return "no flow passes it"
}
