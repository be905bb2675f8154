package pipeline

// Table is a flow table of br0.
type Table struct {
	Number  int
	Name    string // as `ovs-ofctl --names dump-flows br0` shows it
	Purpose string // the packets that it handles, and how
}

// Tables returns the tables in the order of their numbers.
func Tables() []Table {
	return []Table{
		{tableClassify, "classify", "packets by input port: the tunnel, tun0, pods"},
		{tableTunnelIngress, "tunnel-ingress", "packets from the tunnel: the VTEP and the source must be those of one HostSubnet"},
		{tablePodIngress, "pod-ingress", "packets of pods: MAC, IP and ARP must be the pod's own; loads its VNID and its bits of reg4"},
		{tableServiceAddress, "service-address", "packets of pods, with --service-proxy=ovs: selects those to addresses of services"},
		{tableOwnNodePort, "own-node-port", "packets of pods to this node, with --service-proxy=ovs: selects those to node ports"},
		{tableServiceReturn, "service-return", "packets of pods that return from the host's proxy: loads what table 20 loaded"},
		{tableEgressTrack, "egress-track", "looks up the connections of pods that policies select"},
		{tableEgressPolicy, "egress-policy", "egress rules of policies"},
		{tableEgressAllowed, "egress-allowed", "loads the zone in which an allowed connection is committed"},
		{tableEgressDenied, "egress-denied", "drops what egress rules deny, with a copy to the agent if the namespace logs it"},
		{tableRoute, "route", "routes by destination"},
		{tableARPLocal, "arp-local", "ARP requests for pods of this node, and replies of external machines to them"},
		{tableARPRemote, "arp-remote", "ARP requests for addresses of other nodes and of external machines"},
		{tableARPAnswer, "arp-answer", "rewrites an ARP request into its reply"},
		{tableService, "service", "packets to services: to the host's proxy, or to an endpoint"},
		{tableNodePort, "node-port", "packets to addresses of nodes: node ports"},
		{tableEndpoint, "endpoint", "starts the evaluation of a packet with an outside endpoint as its destination"},
		{tableEndpointVerdict, "endpoint-verdict", "ends the evaluation of endpoints: drops the packet if one of them is denied"},
		{tableAffinity, "affinity", "endpoints of clients with session affinity: Open vSwitch learns these flows"},
		{tableSelect, "select", "services with session affinity: selects an endpoint for a client that table 64 does not know"},
		{tableLearn, "learn", "learns the endpoint of a client in table 64"},
		{tableTranslate, "translate", "endpoints of services: translates the packet's destination"},
		{tableTranslated, "translated", "packets to services, after their translation"},
		{tableReject, "reject", "packets to services without endpoints: to the host, which rejects them, or, if the service is idled, to table 71"},
		{tableLocalPod, "local-pod", "pods of this node: loads the VNID, the port and the pod's bits of reg4"},
		{tableIdled, "idled", "packets that open connections to idled services, with --unidle: to the agent, at a limited rate for each port"},
		{tableIsolation, "isolation", "isolation by VNIDs"},
		{tableIngressPolicy, "ingress-policy", "ingress rules of policies"},
		{tableIngressAllowed, "ingress-allowed", "loads the zone in which an allowed connection is committed"},
		{tableIngressDenied, "ingress-denied", "drops what ingress rules deny, with a copy to the agent if the namespace logs it"},
		{tableICMPError, "icmp-error", "ICMP errors about connections of pods that policies select: those of a third pod are no replies"},
		{tableRemote, "remote", "pods of other nodes and of external machines: to the tunnel"},
		{tableEgressFirewall, "egress-firewall", "packets to outside: rules of EgressNetworkPolicies"},
		{tableEgressIP, "egress-ip", "packets to outside: to tun0, or to the node that hosts the egress IP of their namespace"},
		{tableEgressIPReply, "egress-ip-reply", "packets to egress IPs: passes replies"},
		{tableMulticastEgress, "multicast-egress", "multicast of VNIDs for which it is enabled"},
		{tableMulticastNodes, "multicast-nodes", "copies of multicast to other nodes"},
		{tableMulticastPods, "multicast-pods", "copies of multicast to pods of this node"},
		{tableCommit, "commit", "commits allowed connections; returns replies to the host's proxy"},
		{tableCollision, "collision", "drops packets of a second connection with the same addresses and ports"},
		{tableServiceReply, "service-reply", "restores the service's address in replies of endpoints"},
		{tableOutput, "output", "outputs packets, also to the port that they came from; limits the bandwidth to pods"},
		{tableEgressIPOutput, "egress-ip-output", "outputs packets whose source is translated to an egress IP"},
		{tableOutsideReply, "outside-reply", "replies of other nodes' endpoints to hosts outside, and other packets to tun0's address that may be such"},
		{tableVersion, "version", "no packet: its flow has the version of the tables; 254 is reserved by OVS"},
	}
}

// TableNames are the names of the tables. They are unique: OVS shows none when two tables share a name.
func TableNames() map[int]string {
	names := map[int]string{}
	for _, t := range Tables() {
		names[t.Number] = t.Name
	}
	return names
}
