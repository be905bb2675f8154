package node

import (
	"context"
	"reflect"

	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	policyinformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/discovery"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/balancer"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/networkpolicy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/services"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// caches are the informers of one set-up.
type caches struct {
	factories []factory // all

	network  networkinformers.SharedInformerFactory
	services informers.SharedInformerFactory
	local    informers.SharedInformerFactory // pods of this node

	// Set by watchPolicies; nil in mode subnet.
	policies        informers.SharedInformerFactory       // pods, namespaces, Nodes and NetworkPolicies
	clusterPolicies policyinformers.SharedInformerFactory // nil if the API server has no ClusterNetworkPolicies

	// Set by watchEndpoints.
	endpointSlices cache.SharedIndexInformer // nil in mode subnet with an external proxy
	ownNode        cache.SharedIndexInformer // this node's Node; nil with an external proxy
}

// factory is implemented by all informer factories.
type factory interface {
	Start(stop <-chan struct{})
	Shutdown()
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
}

func (a *agent) newCaches() *caches {
	podsOfNode := fields.OneTermEqualSelector("spec.nodeName", a.NodeName).String()
	transformService := services.Transform
	if a.ServiceProxy == ServiceProxyOVS {
		transformService = endpoints.TransformService
	}
	c := &caches{
		network:  networkinformers.NewSharedInformerFactoryWithOptions(a.network, 0, networkinformers.WithTransform(transform)),
		services: informers.NewSharedInformerFactoryWithOptions(a.kube, 0, informers.WithTransform(transformService)),
		local: informers.NewSharedInformerFactoryWithOptions(a.kube, 0,
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = podsOfNode }), informers.WithTransform(transform)),
	}
	c.factories = []factory{c.network, c.services, c.local}
	// Start runs the informers that were requested.
	c.network.Network().V1().ClusterNetworks().Informer()
	c.network.Network().V1().HostSubnets().Informer()
	c.network.Network().V1().NetNamespaces().Informer()
	c.services.Core().V1().Services().Informer()
	c.local.Core().V1().Pods().Informer()
	return c
}

// watchPolicies starts the informers of the objects that policies are evaluated for. Mode subnet has no policies.
func (a *agent) watchPolicies(ctx context.Context, c *caches, node pipeline.Node) error {
	if node.Mode == config.ModeSubnet {
		return nil
	}
	hasClusterPolicies, err := discovery.HasClusterNetworkPolicies(ctx, a.policies)
	if err != nil {
		return err
	}
	c.policies = informers.NewSharedInformerFactoryWithOptions(a.kube, 0, informers.WithTransform(networkpolicy.Transform))
	c.policies.Core().V1().Pods().Informer()
	c.policies.Core().V1().Namespaces().Informer()
	c.policies.Core().V1().Nodes().Informer()
	c.policies.Networking().V1().NetworkPolicies().Informer()
	c.factories = append(c.factories, c.policies)
	if hasClusterPolicies {
		c.clusterPolicies = policyinformers.NewSharedInformerFactoryWithOptions(a.policies, 0, policyinformers.WithTransform(networkpolicy.Transform))
		c.clusterPolicies.Policy().V1alpha2().ClusterNetworkPolicies().Informer()
		c.factories = append(c.factories, c.clusterPolicies)
	}
	c.start(ctx)
	return nil
}

// watchEndpoints starts the informers of the endpoints of services. In mode subnet an external proxy needs none.
func (a *agent) watchEndpoints(ctx context.Context, c *caches, node pipeline.Node) error {
	if node.Mode == config.ModeSubnet && !node.BalancesServices {
		return nil
	}
	slices := informers.NewSharedInformerFactoryWithOptions(a.kube, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = endpoints.SliceSelector }))
	c.endpointSlices = slices.Discovery().V1().EndpointSlices().Informer()
	c.factories = append(c.factories, slices)
	if !node.BalancesServices {
		if err := services.Prepare(node, c.endpointSlices); err != nil {
			return err
		}
		c.start(ctx)
		return nil
	}
	if err := balancer.Prepare(node.ServiceNetwork, c.endpointSlices); err != nil {
		return err
	}
	own := informers.NewSharedInformerFactoryWithOptions(a.kube, 0, informers.WithTransform(transform),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, a.NodeName).String()
		}))
	c.ownNode = own.Core().V1().Nodes().Informer()
	c.factories = append(c.factories, own)
	c.start(ctx)
	return nil
}

// nodes returns the informer of all Nodes; nil in mode subnet.
func (c *caches) nodes() cache.SharedIndexInformer {
	if c.policies == nil {
		return nil
	}
	return c.policies.Core().V1().Nodes().Informer()
}

// start starts the informers that do not run yet.
func (c *caches) start(ctx context.Context) {
	for _, f := range c.factories {
		f.Start(ctx.Done())
	}
}

// shutdown waits for the informers, whose context must have ended.
func (c *caches) shutdown() {
	for _, f := range c.factories {
		f.Shutdown()
	}
}

// sync waits until all caches have synced. Flows of a part of the objects would disconnect the pods of the others.
func (c *caches) sync(ctx context.Context) error {
	for _, f := range c.factories {
		for _, ok := range f.WaitForCacheSync(ctx.Done()) {
			if !ok {
				return ctx.Err()
			}
		}
	}
	return nil
}
