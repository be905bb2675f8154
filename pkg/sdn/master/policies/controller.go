// Package policies says on NetworkPolicies and ClusterNetworkPolicies what of them no node can carry out. Every node finds the same; said
// by each of them, it would be said thousands of times.
package policies

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"unicode/utf8"

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
	"github.com/ovsdn/ovsdn/pkg/sdn/kinds"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// reasonNotEnforced is of Events. People and alerts match it: it does not change.
const reasonNotEnforced = "PartlyNotEnforced"

// The pace of Events, each of which is an API call: the recorder drops what is more than 1,000 ahead of the API server, and
// nodes and namespaces, whose controllers call it too, go first.
const (
	eventsPerSecond = 20
	eventBurst      = 100
)

// messageLength in bytes is what the API allows an Event to say (events.k8s.io/v1 Event.note).
const messageLength = 1024

// Clients are how the controller reaches the cluster.
type Clients struct {
	Kube     kubernetes.Interface
	Policies policyclient.Interface
	Events   record.EventRecorder
}

// Controller checks each policy when it comes and when its spec changes, and warns of those that have faults. Each leader does so anew,
// since Events expire. It writes nothing else.
//
// What depends on more than the policy, such as more rules in one place than a flow takes, only the nodes know.
type Controller struct {
	Clients
	mode            atomic.Uint32 // a config.Mode; ModeSubnet before the first Follow
	networkPolicies cache.SharedIndexInformer
	clusterPolicies cache.SharedIndexInformer // that runs when the cluster knows the kind
	loop            *reconcile.Loop           // of both, a cluster's have no namespace; and of namespaces (namespaceKey)
	pace            flowcontrol.RateLimiter

	// The loop's worker has these alone.
	ledgers map[string]*policy.Ledger      // by namespace
	beyond  map[string]map[string]struct{} // names of policies beyond their namespace's budget, by namespace
}

// New returns a controller that does nothing yet.
func New(clients Clients) (*Controller, error) {
	c := &Controller{
		Clients:         clients,
		networkPolicies: informers.NewSharedInformerFactory(clients.Kube, 0).Networking().V1().NetworkPolicies().Informer(),
		clusterPolicies: policyinformers.NewSharedInformerFactory(clients.Policies, 0).Policy().V1alpha2().ClusterNetworkPolicies().Informer(),
		pace:            flowcontrol.NewTokenBucketRateLimiter(eventsPerSecond, eventBurst),
		ledgers:         map[string]*policy.Ledger{},
		beyond:          map[string]map[string]struct{}{},
	}
	c.loop = reconcile.New("policies", c.serve)
	for _, informer := range c.informers() {
		if err := informer.SetTransform(trim); err != nil {
			return nil, fmt.Errorf("watch policies: %w", err)
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

// trim leaves what is checked, and what an Event says of whom it is about.
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

// Follow puts the mode into force. In one that judges nobody policies have no faults.
func (c *Controller) Follow(mode config.Mode) {
	before := config.Mode(c.mode.Swap(uint32(mode)))
	if before != config.ModeSubnet || mode == config.ModeSubnet {
		return
	}
	for _, informer := range c.informers() {
		for _, key := range informer.GetStore().ListKeys() {
			c.loop.Add(key)
		}
	}
}

// Run works until the context ends. It needs none of the policies' kinds: one that is not there is waited for.
func (c *Controller) Run(ctx context.Context) {
	var running sync.WaitGroup
	running.Go(func() { c.networkPolicies.RunWithContext(ctx) })
	running.Go(func() {
		if err := kinds.AwaitClusterPolicies(ctx, c.Policies); err == nil {
			c.clusterPolicies.RunWithContext(ctx)
		}
	})
	c.loop.Run(ctx, 1) // which suffices for the pace
	running.Wait()
}

// serve warns of a policy that has faults.
func (c *Controller) serve(ctx context.Context, key string) error {
	namespace, name, err := cache.SplitMetaNamespaceKey(key)
	switch {
	case err != nil || namespace == "": // of the cluster
	case name == "":
		c.compare(namespace)
		return nil
	default:
		c.account(namespace, name)
	}
	if config.Mode(c.mode.Load()) == config.ModeSubnet {
		return nil
	}
	about, err := c.check(key)
	if err == nil {
		return nil
	}
	if err := c.pace.Wait(ctx); err != nil {
		return fmt.Errorf("wait for the turn: %w", err)
	}
	message := reconcile.OneLine(err)
	klog.FromContext(ctx).Info("A part of a policy can't be carried out", "faults", message)
	c.Events.Event(about, corev1.EventTypeWarning, reasonNotEnforced, shorten(message))
	return nil
}

// errBeyondBudget is the fault of a policy that is beyond its namespace's budget.
var errBeyondBudget = errors.New("the policies of the namespace are beyond its budget: the newest have no rules, this one among them; delete policies of the namespace, or give them fewer rules, peers and ports")

// account enters a policy into its namespace's ledger, and queues the namespace if that may change which policies are beyond the budget.
func (c *Controller) account(namespace, name string) {
	ledger := c.ledgers[namespace]
	if ledger == nil {
		ledger = policy.NewLedger()
		c.ledgers[namespace] = ledger
	}
	if o, ok := cached[networkingv1.NetworkPolicy](c.networkPolicies, cache.NewObjectName(namespace, name).String()); ok {
		ledger.Set(o)
	} else if ledger.Delete(name) {
		delete(c.ledgers, namespace)
	}
	if ledger.Over() || len(c.beyond[namespace]) > 0 {
		c.loop.Add(namespaceKey(namespace))
	}
}

// namespaceKey is the key of a namespace in the queue. It is of no policy, since names are not empty.
func namespaceKey(namespace string) string { return namespace + "/" }

// compare queues the policies of the namespace that are newly beyond its budget. It sorts all of its policies, so it has a key of its own: many changes of
// policies that are queued together cost one comparison.
func (c *Controller) compare(namespace string) {
	before, now := c.beyond[namespace], map[string]struct{}{}
	if ledger := c.ledgers[namespace]; ledger != nil {
		for _, name := range ledger.Beyond() {
			now[name] = struct{}{}
			if _, is := before[name]; !is {
				c.loop.Add(cache.NewObjectName(namespace, name).String())
			}
		}
	}
	if delete(c.beyond, namespace); len(now) > 0 {
		c.beyond[namespace] = now
	}
}

// check returns the policy and what is wrong with it, nil if there is no such policy any more.
func (c *Controller) check(key string) (runtime.Object, error) {
	if o, ok := cached[networkingv1.NetworkPolicy](c.networkPolicies, key); ok {
		faults := policy.CheckNetworkPolicy(o)
		if _, beyond := c.beyond[o.Namespace][o.Name]; beyond {
			faults = append(faults, errBeyondBudget)
		}
		if len(faults) > 0 {
			return o, fmt.Errorf("this can't be carried out, and allows nothing: %w", errors.Join(faults...))
		}
	}
	if o, ok := cached[policyv1alpha2.ClusterNetworkPolicy](c.clusterPolicies, key); ok {
		if faults := policy.CheckClusterNetworkPolicy(o); len(faults) > 0 {
			return o, fmt.Errorf("this can't be carried out: %w", errors.Join(faults...))
		}
	}
	return nil, nil
}

// cached returns what an informer knows of the object; false: nothing.
func cached[T any](informer cache.SharedIndexInformer, key string) (*T, bool) {
	obj, exists, err := informer.GetStore().GetByKey(key)
	if err != nil || !exists {
		return nil, false
	}
	o, ok := obj.(*T)
	return o, ok
}

// shorten cuts a message that is too long for an Event.
func shorten(message string) string {
	if len(message) <= messageLength {
		return message
	}
	const more = "… (the agents' logs have the rest)"
	cut := messageLength - len(more)
	for !utf8.RuneStart(message[cut]) {
		cut--
	}
	return message[:cut] + more
}
