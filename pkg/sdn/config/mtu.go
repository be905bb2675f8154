package config

import (
	"strconv"

	networkv1 "github.com/openshift/api/network/v1"
)

// RoutableMTUAnnotation of ClusterNetwork `default` stands beside its mtu, in bytes: pods and nodes send packets of at most that
// size, while their interfaces take packets of mtu. With it the MTU changes on a running cluster: no node ever sends
// what another doesn't take yet, or any more (docs/mtu.md). OpenShift has no field for it.
const RoutableMTUAnnotation = "ovsdn.io/routable-mtu"

// routableMTU reads RoutableMTUAnnotation, 0 if it isn't there.
func routableMTU(o *networkv1.ClusterNetwork, f *faults) int {
	const field = "annotation " + RoutableMTUAnnotation
	value, ok := o.Annotations[RoutableMTUAnnotation]
	if !ok {
		return 0
	}
	most := maxMTU
	if m := o.MTU; m != nil && *m >= minMTU && *m <= maxMTU { // else that is a fault of its own
		most = int(*m)
	}
	n, err := strconv.Atoi(value)
	switch {
	case err != nil:
		f.addf(field, "%q is no number of bytes: write one such as \"%d\", or remove the annotation", value, most)
	case n < minMTU:
		f.addf(field, "%d bytes is out of range: choose %d to %d, or remove the annotation", n, minMTU, most)
	case n > most && o.MTU != nil:
		f.addf(field, "%d bytes is more than the mtu, %d, which is what interfaces take: write at most that, or raise mtu first", n, most)
	case n > most:
		f.addf(field, "%d bytes is out of range: choose %d to %d, or remove the annotation", n, minMTU, most)
	}
	return n
}
