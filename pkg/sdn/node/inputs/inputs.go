// Package inputs defines the inputs of the flow store that one feature of the node agent publishes and others read. No feature imports another.
package inputs

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
)

// Kinds of inputs, with the type of the values, the key and the package that publishes them.
const (
	KindVNID           = "VNID"             // config.VNID of a namespace, by package vnids
	KindPodPolicies    = "network policies" // pipeline.PodPolicies of a pod of this node, by package networkpolicy
	KindPorts          = "OpenFlow ports"   // sorted []int of a namespace's pods on this node, by package pods
	KindMulticastNodes = "multicast nodes"  // MulticastNodes of a VNID, by package multicast
)

// VNID is the VNID of a namespace.
func VNID(namespace string) flowstore.Input { return flowstore.Input{Kind: KindVNID, Key: namespace} }

// PodPolicies is the state of network policies in a pod's flows.
func PodPolicies(namespace, name string) flowstore.Input {
	return flowstore.Input{Kind: KindPodPolicies, Key: namespace + "/" + name}
}

// Ports are the OpenFlow ports of the namespace's pods on this node.
func Ports(namespace string) flowstore.Input { return flowstore.Input{Kind: KindPorts, Key: namespace} }

// MulticastNodesOf is the set of other nodes with receivers of the VNID's multicast.
func MulticastNodesOf(vnid config.VNID) flowstore.Input {
	return flowstore.Input{Kind: KindMulticastNodes, Key: vnid.String()}
}

// MulticastNodes are the other nodes that get a VNID's multicast.
type MulticastNodes struct {
	VTEPs []netip.Addr // without duplicates
	Known bool         // false: all nodes get the multicast
}

// RemoteNode is another node, or a machine outside of the cluster, as a receiver of multicast.
type RemoteNode struct {
	VTEP   netip.Addr
	IsNode bool // a node of the cluster, whose pods the API server has; else a machine that may have pods of any VNID

	FixedVNID    config.VNID // the only VNID of the machine, if HasFixedVNID
	HasFixedVNID bool
}
