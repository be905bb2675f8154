// Package egresspolicy reports in conditions and Events how EgressNetworkPolicies are enforced. The agents enforce them, and report DNS names in the status, whose
// errors it summarizes.
package egresspolicy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/egressstatus"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Rate limit of writes: those for nodes and namespaces have priority.
const (
	writesPerSecond = 20
	writeBurst      = 100
)

// Status reads and writes the status (egressstatus.Client).
type Status interface {
	Get(ctx context.Context, namespace, name string) (*egressstatus.Status, error)
	Patch(ctx context.Context, namespace, name string, status egressstatus.Status) (*egressstatus.Status, error)
}

// Controller writes the conditions of the policies of changed namespaces.
type Controller struct {
	policies      cache.SharedIndexInformer
	netNamespaces cache.SharedIndexInformer
	hostSubnets   cache.SharedIndexInformer
	status        Status
	events        record.EventRecorder
	mode          atomic.Uint32 // a config.Mode
	loop          *reconcile.Loop
	limiter       flowcontrol.RateLimiter
	last          map[string]map[string]lastStatus // by namespace and name; only the worker of the loop uses it
}

// New returns a controller of the informers, which the caller starts. That of policies has an index by namespace.
func New(policies, netNamespaces, hostSubnets cache.SharedIndexInformer, status Status, events record.EventRecorder) (*Controller, error) {
	c := &Controller{
		policies: policies, netNamespaces: netNamespaces, hostSubnets: hostSubnets, status: status, events: events,
		limiter: flowcontrol.NewTokenBucketRateLimiter(writesPerSecond, writeBurst), last: map[string]map[string]lastStatus{},
	}
	c.loop = reconcile.New("egress-policies", c.reconcile)
	_, err := policies.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.enqueue, DeleteFunc: c.enqueue,
		UpdateFunc: func(before, now any) {
			if sameSpec(before, now) {
				c.statusWritten(now)
			} else {
				c.enqueue(now)
			}
		},
	})
	_, err2 := netNamespaces.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.enqueueVNID, UpdateFunc: func(_, now any) { c.enqueueVNID(now) },
	})
	_, err3 := hostSubnets.AddEventHandler(cache.ResourceEventHandlerFuncs{DeleteFunc: c.nodeDeleted})
	if err = errors.Join(err, err2, err3); err != nil {
		return nil, fmt.Errorf("add event handler: %w", err)
	}
	return c, nil
}

func sameSpec(before, now any) bool {
	b, ok := before.(metav1.Object)
	n, ok2 := now.(metav1.Object)
	return ok && ok2 && b.GetUID() == n.GetUID() && b.GetGeneration() == n.GetGeneration()
}

func (c *Controller) enqueue(obj any) {
	if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
		c.loop.Add(key.Namespace)
	}
}

func (c *Controller) enqueueVNID(obj any) {
	if o, ok := obj.(*networkv1.NetNamespace); ok && len(c.of(o.Name)) > 0 {
		c.loop.Add(o.Name)
	}
}

// SetMode sets the mode. In mode subnet, namespaces have no VNIDs.
func (c *Controller) SetMode(mode config.Mode) {
	if config.Mode(c.mode.Swap(uint32(mode))) == mode {
		return
	}
	for _, namespace := range c.policies.GetIndexer().ListIndexFuncValues(cache.NamespaceIndex) {
		c.loop.Add(namespace)
	}
}

// Run writes conditions until the context ends.
func (c *Controller) Run(ctx context.Context) {
	if !cache.WaitForCacheSync(ctx.Done(), c.policies.HasSynced, c.netNamespaces.HasSynced, c.hostSubnets.HasSynced) {
		return
	}
	c.loop.Run(ctx, 1) // enough for writesPerSecond
}

// of returns the policies of a namespace, in the order of their rules.
func (c *Controller) of(namespace string) []*networkv1.EgressNetworkPolicy {
	cached, err := c.policies.GetIndexer().ByIndex(cache.NamespaceIndex, namespace)
	if err != nil {
		return nil
	}
	var all []*networkv1.EgressNetworkPolicy
	for _, obj := range cached {
		if o, ok := obj.(*networkv1.EgressNetworkPolicy); ok {
			all = append(all, o)
		}
	}
	slices.SortFunc(all, func(a, b *networkv1.EgressNetworkPolicy) int { return cmp.Compare(a.Name, b.Name) })
	return all
}

// reconcile writes the status of the policies of a namespace. The key is that of the namespace, or of a policy whose status was written.
func (c *Controller) reconcile(ctx context.Context, key string) error {
	namespace, name, isPolicy := strings.Cut(key, "/")
	if isPolicy && c.isSummarized(namespace, name) {
		return nil
	}
	all := c.of(namespace)
	c.releaseDeleted(namespace, all)
	merged := mergedCondition(all)
	_, fault := config.MergeEgressNetworkPolicies(all)
	var errs []error
	for _, o := range all {
		accepted := c.accepted(o, fault)
		if err := c.write(ctx, o, accepted, merged); err != nil && !apierrors.IsNotFound(err) { // it was deleted, or the CRD is that of an earlier version
			errs = append(errs, fmt.Errorf("EgressNetworkPolicy %s: %w", o.Name, err))
		}
	}
	return errors.Join(errs...)
}

func mergedCondition(all []*networkv1.EgressNetworkPolicy) metav1.Condition {
	if len(all) < 2 {
		return metav1.Condition{Type: egressstatus.ConditionMerged, Status: metav1.ConditionFalse, Reason: egressstatus.ReasonOnlyPolicy, Message: "it is the only one of the namespace"}
	}
	names := make([]string, len(all))
	for i, o := range all {
		names[i] = o.Name
	}
	return metav1.Condition{
		Type: egressstatus.ConditionMerged, Status: metav1.ConditionTrue, Reason: egressstatus.ReasonSeveralPolicies,
		Message: reconcile.Shorten("the namespace has several EgressNetworkPolicies, whose rules are evaluated in this order: " + strings.Join(names, ", ") + "; write one"),
	}
}

// accepted returns the condition Accepted of a policy. fault is that of all policies of its namespace.
func (c *Controller) accepted(o *networkv1.EgressNetworkPolicy, fault error) metav1.Condition {
	accepted := metav1.Condition{Type: egressstatus.ConditionAccepted, Status: metav1.ConditionFalse}
	p, own := config.ParseEgressNetworkPolicy(o)
	switch {
	case c.isGlobal(o.Namespace):
		accepted.Reason = egressstatus.ReasonGlobalNamespace
		accepted.Message = fmt.Sprintf("namespace %s has VNID 0, in which no EgressNetworkPolicy is enforced: this one denies nothing; isolate the namespace, or use a NetworkPolicy", o.Namespace)
	case fault != nil:
		accepted.Reason = egressstatus.ReasonInvalid
		if own != nil {
			fault = own
		}
		accepted.Message = reconcile.Shorten(reconcile.OneLine(fault)) + "; the last valid rules of the namespace stay active, if there are none all packets to outside are denied"
	case len(p.Everywhere) > 0:
		accepted.Status, accepted.Reason = metav1.ConditionTrue, egressstatus.ReasonAcceptedAsEverywhere
		accepted.Message = fmt.Sprintf("egress[%d].to: cidrSelector 0.0.0.0/32 is read as 0.0.0.0/0, all addresses; write 0.0.0.0/0", p.Everywhere[0])
	default:
		accepted.Status, accepted.Reason = metav1.ConditionTrue, egressstatus.ReasonAccepted
		accepted.Message = fmt.Sprintf("%d rules are active", len(p.Rules))
	}
	return accepted
}

func (c *Controller) isGlobal(namespace string) bool {
	obj, exists, err := c.netNamespaces.GetStore().GetByKey(namespace)
	o, ok := obj.(*networkv1.NetNamespace)
	if err != nil || !exists || !ok || config.Mode(c.mode.Load()) == config.ModeSubnet {
		return false
	}
	n, err := config.ParseNetNamespace(o)
	return err == nil && n.VNID.IsGlobal()
}

// write writes the conditions and the summary of DNS errors that have changed, removes the reports of deleted nodes, and sends a Warning for each condition that
// reports a fault.
func (c *Controller) write(ctx context.Context, o *networkv1.EgressNetworkPolicy, wanted ...metav1.Condition) error {
	status, err := c.status.Get(ctx, o.Namespace, o.Name)
	if err != nil {
		return err
	}
	conditions, changed := slices.Clone(status.Conditions), false
	for _, w := range wanted {
		w.ObservedGeneration = o.Generation
		before := meta.FindStatusCondition(conditions, w.Type)
		isNews := before == nil || before.Reason != w.Reason || before.Message != w.Message
		if meta.SetStatusCondition(&conditions, w) {
			changed = true
		}
		if reason := eventOf(w.Reason); reason != "" && isNews {
			c.events.Event(o, corev1.EventTypeWarning, reason, w.Message)
		}
	}
	deleted := c.deletedNodes(status)
	dnsErrors := changedSummary(o, status, deleted)
	if !changed && len(deleted) == 0 && (dnsErrors == nil || c.postpone(o, status, *dnsErrors)) {
		c.setSummarized(o, status)
		return nil
	}
	if err := c.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the rate limit: %w", err)
	}
	klog.FromContext(ctx).V(2).Info("Updated status of EgressNetworkPolicy", "policy", klog.KObj(o))
	result, err := c.status.Patch(ctx, o.Namespace, o.Name, egressstatus.Status{Conditions: conditions, Nodes: deleted, DNSErrors: dnsErrors})
	if err != nil {
		return err
	}
	if dnsErrors != nil {
		c.setLast(o, func(l *lastStatus) { l.written = time.Now() })
	}
	c.setSummarized(o, result)
	return nil
}

// eventOf returns the reason of the Event about a condition with the reason; "": none.
func eventOf(reason string) string {
	switch reason {
	case egressstatus.ReasonInvalid:
		return eventreason.InvalidEgressNetworkPolicy
	case egressstatus.ReasonGlobalNamespace, egressstatus.ReasonAcceptedAsEverywhere:
		return eventreason.EgressNetworkPolicyNotAsWritten
	case egressstatus.ReasonSeveralPolicies:
		return eventreason.EgressNetworkPoliciesMerged
	}
	return ""
}
