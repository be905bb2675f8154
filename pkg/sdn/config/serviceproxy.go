package config

import (
	"fmt"

	networkv1 "github.com/openshift/api/network/v1"
)

// ServiceProxyAnnotation names the program that balances services on all nodes: external (kube-proxy) or ovs (Open vSwitch). A ClusterNetwork without it has external,
// whatever the flags of ovsdn-controller are, which are written to a new ClusterNetwork only. OpenShift has no field for it.
const ServiceProxyAnnotation = "ovsdn.io/service-proxy"

// ServiceProxy is the program that balances services.
type ServiceProxy string

// The service proxies.
const (
	ServiceProxyUnset    ServiceProxy = ""         // a ClusterNetwork without ServiceProxyAnnotation, which is accepted as ServiceProxyExternal
	ServiceProxyExternal ServiceProxy = "external" // kube-proxy on the host
	ServiceProxyOVS      ServiceProxy = "ovs"      // the flows of br0
)

// ParseServiceProxy parses the name of a service proxy.
func ParseServiceProxy(s string) (ServiceProxy, error) {
	switch p := ServiceProxy(s); p {
	case ServiceProxyExternal, ServiceProxyOVS:
		return p, nil
	}
	return ServiceProxyUnset, fmt.Errorf("%q is not a service proxy: choose %s (kube-proxy on the nodes) or %s (Open vSwitch)", Shorten(s), ServiceProxyExternal, ServiceProxyOVS)
}

// serviceProxy parses ServiceProxyAnnotation.
func serviceProxy(o *networkv1.ClusterNetwork, f *faults) ServiceProxy {
	value, ok := o.Annotations[ServiceProxyAnnotation]
	if !ok {
		return ServiceProxyUnset
	}
	p, err := ParseServiceProxy(value)
	f.add("annotation "+ServiceProxyAnnotation, err)
	return p
}
