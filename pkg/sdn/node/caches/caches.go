// Package caches has the informers of the agent: which objects it watches in each mode, and the fields of them that it retains.
package caches

import (
	"context"
	"reflect"

	networkclient "github.com/openshift/client-go/network/clientset/versioned"
	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	policyclient "sigs.k8s.io/network-policy-api/pkg/client/clientset/versioned"
	policyinformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/discovery"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/balancer"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/networkpolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/services"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Options are the node that the caches are for, and the clients of the API server.
type Options struct {
	NodeName string

	Kube     kubernetes.Interface
	Network  networkclient.Interface
	Policies policyclient.Interface
}

// Set has the informers of one set-up of the node.
type Set struct {
	options   Options
	factories []factory // all

	Network networkinformers.SharedInformerFactory
	Local   informers.SharedInformerFactory // pods of this node

	// Set by WatchPolicies; nil in mode subnet.
	Policies        informers.SharedInformerFactory       // pods, namespaces, Nodes and NetworkPolicies
	ClusterPolicies policyinformers.SharedInformerFactory // nil if the API server has no ClusterNetworkPolicies

	// Set by WatchServices.
	Services       informers.SharedInformerFactory
	EndpointSlices cache.SharedIndexInformer // nil in mode subnet with an external proxy
	OwnNode        cache.SharedIndexInformer // this node's Node; nil with an external proxy
}

// factory is implemented by all informer factories.
type factory interface {
	Start(stop <-chan struct{})
	Shutdown()
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
}

// New returns the informers that a node needs to read its configuration. They are not started.
func New(o Options) *Set {
	podsOfNode := fields.OneTermEqualSelector("spec.nodeName", o.NodeName).String()
	c := &Set{
		options: o,
		Network: networkinformers.NewSharedInformerFactoryWithOptions(o.Network, 0, networkinformers.WithTransform(transform)),
		Local: informers.NewSharedInformerFactoryWithOptions(o.Kube, 0,
			informers.WithTweakListOptions(func(l *metav1.ListOptions) { l.FieldSelector = podsOfNode }), informers.WithTransform(transform)),
	}
	c.factories = []factory{c.Network, c.Local}
	// Start runs the informers that were requested.
	c.Network.Network().V1().ClusterNetworks().Informer()
	c.Network.Network().V1().HostSubnets().Informer()
	c.Network.Network().V1().NetNamespaces().Informer()
	c.Network.Network().V1().EgressNetworkPolicies().Informer()
	c.Local.Core().V1().Pods().Informer()
	return c
}

// WatchPolicies starts the informers of the objects that policies are evaluated for. Mode subnet has no policies.
func (c *Set) WatchPolicies(ctx context.Context, node pipeline.Node) error {
	if node.Mode == config.ModeSubnet {
		return nil
	}
	hasClusterPolicies, err := discovery.HasClusterNetworkPolicies(ctx, c.options.Policies)
	if err != nil {
		return err
	}
	c.Policies = informers.NewSharedInformerFactoryWithOptions(c.options.Kube, 0, informers.WithTransform(networkpolicy.Transform))
	c.Policies.Core().V1().Pods().Informer()
	c.Policies.Core().V1().Namespaces().Informer()
	c.Policies.Core().V1().Nodes().Informer()
	c.Policies.Networking().V1().NetworkPolicies().Informer()
	c.factories = append(c.factories, c.Policies)
	if hasClusterPolicies {
		c.ClusterPolicies = policyinformers.NewSharedInformerFactoryWithOptions(c.options.Policies, 0, policyinformers.WithTransform(networkpolicy.Transform))
		c.ClusterPolicies.Policy().V1alpha2().ClusterNetworkPolicies().Informer()
		c.factories = append(c.factories, c.ClusterPolicies)
	}
	c.Start(ctx)
	return nil
}

// WatchServices starts the informers of services and of their endpoints. In mode subnet an external proxy needs no endpoints.
func (c *Set) WatchServices(ctx context.Context, node pipeline.Node) error {
	transformService := services.Transform
	if node.BalancesServices {
		transformService = endpoints.TransformService
	}
	c.Services = informers.NewSharedInformerFactoryWithOptions(c.options.Kube, 0, informers.WithTransform(transformService))
	c.Services.Core().V1().Services().Informer()
	c.factories = append(c.factories, c.Services)
	if node.Mode == config.ModeSubnet && !node.BalancesServices {
		c.Start(ctx)
		return nil
	}
	slices := informers.NewSharedInformerFactoryWithOptions(c.options.Kube, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = endpoints.SliceSelector }))
	c.EndpointSlices = slices.Discovery().V1().EndpointSlices().Informer()
	c.factories = append(c.factories, slices)
	if !node.BalancesServices {
		if err := services.Prepare(node, c.EndpointSlices); err != nil {
			return err
		}
		c.Start(ctx)
		return nil
	}
	if err := balancer.Prepare(node.ServiceNetwork, c.EndpointSlices); err != nil {
		return err
	}
	own := informers.NewSharedInformerFactoryWithOptions(c.options.Kube, 0, informers.WithTransform(transform),
		informers.WithTweakListOptions(reconcile.OnlyNamed(c.options.NodeName)))
	c.OwnNode = own.Core().V1().Nodes().Informer()
	c.factories = append(c.factories, own)
	c.Start(ctx)
	return nil
}

// Nodes returns the informer of all Nodes; nil in mode subnet.
func (c *Set) Nodes() cache.SharedIndexInformer {
	if c.Policies == nil {
		return nil
	}
	return c.Policies.Core().V1().Nodes().Informer()
}

// Start starts the informers that do not run yet.
func (c *Set) Start(ctx context.Context) {
	for _, f := range c.factories {
		f.Start(ctx.Done())
	}
}

// Shutdown waits for the informers, whose context must have ended.
func (c *Set) Shutdown() {
	for _, f := range c.factories {
		f.Shutdown()
	}
}

// Sync waits until all caches have synced. Flows of a part of the objects would disconnect the pods of the others.
func (c *Set) Sync(ctx context.Context) error {
	for _, f := range c.factories {
		for _, ok := range f.WaitForCacheSync(ctx.Done()) {
			if !ok {
				return ctx.Err()
			}
		}
	}
	return nil
}
