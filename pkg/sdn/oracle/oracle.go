// Package oracle computes from the API's objects alone which connections are allowed.
//
// It follows the text of the specifications, one function per paragraph, and reads every object for every packet. It shares no code with the
// agent, since a common mistake would not be found, and imports no other package of the project. `kubectl ovsdn verify` compares it with the flows of
// all nodes. Tests compare it with the flows that the agent compiles, on a real switch, and with another project's implementation of the same text.
package oracle

import (
	"fmt"
	"net/netip"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
)

// Cluster is what the API server holds. Addresses of pods are in their status.
type Cluster struct {
	Namespaces      []*corev1.Namespace
	Pods            []*corev1.Pod
	Policies        []*networkingv1.NetworkPolicy
	ClusterPolicies []*policyv1alpha2.ClusterNetworkPolicy
	NodeLabels      map[string]map[string]string
	NodeAddrs       map[string][]netip.Addr // by node: its own, and tun0's
	HostNetwork     []string                // names of host-network namespaces (--host-network-namespaces)
	VNIDs           map[string]uint32       // by namespace; nil outside mode multitenant
	EgressPolicies  []*networkv1.EgressNetworkPolicy
	FirewallVNIDs   map[string]uint32 // by namespace: VNID 0 has no egress firewall; nil in mode subnet, where each namespace has its own

	// Of EvaluateBalancedService.
	Services       []*corev1.Service
	EndpointSlices []*discoveryv1.EndpointSlice // as the API server stores them: with names, protocols and numbers of ports
	ServiceNetwork netip.Prefix
	PodNetworks    []netip.Prefix
}

// Endpoint is one end of a connection: a pod, a node, or, with neither, an address outside.
type Endpoint struct {
	Addr    netip.Addr
	Pod     *corev1.Pod
	Node    string
	Through string // the node whose node port a client that is no node uses: Addr is that node's
}

// Connection is an attempt of From to open a connection to To.
type Connection struct {
	From, To Endpoint
	Protocol corev1.Protocol // "" for what has no ports, such as ICMP
	Port     int32           // of the destination, after DNAT
	Hairpin  bool            // From is To, and a service leads the pod to itself
}

// Verdict is whether a connection may be opened, and the rule that decided.
type Verdict struct {
	Allowed bool
	Why     string
}

// Evaluate applies all objects: the source's egress and its egress firewall, the destination's ingress and the isolation of VNIDs must allow the connection.
func (c *Cluster) Evaluate(conn Connection) Verdict {
	if v, decided := c.exempt(conn); decided {
		return v
	}
	for _, evaluate := range []func(Connection) Verdict{c.tenants, c.egress, c.firewall, c.ingress} {
		if v := evaluate(conn); !v.Allowed {
			return v
		}
	}
	return Verdict{true, "nothing forbids it"}
}

// exempt are the connections that no policy may stop: a pod's to itself without a service, and a node's to its own pods ("traffic to and from
// the node where a Pod is running is always allowed", Network Policies, kubernetes.io). The way from the pod to its node is
// egress like any other here: the specification's sentence is about replies and probes, and an egress policy that a pod
// could evade by way of its node's addresses would be none.
func (c *Cluster) exempt(conn Connection) (Verdict, bool) {
	switch {
	case conn.From.Pod != nil && conn.From.Pod == conn.To.Pod && !conn.Hairpin:
		return Verdict{true, "a pod can't block itself"}, true
	case conn.From.Node != "" && conn.To.Pod != nil && conn.To.Pod.Spec.NodeName == conn.From.Node:
		return Verdict{true, "a node reaches its own pods"}, true
	}
	return Verdict{}, false
}

// tenants is mode multitenant's rule: the same VNID, or one of them is 0, which nodes have too. What is outside has one that no
// namespace has, and all may go there (docs/tenants.md).
func (c *Cluster) tenants(conn Connection) Verdict {
	if c.VNIDs == nil || conn.To.Pod == nil {
		return Verdict{true, "no tenants"}
	}
	from, to := c.vnid(conn.From), c.vnid(conn.To)
	if from == to || from == 0 || to == 0 {
		return Verdict{true, "VNIDs allow it"}
	}
	return Verdict{false, fmt.Sprintf("VNID %d may not talk to %d", from, to)}
}

func (c *Cluster) vnid(e Endpoint) uint32 {
	const outside = 1
	switch {
	case e.Pod != nil:
		return c.VNIDs[e.Pod.Namespace]
	case e.Node != "" || e.Through != "": // a node port is open to clients outside (docs/tenants.md)
		return 0
	}
	return outside
}

// IsSubject reports whether policies can select a pod: pods with the host's network have the host's addresses, and ended pods have none.
func IsSubject(pod *corev1.Pod) bool {
	return pod != nil && !pod.Spec.HostNetwork && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}
