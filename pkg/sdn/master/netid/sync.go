package netid

import (
	"context"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// sync reconciles the NetNamespace of that name with the Namespace of that name.
func (c *Controller) sync(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	ns, nn, err := c.get(ctx, name)
	if err != nil {
		return err
	}
	if ns != nil {
		c.validateLogDenied(ns)
	}
	switch {
	case nn == nil && ns == nil:
		c.release(name)
		return nil
	case nn == nil:
		return c.create(ctx, ns)
	case ns == nil && namespaceUID(nn) == "": // a user created it, maybe before the Namespace
		return c.update(ctx, nn, "")
	case ns == nil, namespaceUID(nn) != "" && namespaceUID(nn) != ns.UID:
		if err := c.remove(ctx, nn); err != nil || ns == nil {
			return err
		}
		return c.create(ctx, ns)
	}
	return c.update(ctx, nn, ns.UID)
}

// get returns the Namespace and the NetNamespace of that name, nil if they don't exist. The cache may be outdated. If the result would make
// sync delete the NetNamespace, get reads the Namespace from the API server. It does not if sync would create one: the API server
// rejects a second object of the same name.
func (c *Controller) get(ctx context.Context, name string) (*corev1.Namespace, *networkv1.NetNamespace, error) {
	ns, err := reconcile.OrNil(c.namespaces.Get(name))
	if err != nil {
		return nil, nil, fmt.Errorf("get Namespace %s from the cache: %w", name, err)
	}
	nn, err := c.latest(name)
	if err != nil {
		return nil, nil, err
	}
	if nn != nil && namespaceUID(nn) != "" && (ns == nil || ns.UID != namespaceUID(nn)) {
		if ns, err = c.liveNamespace(ctx, name); err != nil {
			return nil, nil, err
		}
	}
	return ns, nn, nil
}

// liveNamespace reads the Namespace from the API server; nil if it does not exist.
func (c *Controller) liveNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns, err := reconcile.OrNil(c.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}))
	if err != nil {
		return nil, fmt.Errorf("get Namespace %s: %w", name, err)
	}
	return ns, nil
}

// latest returns the cached NetNamespace or, if that is older, the one that this controller has written; nil if it does not exist.
func (c *Controller) latest(name string) (*networkv1.NetNamespace, error) {
	latest, err := reconcile.OrNil(c.netNamespaces.Get(name))
	if err != nil {
		return nil, fmt.Errorf("get NetNamespace %s from the cache: %w", name, err)
	}
	c.updateState(name, func(s *state) {
		if latest != nil && s.written != nil {
			if order, err := resourceversion.CompareResourceVersion(latest.ResourceVersion, s.written.ResourceVersion); err == nil && order < 0 {
				latest = s.written
				return
			}
		}
		s.written = nil
	})
	return latest, nil
}

// namespaceUID returns the UID of the Namespace for which the NetNamespace was created; "": none.
func namespaceUID(nn *networkv1.NetNamespace) types.UID {
	return types.UID(nn.Annotations[config.NamespaceUIDAnnotation])
}

// create creates a NetNamespace for the Namespace. If a user has deleted it, it gets the same VNID again, which pods of the namespace use. The VNID of a
// previous Namespace of that name is released: its deletion and that of its NetNamespace may have been seen together with the new Namespace.
func (c *Controller) create(ctx context.Context, ns *corev1.Namespace) error {
	s := c.state(ns.Name)
	if s.namespace != "" && s.namespace != ns.UID { // of the two, the cached Namespace may be the previous one
		live, err := c.liveNamespace(ctx, ns.Name)
		if err != nil || live == nil {
			return err
		}
		ns = live
	}
	if s.rejected || s.namespace != "" && s.namespace != ns.UID {
		c.release(ns.Name)
	}
	vnid, ok := c.vnids.VNID(ns.Name)
	if ok || c.global[ns.Name] {
		c.vnids.Reserve(vnid) // GlobalVNID if it has none
	} else {
		var err error
		if vnid, err = c.allocate(ns); err != nil {
			return err
		}
	}
	defer c.vnids.Unreserve(vnid)
	nn := &networkv1.NetNamespace{
		ObjectMeta: metav1.ObjectMeta{
			Name: ns.Name,
			Annotations: map[string]string{
				config.NamespaceUIDAnnotation: string(ns.UID),
				config.AssignedVNIDAnnotation: vnid.String(),
			},
		},
		NetName: ns.Name,
		NetID:   uint32(vnid),
	}
	if _, err := c.Network.NetworkV1().NetNamespaces().Create(ctx, nn, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create NetNamespace %s: %w", ns.Name, err)
	}
	c.vnids.Set(ns.Name, vnid)
	c.setAssigned(ns.Name, ns.UID, vnid)
	klog.FromContext(ctx).V(2).Info("Allocated VNID", "vnid", vnid)
	return nil
}

// allocate reserves a free VNID. If there is none, it reports that on the Namespace or NetNamespace.
func (c *Controller) allocate(about runtime.Object) (config.VNID, error) {
	vnid, err := c.vnids.Allocate()
	if err != nil {
		return 0, reconcile.ReportUserError(c.Events, about, eventreason.NoVNID, fmt.Errorf("%w: delete namespaces, or let some share a VNID (%s)", err, config.ActionJoin))
	}
	return vnid, nil
}

// remove deletes this version of the NetNamespace and releases its VNID. If the NetNamespace does not exist, the cache is outdated and the
// VNID may already belong to a newer Namespace of that name: remove does not release it.
func (c *Controller) remove(ctx context.Context, nn *networkv1.NetNamespace) error {
	err := c.Network.NetworkV1().NetNamespaces().Delete(ctx, nn.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &nn.UID, ResourceVersion: &nn.ResourceVersion},
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("delete NetNamespace %s: %w", nn.Name, err)
	}
	c.release(nn.Name)
	klog.FromContext(ctx).V(2).Info("Released VNID", "vnid", nn.NetID)
	return nil
}

// update makes the requested change, or writes the fields that the Namespace determines (name and UID) and validates the VNID. uid is that of the
// Namespace; "": it does not exist.
func (c *Controller) update(ctx context.Context, nn *networkv1.NetNamespace, uid types.UID) error {
	want := c.withOwner(nn, uid)
	vnid, valid := effectiveVNID(want)
	c.vnids.Set(nn.Name, vnid)
	if _, requested, _ := config.RequestedChange(nn); requested {
		return c.change(ctx, nn, uid)
	}
	invalid := c.validate(want)
	accepted := invalid == nil || valid && hasInvalidNetID(want) // then the assigned VNID stays in use
	switch {
	case invalid == nil && uid == "": // don't write to NetNamespaces of users
		return nil
	case invalid == nil:
		setAnnotation(want, config.AssignedVNIDAnnotation, vnid.String())
	case !accepted:
		c.updateState(nn.Name, func(s *state) { s.rejected = true })
	}
	if err := c.write(ctx, nn, want); err != nil {
		return err
	}
	if accepted {
		c.setAssigned(nn.Name, uid, vnid)
	}
	return invalid
}

// withOwner returns a copy of the NetNamespace with the name and UID of its Namespace and the assigned VNID.
func (c *Controller) withOwner(nn *networkv1.NetNamespace, uid types.UID) *networkv1.NetNamespace {
	nn = nn.DeepCopy()
	if uid != "" {
		nn.NetName = nn.Name
		setAnnotation(nn, config.NamespaceUIDAnnotation, string(uid))
	}
	c.restoreAssigned(nn)
	return nn
}

// write updates the object if it differs, and stores the result until the cache has it.
func (c *Controller) write(ctx context.Context, nn, want *networkv1.NetNamespace) error {
	if equality.Semantic.DeepEqual(nn, want) {
		return nil
	}
	written, err := c.Network.NetworkV1().NetNamespaces().Update(ctx, want, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update NetNamespace %s: %w", nn.Name, err)
	}
	c.updateState(nn.Name, func(s *state) { s.written = written })
	return nil
}

func setAnnotation(nn *networkv1.NetNamespace, key, value string) {
	metav1.SetMetaDataAnnotation(&nn.ObjectMeta, key, value)
}
