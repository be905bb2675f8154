package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
)

// apiService is the service that kube-apiserver creates in every cluster, with the first address of its --service-cluster-ip-range.
const apiService = "kubernetes"

// watchServiceNetwork reports service addresses outside of the configured service network. The agent continues.
func (a *agent) watchServiceNetwork(ctx context.Context, c *caches.Set, network *config.Network) error {
	handle := func(obj any) {
		service, err := meta.Accessor(obj)
		if err != nil || service.GetNamespace() != metav1.NamespaceDefault {
			return
		}
		a.reportServiceNetwork(ctx, checkServiceNetwork(clusterIPs(obj), network.ServiceNetwork))
	}
	if _, err := c.Services.Core().V1().Services().Informer().AddEventHandler(caches.HandlerOf(apiService, handle)); err != nil {
		return fmt.Errorf("watch service %s: %w", apiService, err)
	}
	return nil
}

// clusterIPs returns the addresses of a service, as services.Transform or endpoints.TransformService stores it.
func clusterIPs(obj any) (addresses []netip.Addr) {
	switch service := obj.(type) {
	case *endpoints.Service:
		if service.ClusterIP.IsValid() {
			return []netip.Addr{service.ClusterIP}
		}
	case *corev1.Service:
		for _, s := range service.Spec.ClusterIPs {
			if a, err := netip.ParseAddr(s); err == nil { // else it is "None"
				addresses = append(addresses, a)
			}
		}
	}
	return addresses
}

// checkServiceNetwork returns an error if service kubernetes has addresses, and all of them are outside of the network.
func checkServiceNetwork(addresses []netip.Addr, network netip.Prefix) error {
	if len(addresses) == 0 || slices.ContainsFunc(addresses, network.Contains) {
		return nil
	}
	return fmt.Errorf("service %s/%s has address %s, but the service network is %s: this node does not evaluate policies and VNIDs correctly for packets to services; "+
		"set serviceNetwork of ClusterNetwork %s to kube-apiserver's --service-cluster-ip-range; it can change while no HostSubnet exists (docs/clusternetwork.md)",
		metav1.NamespaceDefault, apiService, addresses[0], network, networkv1.ClusterNetworkDefault)
}

// reportServiceNetwork reports the error if it differs from the last one.
func (a *agent) reportServiceNetwork(ctx context.Context, err error) {
	previous := a.serviceNetwork.Get()
	switch {
	case a.serviceNetwork.Set(err):
		klog.FromContext(ctx).Error(err, "Service network does not match the cluster")
		a.reporter.warn(eventreason.ServiceNetworkMismatch, err)
	case err == nil && previous != nil:
		klog.FromContext(ctx).Info("Service network matches the cluster again")
	}
}
