package node

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	policyinformers "sigs.k8s.io/network-policy-api/pkg/client/informers/externalversions"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/kinds"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/pods"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policies"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/services"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// policyCaches are the informers of what policies depend on.
type policyCaches struct {
	cluster informers.SharedInformerFactory
	kinds   policyinformers.SharedInformerFactory // nil: the cluster does not know ClusterNetworkPolicies
}

// watchPolicies adds the informers of what policies depend on, in modes that judge.
func (a *agent) watchPolicies(ctx context.Context, c *caches, mode config.Mode) error {
	if mode == config.ModeSubnet {
		return nil
	}
	p := &policyCaches{cluster: informers.NewSharedInformerFactory(a.kube, 0)}
	core := p.cluster.Core().V1()
	for _, informer := range []cache.SharedIndexInformer{
		core.Pods().Informer(), core.Namespaces().Informer(), core.Nodes().Informer(), p.cluster.Networking().V1().NetworkPolicies().Informer(),
	} {
		if err := informer.SetTransform(policies.Slim); err != nil {
			return fmt.Errorf("watching what policies depend on: %w", err)
		}
	}
	known, err := kinds.HasClusterPolicies(ctx, a.policies)
	if err != nil {
		return err
	}
	if known {
		p.kinds = policyinformers.NewSharedInformerFactoryWithOptions(a.policies, 0, policyinformers.WithTransform(policies.Slim))
		p.kinds.Policy().V1alpha2().ClusterNetworkPolicies().Informer()
	}
	c.policies = p
	c.start(ctx)
	return nil
}

// watchSlices adds the informer of EndpointSlices and returns it; nil in mode subnet.
func (a *agent) watchSlices(ctx context.Context, c *caches, node pipeline.Node) (cache.SharedIndexInformer, error) {
	if node.Mode == config.ModeSubnet {
		return nil, nil
	}
	factory := informers.NewSharedInformerFactoryWithOptions(a.kube, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.LabelSelector = services.SlicesSelector }))
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	if err := services.Prepare(node, informer); err != nil {
		return nil, err
	}
	c.slices = factory
	c.start(ctx)
	return informer, nil
}

// nodes returns the informer of all Nodes; nil in mode subnet.
func (c *caches) nodes() cache.SharedIndexInformer {
	if c.policies == nil {
		return nil
	}
	return c.policies.cluster.Core().V1().Nodes().Informer()
}

// awaitClusterPolicies returns errChanged when the cluster has come to know ClusterNetworkPolicies.
func (a *agent) awaitClusterPolicies(ctx context.Context, c *caches) error {
	if c.policies == nil || c.policies.kinds != nil {
		return nil
	}
	if err := kinds.AwaitClusterPolicies(ctx, a.policies); err != nil {
		return nil // the context has ended
	}
	return fmt.Errorf("%w: the cluster knows ClusterNetworkPolicies", errChanged)
}

// judge returns what keeps the rules of policies on the switch, and nil beside it in the mode that judges nobody.
func (a *agent) judge(c *caches, node pipeline.Node, byVNID *vnids.VNIDs, svc *services.Services) (pods.Policies, *policies.Policies, error) {
	if c.policies == nil {
		return pods.NoPolicies{}, nil, nil
	}
	core, network := c.policies.cluster.Core().V1(), c.network.Network().V1()
	cluster := policies.Cluster{
		Pods:            core.Pods().Informer(),
		Namespaces:      core.Namespaces().Informer(),
		Nodes:           core.Nodes().Informer(),
		NetNamespaces:   network.NetNamespaces().Informer(),
		HostSubnets:     network.HostSubnets().Informer(),
		NetworkPolicies: c.policies.cluster.Networking().V1().NetworkPolicies().Informer(),
		GetNamespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return a.kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		},

		OutsideEndpoints:      svc.Outside,
		HostNetworkNamespaces: a.HostNetworkNamespaces,
	}
	if c.policies.kinds != nil {
		cluster.ClusterPolicies = c.policies.kinds.Policy().V1alpha2().ClusterNetworkPolicies().Informer()
	}
	judge, err := policies.New(node, cluster, byVNID, a.bridge, a.reporter)
	if err != nil {
		return nil, nil, err
	}
	svc.Follow(judge.ServiceChanged)
	return judge, judge, nil
}
