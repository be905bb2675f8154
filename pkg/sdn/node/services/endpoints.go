package services

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// indexService is the index of EndpointSlices by the namespace and name of their service.
const indexService = "service"

// Prepare adds the transform and the index that New requires to an informer of EndpointSlices. Of a slice whose endpoints are all in the pod
// network the cache retains only the name of the service. Prepare must be called before the informer runs.
func Prepare(node pipeline.Node, informer cache.SharedIndexInformer) error {
	if err := informer.SetTransform(func(obj any) (any, error) { return transformSlice(node, obj), nil }); err != nil {
		return fmt.Errorf("transform EndpointSlices: %w", err)
	}
	err := informer.AddIndexers(cache.Indexers{indexService: func(obj any) ([]string, error) { return serviceOf(obj), nil }})
	if err != nil {
		return fmt.Errorf("index EndpointSlices: %w", err)
	}
	return nil
}

// serviceOf returns the key of the slice's service, or nothing for a slice of IPv6 addresses or host names, which the proxy of IPv4 ignores.
func serviceOf(obj any) []string {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok || slice.AddressType != discoveryv1.AddressTypeIPv4 || slice.Labels[discoveryv1.LabelServiceName] == "" {
		return nil
	}
	return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}
}

// transformSlice returns a slice with only its outside endpoints, without duplicates and at most one more than the limit of a service, and their ports.
func transformSlice(node pipeline.Node, obj any) any {
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return obj
	}
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: slice.Namespace, Name: slice.Name, ResourceVersion: slice.ResourceVersion},
		AddressType: slice.AddressType,
	}
	if name, is := slice.Labels[discoveryv1.LabelServiceName]; is {
		out.Labels = map[string]string{discoveryv1.LabelServiceName: name}
	}
	if slice.AddressType != discoveryv1.AddressTypeIPv4 {
		return out
	}
	var outside []string
	for _, endpoint := range slice.Endpoints { // ready or not: readiness changes often, and proxies differ in how they use it
		for _, text := range endpoint.Addresses {
			addr, err := netip.ParseAddr(text)
			if err == nil && !node.IsOutside(addr) || len(outside) > pipeline.MaxOutsideEndpoints || slices.Contains(outside, text) {
				continue
			}
			outside = append(outside, text)
		}
	}
	if len(outside) > 0 {
		out.Endpoints, out.Ports = []discoveryv1.Endpoint{{Addresses: outside}}, slice.Ports
	}
	return out
}

// watchSlices queues the services of slices that change. Most changes affect endpoints in the pod network only, and are skipped.
func (s *Services) watchSlices(informer cache.SharedIndexInformer) error {
	add := func(obj any) {
		if tombstone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
			obj = tombstone.Obj
		}
		for _, key := range serviceOf(obj) {
			s.loop.Add(key)
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: add,
		UpdateFunc: func(previous, current any) {
			if !sameSlice(previous, current) {
				add(previous)
				add(current)
			}
		},
		DeleteFunc: add,
	})
	if err != nil {
		return fmt.Errorf("watch EndpointSlices: %w", err)
	}
	return nil
}

func sameSlice(previous, current any) bool {
	a, _ := previous.(*discoveryv1.EndpointSlice)
	b, _ := current.(*discoveryv1.EndpointSlice)
	return a != nil && b != nil && reflect.DeepEqual(a.Labels, b.Labels) && reflect.DeepEqual(a.Endpoints, b.Endpoints) &&
		(len(a.Endpoints) == 0 || reflect.DeepEqual(a.Ports, b.Ports))
}

// addOutside sets the outside endpoints of a service's ports. It reports whether they are known, and the most that a port has. They are unknown
// without a slice: kube-controller-manager creates one for each service with a selector, even without endpoints.
func (s *Services) addOutside(svc *corev1.Service, out *pipeline.Service) (known bool, most int) {
	if s.slices == nil || len(out.ClusterIPs) == 0 {
		return true, 0
	}
	of, err := s.slices.ByIndex(indexService, svc.Namespace+"/"+svc.Name)
	for i := range out.Ports {
		port, outside := svc.Spec.Ports[i], &out.Ports[i].Outside
		for _, obj := range of {
			if slice, ok := obj.(*discoveryv1.EndpointSlice); ok {
				addSlice(outside, slice, port)
			}
		}
		slices.SortFunc(outside.Addrs, netip.AddrPort.Compare)
		outside.Addrs = slices.Compact(outside.Addrs)
		most = max(most, len(outside.Addrs))
		if outside.Closed = outside.Closed || len(outside.Addrs) > pipeline.MaxOutsideEndpoints; outside.Closed {
			outside.Addrs = nil
		}
	}
	out.NodePorts = slices.Clone(out.NodePorts)
	for i, j := 0, 0; i < len(out.Ports); i++ {
		if svc.Spec.Ports[i].NodePort != 0 {
			out.NodePorts[j].Outside = out.Ports[i].Outside
			j++
		}
	}
	return err == nil && len(of) > 0, most
}

// addSlice adds the endpoints of a slice for a port of the service. A slice's port belongs to the service's port of the same name and protocol. An
// address that does not parse closes the port: the proxy may accept it.
func addSlice(outside *pipeline.OutsideEndpoints, slice *discoveryv1.EndpointSlice, port corev1.ServicePort) {
	for _, p := range slice.Ports {
		name, proto := "", corev1.ProtocolTCP
		if p.Name != nil {
			name = *p.Name
		}
		if p.Protocol != nil {
			proto = *p.Protocol
		}
		if name != port.Name || protocol(proto) != protocol(port.Protocol) {
			continue
		}
		for _, endpoint := range slice.Endpoints {
			for _, text := range endpoint.Addresses {
				addr, err := netip.ParseAddr(text)
				if err != nil || !addr.Is4() || p.Port == nil || *p.Port <= 0 {
					outside.Closed = true
					continue
				}
				outside.Addrs = append(outside.Addrs, netip.AddrPortFrom(addr, uint16(*p.Port))) //nolint:gosec // validated by the API server
			}
		}
	}
}
