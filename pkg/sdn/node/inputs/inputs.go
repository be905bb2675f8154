// Package inputs defines the inputs of the flow store that one feature of the node agent publishes and others read. No feature imports another.
package inputs

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// Kinds of inputs, with the type of the values, the key and the package that publishes them.
const (
	KindVNID           = "VNID"             // config.VNID of a namespace, by package vnids
	KindNamespaceUID   = "namespace UID"    // types.UID of the Namespace that has the VNID, "" if unknown, by package vnids with the VNID
	KindNamespaceVNID  = "namespace VNID"   // config.VNID of a Namespace by its UID, by package vnids
	KindPodPolicies    = "network policies" // pipeline.PodPolicies of a pod of this node, by package networkpolicy
	KindBandwidth      = "bandwidth"        // config.Bandwidth of an attachment of a pod, by package podflows
	KindPorts          = "OpenFlow ports"   // sorted []int of a namespace's pods on this node, by package podflows
	KindMulticastNodes = "multicast nodes"  // MulticastNodes of a VNID, by package multicast
	KindEgressFirewall = "egress firewall"  // pipeline.EgressFirewallID of a namespace, 0: none, by package egresspolicy
	KindEgressIPs      = "egress IPs"       // EgressIPs of a Namespace, by package egressips for Namespaces with pods on this node
)

// VNID is the VNID of a namespace.
func VNID(namespace string) flowstore.Input { return flowstore.Input{Kind: KindVNID, Key: namespace} }

// NamespaceVNID is the last VNID of the Namespace with that UID. Pods of a previous Namespace of the name retain its VNID.
func NamespaceVNID(namespace string, uid types.UID) flowstore.Input {
	return flowstore.Input{Kind: KindNamespaceVNID, Key: namespace + "/" + string(uid)}
}

// NamespaceUID is the UID of the current Namespace of that name.
func NamespaceUID(namespace string) flowstore.Input {
	return flowstore.Input{Kind: KindNamespaceUID, Key: namespace}
}

// PodPolicies is the state of network policies in a pod's flows.
func PodPolicies(pod policy.PodKey) flowstore.Input {
	return flowstore.Input{Kind: KindPodPolicies, Key: pod.Namespace + "/" + pod.Name + "/" + string(pod.UID)}
}

// Bandwidth is the limits of the bandwidth of a pod, the owner of flows.
func Bandwidth(pod pipeline.Owner) flowstore.Input {
	return flowstore.Input{Kind: KindBandwidth, Key: pod.Key}
}

// EgressFirewall is the number of a namespace's egress firewall on this node.
func EgressFirewall(namespace string) flowstore.Input {
	return flowstore.Input{Kind: KindEgressFirewall, Key: namespace}
}

// NamespaceEgressIPs are the egress IPs of the Namespace with that UID. With the UID "" they are those of the current one of that name; with another UID, such as the
// key of a pod's owner for a pod whose Namespace is unknown, pods use no egress IP of a current Namespace.
func NamespaceEgressIPs(namespace string, uid types.UID) flowstore.Input {
	return flowstore.Input{Kind: KindEgressIPs, Key: namespace + "/" + string(uid)}
}

// Ports are the OpenFlow ports of the pods on this node of the Namespace with that UID.
func Ports(namespace string, uid types.UID) flowstore.Input {
	return flowstore.Input{Kind: KindPorts, Key: namespace + "/" + string(uid)}
}

// NamespaceOfPorts returns the namespace of the key of an input of KindPorts.
func NamespaceOfPorts(key string) string {
	namespace, _, _ := strings.Cut(key, "/")
	return namespace
}

// MulticastNodesOf is the set of other nodes with receivers of the VNID's multicast.
func MulticastNodesOf(vnid config.VNID) flowstore.Input {
	return flowstore.Input{Kind: KindMulticastNodes, Key: vnid.String()}
}

// MulticastNodes are the other nodes that get a VNID's multicast.
type MulticastNodes struct {
	VTEPs []netip.Addr // without duplicates
	Known bool         // false: all nodes get the multicast
}

// RemoteNode is another node, or a machine outside of the cluster.
type RemoteNode struct {
	VTEP       netip.Addr
	Gateway    netip.Addr // of its first subnet, which its tun0 has if it is a node
	IsRetained bool       // the Node was deleted: the address may be another machine's
	IsNode     bool       // a node of the cluster, whose pods the API server has; else a machine that may have pods of any VNID

	FixedVNID    config.VNID // the only VNID of the machine, if HasFixedVNID
	HasFixedVNID bool
}
