// Package networkpolicy reports faults of NetworkPolicies and ClusterNetworkPolicies in Events: parts that nodes can't enforce. The nodes find the
// same faults, but each of them would send the same Event.
package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
	policyinformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/discovery"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Rate limit of Events. Each one is an API call: the recorder drops Events when 1,000 are queued, and the API calls for nodes and
// namespaces have priority.
const (
	eventsPerSecond = 20
	eventBurst      = 100
)

// maxMessageLength is the maximum length of an Event's message, in bytes (events.k8s.io/v1 Event.note).
const maxMessageLength = 1024

// Clients are the clients of the API server.
type Clients struct {
	Kube     kubernetes.Interface
	Policies policyclient.Interface
	Events   record.EventRecorder
}

// Controller validates each policy when it is added and when its spec changes, and sends a Warning for a policy with faults. Each leader sends
// them again, since Events expire. It writes nothing else.
//
// Faults that depend on more than the policies of the namespace are only known to the nodes.
type Controller struct {
	Clients
	mode            atomic.Uint32 // a config.Mode; ModeSubnet before the first SetMode
	networkPolicies cache.SharedIndexInformer
	clusterPolicies cache.SharedIndexInformer // runs once the API server serves ClusterNetworkPolicies
	loop            *reconcile.Loop           // keys of NetworkPolicies, ClusterNetworkPolicies (no namespace) and namespaces (namespaceKey)
	limiter         flowcontrol.RateLimiter   // of Events

	// The fields below belong to the loop's only worker.
	ledgers    map[string]*policy.Ledger      // by namespace
	overBudget map[string]map[string]struct{} // names of policies that exceed the budget of their namespace, by namespace
}

// New returns a controller, whose informers Run starts.
func New(clients Clients) (*Controller, error) {
	c := &Controller{
		Clients:         clients,
		networkPolicies: informers.NewSharedInformerFactory(clients.Kube, 0).Networking().V1().NetworkPolicies().Informer(),
		clusterPolicies: policyinformers.NewSharedInformerFactory(clients.Policies, 0).Policy().V1alpha2().ClusterNetworkPolicies().Informer(),
		limiter:         flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst),
		ledgers:         map[string]*policy.Ledger{},
		overBudget:      map[string]map[string]struct{}{},
	}
	c.loop = reconcile.New("policies", c.reconcile)
	for _, informer := range c.informers() {
		if err := informer.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("set transform of policies: %w", err)
		}
		if err := c.loop.WatchUnless(informer, sameSpec); err != nil {
			return nil, err
		}
	}
	return c, nil
}

func (c *Controller) informers() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{c.networkPolicies, c.clusterPolicies}
}

// trim removes fields that the controller and Events don't use before an object is cached.
func trim(o any) (any, error) {
	switch o := o.(type) {
	case *networkingv1.NetworkPolicy:
		return policy.Compact(o), nil
	case *policyv1alpha2.ClusterNetworkPolicy:
		return &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: trimMeta(&o.ObjectMeta), Spec: o.Spec}, nil
	}
	return o, nil
}

func trimMeta(o *metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: o.UID, ResourceVersion: o.ResourceVersion, Generation: o.Generation}
}

func sameSpec(before, now any) bool {
	b, ok := before.(metav1.Object)
	n, ok2 := now.(metav1.Object)
	return ok && ok2 && b.GetUID() == n.GetUID() && b.GetGeneration() == n.GetGeneration()
}

// SetMode sets the mode. In mode subnet, policies are not enforced, which is reported in place of their faults.
func (c *Controller) SetMode(mode config.Mode) {
	before := config.Mode(c.mode.Swap(uint32(mode)))
	if (before == config.ModeSubnet) == (mode == config.ModeSubnet) {
		return
	}
	for _, informer := range c.informers() {
		for _, key := range informer.GetStore().ListKeys() {
			c.loop.Add(key)
		}
	}
}

// Run reconciles until the context ends. The CRD of ClusterNetworkPolicies may be created later.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { c.networkPolicies.RunWithContext(ctx) })
	running.Go(func() {
		if err := discovery.AwaitClusterNetworkPolicies(ctx, c.Policies); err == nil {
			c.clusterPolicies.RunWithContext(ctx)
		}
	})
	c.loop.Run(ctx, 1) // enough for eventsPerSecond
	running.Wait()
}

// reconcile sends an Event for a policy that has faults.
func (c *Controller) reconcile(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	switch {
	case err != nil || namespace == "": // a ClusterNetworkPolicy
	case name == "":
		c.updateOverBudget(namespace)
		return nil
	default:
		c.updateLedger(namespace, name)
	}
	reason, check := eventreason.PartlyNotEnforced, c.validate
	if config.Mode(c.mode.Load()) == config.ModeSubnet {
		reason, check = eventreason.NotSupported, c.inModeSubnet
	}
	about, err := check(key)
	if err == nil {
		return nil
	}
	if err := c.limiter.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the rate limit of Events: %w", err)
	}
	message := reconcile.OneLine(err)
	klog.FromContext(ctx).Info("Policy not enforced as written", "reason", reason, "faults", message)
	c.Events.Event(about, corev1.EventTypeWarning, reason, truncate(message))
	return nil
}

// errModeSubnet is the fault of every policy in mode subnet.
var errModeSubnet = errors.New("the network ignores this policy, which denies nothing: mode subnet enforces no policies; change pluginName of ClusterNetwork default to redhat/openshift-ovs-networkpolicy")

// inModeSubnet returns the policy and errModeSubnet, nil if it does not exist.
func (c *Controller) inModeSubnet(key string) (runtime.Object, error) {
	if o := reconcile.Cached[networkingv1.NetworkPolicy](c.networkPolicies, key); o != nil {
		return o, errModeSubnet
	}
	if o := reconcile.Cached[policyv1alpha2.ClusterNetworkPolicy](c.clusterPolicies, key); o != nil {
		return o, errModeSubnet
	}
	return nil, nil
}

// errOverBudget is the fault of a policy that exceeds the budget of its namespace.
var errOverBudget = errors.New("the policies of the namespace are beyond its budget: the newest have no rules, this one among them; delete policies of the namespace, or give them fewer rules, peers and ports")

// updateLedger updates the cost of a policy, and adds the namespace to the queue if the policies that exceed its budget may have changed.
func (c *Controller) updateLedger(namespace, name string) {
	ledger := c.ledgers[namespace]
	if ledger == nil {
		ledger = policy.NewLedger()
		c.ledgers[namespace] = ledger
	}
	if o := reconcile.Cached[networkingv1.NetworkPolicy](c.networkPolicies, cache.NewObjectName(namespace, name).String()); o != nil {
		ledger.Set(o)
	} else if ledger.Delete(name) {
		delete(c.ledgers, namespace)
	}
	if ledger.Over() || len(c.overBudget[namespace]) > 0 {
		c.loop.Add(namespaceKey(namespace))
	}
}

// namespaceKey is the key of a namespace in the queue. No policy has it, since names are not empty.
func namespaceKey(namespace string) string { return namespace + "/" }

// updateOverBudget adds the policies that newly exceed the namespace's budget to the queue. The namespace has a key of its own, because this sorts all
// its policies: many changes are handled by one call.
func (c *Controller) updateOverBudget(namespace string) {
	before, now := c.overBudget[namespace], map[string]struct{}{}
	if ledger := c.ledgers[namespace]; ledger != nil {
		for _, name := range ledger.OverBudget() {
			now[name] = struct{}{}
			if _, is := before[name]; !is {
				c.loop.Add(cache.NewObjectName(namespace, name).String())
			}
		}
	}
	if delete(c.overBudget, namespace); len(now) > 0 {
		c.overBudget[namespace] = now
	}
}

// validate returns the policy and its faults, nil if it has none or does not exist.
func (c *Controller) validate(key string) (runtime.Object, error) {
	if o := reconcile.Cached[networkingv1.NetworkPolicy](c.networkPolicies, key); o != nil {
		faults := policy.CheckNetworkPolicy(o)
		if _, over := c.overBudget[o.Namespace][o.Name]; over {
			faults = append(faults, errOverBudget)
		}
		if len(faults) > 0 {
			return o, fmt.Errorf("this can't be enforced, and allows nothing: %w", errors.Join(faults...))
		}
	}
	if o := reconcile.Cached[policyv1alpha2.ClusterNetworkPolicy](c.clusterPolicies, key); o != nil {
		if faults := policy.CheckClusterNetworkPolicy(o); len(faults) > 0 {
			return o, fmt.Errorf("this can't be enforced: %w", errors.Join(faults...))
		}
	}
	return nil, nil
}

// truncate truncates a message that is too long for an Event.
func truncate(message string) string {
	if len(message) <= maxMessageLength {
		return message
	}
	const more = "… (the agents' logs have the rest)"
	return strings.ToValidUTF8(message[:maxMessageLength-len(more)], "") + more
}
