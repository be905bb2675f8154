package vnids

import (
	"context"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// recover reads the VNIDs of the previous agent's flows for NetNamespaces with neither a valid netid nor a valid annotation of
// ovsdn-controller (config.AssignedVNIDAnnotation): a restart of the agent, or a change of the mode, does not change their VNIDs.
func (v *VNIDs) recover(ctx context.Context, invalid []*networkv1.NetNamespace) error {
	if len(invalid) == 0 || v.bridge == nil {
		return nil
	}
	flows, err := v.bridge.DumpFlows(ctx)
	if err != nil {
		return fmt.Errorf("read the VNIDs of %d invalid NetNamespaces from the bridge: %w", len(invalid), err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.onBridge = pipeline.VNIDsOf(flows)
	for _, o := range invalid {
		if _, exists := v.namespaces[o.Name]; !exists {
			v.invalid[o.Name] = namespace{
				object: o.UID, uid: types.UID(o.Annotations[config.NamespaceUIDAnnotation]), multicast: o.Annotations[networkv1.MulticastEnabledAnnotation] == "true",
			}
		}
	}
	klog.FromContext(ctx).Info("Read VNIDs of invalid NetNamespaces from the bridge", "netNamespaces", len(invalid), "owners", len(v.onBridge))
	return nil
}

// adopt publishes the VNID of the owner's flows on the bridge as that of its namespace, if the NetNamespace is invalid.
func (v *VNIDs) adopt(name string, owner pipeline.Owner) {
	v.mu.Lock()
	defer v.mu.Unlock()
	ns, invalid := v.invalid[name]
	vnid, known := v.onBridge[owner.Cookie()]
	if !invalid || !known {
		return
	}
	ns.vnid = vnid
	c := v.newChange()
	c.join(name, ns)
	c.send()
}
