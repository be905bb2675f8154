package pipeline

// Reasons for which static flows, and those of remote nodes and egress firewalls, drop packets. The first three are forged, or come from a machine that is no node.
const (
	DropUnknownPeer   = "unknown-peer"    // VXLAN from an address that is no VTEP
	DropForeignSource = "foreign-source"  // VXLAN of a node with an inner source that is not the node's
	DropSpoofedSource = "spoofed-source"  // a pod's packet or ARP with a MAC or an address that is not the pod's
	DropPodTunnel     = "pod-tunnel"      // VXLAN that a pod sent
	DropIsolation     = "isolation"       // the VNIDs differ
	DropNoRoute       = "no-route"        // no flow has the destination
	DropEndpoint      = "endpoint"        // a policy denies an endpoint of the service
	DropEgress        = "egress-firewall" // an EgressNetworkPolicy denies a host outside
	DropCollision     = "collision"       // a second connection with the same addresses and ports
	DropOther         = "other"           // all other flows, such as those that drop IPv6

	// DropPolicy is that of the tables of denied packets, which have a metric of their own.
	DropPolicy = "policy" // a NetworkPolicy or ClusterNetworkPolicy denies it

	DropEgressIPUnassigned  = "egress-ip-unassigned"  // no node hosts the egress IP, or this one does not and another node sends it the packet
	DropEgressIPUnsolicited = "egress-ip-unsolicited" // a packet to an egress IP that is no reply
	DropEgressIPTranslation = "egress-ip-translation" // the source could not be translated to the egress IP: no free port, a full zone, or an invalid packet
)

// DropReasons are all reasons.
func DropReasons() []string {
	return []string{
		DropUnknownPeer, DropForeignSource, DropSpoofedSource, DropPodTunnel, DropIsolation, DropNoRoute, DropEndpoint, DropEgress, DropCollision, DropOther,
		DropEgressIPUnassigned, DropEgressIPUnsolicited, DropEgressIPTranslation,
	}
}

// TunnelIngressTable has the drops of HostSubnets, which depend on the node's peers.
const TunnelIngressTable = tableTunnelIngress

// EgressFirewallTable has the drops of egress firewalls.
const EgressFirewallTable = tableEgressFirewall

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
