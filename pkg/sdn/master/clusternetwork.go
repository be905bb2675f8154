package master

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	networkv1 "github.com/openshift/api/network/v1"
	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions/network/v1"
	networklisters "github.com/openshift/client-go/network/listers/network/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// callTimeout bounds the API calls of one reconciliation.
	callTimeout = 15 * time.Second

	// inUseRetry is the interval at which a refused change is validated again: the conflicting HostSubnets may have been deleted.
	inUseRetry = 10 * time.Second
)

// networkController creates ClusterNetwork `default` in a new cluster, decides which of its edits become active, and reports that in
// annotations of the object (config.AcceptedAnnotation, config.ConditionsAnnotation).
//
// A decision depends on the object and on the allocated subnets, which can't be written in one transaction. So a leader that was
// suspended while it decided must not write its decision after another leader has taken over. Each leader therefore first writes the name of
// its term to the object, before it allocates anything. From then on a write of the previous leader, which is based on an older
// version, conflicts. Once the previous leader has read the new version, it finds another name there and stops leading.
type networkController struct {
	client  networkclient.Interface
	events  record.EventRecorder
	initial *config.Network                              // of a new cluster
	name    string                                       // of this leader's term, unique
	apply   func(context.Context, *config.Network) error // activates a network, or returns which objects in use conflict with it
	subnets networklisters.HostSubnetLister
	synced  []cache.InformerSynced
	loop    *reconcile.Loop         // with one worker
	stop    context.CancelCauseFunc // ends run

	accepted chan struct{} // closed when a network is active and the object reports it
	accept   func()        // closes accepted, once

	// The fields below belong to the worker of loop.
	active   *config.Network // nil: none yet
	named    bool            // the object has the name
	deleted  reconcile.LastError
	reported *config.Network // the active network of the last report on the object; nil: none
}

// maxBackoff bounds how long a new leader waits after the API server answers again: without a network it does nothing else.
const maxBackoff = 15 * time.Second

// supersededError reports that another controller leads.
type supersededError struct{ by string }

func (e *supersededError) Error() string {
	return fmt.Sprintf("leader %s wrote its name to ClusterNetwork %s: either this controller was suspended past the end of its lease, or both run without --leader-elect",
		e.by, networkv1.ClusterNetworkDefault)
}

// deletedError reports that a cluster with nodes has no ClusterNetwork.
type deletedError struct{ node string }

func (e *deletedError) Error() string {
	return fmt.Sprintf("ClusterNetwork %s was deleted, and ovsdn-controller does not create it again: nodes have HostSubnets, such as %s, and the flags may differ from "+
		"what they use; restore it from a backup, or create it with the annotation %s (docs/clusternetwork.md). Until then nodes retain their network, but agents that "+
		"start, and new nodes, wait for it", networkv1.ClusterNetworkDefault, e.node, config.ServiceProxyAnnotation)
}

func newNetworkController(client networkclient.Interface, events record.EventRecorder, initial *config.Network, name string, informers networkinformers.Interface,
	apply func(context.Context, *config.Network) error) (*networkController, error) {
	informer := informers.ClusterNetworks()
	c := &networkController{
		client: client, events: events, initial: initial, name: name, apply: apply,
		subnets: informers.HostSubnets().Lister(), synced: []cache.InformerSynced{informer.Informer().HasSynced, informers.HostSubnets().Informer().HasSynced},
		accepted: make(chan struct{}),
	}
	c.accept = sync.OnceFunc(func() { close(c.accepted) })
	c.loop = reconcile.New("clusternetworks", c.reconcileOrStop).WithMaxBackoff(maxBackoff)
	return c, c.loop.Watch(informer.Informer())
}

// run reconciles until the context ends. Its only error is a *supersededError.
func (c *networkController) run(ctx context.Context) error {
	if !cache.WaitForNamedCacheSyncWithContext(ctx, c.synced...) {
		return nil // only the end of the context ends the wait
	}
	ctx, c.stop = context.WithCancelCause(ctx)
	defer c.stop(nil)
	c.loop.Add(networkv1.ClusterNetworkDefault) // also if it does not exist
	c.loop.Run(ctx, 1)
	if superseded, is := errors.AsType[*supersededError](context.Cause(ctx)); is {
		return superseded
	}
	return nil
}

// reconcileOrStop reconciles ClusterNetwork `default` for any key, and ends run after a *supersededError.
func (c *networkController) reconcileOrStop(ctx context.Context, _ string) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	err := c.reconcile(ctx)
	if superseded, is := errors.AsType[*supersededError](err); is {
		c.stop(superseded)
	}
	return err
}

// reconcile activates the network of the object if it is valid and fits what is in use, and reports the result on the object.
func (c *networkController) reconcile(ctx context.Context) error {
	stored, err := c.getOrCreate(ctx)
	if deleted, is := errors.AsType[*deletedError](err); is {
		if c.deleted.Set(deleted) {
			c.warn(ctx, c.initial.Object(), eventreason.ClusterNetworkDeleted, deleted)
		}
		c.loop.AddAfter(networkv1.ClusterNetworkDefault, inUseRetry) // the HostSubnets may be deleted, too
		return nil
	}
	if err != nil {
		return err
	}
	c.deleted.Set(nil)
	if by := stored.Annotations[config.ControllerAnnotation]; c.named && by != "" && by != c.name {
		return &supersededError{by}
	}
	if c.active == nil {
		// The accepted network stays active, even if the object was edited since.
		if previous, err := acceptedNetwork(stored); err == nil {
			if err := c.activate(ctx, stored, previous); err != nil {
				return err
			}
			c.reported = previous
		}
	}
	accepted := c.evaluate(ctx, stored)
	if err := c.write(ctx, stored, accepted); err != nil {
		return err
	}
	c.named = true
	if accepted.Reason == config.ReasonInUse {
		c.loop.AddAfter(stored.Name, inUseRetry)
	}
	if c.active == nil {
		return nil
	}
	c.accept()
	if c.reported != nil && !reflect.DeepEqual(c.reported, c.active) {
		c.events.Event(stored, corev1.EventTypeNormal, eventreason.AcceptedClusterNetwork, c.activeMessage())
	}
	c.reported = c.active
	return nil
}

// getOrCreate reads ClusterNetwork `default`. If it does not exist, it is created from the active network or, in a new cluster, from
// the flags. In a cluster with nodes it returns a *deletedError: the service proxy and the mode of the flags may not be those of its nodes.
func (c *networkController) getOrCreate(ctx context.Context) (*networkv1.ClusterNetwork, error) {
	client := c.client.NetworkV1().ClusterNetworks()
	stored, err := client.Get(ctx, networkv1.ClusterNetworkDefault, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		network := c.active
		if network == nil {
			if err := c.checkNew(); err != nil {
				return nil, err
			}
			network = c.initial
		}
		if stored, err = client.Create(ctx, network.Object(), metav1.CreateOptions{}); err == nil {
			klog.FromContext(ctx).Info("Created ClusterNetwork default", "network", describe(network))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("get or create ClusterNetwork %s: %w", networkv1.ClusterNetworkDefault, err)
	}
	return stored, nil
}

// checkNew returns a *deletedError if nodes have HostSubnets.
func (c *networkController) checkNew() error {
	all, err := c.subnets.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list HostSubnets: %w", err)
	}
	var nodes []string
	for _, o := range all {
		if config.IsNode(o) && !config.IsRetained(o) {
			nodes = append(nodes, o.Name)
		}
	}
	if len(nodes) == 0 {
		return nil
	}
	return &deletedError{slices.Min(nodes)}
}

// acceptedNetwork returns the accepted network of an object, which has no service proxy if the object has none: it is written as external.
func acceptedNetwork(stored *networkv1.ClusterNetwork) (*config.Network, error) {
	n, err := config.ActiveNetwork(stored)
	if err != nil {
		return nil, err
	}
	if _, ok := stored.Annotations[config.ServiceProxyAnnotation]; !ok && n.ServiceProxy == config.ServiceProxyExternal {
		n.ServiceProxy = config.ServiceProxyUnset
	}
	return n, nil
}

// retainsServiceProxy returns an error if the object has lost the annotation by which the switches balance services. Such an object, as of a manifest or a backup without it,
// would leave nodes that have no kube-proxy without services.
func (c *networkController) retainsServiceProxy(want *config.Network) error {
	if c.active == nil || c.active.ServiceProxy != config.ServiceProxyOVS || want.ServiceProxy != config.ServiceProxyUnset {
		return nil
	}
	return fmt.Errorf("annotation %s is missing; write %s, or %s to change to kube-proxy", config.ServiceProxyAnnotation, config.ServiceProxyOVS, config.ServiceProxyExternal)
}

// evaluate activates the network of the object and returns the Accepted condition. If the network can't be activated, it sends an Event.
func (c *networkController) evaluate(ctx context.Context, stored *networkv1.ClusterNetwork) metav1.Condition {
	accepted := metav1.Condition{Type: config.ConditionAccepted, ObservedGeneration: stored.Generation}
	want, err := config.ParseNetwork(stored)
	if err == nil {
		err = c.retainsServiceProxy(want)
	}
	event := eventreason.InvalidClusterNetwork
	accepted.Status, accepted.Reason = metav1.ConditionFalse, config.ReasonInvalid
	if err == nil && (c.active == nil || !reflect.DeepEqual(want, c.active)) {
		if err = c.activate(ctx, stored, want); err != nil {
			event, accepted.Reason = eventreason.RefusedClusterNetwork, config.ReasonInUse
		}
	}
	switch {
	case err == nil:
		accepted.Status, accepted.Reason = metav1.ConditionTrue, config.ReasonAccepted
		accepted.Message = c.activeMessage()
		return accepted
	case c.active == nil:
		err = fmt.Errorf("ClusterNetwork %s can't be used until this is corrected: %w", stored.Name, err)
	default:
		err = fmt.Errorf("ClusterNetwork %s is not accepted: %w\nstill active: %s", stored.Name, err, describe(c.active))
	}
	accepted.Message = reconcile.OneLine(err)
	if old, _ := config.Conditions(stored); !c.named || !hasCondition(old, accepted) {
		klog.FromContext(ctx).Error(err, "ClusterNetwork not accepted", "reason", event)
		c.events.Event(stored, corev1.EventTypeWarning, event, accepted.Message)
	}
	return accepted
}

func (c *networkController) activeMessage() string { return "active: " + describe(c.active) }

// hasCondition reports whether the condition is in the list, apart from its times.
func hasCondition(conditions []metav1.Condition, c metav1.Condition) bool {
	old := meta.FindStatusCondition(conditions, c.Type)
	return old != nil && old.Status == c.Status && old.Reason == c.Reason &&
		old.Message == c.Message && old.ObservedGeneration == c.ObservedGeneration
}

// activate makes a network the active one, unless it conflicts with what is in use.
func (c *networkController) activate(ctx context.Context, stored *networkv1.ClusterNetwork, network *config.Network) error {
	if err := c.apply(ctx, network); err != nil {
		return err
	}
	first := c.active == nil
	c.active = network
	klog.FromContext(ctx).Info("Activated ClusterNetwork", "network", describe(network))
	if !first {
		return nil
	}
	if differences := c.differences(network); len(differences) > 0 {
		c.warn(ctx, stored, eventreason.DiffersFromFlags, fmt.Errorf("flags of ovsdn-controller differ from the object, which takes precedence; adapt the flags (network.env): %w", errors.Join(differences...)))
	}
	return nil
}

// write patches the annotations of the object with the condition, the active network and the name of this leader's term, unless they are up to
// date. It conflicts if the object has changed since it was read. It never writes the spec, which belongs to the user.
func (c *networkController) write(ctx context.Context, stored *networkv1.ClusterNetwork, accepted metav1.Condition) error {
	conditions, err := config.Conditions(stored)
	if err != nil {
		klog.FromContext(ctx).Info("Replacing invalid conditions of ClusterNetwork", "err", err)
	}
	meta.SetStatusCondition(&conditions, accepted)
	list, err := json.Marshal(conditions)
	if err != nil {
		return fmt.Errorf("encode conditions of ClusterNetwork %s: %w", stored.Name, err)
	}
	annotations := map[string]string{
		config.ControllerAnnotation: c.name,
		config.ConditionsAnnotation: string(list),
	}
	if c.active != nil {
		active := *c.active
		active.ServiceProxy = cmp.Or(active.ServiceProxy, config.ServiceProxyExternal) // agents follow the object's while this has none
		if annotations[config.AcceptedAnnotation], err = active.Accepted(); err != nil {
			return fmt.Errorf("encode active network: %w", err)
		}
	}
	same := true
	for key, value := range annotations {
		same = same && stored.Annotations[key] == value
	}
	if same {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": stored.UID, "resourceVersion": stored.ResourceVersion, "annotations": annotations,
	}})
	if err != nil {
		return fmt.Errorf("encode annotations of ClusterNetwork %s: %w", stored.Name, err)
	}
	if _, err := c.client.NetworkV1().ClusterNetworks().Patch(ctx, stored.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch annotations of ClusterNetwork %s: %w", stored.Name, err)
	}
	return nil
}

// differences returns an error for each field in which the stored network differs from the flags.
func (c *networkController) differences(stored *config.Network) []error {
	var list []error
	for _, d := range []struct {
		field        string
		stored, flag any
	}{
		{"mode", stored.Mode, c.initial.Mode},
		{"cluster network", stored.ClusterNetworks, c.initial.ClusterNetworks},
		{"service network", stored.ServiceNetwork, c.initial.ServiceNetwork},
		{"VXLAN port", stored.VXLANPort, c.initial.VXLANPort},
		{"MTU", stored.MTU, c.initial.MTU},
	} {
		if !reflect.DeepEqual(d.stored, d.flag) {
			list = append(list, fmt.Errorf("%s is %v in the object, and %v in the flags", d.field, d.stored, d.flag))
		}
	}
	// An object without service proxy is that of an earlier version: after its upgrade the flag has the default of new clusters, which is no choice for this one.
	if p := c.initial.ServiceProxy; stored.ServiceProxy != config.ServiceProxyUnset && p != stored.ServiceProxy {
		list = append(list, fmt.Errorf("service proxy is %s in the object, and %s in the flags", stored.ServiceProxy, p))
	}
	return list
}

// warn reports an error in an Event and in the log.
func (c *networkController) warn(ctx context.Context, about *networkv1.ClusterNetwork, reason string, err error) {
	klog.FromContext(ctx).Info("Sent Warning Event on ClusterNetwork", "reason", reason, "err", err)
	c.events.Event(about, corev1.EventTypeWarning, reason, reconcile.OneLine(err))
}

// describe formats a network for messages.
func describe(n *config.Network) string {
	ranges := make([]string, len(n.ClusterNetworks))
	for i, c := range n.ClusterNetworks {
		ranges[i] = c.String()
	}
	mtu := "the nodes' own"
	if n.MTU != 0 {
		mtu = strconv.Itoa(n.MTU)
	}
	if n.RoutableMTU != 0 {
		mtu += fmt.Sprintf(" (routable %d)", n.RoutableMTU)
	}
	text := fmt.Sprintf("%s; services %s; mode %s; VXLAN port %d; MTU %s", strings.Join(ranges, ", "), n.ServiceNetwork, n.Mode, n.VXLANPort, mtu)
	if len(n.NonMasqueradeCIDRs) > 0 {
		text += fmt.Sprintf("; not masqueraded %v", n.NonMasqueradeCIDRs)
	}
	if n.ServiceProxy == config.ServiceProxyUnset {
		return text + fmt.Sprintf("; service proxy %s (no annotation %s)", config.ServiceProxyExternal, config.ServiceProxyAnnotation)
	}
	return text + fmt.Sprintf("; service proxy %s", n.ServiceProxy)
}
