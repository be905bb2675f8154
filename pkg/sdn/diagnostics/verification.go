package diagnostics

import (
	"cmp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// NodeTracesPath is the path of NodeTraces on the HTTPS port of an agent, to which a PacketBatch is posted.
const NodeTracesPath = "/diagnostics/v1alpha1/traces"

// MaxBatchPackets is the largest number of packets of a PacketBatch, which are traced or sent.
const MaxBatchPackets = 250

// PacketBatch has packets that an agent traces, some at a time, with pauses in which vswitchd does its work, or sends from their pods (NodeProbesPath).
type PacketBatch struct {
	Packets []TracePacket `json:"packets"`
}

// NodeTraces are the results of the packets of a PacketBatch, in their order. They are fewer than the packets if the time of the request was over: the client
// sends the others again. Its name is that of the Node.
type NodeTraces struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Results []TraceResult `json:"results"`
}

// TraceResult is the end of a packet on one node. Verdict, Reason, Objects and Outputs are those of NodeTrace.
type TraceResult struct {
	Verdict Verdict       `json:"verdict"`
	Reason  string        `json:"reason"`
	Objects []TraceObject `json:"objects,omitempty"`
	Outputs []TraceOutput `json:"outputs,omitempty"`
	// Flow is the flow that decided: one that another program added, or the one that dropped the packet, or the last one of a policy, or the last one.
	Flow *TraceStep `json:"flow,omitempty"`
}

// Limits of verifications.
const (
	MaxVerifiedPods  = 20_000
	MaxVerifiedPairs = 1_000_000
	MaxSample        = 5_000
)

// Verification compares what the objects of the cluster allow with what the flows of all nodes do, and optionally with what happens to real packets, for
// connections between pods. Only create is possible, and nothing is stored. In a namespace it has the pairs with a pod of the namespace: those with both ends
// in it, unless the user may create Verifications at the cluster scope.
type Verification struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Spec   VerificationSpec   `json:"spec"`
	Status VerificationStatus `json:"status,omitzero"`
}

// VerificationSpec chooses questions: pairs of pods with a protocol and a port.
type VerificationSpec struct {
	Sample int32 `json:"sample,omitempty"` // questions that are drawn at random, at most MaxSample; 0: all
	// Continue is that of the previous answer. A request takes less than a minute, and answers a part of the questions.
	Continue string `json:"continue,omitempty"`
	// Packets also sends a real packet for each TCP and UDP connection for which the trace agrees with the objects, as a Probe does. The user also needs the right to create
	// Probes: at the cluster scope, if the user may create Verifications there, else in the namespace.
	Packets bool `json:"packets,omitempty"`
}

// VerificationStatus is the answer.
type VerificationStatus struct {
	Pods      int             `json:"pods"`      // in the pod network, with an address
	Questions int             `json:"questions"` // that were asked
	Unknown   int             `json:"unknown"`   // of them without an answer
	Changed   int             `json:"changed"`   // of them that differed, and did not when they were asked again, or whose objects changed
	Duration  metav1.Duration `json:"duration"`

	Skipped     int `json:"skipped,omitempty"`     // questions of a sample that were not asked in time
	Sent        int `json:"sent,omitempty"`        // questions for which a packet was sent
	Unconfirmed int `json:"unconfirmed,omitempty"` // of them allowed ones of UDP, without an answer

	// Differences are those that were found twice, while no object of the pair changed.
	Differences []Difference `json:"differences,omitempty"`
	Unanswered  []string     `json:"unanswered,omitempty"` // why questions have no answer, at most 16 reasons
	Continue    string       `json:"continue,omitempty"`   // "": no questions are left
}

// Difference is a connection that the flows, or a real packet, treat otherwise than the objects.
type Difference struct {
	Source      string `json:"source"` // pod/NAMESPACE/NAME
	Destination string `json:"destination"`
	Protocol    string `json:"protocol"`
	Port        int32  `json:"port"`

	Expected       Verdict `json:"expected"` // Delivered or Dropped
	ExpectedReason string  `json:"expectedReason,omitempty"`
	Actual         Verdict `json:"actual"` // Forwarded: to another destination
	// ByPacket reports that a real packet contradicts Expected, while the trace agrees with it. Actual is Delivered if the packet was answered or refused.
	ByPacket bool `json:"byPacket,omitempty"`

	Node    string        `json:"node"`   // on which the flow decided; if ByPacket, the source's
	Reason  string        `json:"reason"` // a sentence about the flow that decided, or the packet
	Objects []TraceObject `json:"objects,omitempty"`
	Flow    *TraceStep    `json:"flow,omitempty"` // as TraceResult.Flow; none if ByPacket
}

// CompareDifferences orders differences by source, destination, protocol and port.
func CompareDifferences(a, b *Difference) int {
	return cmp.Or(strings.Compare(a.Source, b.Source), strings.Compare(a.Destination, b.Destination), strings.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Port, b.Port))
}
