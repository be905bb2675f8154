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
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// refusal is the error of a change that can never be made. It is recorded in config.ChangeRefusedAnnotation and not retried.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

func refuse(format string, args ...any) error { return refusal{fmt.Errorf(format, args...)} }

// change makes the requested change of the VNID, or refuses it. The same write removes the request or marks it as refused. Changes are
// serialized: a join uses the VNID that the other namespace has at that moment, and does not follow later changes of it.
func (c *Controller) change(ctx context.Context, nn *networkv1.NetNamespace, uid types.UID) error {
	c.changes.Lock()
	defer c.changes.Unlock()
	want := c.withOwner(nn, uid)
	vnid, err := c.reserve(ctx, want, uid)
	refused, isRefused := errors.AsType[refusal](err)
	switch {
	case isRefused: // oc interprets a removed annotation as success
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
	if err := c.write(ctx, nn, want); err != nil {
		return err
	}
	if isRefused {
		klog.FromContext(ctx).Info("Refused change of VNID", "err", refused)
		c.Events.Event(nn, corev1.EventTypeWarning, eventreason.NetworkChangeRefused, reconcile.OneLine(refused))
		return nil
	}
	c.vnids.Set(nn.Name, vnid)
	c.setAssigned(nn.Name, uid, vnid)
	klog.FromContext(ctx).Info("Changed VNID", "vnid", vnid, "previousVNID", nn.NetID)
	c.Events.Eventf(nn, corev1.EventTypeNormal, eventreason.NetworkChanged, "%s: its VNID is %s, and was %d",
		nn.Annotations[networkv1.ChangePodNetworkAnnotation], vnid, nn.NetID)
	return nil
}

// reserve returns the VNID after the requested change, and reserves it. The error is a refusal, unless a retry may succeed.
func (c *Controller) reserve(ctx context.Context, nn *networkv1.NetNamespace, uid types.UID) (config.VNID, error) {
	change, _, err := config.RequestedChange(nn)
	if err != nil {
		return 0, refusal{err}
	}
	if mode := config.Mode(c.mode.Load()); mode != config.ModeMultitenant {
		return 0, refuse("%s is refused: in mode %s VNIDs do not isolate namespaces and can't be changed; use mode %s", change, mode, config.ModeMultitenant)
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

// join reserves the VNID of the other namespace.
func (c *Controller) join(ctx context.Context, name string, change config.Change) (config.VNID, error) {
	ns, err := reconcile.OrNil(c.namespaces.Get(change.To))
	if err != nil {
		return 0, fmt.Errorf("get Namespace %s from the cache: %w", change.To, err)
	}
	if ns == nil { // the cache may be outdated
		if ns, err = c.liveNamespace(ctx, change.To); err != nil {
			return 0, err
		}
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
		return 0, refuse("%s is refused: NetNamespace %s is invalid: netid: %w", change, change.To, err)
	}
	if name == metav1.NamespaceDefault && !vnid.IsGlobal() {
		return 0, refuse("%s is refused: Namespace %s has the API server's service, which all must reach", change, name)
	}
	c.vnids.Reserve(vnid)
	return vnid, nil
}

// isolate reserves a new VNID or, if no other namespace has it, the current one. GlobalVNID isolates no namespace, even if it has a single user.
func (c *Controller) isolate(nn *networkv1.NetNamespace) (config.VNID, error) {
	vnid, valid := effectiveVNID(nn)
	if valid && !vnid.IsGlobal() && !c.vnids.IsShared(nn.Name, vnid) {
		c.vnids.Reserve(vnid)
		return vnid, nil
	}
	return c.allocate(nn)
}
