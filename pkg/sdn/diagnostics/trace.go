package diagnostics

import (
	"net/url"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeTracePath is the path of NodeTrace on the HTTPS port of an agent, with the query parameters of TracePacket.
const NodeTracePath = "/diagnostics/v1alpha1/trace"

// Verdict is the end of a packet, or of its path on one node.
type Verdict string

// The verdicts.
const (
	VerdictDelivered Verdict = "Delivered" // to the pod, the host of the node, or out of the cluster
	VerdictDropped   Verdict = "Dropped"
	VerdictForwarded Verdict = "Forwarded" // to another node, or to the host; only of a hop
	VerdictUnknown   Verdict = "Unknown"   // a node did not answer, or what decides is not known to the agent
)

// Trace asks for the path of a packet, and has the answer. Only create is possible; nothing is stored and no packet is sent.
type Trace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   TraceSpec   `json:"spec"`
	Status TraceStatus `json:"status,omitzero"`
}

// TraceSpec is the first packet of a connection.
type TraceSpec struct {
	Source      string `json:"source"`             // pod/NAMESPACE/NAME, node/NAME, or an IPv4 address outside of the pod network
	Destination string `json:"destination"`        // also service/NAMESPACE/NAME
	Protocol    string `json:"protocol,omitempty"` // TCP (default), UDP, SCTP or ICMP
	Port        int32  `json:"port,omitempty"`     // the destination's, or the service's; not with ICMP
	SourcePort  int32  `json:"sourcePort,omitempty"`
}

// TraceStatus is the answer. Verdict is Delivered only if that of all paths is.
type TraceStatus struct {
	Verdict Verdict     `json:"verdict"`
	Reason  string      `json:"reason"` // a sentence: what decided, with the object
	Paths   []TracePath `json:"paths,omitempty"`
	// Truncated reports that endpoints of the service beyond MaxTracePaths were left out.
	Truncated bool `json:"truncated,omitempty"`
}

// DefaultSourcePort is that of packets for which none is given, one of those of clients.
const DefaultSourcePort = 49152

// MaxTracePaths is the largest number of endpoints of a service that one trace follows.
const MaxTracePaths = 16

// TracePath is the way of the packet to one endpoint of a service, or to the only destination.
type TracePath struct {
	Endpoint string  `json:"endpoint,omitempty"` // of a service: ADDRESS:PORT, and the pod if the user may read it
	Verdict  Verdict `json:"verdict"`
	Reason   string  `json:"reason"`
	Hops     []Hop   `json:"hops,omitempty"`
	// NotEvaluated lists what may also decide, but is not evaluated, such as rules of other programs on the host.
	NotEvaluated []string `json:"notEvaluated,omitempty"`
}

// Hop is the way of the packet through the bridge of one node.
type Hop struct {
	Node    string      `json:"node"`
	From    string      `json:"from"` // where the packet enters: the pod, the tunnel or the host
	Packet  TracePacket `json:"packet"`
	Verdict Verdict     `json:"verdict"`
	Reason  string      `json:"reason"`
	Steps   []TraceStep `json:"steps,omitempty"`
}

// ConntrackState is the state that a trace assumes for each lookup of the packet's connection.
type ConntrackState string

// The states of a connection.
const (
	ConntrackNew   ConntrackState = "new"
	ConntrackReply ConntrackState = "reply" // of an established connection
)

// TracePacket is a packet that enters the bridge of a node. As a query each field is the parameter of its JSON name.
type TracePacket struct {
	// From is pod/NAMESPACE/NAME on the node, node/NAME for the tunnel from another node, or host for tun0.
	From string `json:"from"`
	VNID uint32 `json:"vnid,omitempty"` // of a packet from the tunnel
	// Origin is why the host forwards the packet, by which its firewall marks it; "" is one of the host itself, or of a pod to another through a service.
	Origin PacketOrigin `json:"origin,omitempty"`

	// EgressIP is the egress IP to which the node has to translate the source of a packet from the tunnel to outside.
	EgressIP string `json:"egressIP,omitempty"`
	// Endpoint is ADDRESS:PORT of an endpoint of the service at the destination. If the node's switch balances the service, the packet goes to it; "" is any endpoint.
	Endpoint string `json:"endpoint,omitempty"`

	Protocol        string         `json:"protocol"`             // TCP, UDP, SCTP or ICMP
	Source          string         `json:"source,omitempty"`     // an IPv4 address; "" is the pod's own
	Destination     string         `json:"destination"`          // an IPv4 address
	SourcePort      uint16         `json:"sourcePort,omitempty"` // not with ICMP
	DestinationPort uint16         `json:"destinationPort,omitempty"`
	Conntrack       ConntrackState `json:"conntrack,omitempty"` // "" is new
}

// Query returns the packet as a query.
func (p TracePacket) Query() url.Values {
	query := url.Values{}
	for name, value := range map[string]string{
		"from": p.From, "protocol": p.Protocol, "source": p.Source, "destination": p.Destination, "conntrack": string(p.Conntrack), "egressIP": p.EgressIP, "endpoint": p.Endpoint, "origin": string(p.Origin),
	} {
		if value != "" {
			query.Set(name, value)
		}
	}
	for name, value := range map[string]uint64{"vnid": uint64(p.VNID), "sourcePort": uint64(p.SourcePort), "destinationPort": uint64(p.DestinationPort)} {
		if value != 0 {
			query.Set(name, strconv.FormatUint(value, 10))
		}
	}
	return query
}

// PacketOrigin is why a host forwards a packet to the bridge.
type PacketOrigin string

// The origins of packets that a host marks. Those of the tunnel have them if the host of the other node had marked them.
const (
	OriginRouted   PacketOrigin = "routed"   // from a host outside that has a route to pods
	OriginNodePort PacketOrigin = "nodePort" // from outside through a node port, an external IP or a load balancer
	OriginHairpin  PacketOrigin = "hairpin"  // of a pod, which the service proxy of the host sends back to it
)

// FromHost is the value of TracePacket.From for tun0.
const FromHost = "host"

// NodeTrace is the way of a packet through the bridge of one node. Its name is that of the Node.
type NodeTrace struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Packet  TracePacket   `json:"packet"`
	Steps   []TraceStep   `json:"steps"`
	Outputs []TraceOutput `json:"outputs,omitempty"` // none: the last step dropped it

	// Verdict is Delivered (to a pod of the node), Forwarded (to a tunnel or the host), Dropped or Unknown; Reason is a sentence about the flow that decided,
	// and Objects are what that flow is made of: policies that deny it, or that isolate the pod without a rule that allows it.
	Verdict Verdict       `json:"verdict"`
	Reason  string        `json:"reason"`
	Objects []TraceObject `json:"objects,omitempty"`
}

// TraceObject is an object that decided.
type TraceObject struct {
	Object string `json:"object"`         // as in ObjectParameter
	Rule   string `json:"rule,omitempty"` // of a policy, such as "ingress 0"
}

// TraceStep is a flow that the packet matched.
type TraceStep struct {
	Table     uint8  `json:"table"`
	TableName string `json:"tableName"`
	Priority  uint16 `json:"priority"`
	Match     string `json:"match"`
	Actions   string `json:"actions"`
	Cookie    string `json:"cookie,omitempty"` // 0x…
	// Conntrack is the state that was assumed before this table, "" without a lookup.
	Conntrack ConntrackState `json:"conntrack,omitempty"`
	Objects   []TraceObject  `json:"objects,omitempty"` // what the flow is made of
	Names     []string       `json:"names,omitempty"`   // of registers and ports, as pipeline.Explain

	Unexpected bool `json:"unexpected,omitempty"` // the agent did not install the flow: another program added it
}

// TraceOutput is a packet that leaves the bridge.
type TraceOutput struct {
	To     string      `json:"to"`               // pod/NAMESPACE/NAME, node/NAME (the tunnel) or host
	HostIP string      `json:"hostIP,omitempty"` // of the node at the other end of the tunnel
	VNID   uint32      `json:"vnid,omitempty"`   // in the tunnel
	Packet TracePacket `json:"packet"`           // as it enters there; From is not set for host
}
