package netid

import (
	"context"
	"fmt"
	"strings"

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
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// namedSharers is how many of those who share a VNID are named in a message.
const namedSharers = 3

// sync makes the NetNamespace of a name what the Namespace of that name needs.
func (c *Controller) sync(ctx context.Context, name string) error {
	ns, nn, err := c.lookUp(ctx, name)
	if err != nil {
		return err
	}
	if ns != nil {
		c.checkAnnotation(ns)
	}
	switch {
	case nn == nil && ns == nil:
		c.vnids.Remove(name)
		c.settle(name)
		c.unrecord(name)
		return nil
	case nn == nil:
		return c.create(ctx, ns)
	case ns == nil && namespaceUID(nn) == "": // made by people, for a Namespace that is still to come perhaps
		return c.keep(ctx, nn, "")
	case ns == nil, namespaceUID(nn) != "" && namespaceUID(nn) != ns.UID:
		if err := c.remove(ctx, nn); err != nil || ns == nil {
			return err
		}
		return c.create(ctx, ns)
	}
	return c.keep(ctx, nn, ns.UID)
}

// checkAnnotation says what nodes make of a wrong annotation: said by each of them, it would be said thousands of times.
func (c *Controller) checkAnnotation(ns *corev1.Namespace) {
	if _, err := config.ParseLogDenied(ns.Annotations); err != nil {
		c.Events.Event(ns, corev1.EventTypeWarning, reasonNotLogged, err.Error())
	}
}

// lookUp returns the two objects of a name, nil what does not exist. The caches may lag behind, so what would make
// sync delete something is asked of the API server. What would make it create something need not be: the API server
// refuses a second object of the name.
func (c *Controller) lookUp(ctx context.Context, name string) (*corev1.Namespace, *networkv1.NetNamespace, error) {
	ns, err := reconcile.OrNil(c.namespaces.Get(name))
	if err != nil {
		return nil, nil, fmt.Errorf("look Namespace %s up: %w", name, err)
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

// liveNamespace asks the API server; nil if there is none.
func (c *Controller) liveNamespace(ctx context.Context, name string) (*corev1.Namespace, error) {
	ns, err := reconcile.OrNil(c.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{}))
	if err != nil {
		return nil, fmt.Errorf("get Namespace %s: %w", name, err)
	}
	return ns, nil
}

// latest returns the NetNamespace as the cache has it or, if the cache has yet to learn of it, as this controller has
// written it; nil if there is none.
func (c *Controller) latest(name string) (*networkv1.NetNamespace, error) {
	cached, err := reconcile.OrNil(c.netNamespaces.Get(name))
	if err != nil {
		return nil, fmt.Errorf("look NetNamespace %s up: %w", name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if written := c.written[name]; cached != nil && written != nil {
		if order, err := resourceversion.CompareResourceVersion(cached.ResourceVersion, written.ResourceVersion); err == nil && order < 0 {
			return written, nil
		}
	}
	delete(c.written, name)
	return cached, nil
}

// namespaceUID is the UID of the Namespace that the NetNamespace was made for.
func namespaceUID(nn *networkv1.NetNamespace) types.UID {
	return types.UID(nn.Annotations[config.NamespaceUIDAnnotation])
}

// create makes a NetNamespace for the Namespace. One that was deleted by hand is made anew with the same VNID, which the
// namespace's pods still have.
func (c *Controller) create(ctx context.Context, ns *corev1.Namespace) error {
	if c.isDisputed(ns.Name) {
		c.vnids.Remove(ns.Name)
	}
	vnid, held := c.vnids.HeldBy(ns.Name)
	if held || c.global[ns.Name] {
		c.vnids.Reserve(vnid) // GlobalVNID if not held
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
	c.settle(ns.Name)
	c.record(ns.Name, vnid)
	klog.FromContext(ctx).V(2).Info("Gave the namespace its VNID", "vnid", vnid)
	return nil
}

// allocate reserves a free VNID, or says on the Namespace or NetNamespace that there is none for it.
func (c *Controller) allocate(about runtime.Object) (config.VNID, error) {
	vnid, err := c.vnids.Allocate()
	if err != nil {
		return 0, reconcile.Complain(c.Events, about, reasonNoVNID, fmt.Errorf("%w: delete namespaces, or let some share a VNID (%s)", err, config.ActionJoin))
	}
	return vnid, nil
}

// remove deletes the NetNamespace unless it changed meanwhile, and frees its VNID. When there was none any more the cache
// is behind, and what the name holds may be a newer namespace's by now.
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
	c.vnids.Remove(nn.Name)
	c.settle(nn.Name)
	c.unrecord(nn.Name)
	klog.FromContext(ctx).V(2).Info("Took the VNID of a namespace that is gone", "vnid", nn.NetID)
	return nil
}

// keep makes the change that the NetNamespace asks for, writes what is not people's to say (name and UID), and judges what
// is: the VNID. The UID is the Namespace's, "" if there is none.
func (c *Controller) keep(ctx context.Context, nn *networkv1.NetNamespace, uid types.UID) error {
	want := nn.DeepCopy()
	own(want, uid)
	c.restoreRecord(want)
	vnid, usable := inUse(want)
	c.vnids.Set(nn.Name, vnid)
	if _, asked, _ := config.RequestedChange(nn); asked {
		return c.change(ctx, nn, uid)
	}
	verdict := c.judge(want)
	rightful := verdict == nil || usable && isInvalid(want) // the VNID in use is the namespace's own
	switch {
	case verdict == nil && uid == "": // what people made for no Namespace is left as it is
		return nil
	case verdict == nil:
		setAnnotation(want, config.AssignedVNIDAnnotation, vnid.String())
	case !rightful:
		c.dispute(nn.Name)
	}
	if err := c.update(ctx, nn, want); err != nil {
		return err
	}
	if rightful {
		c.settle(nn.Name)
		c.record(nn.Name, vnid)
	}
	return verdict
}

// own writes what the controller says of a NetNamespace whatever its VNID.
func own(nn *networkv1.NetNamespace, uid types.UID) {
	if uid != "" {
		nn.NetName = nn.Name
		setAnnotation(nn, config.NamespaceUIDAnnotation, string(uid))
	}
}

// judge says what is wrong with a VNID that somebody else has written.
func (c *Controller) judge(nn *networkv1.NetNamespace) error {
	vnid, err := config.CheckVNID(nn.NetID)
	if err != nil {
		previous := "nodes with pods of the namespace continue with their VNID, and on others new pods do not start, since none is recorded"
		if assigned, usable := inUse(nn); usable {
			previous = fmt.Sprintf("the assigned VNID %s stays in use", assigned)
		}
		return reconcile.Complain(c.Events, nn, reasonInvalid, fmt.Errorf("netid: %w, or set the annotation %s to %s; until then %s",
			err, networkv1.ChangePodNetworkAnnotation, config.ActionIsolate, previous))
	}
	assigned, stamped := nn.Annotations[config.AssignedVNIDAnnotation]
	if assigned == vnid.String() || !stamped && c.wasFound(nn.Name) {
		return nil
	}
	others := c.vnids.Others(nn.Name, vnid)
	if len(others) == 0 {
		return nil
	}
	confirm := config.Change{Action: config.ActionJoin, To: others[0]}
	if vnid.IsGlobal() {
		confirm = config.Change{Action: config.ActionGlobal}
	}
	return reconcile.Complain(c.Events, nn, reasonByHand, fmt.Errorf("netid %s was written by hand, and makes one network with %s: "+
		"set the annotation %s to %s if that is wanted, or else to %s; outside mode %s write back what it was, "+
		"or delete the NetNamespace, and it is made anew with a VNID of its own",
		vnid, someOf(others), networkv1.ChangePodNetworkAnnotation, confirm, config.ActionIsolate, config.ModeMultitenant))
}

func someOf(names []string) string {
	if n := len(names); n > namedSharers {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:namedSharers], ", "), n-namedSharers)
	}
	return strings.Join(names, ", ")
}

// update writes the object if it differs, and remembers what was written until the cache has it.
func (c *Controller) update(ctx context.Context, nn, want *networkv1.NetNamespace) error {
	if equality.Semantic.DeepEqual(nn, want) {
		return nil
	}
	now, err := c.Network.NetworkV1().NetNamespaces().Update(ctx, want, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("update NetNamespace %s: %w", nn.Name, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written[nn.Name] = now
	return nil
}

func setAnnotation(nn *networkv1.NetNamespace, key, value string) {
	metav1.SetMetaDataAnnotation(&nn.ObjectMeta, key, value)
}

// dispute notes that the VNID is not the namespace's to have.
func (c *Controller) dispute(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.disputed[name] = true
}

// settle takes back what dispute and Load noted.
func (c *Controller) settle(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.disputed, name)
	delete(c.found, name)
}

func (c *Controller) isDisputed(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.disputed[name]
}

func (c *Controller) wasFound(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.found[name]
}
