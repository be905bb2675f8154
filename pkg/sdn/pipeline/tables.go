// Package pipeline compiles cluster objects into the flows of br0. Every function here is pure: the same input gives
// the same flows, in the same order, with no client and no I/O.
//
// The pipeline. A packet enters at the top, and every table ends in an explicit drop or default.
//
//	 0 classify ──vxlan0──▶ 10 tunnel-ingress ── known peers only; tun_id → reg0; ────────┐
//	      │  │                 packets of a node itself → reg4, reg6                      │
//	      │  └────tun0────▶ 25 service-return ── the host's proxy sent it back; reg0 ──┐  │
//	      │       (from the node itself: → reg4, reg6, straight to 30)                 │  │
//	      └───────pods────▶ 20 pod-ingress ── anti-spoof; VNID → reg0 ──┐              │  │
//	                              │ to a service                        ▼              │  │
//	                              ▼                              26 egress-track ◀─────┘  │
//	                         60 service                          27 egress-policy         │
//	                              │ to tun0, the host's proxy    28 egress-allowed        │
//	                              │                                     ▼                 │
//	                              │                                30 route ◀─────────────┘
//	                              ▼                                     │
//	  ┌──────────┬────────────┬───────────┬───────────┬─────────────────┴┬──────────────┐
//	  ▼ ARP here ▼ ARP there  ▼ IP here   ▼ IP there  ▼ a service        ▼ outside      ▼ multicast
//	  40         50           70          90          60                 61 node-port   110
//	  arp-local  arp-remote   local-pod   remote      service            (to nodes)     multicast-egress
//	  ▼          ▼            VNID → reg1 → vxlan0    → 80               100 egress-    111 multicast-nodes
//	  51 arp-answer           port → reg2                                firewall       → vxlan0
//	  → back to who asks      ▼                                          101 egress-ip  120 multicast-pods
//	                          80 isolation                               → tun0         → ports
//	                          81 ingress-policy
//	                          82 ingress-allowed
//	                          ▼
//	                          130 commit → reg2
//	                          131 collision → reg2
//
//	ARP requests pass the meter of their port in 0 and 20. 51 answers them in place of pods and nodes; only machines that are no nodes receive them, from
//	50, and only their answers pass 30, to 40 (docs/decisions/0007-arp.md).
//	What 27 and 81 deny ends in 29 egress-denied and 83 ingress-denied, where the agent is told of it if that is wanted.
//	130 is where connections are kept that were allowed, and where answers go back to the host's proxy. 90 and 101 pass it too.
//	A pod's packet to a service with endpoints outside of the pod network passes 60 only if it may go to all of these: 60 sends it with each of them as its
//	destination through 62 endpoint to 27, 30, 61, 100 and 101, where it is not sent, and then to 63 endpoint-verdict, which leads on to 80.
//	131 drops packets of a pod whose addresses and ports are those of another connection of the pod, where one of the two is direct and the
//	other goes through the host's proxy.
//	Mode subnet judges nobody: 27 leads to 30, 80 to the port, and the tables between are not in use.
//
//	253 version ── one note: the plugin id, then a hash of the static flows
//
// Registers: reg0 is the source's VNID, reg1 the destination's VNID, reg2 the output port, reg3 the zone in which the
// packet's connection is to be kept, 0 for none (docs/decisions/0001-conntrack.md), reg4 what policies make of it (policy.go),
// reg5 the number of the rule that denies it, 0 for none, reg6 the other address of the node that is the packet's source: its own IP if the
// source is a tun0 address, else its first tun0 address; 0 if the source is no node (docs/decisions/0006-node-as-source.md), reg7 the destination of a
// packet while it is evaluated by the endpoints of a service (frontends.go). For ARP reg1 is the last four bytes of the MAC that answers, and reg2 the
// address that was asked for.
//
// Isolation by mode: in multitenant a packet passes table 80 if reg0 = reg1 or either is 0, and there is a flow for each VNID that
// has a pod here; in subnet and networkpolicy every packet passes it. Policies are judged in multitenant and networkpolicy.
package pipeline

// The tables. The numbers are OpenShift SDN's; people know them by heart.
const (
	tableClassify        = 0
	tableTunnelIngress   = 10
	tablePodIngress      = 20
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
	tableLocalPod        = 70
	tableIsolation       = 80
	tableIngressPolicy   = 81
	tableIngressAllowed  = 82
	tableIngressDenied   = 83
	tableRemote          = 90
	tableEgressFirewall  = 100
	tableEgressIP        = 101
	tableMulticastEgress = 110
	tableMulticastNodes  = 111
	tableMulticastPods   = 120
	tableCommit          = 130
	tableCollision       = 131
	tableVersion         = 253 // 254 is reserved by OVS for its own use
)

// Ports with a fixed OpenFlow number.
const (
	PortVXLAN = 1 // vxlan0
	PortTun   = 2 // tun0, the host's door to the pods
)

// Registers, by the names that load, move and output take.
const (
	regSourceVNID  = "NXM_NX_REG0[]"
	regDestVNID    = "NXM_NX_REG1[]"
	regOutput      = "NXM_NX_REG2[]"
	regZone        = "NXM_NX_REG3[]"
	regDenied      = "NXM_NX_REG5[]"
	regNodeAddress = "NXM_NX_REG6[]"
	tunID          = "NXM_NX_TUN_ID[0..31]"
)

// The numbers of registers that are matched or reported as a whole.
const (
	numberDenied      = 5 // regDenied
	numberNodeAddress = 6 // regNodeAddress
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
		tableLocalPod:        "local-pod",
		tableIsolation:       "isolation",
		tableIngressPolicy:   "ingress-policy",
		tableIngressAllowed:  "ingress-allowed",
		tableIngressDenied:   "ingress-denied",
		tableRemote:          "remote",
		tableEgressFirewall:  "egress-firewall",
		tableEgressIP:        "egress-ip",
		tableMulticastEgress: "multicast-egress",
		tableMulticastNodes:  "multicast-nodes",
		tableMulticastPods:   "multicast-pods",
		tableCommit:          "commit",
		tableCollision:       "collision",
		tableVersion:         "version",
	}
}
