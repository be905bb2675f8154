package master

import (
	"net/netip"
	"slices"

	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// apiServers are the addresses of kube-apiservers: those of the EndpointSlice default/kubernetes, which they maintain. They are known before the first request
// of the diagnostics API: a flood of connections at the start of a controller does not take their place.
type apiServers struct {
	slice cache.SharedIndexInformer
}

func newAPIServers(kube kubernetes.Interface) *apiServers {
	return &apiServers{discoveryinformers.NewFilteredEndpointSliceInformer(kube, metav1.NamespaceDefault, 0, cache.Indexers{}, reconcile.OnlyNamed("kubernetes"))}
}

// has reports whether the address is that of a kube-apiserver. It does not know any before the EndpointSlice was read.
func (a *apiServers) has(addr netip.Addr) bool {
	return slices.ContainsFunc(a.slice.GetStore().List(), func(o any) bool {
		slice, ok := o.(*discoveryv1.EndpointSlice)
		return ok && slices.ContainsFunc(slice.Endpoints, func(e discoveryv1.Endpoint) bool {
			return slices.Contains(e.Addresses, addr.String())
		})
	})
}
