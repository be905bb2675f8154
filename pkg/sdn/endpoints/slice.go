// Package endpoints decides to which endpoints each frontend of a Service sends connections on one node, as kube-proxy 1.36 does
// (k8s.io/kubernetes/pkg/proxy).
//
// The inputs are the transforms of two informers, TransformService and TransformSlice, which retain what the decision needs: with 10,000 Services of 10
// endpoints, each agent caches 100,000 endpoints. Service.Frontends lists the addresses and ports, and Select the endpoints behind them. Of more
// endpoints than a node can balance, Subset selects those that the node uses.
//
// Invalid input is never an error of the package: it is left out, and reported in the Problems of the object.
package endpoints

import (
	"net/netip"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SliceSelector selects the EndpointSlices that any version of kube-proxy reads: those of Services that have a cluster IP. Since 1.36 it also reads those
// with ProxyNameLabel.
const SliceSelector = "!" + corev1.IsHeadlessService

// Slice is an EndpointSlice of IPv4 addresses, with the fields that Select reads. Slices of other address types have no endpoints, and no problems. A Slice
// is a runtime.Object and has a key for caches. It must not be changed.
type Slice struct {
	object

	// Service is the name of the slice's Service, or "" if it has none.
	Service string

	// Endpoints are the valid endpoints of the slice, in its order. Only the first address of each endpoint is used.
	Endpoints []Endpoint

	// Ports are the valid ports of the slice, in its order. Each endpoint has each port.
	Ports []SlicePort

	// Problems are the invalid addresses and ports of the slice.
	Problems Problems
}

// SlicePort is a port of the endpoints of a Slice.
type SlicePort struct {
	Name     string          // of the Service's port, "" for the only port
	Protocol corev1.Protocol // TCP, UDP or SCTP
	Number   uint16          // 1 to 65535
}

// NewSlice converts an EndpointSlice. An address in the service network is invalid, as are those that the API rejects: loopback, link-local, multicast and
// unspecified addresses.
func NewSlice(s *discoveryv1.EndpointSlice, serviceNetwork netip.Prefix) *Slice {
	out := &Slice{object: newObject(&s.ObjectMeta)}
	if s.AddressType != discoveryv1.AddressTypeIPv4 {
		return out
	}
	if out.Service = sharePrefix(s.Labels[discoveryv1.LabelServiceName], s.Name); out.Service == "" {
		return out
	}
	out.addPorts(s.Ports)
	out.Endpoints = make([]Endpoint, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		out.addEndpoint(i, &s.Endpoints[i], serviceNetwork)
	}
	return out
}

// addEndpoint adds an endpoint if its first address is valid. kube-proxy ignores the other ones.
func (s *Slice) addEndpoint(i int, e *discoveryv1.Endpoint, serviceNetwork netip.Prefix) {
	if len(e.Addresses) == 0 {
		s.Problems.add(InvalidAddress, "", "endpoints[%d].addresses[0]", i)
		return
	}
	text := e.Addresses[0]
	addr, ok := parseAddr(text)
	switch {
	case !ok || !addr.Is4():
		s.Problems.add(InvalidAddress, text, "endpoints[%d].addresses[0]", i)
	case isUnusable(addr) || serviceNetwork.Contains(addr):
		s.Problems.add(UnusableAddress, text, "endpoints[%d].addresses[0]", i)
	default:
		s.Endpoints = append(s.Endpoints, newEndpoint(addr, e))
	}
}

// addPorts adds the valid ports. The API allows a port without a number, which means all ports: kube-proxy does not support it either.
func (s *Slice) addPorts(ports []discoveryv1.EndpointPort) {
	for i, p := range ports {
		if len(s.Ports) == maxPorts {
			s.Problems.add(TooManyPorts, strconv.Itoa(len(ports)), "ports")
			return
		}
		if p.Name == nil {
			s.Problems.add(InvalidPortName, "", "ports[%d].name", i)
			continue
		}
		if p.Port == nil {
			s.Problems.add(InvalidPort, "", "ports[%d].port", i)
			continue
		}
		number, ok := portNumber(*p.Port)
		if !ok {
			s.Problems.add(InvalidPort, strconv.Itoa(int(*p.Port)), "ports[%d].port", i)
			continue
		}
		protocol := corev1.ProtocolTCP
		if p.Protocol != nil {
			if protocol, ok = protocolOf(*p.Protocol); !ok {
				s.Problems.add(InvalidProtocol, string(*p.Protocol), "ports[%d].protocol", i)
				continue
			}
		}
		s.Ports = append(s.Ports, SlicePort{Name: *p.Name, Protocol: protocol, Number: number})
	}
}

// TransformSlice returns the transform of an informer of EndpointSlices, a cache.TransformFunc: it stores each as a *Slice. It returns other objects, among
// them Slices, unchanged.
func TransformSlice(serviceNetwork netip.Prefix) func(any) (any, error) {
	return func(obj any) (any, error) {
		if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
			return NewSlice(s, serviceNetwork), nil
		}
		return obj, nil
	}
}

// ServiceKey returns the namespace and name of the slice's Service, as the key of a cache, or "" if it has none.
func (s *Slice) ServiceKey() string {
	if s.Service == "" {
		return ""
	}
	return s.namespace + "/" + s.Service
}

// SameEndpoints reports whether two states of a slice have the same Service, endpoints, ports and problems: an update between them changes nothing.
func (s *Slice) SameEndpoints(o *Slice) bool {
	return s.ServiceKey() == o.ServiceKey() && slices.Equal(s.Endpoints, o.Endpoints) && slices.Equal(s.Ports, o.Ports) && s.Problems.equal(o.Problems)
}

// GetObjectKind returns the kind EndpointSlice, for Events about the slice.
func (s *Slice) GetObjectKind() schema.ObjectKind {
	return kind(discoveryv1.SchemeGroupVersion, "EndpointSlice")
}

// DeepCopyObject returns a copy of the slice.
func (s *Slice) DeepCopyObject() runtime.Object {
	out := *s
	out.Endpoints, out.Ports, out.Problems = slices.Clone(s.Endpoints), slices.Clone(s.Ports), s.Problems.clone()
	return &out
}
