// Package servicenetwork reports a service network in the ClusterNetwork that is not that of kube-apiserver. The agent continues, although it
// does not evaluate policies and VNIDs correctly for packets to services then.
package servicenetwork

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/caches"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// apiService is the service that kube-apiserver creates in every cluster, with the first address of its --service-cluster-ip-range.
const apiService = "kubernetes"

// Check compares the addresses of services with the configured network. It outlives a set-up of the node's network, so that it reports an error once.
type Check struct {
	warn func(reason string, err error)
	last reconcile.LastError
}

// New returns a check that reports errors as Events by warn.
func New(warn func(reason string, err error)) *Check { return &Check{warn: warn} }

// Watch reports service addresses outside of the configured service network.
func (c *Check) Watch(ctx context.Context, services cache.SharedIndexInformer, network netip.Prefix) error {
	handle := func(obj any) {
		service, err := meta.Accessor(obj)
		if err != nil || service.GetNamespace() != metav1.NamespaceDefault {
			return
		}
		c.report(ctx, compare(clusterIPs(obj), network))
	}
	if _, err := services.AddEventHandler(caches.HandlerOf(apiService, handle)); err != nil {
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

// compare returns an error if service kubernetes has addresses, and all of them are outside of the network.
func compare(addresses []netip.Addr, network netip.Prefix) error {
	if len(addresses) == 0 || slices.ContainsFunc(addresses, network.Contains) {
		return nil
	}
	return fmt.Errorf("service %s/%s has address %s, but the service network is %s: with --service-proxy=ovs services do not work on this node, else policies and VNIDs "+
		"are not evaluated correctly for packets to services; set serviceNetwork of ClusterNetwork %s to kube-apiserver's --service-cluster-ip-range; "+
		"it can change while no HostSubnet exists (docs/clusternetwork.md)",
		metav1.NamespaceDefault, apiService, addresses[0], network, networkv1.ClusterNetworkDefault)
}

// report reports the error if it differs from the last one.
func (c *Check) report(ctx context.Context, err error) {
	previous := c.last.Get()
	switch {
	case c.last.Set(err):
		klog.FromContext(ctx).Error(err, "Service network does not match the cluster")
		c.warn(eventreason.ServiceNetworkMismatch, err)
	case err == nil && previous != nil:
		klog.FromContext(ctx).Info("Service network matches the cluster again")
	}
}
