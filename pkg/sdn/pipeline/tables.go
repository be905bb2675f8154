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
// 27 and 81 pass replies of allowed connections. Of ICMP errors about these, 84 icmp-error, from which they return, selects those that count as replies.
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
// 131 drops packets of a pod whose addresses and ports are those of another connection of the pod, where one of the two is direct or through a service in the
// switch, and the other goes through the host (kube-proxy or a host port).
//
// With --service-proxy=ovs the host has no proxy. 21 service-address selects a pod's packets to services, and 22 own-node-port those to node ports of this
// node; all other packets continue with 26. 60 looks up the packet's connection in its zone of NAT. For a new one, the group of the service selects
// an endpoint, to which 67 translate sends the packet; with session affinity 64 to 66 retain a client's endpoint. 68 translated continues with 26
// (packets of the node itself with 30), whose tables evaluate the endpoint as the destination. Where the tables above output a packet, 132
// service-reply translates replies, before 133 outputs them (docs/decisions/0011-services.md). 69 reject sends packets to services without endpoints
// to the host or, if the service is idled, to 71 idled, which sends them to the agent through the meter of their port.
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

// The numbers of the tables are those of OpenShift SDN, which its users know. They are permanent (docs/decisions/0023-table-numbers.md). Tables has their meaning,
// docs/pipeline.md the flows of each.
const (
	tableClassify        = 0
	tableTunnelIngress   = 10
	tablePodIngress      = 20
	tableServiceAddress  = 21
	tableOwnNodePort     = 22
	tableServiceReturn   = 25
	tableEgressTrack     = 26
	tableEgressPolicy    = 27
	tableEgressAllowed   = 28
	tableEgressDenied    = 29
	tableRoute           = 30
	tableARPLocal        = 40
	tableARPRemote       = 50
	tableARPAnswer       = 51
	tableService         = 60
	tableNodePort        = 61
	tableEndpoint        = 62
	tableEndpointVerdict = 63
	tableAffinity        = 64
	tableSelect          = 65
	tableLearn           = 66
	tableTranslate       = 67
	tableTranslated      = 68
	tableReject          = 69
	tableLocalPod        = 70
	tableIdled           = 71
	tableIsolation       = 80
	tableIngressPolicy   = 81
	tableIngressAllowed  = 82
	tableIngressDenied   = 83
	tableICMPError       = 84
	tableRemote          = 90
	tableEgressFirewall  = 100
	tableEgressIP        = 101
	tableEgressIPReply   = 102
	tableMulticastEgress = 110
	tableMulticastNodes  = 111
	tableMulticastPods   = 120
	tableCommit          = 130
	tableCollision       = 131
	tableServiceReply    = 132
	tableOutput          = 133
	tableEgressIPOutput  = 134
	tableOutsideReply    = 135
	tableVersion         = 253
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
