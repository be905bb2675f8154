package diagnosticsapi

import (
	"cmp"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Node is a node of the pod network: a HostSubnet.
type Node struct {
	Name   string
	HostIP netip.Addr // invalid: see NoAgent
	Subnet string
	Labels map[string]string // of the HostSubnet
	// NoAgent is why no agent is asked; "" if one is.
	NoAgent string
	// IsExpected reports that NoAgent is no fault.
	IsExpected bool
}

// hostSubnets reads Nodes from an informer of HostSubnets.
type hostSubnets struct {
	informer cache.SharedIndexInformer
}

// HasSynced implements Nodes.
func (h hostSubnets) HasSynced() bool { return h.informer.HasSynced() }

// List implements Nodes.
func (h hostSubnets) List() []Node {
	objects := h.informer.GetStore().List()
	nodes := make([]Node, 0, len(objects))
	for _, obj := range objects {
		if o, ok := obj.(*networkv1.HostSubnet); ok && !config.IsProposed(o) {
			nodes = append(nodes, nodeOf(o))
		}
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// Get implements Nodes.
func (h hostSubnets) Get(name string) (Node, bool) {
	obj, exists, err := h.informer.GetStore().GetByKey(name)
	o, ok := obj.(*networkv1.HostSubnet)
	if err != nil || !exists || !ok || config.IsProposed(o) {
		return Node{}, false
	}
	return nodeOf(o), true
}

func nodeOf(o *networkv1.HostSubnet) Node {
	n := Node{Name: o.Name, Subnet: printable(o.Subnet, maxName), Labels: o.Labels}
	addr, err := config.ParseHostIP(o.HostIP)
	_, hasFixedVNID := o.Annotations[networkv1.FixedVNIDHostAnnotation]
	n.HostIP = addr
	switch {
	case config.IsExternal(o) || hasFixedVNID:
		n.NoAgent, n.IsExpected = "an external machine, which has no agent", true
	case config.IsRetained(o):
		n.NoAgent, n.IsExpected = "its Node was deleted; the HostSubnet is retained for a time", true
	case o.Host != o.Name:
		n.NoAgent = "invalid HostSubnet: host is not the object's name"
	case err != nil:
		n.NoAgent = printable("invalid HostSubnet: hostIP "+err.Error(), maxMessage)
	}
	return n
}

// trim retains what nodeOf reads. Values of annotations are not read.
func trim(o any) (any, error) {
	h, ok := o.(*networkv1.HostSubnet)
	if !ok {
		return o, nil
	}
	trimmed := &networkv1.HostSubnet{
		ObjectMeta: metav1.ObjectMeta{Name: h.Name, UID: h.UID, ResourceVersion: h.ResourceVersion, Labels: h.Labels},
		Host:       h.Host, HostIP: h.HostIP, Subnet: h.Subnet,
	}
	for _, key := range []string{networkv1.AssignHostSubnetAnnotation, networkv1.FixedVNIDHostAnnotation, config.NodeDeletedAnnotation, config.ProposedAnnotation} {
		if _, ok := h.Annotations[key]; ok {
			metav1.SetMetaDataAnnotation(&trimmed.ObjectMeta, key, "")
		}
	}
	return trimmed, nil
}
