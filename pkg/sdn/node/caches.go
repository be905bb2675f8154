package node

import (
	"context"
	"reflect"

	networkinformers "github.com/openshift/client-go/network/informers/externalversions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/services"
)

// caches are the informers of one round.
type caches struct {
	network  networkinformers.SharedInformerFactory
	cluster  informers.SharedInformerFactory // services
	local    informers.SharedInformerFactory // pods of this node
	slices   informers.SharedInformerFactory // EndpointSlices; nil in mode subnet
	policies *policyCaches                   // nil in the mode that judges nobody
}

// factory is what all informer factories are.
type factory interface {
	Start(stop <-chan struct{})
	Shutdown()
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
}

func (c *caches) factories() []factory {
	all := []factory{c.network, c.cluster, c.local}
	if c.slices != nil {
		all = append(all, c.slices)
	}
	if c.policies != nil {
		all = append(all, c.policies.cluster)
		if c.policies.kinds != nil {
			all = append(all, c.policies.kinds)
		}
	}
	return all
}

func (a *agent) newCaches() *caches {
	own := fields.OneTermEqualSelector("spec.nodeName", a.NodeName).String()
	c := &caches{
		network: networkinformers.NewSharedInformerFactoryWithOptions(a.network, 0, networkinformers.WithTransform(trim)),
		cluster: informers.NewSharedInformerFactoryWithOptions(a.kube, 0, informers.WithTransform(services.Slim)),
		local: informers.NewSharedInformerFactoryWithOptions(a.kube, 0,
			informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = own }), informers.WithTransform(trim)),
	}
	// Asking for an informer is what makes Start run it.
	c.network.Network().V1().ClusterNetworks().Informer()
	c.network.Network().V1().HostSubnets().Informer()
	c.network.Network().V1().NetNamespaces().Informer()
	c.cluster.Core().V1().Services().Informer()
	c.local.Core().V1().Pods().Informer()
	return c
}

// start runs the informers that do not run yet.
func (c *caches) start(ctx context.Context) {
	for _, f := range c.factories() {
		f.Start(ctx.Done())
	}
}

// shutdown waits for the informers, whose context must have ended.
func (c *caches) shutdown() {
	for _, f := range c.factories() {
		f.Shutdown()
	}
}

// sync waits until everything is known that the bridge depends on: a bridge made equal to half of the cluster
// would cut the other half off.
func (c *caches) sync(ctx context.Context) error {
	for _, f := range c.factories() {
		for _, ok := range f.WaitForCacheSync(ctx.Done()) {
			if !ok {
				return ctx.Err()
			}
		}
	}
	return nil
}
