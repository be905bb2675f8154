package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// apiService is the service that every cluster has: kube-apiserver makes it, with the first address of its --service-cluster-ip-range.
const apiService = "kubernetes"

// watchServiceNetwork tells the user when the cluster's services are not where the network takes them to be. The node works otherwise.
func (a *agent) watchServiceNetwork(ctx context.Context, c *caches, network *config.Network) error {
	look := func(obj any) {
		service, ok := obj.(*corev1.Service)
		if !ok || service.Namespace != metav1.NamespaceDefault {
			return
		}
		a.sayServiceNetwork(ctx, checkServiceNetwork(service, network.ServiceNetwork))
	}
	if _, err := c.cluster.Core().V1().Services().Informer().AddEventHandler(handlerOf(apiService, look)); err != nil {
		return fmt.Errorf("watching service %s: %w", apiService, err)
	}
	return nil
}

// checkServiceNetwork returns an error if the service has addresses, and all of them are outside of the network.
func checkServiceNetwork(service *corev1.Service, network netip.Prefix) error {
	var addresses []netip.Addr
	for _, s := range service.Spec.ClusterIPs {
		if a, err := netip.ParseAddr(s); err == nil { // else it is None
			addresses = append(addresses, a)
		}
	}
	if len(addresses) == 0 || slices.ContainsFunc(addresses, network.Contains) {
		return nil
	}
	return fmt.Errorf("services have addresses like that of %s/%s, %s, but the service network is %s: this node misjudges policies and tenants of services; "+
		"set service-network, which is ClusterNetwork %s's serviceNetwork, to kube-apiserver's --service-cluster-ip-range while there is no HostSubnet (docs/clusternetwork.md)",
		service.Namespace, service.Name, addresses[0], network, networkv1.ClusterNetworkDefault)
}

// sayServiceNetwork says it once, and again when it has changed, in whatever round that is.
func (a *agent) sayServiceNetwork(ctx context.Context, fault error) {
	was := a.misplaced
	a.misplaced = fault
	switch {
	case fault != nil && (was == nil || was.Error() != fault.Error()):
		klog.FromContext(ctx).Error(fault, "The service network is not the cluster's")
		a.reporter.warn(reasonServiceNetwork, fault)
	case fault == nil && was != nil:
		klog.FromContext(ctx).Info("The service network is the cluster's again")
	}
}
