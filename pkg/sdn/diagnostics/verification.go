package diagnostics

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeTracesPath is the path of NodeTraces on the HTTPS port of an agent, to which a TraceBatch is posted.
const NodeTracesPath = "/diagnostics/v1alpha1/traces"

// MaxTraceBatch is the largest number of packets of a TraceBatch.
const MaxTraceBatch = 500

// TraceBatch has packets that an agent traces one after the other, with pauses in which vswitchd does its work.
type TraceBatch struct {
	Packets []TracePacket `json:"packets"`
}

// NodeTraces are the results of the packets of a TraceBatch, in their order. They are fewer than the packets if the time of the request was over: the client
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
