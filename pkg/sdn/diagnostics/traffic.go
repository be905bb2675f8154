package diagnostics

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MaxTrafficPods is the largest number of ports of pods of one node's NodeTraffic.
const MaxTrafficPods = 1024

// NodeTraffic has the counters of a node's pods. Its name is that of the Node.
type NodeTraffic struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// Error is why the agent did not answer. There are no pods then.
	Error   string       `json:"error,omitempty"`
	NoAgent bool         `json:"noAgent,omitempty"` // as in NodeStatusStatus
	Pods    []PodTraffic `json:"pods"`
	// Truncated is true if the node has more than MaxTrafficPods. Those beyond are left out.
	Truncated bool `json:"truncated,omitempty"`
}

// PodTraffic has the counters of the port of a pod at one moment.
type PodTraffic struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	OFPort    int    `json:"ofPort"`
	// Age is the time from the addition of the port, or the start of vswitchd, to that moment. Rates of two samples are by its difference: clocks of nodes may be
	// set in the meantime. It decreases if the port was added again.
	Age metav1.Duration `json:"age"`
	In  Traffic         `json:"in"`  // to the pod
	Out Traffic         `json:"out"` // from the pod
}

// Traffic has the counters of one direction.
type Traffic struct {
	Bytes   uint64 `json:"bytes"`
	Packets uint64 `json:"packets"`
	// Dropped are packets that the port's device dropped. Those that flows drop are not counted here: see NodeDrop.
	Dropped uint64 `json:"dropped"`
}

// NodeTrafficList is a list of NodeTraffics.
type NodeTrafficList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []NodeTraffic `json:"items"`
}
