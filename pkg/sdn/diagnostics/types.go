// Package diagnostics has the objects of the API group diagnostics.ovsdn.io, which controllers serve and `kubectl ovsdn` reads. Nothing stores them: each
// answer is computed by the node's agent when it is asked (docs/decisions/0020-diagnostics.md).
package diagnostics

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The API group and its version.
const (
	Group   = "diagnostics.ovsdn.io"
	Version = "v1alpha1"
)

// Paths on the HTTPS port of an agent. Only a client with the certificate of a controller gets an answer.
const (
	StatusPath  = "/diagnostics/v1alpha1/status"  // NodeStatus
	TrafficPath = "/diagnostics/v1alpha1/traffic" // NodeTraffic
	FlowsPath   = "/diagnostics/v1alpha1/flows"   // NodeFlows; with the query parameter ObjectParameter those of one object
)

// ObjectParameter is the query parameter with the object whose flows are wanted: pod/NAMESPACE/NAME, namespace/NAME, service/NAMESPACE/NAME,
// networkpolicy/NAMESPACE/NAME, clusternetworkpolicy/NAME, egressnetworkpolicy/NAMESPACE/NAME or node/NAME.
const ObjectParameter = "object"

// MaxStatusAnswer is the size in bytes of the largest NodeStatus that controllers read.
const MaxStatusAnswer = 64 << 10

// MaxEgressIPsNotPlaced is the number of egress IPs that NodeStatusStatus.EgressIPsNotPlaced has at most.
const MaxEgressIPsNotPlaced = 64

// NodeStatus is the state of a node's pod network. Its name is that of the Node.
type NodeStatus struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Status NodeStatusStatus `json:"status"`
}

// NodeStatusStatus has what an agent reports, or why it did not answer. Fields of a newer agent are ignored, those of an older one are empty.
type NodeStatusStatus struct {
	// Error is why the agent did not answer. All fields below but HostIP and Subnet are empty then.
	Error string `json:"error,omitempty"`
	// NoAgent reports that the HostSubnet is not expected to have an agent, for the reason in Error: it is an external machine's, or its Node was deleted.
	NoAgent bool `json:"noAgent,omitempty"`

	HostIP string `json:"hostIP,omitempty"` // of the HostSubnet
	Subnet string `json:"subnet,omitempty"` // of the HostSubnet

	AgentVersion string `json:"agentVersion,omitempty"`
	OVSVersion   string `json:"ovsVersion,omitempty"`
	Datapath     string `json:"datapath,omitempty"` // system or netdev
	Mode         string `json:"mode,omitempty"`

	// Ready is the check of /readyz; NotReady is its error.
	Ready    bool   `json:"ready"`
	NotReady string `json:"notReady,omitempty"`
	// SwitchError is why Open vSwitch of the node does not answer its agent. It is also the cause of other nodes' PeerProblems with the node, and of its own.
	SwitchError string `json:"switchError,omitempty"`

	Started      metav1.Time  `json:"started,omitzero"`       // the agent
	LastWrite    *metav1.Time `json:"lastWrite,omitempty"`    // the last successful write to the switch
	LastAudit    *metav1.Time `json:"lastAudit,omitempty"`    // the last comparison of all flows
	Drift        int64        `json:"drift"`                  // differences that audits found and repaired since the agent started
	RefusedFlows []string     `json:"refusedFlows,omitempty"` // owners whose flows the switch refuses, with the error

	Pods      int `json:"pods"`
	Flows     int `json:"flows"`
	Addresses int `json:"addresses"`     // of the node's subnet
	Free      int `json:"freeAddresses"` // of them

	// PeerProblems are other nodes that ICMP probes do not reach through the overlay, at most 20. Peers is the number of nodes that are probed, and AnsweringPeers
	// that of those that answered the last probe through the overlay.
	PeerProblems   []PeerProblem `json:"peerProblems,omitempty"`
	Peers          int           `json:"peers"`
	AnsweringPeers int           `json:"answeringPeers"`

	// EgressIPsNotPlaced are the egress IPs that the node hosts for namespaces and that the host can't forward: the first MaxEgressIPsNotPlaced by
	// address. Packets with them are dropped.
	EgressIPsNotPlaced []EgressIPNotPlaced `json:"egressIPsNotPlaced,omitempty"`

	// Drops are counters of dropped packets since the agent started, with reason policy since vswitchd started. They are at most 15 seconds old, those with reason
	// foreign-source or egress-firewall, or of HostFirewall, at most a minute.
	Drops []NodeDrop `json:"drops,omitempty"`
}

// PeerProblem is a node that another one does not reach.
type PeerProblem struct {
	Node    string `json:"node"`
	Problem string `json:"problem"`
}

// HostFirewall is in the place of a table for the agent's rules in iptables or nftables of the host.
const HostFirewall = "host"

// EgressIPNotPlaced is an egress IP that the host can't forward, and the cause.
type EgressIPNotPlaced struct {
	IP      string `json:"ip"`
	Problem string `json:"problem"`
}

// NodeDrop is the number of packets that flows of a table, or rules of HostFirewall, have dropped for one reason.
type NodeDrop struct {
	Table   string `json:"table"`  // its name, or HostFirewall
	Reason  string `json:"reason"` // as the label of metric ovsdn_dropped_packets_total, or policy; of HostFirewall the comment of the rule
	Packets uint64 `json:"packets"`
}

// NodeStatusList is a list of NodeStatuses.
type NodeStatusList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []NodeStatus `json:"items"`
}

// NodeFlows are flows of a node, in the order of tables and priorities. Its name is that of the Node.
type NodeFlows struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	Object string `json:"object,omitempty"` // as in ObjectParameter
	Flows  []Flow `json:"flows"`
	// Truncated reports that flows beyond MaxFlows were left out.
	Truncated bool `json:"truncated,omitempty"`
}

// MaxFlows is the largest number of flows of one answer.
const MaxFlows = 20000

// FlowState is the result of the comparison of a flow with the desired ones.
type FlowState string

// The states of a flow.
const (
	FlowInstalled  FlowState = "Installed"
	FlowMissing    FlowState = "Missing"    // desired, not on the switch
	FlowUnexpected FlowState = "Unexpected" // on the switch, not desired
	FlowDifferent  FlowState = "Different"  // other actions than the desired ones; Actions are those on the switch
)

// Flow is a flow of br0, as ovs-ofctl prints it, with names.
type Flow struct {
	Table     uint8     `json:"table"`
	TableName string    `json:"tableName"`
	Priority  uint16    `json:"priority"`
	Match     string    `json:"match"`
	Actions   string    `json:"actions"`
	Cookie    string    `json:"cookie"` // 0x…
	Owners    []string  `json:"owners,omitempty"`
	State     FlowState `json:"state"`
	Desired   string    `json:"desired,omitempty"` // of a flow that is Different: the desired text from idle_timeout, cookie and actions on
	Packets   uint64    `json:"packets"`
	Bytes     uint64    `json:"bytes"`
}
