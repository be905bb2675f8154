package vnids

import (
	"context"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// recover reads from the bridge the VNIDs of NetNamespaces that have no valid netid and no valid record of ovsdn-controller. An agent that
// starts, or follows another mode, so continues with the VNID that a running agent retains.
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
	v.onBridge = pipeline.VNIDsOf(flows)
	for _, o := range unusable {
		ns := v.namespace(o.Name)
		if !ns.known {
			ns.unusable = true
			ns.multicast = o.Annotations[networkv1.MulticastEnabledAnnotation] == "true"
		}
	}
	klog.FromContext(ctx).Info("Read VNIDs of invalid NetNamespaces from the bridge", "netnamespaces", len(unusable), "owners", len(v.onBridge))
	return nil
}

// adopt sets the VNID of a namespace whose NetNamespace is unusable to the one that the dependent has on the bridge. It reports whether it did.
func (v *VNIDs) adopt(ns *namespace, owner pipeline.Owner) bool {
	if !ns.unusable || ns.known {
		return false
	}
	vnid, ok := v.onBridge[owner.Cookie()]
	if !ok {
		return false
	}
	ns.vnid, ns.known, ns.exists, ns.unusable = vnid, true, true, false
	return true
}
