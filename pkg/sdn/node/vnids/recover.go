package vnids

import (
	"context"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// recover reads from the bridge the VNIDs of NetNamespaces that have none and of which ovsdn-controller has no record. An agent that starts,
// or follows another mode, then continues with the VNID that a running agent retains.
func (v *VNIDs) recover(ctx context.Context, unusable []*networkv1.NetNamespace) error {
	if len(unusable) == 0 || v.bridge == nil {
		return nil
	}
	flows, err := v.bridge.DumpFlows(ctx)
	if err != nil {
		return fmt.Errorf("read the VNIDs of %d invalid NetNamespaces from the bridge: %w", len(unusable), err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.former = pipeline.VNIDsOf(flows)
	for _, o := range unusable {
		ns := v.namespace(o.Name)
		if !ns.known {
			ns.unusable = true
			ns.multicast = o.Annotations[networkv1.MulticastEnabledAnnotation] == "true"
		}
	}
	klog.FromContext(ctx).Info("Read VNIDs of invalid NetNamespaces from the bridge", "netnamespaces", len(unusable), "owners", len(v.former))
	return nil
}

// adopt gives a namespace whose NetNamespace is unusable the VNID that one of its dependents has on the bridge. It reports whether the
// namespace has a VNID now and had none before.
func (v *VNIDs) adopt(ns *namespace, owner pipeline.Owner) bool {
	if !ns.unusable || ns.known {
		return false
	}
	vnid, ok := v.former[owner.Cookie()]
	if !ok {
		return false
	}
	ns.vnid, ns.known, ns.exists, ns.unusable = vnid, true, true, false
	return true
}
