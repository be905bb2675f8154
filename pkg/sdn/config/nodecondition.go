package config

import corev1 "k8s.io/api/core/v1"

// Reasons of the condition NetworkUnavailable on a Node. Users and alerts match them: they don't change.
//
// The controller and the agent both write the condition. Which of them may write depends on whether the node has a HostSubnet
// (a proposed one does not count).
//
//   - Without a HostSubnet: the controller. It writes True with ReasonNoHostSubnet and the cause when it can't allocate one.
//     It does not write if it allocates a subnet at once, the usual case. An agent whose HostSubnet was deleted while it runs writes True with
//     ReasonNotReady, unless the condition is True with ReasonNoHostSubnet: the controller may not run.
//   - With a HostSubnet: the agent. It writes False with ReasonReady when its bridge is set up for the subnet, and True with
//     ReasonNotReady when set-up fails, or when pods have addresses of a previous subnet, whatever the previous value. It writes when it starts and when
//     its own status changes.
//   - Transition: when a node with a HostSubnet has ReasonNoHostSubnet, the controller writes True with
//     ReasonHostSubnetGiven, so that a node without a running agent does not report an outdated cause.
//
// So with a HostSubnet the controller replaces only its own conditions, and it never writes False. The agent does not start to write
// without a HostSubnet, and reports a HostSubnet that can't be used, such as an edited one. All writes have the
// resourceVersion that they are based on, so an outdated one conflicts and is retried.
//
// While the condition is True, Kubernetes schedules no pods to the node, by the taint
// node.kubernetes.io/network-unavailable.
const (
	// True, by ovsdn-controller: no subnet can be allocated for the node; the message has the cause.
	ReasonNoHostSubnet = "NoHostSubnet"

	// True, by ovsdn-controller: the node got a HostSubnet after NoHostSubnet, and its agent has not reported yet.
	ReasonHostSubnetGiven = "HostSubnetGiven"

	// False, by ovsdn-node: the bridge is set up for the node's HostSubnet.
	ReasonReady = "OvsdnReady"

	// True, by ovsdn-node: the network is not set up, or a part of it fails; the message has the cause.
	ReasonNotReady = "OvsdnNotReady"
)

// NetworkUnavailable returns the node's condition of that type, or nil.
func NetworkUnavailable(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeNetworkUnavailable {
			return c
		}
	}
	return nil
}
