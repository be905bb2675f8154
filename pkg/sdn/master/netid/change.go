package netid

import (
	"context"
	"errors"
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// refusal says why a change is not made, and never will be.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// change makes the change that the NetNamespace asks for, or refuses it. The same write removes the request, or marks it as refused;
// if the write fails, nothing has changed. Changes are made one after the other: a join is to the VNID that the other namespace has at that
// moment, and does not follow its later changes.
func (c *Controller) change(ctx context.Context, nn *networkv1.NetNamespace, uid types.UID) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	want := nn.DeepCopy()
	own(want, uid)
	c.restoreRecord(want)

	vnid, err := c.decide(ctx, want, uid)
	refused, is := errors.AsType[refusal](err)
	switch {
	case is: // oc takes the annotation's absence for success
		setAnnotation(want, networkv1.ChangePodNetworkAnnotation, config.RefusedChange(nn.Annotations[networkv1.ChangePodNetworkAnnotation]))
		setAnnotation(want, config.ChangeRefusedAnnotation, reconcile.OneLine(refused))
	case err != nil:
		return err
	default:
		defer c.vnids.Unreserve(vnid)
		delete(want.Annotations, networkv1.ChangePodNetworkAnnotation)
		delete(want.Annotations, config.ChangeRefusedAnnotation)
		want.NetID = uint32(vnid)
		setAnnotation(want, config.AssignedVNIDAnnotation, vnid.String())
	}
	if err := c.update(ctx, nn, want); err != nil {
		return err
	}
	if is {
		klog.FromContext(ctx).Info("Refused a change of the namespace's network", "why", refused)
		c.Events.Event(nn, corev1.EventTypeWarning, reasonRefused, reconcile.OneLine(refused))
		return nil
	}
	c.vnids.Set(nn.Name, vnid)
	c.settle(nn.Name)
	c.record(nn.Name, vnid)
	klog.FromContext(ctx).Info("Changed the namespace's network", "vnid", vnid, "was", nn.NetID)
	c.Events.Eventf(nn, corev1.EventTypeNormal, reasonChanged, "%s: its VNID is %s, and was %d",
		nn.Annotations[networkv1.ChangePodNetworkAnnotation], vnid, nn.NetID)
	return nil
}

// decide returns the VNID that the change leads to, reserved. The error is a refusal, unless the change may be possible
// later.
func (c *Controller) decide(ctx context.Context, nn *networkv1.NetNamespace, uid types.UID) (config.VNID, error) {
	change, _, err := config.RequestedChange(nn)
	if err != nil {
		return 0, refusal{err}
	}
	if mode := config.Mode(c.mode.Load()); mode != config.ModeMultitenant {
		return 0, refuse("%s is refused: in mode %s VNIDs isolate nobody, and can't be changed (mode %s is for that)", change, mode, config.ModeMultitenant)
	}
	if uid == "" {
		return 0, refuse("%s is refused: there is no Namespace %s", change, nn.Name)
	}
	if nn.Name == metav1.NamespaceDefault && change.Action == config.ActionIsolate {
		return 0, refuse("%s is refused: Namespace %s has the API server's service, which all must reach", change, nn.Name)
	}
	switch change.Action {
	case config.ActionGlobal:
		c.vnids.Reserve(config.GlobalVNID)
		return config.GlobalVNID, nil
	case config.ActionJoin:
		return c.join(ctx, nn.Name, change)
	default:
		return c.isolate(nn)
	}
}

// join reserves the VNID that the other namespace has.
func (c *Controller) join(ctx context.Context, name string, change config.Change) (config.VNID, error) {
	ns, err := reconcile.OrNil(c.namespaces.Get(change.To))
	if err == nil && ns == nil { // the cache may lag behind
		ns, err = c.liveNamespace(ctx, change.To)
	}
	if err != nil {
		return 0, fmt.Errorf("look Namespace %s up: %w", change.To, err)
	}
	if ns == nil {
		return 0, refuse("%s is refused: there is no Namespace %s", change, change.To)
	}
	other, err := c.latest(change.To)
	if err != nil {
		return 0, err
	}
	if other == nil || namespaceUID(other) != "" && namespaceUID(other) != ns.UID {
		return 0, fmt.Errorf("%s has to wait: Namespace %s has no VNID yet", change, change.To)
	}
	vnid, err := config.CheckVNID(other.NetID)
	if err != nil {
		return 0, refuse("%s is refused: NetNamespace %s is not in order: netid: %w", change, change.To, err)
	}
	if name == metav1.NamespaceDefault && !vnid.IsGlobal() {
		return 0, refuse("%s is refused: Namespace %s has the API server's service, which all must reach", change, name)
	}
	c.vnids.Reserve(vnid)
	return vnid, nil
}

// isolate reserves a new VNID, unless the namespace has one to itself. To have GlobalVNID to oneself is not that.
func (c *Controller) isolate(nn *networkv1.NetNamespace) (config.VNID, error) {
	vnid, usable := inUse(nn)
	if usable && !vnid.IsGlobal() && !c.vnids.IsShared(nn.Name, vnid) {
		c.vnids.Reserve(vnid)
		return vnid, nil
	}
	return c.allocate(nn)
}
