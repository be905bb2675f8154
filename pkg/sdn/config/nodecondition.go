package config

import corev1 "k8s.io/api/core/v1"

// Reasons of the condition NetworkUnavailable on a Node. People and alerts match them: they don't change.
//
// The condition has two writers, and one fact that both see says whose turn it is: whether the node has a HostSubnet
// (a proposed one is none).
//
//   - Without: the controller's. It writes True with ReasonNoHostSubnet when it can't give the node one, and why.
//     A new node that gets its subnet at once, as nearly all do, is not written to.
//   - With: the agent's. It writes False with ReasonReady when its bridge is up for that subnet, and True with
//     ReasonNotReady when it can't be, whatever was there before. It writes when its own verdict changes and when it starts,
//     not again and again.
//   - The hand-over: when a node that has a HostSubnet says ReasonNoHostSubnet, the controller writes True with
//     ReasonHostSubnetGiven, so that a node without a running agent doesn't blame the wrong one.
//
// So the controller touches only what it wrote itself, unless there is no HostSubnet, and never writes False; and the agent
// leaves the condition alone while there is none. A HostSubnet that is there but can't be used (edited by hand, say) is the
// agent's to report. All writes carry the resourceVersion that they were decided on: whoever is behind looks again.
//
// While the condition is True, Kubernetes keeps pods off the node with the taint
// node.kubernetes.io/network-unavailable.
const (
	ReasonNoHostSubnet    = "NoHostSubnet"
	ReasonHostSubnetGiven = "HostSubnetGiven"
	ReasonReady           = "OvsdnReady"
	ReasonNotReady        = "OvsdnNotReady"
)

// NetworkUnavailable returns the node's condition of that type, nil if it has none.
func NetworkUnavailable(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeNetworkUnavailable {
			return c
		}
	}
	return nil
}
