package config

import (
	"strconv"

	networkv1 "github.com/openshift/api/network/v1"
)

// RoutableMTUAnnotation limits the size of packets that pods and nodes send, in bytes, while their interfaces receive packets of up to the
// ClusterNetwork's mtu. It is set while the MTU of a running cluster changes, so that no node sends packets that another node's interfaces drop
// (docs/mtu.md). OpenShift has no field for it.
const RoutableMTUAnnotation = "ovsdn.io/routable-mtu"

// routableMTU parses RoutableMTUAnnotation; 0: not set.
func routableMTU(o *networkv1.ClusterNetwork, f *faults) int {
	const field = "annotation " + RoutableMTUAnnotation
	value, ok := o.Annotations[RoutableMTUAnnotation]
	if !ok {
		return 0
	}
	most := maxMTU
	if m := o.MTU; m != nil && *m >= minMTU && *m <= maxMTU { // an invalid mtu is reported by ParseNetwork
		most = int(*m)
	}
	n, err := strconv.Atoi(value)
	switch {
	case err != nil:
		f.addf(field, "%q is not a number of bytes: write one such as \"%d\", or remove the annotation", Shorten(value), most)
	case n < minMTU:
		f.addf(field, "%d bytes is out of range: choose %d to %d, or remove the annotation", n, minMTU, most)
	case n > most && o.MTU != nil:
		f.addf(field, "%d bytes is more than the mtu, %d, which is what interfaces take: write at most that, or raise mtu first", n, most)
	case n > most:
		f.addf(field, "%d bytes is out of range: choose %d to %d, or remove the annotation", n, minMTU, most)
	}
	return n
}
