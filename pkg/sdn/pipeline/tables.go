// Package pipeline compiles cluster objects into the flows of br0. Every function here is pure: the same input gives
// the same flows, in the same order, with no client and no I/O.
//
// The pipeline. A packet enters at the top, and every table ends in an explicit drop or default.
//
//	0 classify ──vxlan0──▶ 10 tunnel-ingress ── known peers only; tun_id → reg0; ────────┐
//	     │  │                 packets of a node itself → reg4, reg6                      │
//	     │  ├────tun0────▶ 102 egress-ip-reply ── replies to an egress IP ───────────────┤
//	     │  └────tun0────▶ 25 service-return ── the host's proxy sent it back; reg0 ──┐  │
//	     │       (from the node itself: → reg4, reg6, straight to 30)                 │  │
//	     └───────pods────▶ 20 pod-ingress ── anti-spoof; VNID → reg0 ──┐              │  │
//	                             │ to a service                        ▼              │  │
//	                             ▼                              26 egress-track ◀─────┘  │
//	                        60 service                          27 egress-policy         │
//	                             │ to tun0, the host's proxy    28 egress-allowed        │
//	                             │                                     ▼                 │
//	                             │                                30 route ◀─────────────┘
//	                             ▼                                     │
//	 ┌──────────┬────────────┬───────────┬───────────┬─────────────────┴┬──────────────┐
//	 ▼ ARP here ▼ ARP there  ▼ IP here   ▼ IP there  ▼ a service        ▼ outside      ▼ multicast
//	 40         50           70          90          60                 61 node-port   110
//	 arp-local  arp-remote   local-pod   remote      service            (to nodes)     multicast-egress
//	 ▼          ▼            VNID → reg1 → vxlan0    → 80               100 egress-    111 multicast-nodes
//	 51 arp-answer           port → reg2                                firewall       → vxlan0
//	 → to the requester      ▼                                          101 egress-ip  120 multicast-pods
//	                         80 isolation                               → tun0         → ports
//	                         81 ingress-policy
//	                         82 ingress-allowed                         → or vxlan0
//	                         ▼
//	                         130 commit
//	                         131 collision
//	                         ▼
//	                         133 output → reg2
//	                         134 egress-ip-output → tun0
//
// ARP requests pass the meter of their port in 0 and 20. 51 answers them in place of pods and nodes. Only external machines receive requests, from 50,
// and only their replies pass 30, to 40 (docs/decisions/0007-arp.md).
//
// Packets that 27 and 81 deny end in 29 egress-denied and 83 ingress-denied, which send a copy to the agent if the namespace logs denied packets.
//
// 100 evaluates packets to outside by the egress firewall of the source's namespace, whose number 20 and 25 load (docs/decisions/0018-egress-policies.md).
//
// 101 sends packets of namespaces with an egress IP, which 20 and 25 load into reg11, to the node that hosts it. There 133 translates their source, and 134
// outputs them. Replies pass 102 (docs/decisions/0019-egress-ips.md).
//
// 130 commits allowed connections to conntrack, and returns replies to the host's proxy. Packets of 90 and 101 pass it, too.
//
// A pod's packet to a service with endpoints outside of the pod network passes 60 only if it may reach all of them: 60 sends it with each of them as its
// destination through 62 endpoint to 27, 30, 61, 100 and 101, which evaluate it without an output, and then to 63 endpoint-verdict, which continues with 80.
//
// 131 drops packets of a pod whose addresses and ports are those of another connection of the pod, where one of the two is direct and the
// other goes through the host's proxy.
//
// With --service-proxy=ovs the host has no proxy. 60 looks up the packet's connection in its zone of NAT. For a new one, the group of the service selects
// an endpoint, to which 67 translate sends the packet; with session affinity 64 to 66 retain a client's endpoint. 68 translated continues with 26
// (packets of the node itself with 30), whose tables evaluate the endpoint as the destination. Where the tables above output a packet, 132
// service-reply translates replies, before 133 outputs them (docs/decisions/0011-services.md). 69 reject sends packets to services without endpoints
// to the host.
//
// Packets of a pod with a limit of its bandwidth pass a meter in 20, and packets to it one in 133 (docs/decisions/0015-bandwidth.md).
//
// A packet that a service sends back to its pod, with another source, passes 80 as a packet of the pod to itself through 25 to 28 and 81 to 82, which restores
// the source (docs/decisions/0013-hairpins.md).
//
// Mode subnet evaluates no sources: 27 continues with 30, 80 with 133, and the tables in between are not used.
//
//	253 version ── one note: the plugin id, then a hash of the static flows
//
// Isolation by mode: in multitenant a packet passes table 80 if reg0 = reg1 or either is 0, and there is a flow for each VNID that
// has a pod on the node; in subnet and networkpolicy every packet passes it. Policies are evaluated in multitenant and networkpolicy.
package pipeline

// The numbers of the tables are those of OpenShift SDN, which its users know. docs/pipeline.md lists the flows of each.
const (
	tableClassify        = 0   // packets by input port: the tunnel, tun0, pods
	tableTunnelIngress   = 10  // packets from the tunnel: the VTEP and the source must be those of one HostSubnet
	tablePodIngress      = 20  // packets of pods: MAC, IP and ARP must be the pod's own; loads its VNID and its bits of reg4
	tableServiceReturn   = 25  // packets of pods that return from the host's proxy: loads what table 20 loaded
	tableEgressTrack     = 26  // looks up the connections of pods that policies select
	tableEgressPolicy    = 27  // egress rules of policies
	tableEgressAllowed   = 28  // loads the zone in which an allowed connection is committed
	tableEgressDenied    = 29  // drops what egress rules deny, with a copy to the agent if the namespace logs it
	tableRoute           = 30  // routes by destination
	tableARPLocal        = 40  // ARP requests for pods of this node, and replies of external machines to them
	tableARPRemote       = 50  // ARP requests for addresses of other nodes and of external machines
	tableARPAnswer       = 51  // rewrites an ARP request into its reply
	tableService         = 60  // packets to services: to the host's proxy, or to an endpoint
	tableNodePort        = 61  // packets to addresses of nodes: node ports
	tableEndpoint        = 62  // starts the evaluation of a packet with an outside endpoint as its destination
	tableEndpointVerdict = 63  // ends the evaluation of endpoints: drops the packet if one of them is denied
	tableAffinity        = 64  // endpoints of clients with session affinity: Open vSwitch learns these flows
	tableSelect          = 65  // services with session affinity: selects an endpoint for a client that table 64 does not know
	tableLearn           = 66  // learns the endpoint of a client in table 64
	tableTranslate       = 67  // endpoints of services: translates the packet's destination
	tableTranslated      = 68  // packets to services, after their translation
	tableReject          = 69  // packets to services without endpoints: to the host, which rejects them
	tableLocalPod        = 70  // pods of this node: loads the VNID, the port and the pod's bits of reg4
	tableIsolation       = 80  // isolation by VNIDs
	tableIngressPolicy   = 81  // ingress rules of policies
	tableIngressAllowed  = 82  // loads the zone in which an allowed connection is committed
	tableIngressDenied   = 83  // drops what ingress rules deny, with a copy to the agent if the namespace logs it
	tableRemote          = 90  // pods of other nodes and of external machines: to the tunnel
	tableEgressFirewall  = 100 // packets to outside: rules of EgressNetworkPolicies
	tableEgressIP        = 101 // packets to outside: to tun0, or to the node that hosts the egress IP of their namespace
	tableEgressIPReply   = 102 // packets to egress IPs: passes replies
	tableMulticastEgress = 110 // multicast of VNIDs for which it is enabled
	tableMulticastNodes  = 111 // copies of multicast to other nodes
	tableMulticastPods   = 120 // copies of multicast to pods of this node
	tableCommit          = 130 // commits allowed connections; returns replies to the host's proxy
	tableCollision       = 131 // drops packets of a second connection with the same addresses and ports
	tableServiceReply    = 132 // restores the service's address in replies of endpoints
	tableOutput          = 133 // outputs packets, also to the port that they came from; limits the bandwidth to pods
	tableEgressIPOutput  = 134 // outputs packets whose source is translated to an egress IP
	tableVersion         = 253 // no packet: its flow has the version of the tables; 254 is reserved by OVS
)

// Ports with a fixed OpenFlow number.
const (
	PortVXLAN = 1 // vxlan0
	PortTun   = 2 // tun0, the host's interface to the pod network
)

// Registers, by the names that load, move and output take (docs/decisions/0001-conntrack.md, 0006-node-as-source.md). policy.go has the bits of reg4.
const (
	regSourceVNID     = "NXM_NX_REG0[]"        // VNID of the source; 1 if it is outside of the cluster network
	regDestVNID       = "NXM_NX_REG1[]"        // VNID of the destination; in an ARP request the last four bytes of the MAC in its reply
	regOutput         = "NXM_NX_REG2[]"        // output port; while table 51 rewrites an ARP request, the requested address
	regZone           = "NXM_NX_REG3[]"        // conntrack zone in which the connection is committed; 0: it is not
	regDenied         = "NXM_NX_REG5[]"        // number of the rule that denies the packet; 0: none
	regNodeAddress    = "NXM_NX_REG6[]"        // the other address of the node that is the source: its own IP if the source is a tun0 address, else its first tun0 address; 0: the source is no node
	regOriginal       = "NXM_NX_REG7[]"        // the packet's own address while another one is evaluated: the destination of a packet to a node port, the source of a hairpin
	regEgressFirewall = "NXM_NX_REG10[]"       // number of the egress firewall of the source's namespace on this node; 0: none
	regEgressIP       = "NXM_NX_REG11[]"       // egress IP of the source's namespace; 0: none
	tunID             = "NXM_NX_TUN_ID[0..31]" // VNI of the tunnel, which is the VNID of the source
)

// The numbers of registers that are matched or reported as a whole.
const (
	numberDenied         = 5  // regDenied
	numberNodeAddress    = 6  // regNodeAddress
	numberEgressFirewall = 10 // regEgressFirewall
	numberEgressIP       = 11 // regEgressIP
)

// TableNames are the names that `ovs-ofctl --names dump-flows br0` shows. They are unique: OVS shows none
// when two tables share a name.
func TableNames() map[int]string {
	return map[int]string{
		tableClassify:        "classify",
		tableTunnelIngress:   "tunnel-ingress",
		tablePodIngress:      "pod-ingress",
		tableServiceReturn:   "service-return",
		tableEgressTrack:     "egress-track",
		tableEgressPolicy:    "egress-policy",
		tableEgressAllowed:   "egress-allowed",
		tableEgressDenied:    "egress-denied",
		tableRoute:           "route",
		tableARPLocal:        "arp-local",
		tableARPRemote:       "arp-remote",
		tableARPAnswer:       "arp-answer",
		tableService:         "service",
		tableNodePort:        "node-port",
		tableEndpoint:        "endpoint",
		tableEndpointVerdict: "endpoint-verdict",
		tableAffinity:        "affinity",
		tableSelect:          "select",
		tableLearn:           "learn",
		tableTranslate:       "translate",
		tableTranslated:      "translated",
		tableReject:          "reject",
		tableLocalPod:        "local-pod",
		tableIsolation:       "isolation",
		tableIngressPolicy:   "ingress-policy",
		tableIngressAllowed:  "ingress-allowed",
		tableIngressDenied:   "ingress-denied",
		tableRemote:          "remote",
		tableEgressFirewall:  "egress-firewall",
		tableEgressIP:        "egress-ip",
		tableEgressIPReply:   "egress-ip-reply",
		tableMulticastEgress: "multicast-egress",
		tableMulticastNodes:  "multicast-nodes",
		tableMulticastPods:   "multicast-pods",
		tableCommit:          "commit",
		tableCollision:       "collision",
		tableServiceReply:    "service-reply",
		tableOutput:          "output",
		tableEgressIPOutput:  "egress-ip-output",
		tableVersion:         "version",
	}
}
