package diagnostics

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeProbePath is the path of NodeProbe on the HTTPS port of an agent, with query parameters of TracePacket (from, protocol, destination, destinationPort) and
// TimeoutParameter.
const NodeProbePath = "/diagnostics/v1alpha1/probe"

// NodeProbesPath is the path of NodeProbes on the HTTPS port of an agent, to which a PacketBatch is posted. Its packets have only the
// parameters of NodeProbePath, without a timeout.
const NodeProbesPath = "/diagnostics/v1alpha1/probes"

// TimeoutParameter is the query parameter with the seconds that a probe waits for an answer.
const TimeoutParameter = "timeoutSeconds"

// Seconds that a probe waits for an answer.
const (
	DefaultProbeSeconds = 3
	MaxProbeSeconds     = 10
)

// The verdicts of a probe, besides VerdictUnknown: the probe was not sent.
const (
	VerdictAnswered Verdict = "Answered"
	VerdictRefused  Verdict = "Refused"  // by a reset or an ICMP error
	VerdictNoAnswer Verdict = "NoAnswer" // in time
)

// Probe asks for one real packet from a pod's network namespace, and has the answer. Only create is possible; nothing is stored.
type Probe struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   ProbeSpec   `json:"spec"`
	Status ProbeStatus `json:"status,omitzero"`
}

// ProbeSpec is what is sent: a TCP connection without data, a UDP datagram of one byte, or an ICMP echo request.
type ProbeSpec struct {
	Source      string `json:"source"`             // pod/NAMESPACE/NAME, in the pod network
	Destination string `json:"destination"`        // also service/NAMESPACE/NAME, node/NAME, or an IPv4 address outside of the pod network
	Protocol    string `json:"protocol,omitempty"` // TCP (default), UDP or ICMP
	Port        int32  `json:"port,omitempty"`     // the destination's, or the service's; not with ICMP
	// TimeoutSeconds is how long the agent waits for an answer, at most MaxProbeSeconds; 0 is DefaultProbeSeconds.
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// ProbeStatus is the answer.
type ProbeStatus struct {
	Verdict Verdict `json:"verdict"`
	Reason  string  `json:"reason"` // a sentence
	// Reached reports that the packet was answered or refused, and not reported as unreachable (host or network). A proxy in the source pod, or a firewall that rejects,
	// also counts. Agents of earlier versions do not set it.
	Reached bool `json:"reached,omitempty"`
	// Duration is the time from the first packet to the answer.
	Duration *metav1.Duration `json:"duration,omitempty"`
}

// NodeProbe is the result of a probe that the agent of a node sent. Its name is that of the Node.
type NodeProbe struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Packet TracePacket `json:"packet"` // that was asked for
	Status ProbeStatus `json:"status"`
}

// NodeProbes are the results of the packets of a PacketBatch, each of which its pod sends, in their order. They are fewer than the packets if the time of the request was
// over: the client sends the others again. Its name is that of the Node.
type NodeProbes struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Results []ProbeStatus `json:"results"`
}
