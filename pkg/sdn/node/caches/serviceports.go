package caches

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostports"
)

// servicePortIndex is the index of the cache of Services by node port, and by external address.
const servicePortIndex = "servicePort"

// nodePortKey returns the key of a port of all nodes.
func nodePortKey(protocol string, port int) string {
	return fmt.Sprintf("%s/%d", strings.ToLower(protocol), port)
}

// servicePort is a port of a Service, of both transforms of the informer.
type servicePort struct {
	protocol       corev1.Protocol
	port, nodePort int
}

// exposure is how hosts outside of the cluster reach a Service.
type exposure struct {
	ports           []servicePort
	addrs           []string // external IPs and those of load balancers
	healthCheckPort int
}

func exposureOf(obj any) (e exposure) {
	switch s := obj.(type) {
	case *corev1.Service:
		e.healthCheckPort, e.addrs = int(s.Spec.HealthCheckNodePort), slices.Clone(s.Spec.ExternalIPs)
		for _, i := range s.Status.LoadBalancer.Ingress {
			e.addrs = append(e.addrs, i.IP)
		}
		for _, p := range s.Spec.Ports {
			protocol := p.Protocol
			if protocol == "" {
				protocol = corev1.ProtocolTCP
			}
			e.ports = append(e.ports, servicePort{protocol, int(p.Port), int(p.NodePort)})
		}
	case *endpoints.Service:
		e.healthCheckPort = int(s.HealthCheckNodePort)
		for _, addr := range slices.Concat(s.ExternalIPs, s.LoadBalancerIPs) {
			e.addrs = append(e.addrs, addr.String())
		}
		for _, p := range s.Ports {
			e.ports = append(e.ports, servicePort{p.Protocol, int(p.Number), int(p.NodePort)})
		}
	}
	return e
}

// indexServicePorts is a cache.IndexFunc of Services.
func indexServicePorts(obj any) (keys []string, err error) {
	e := exposureOf(obj)
	if e.healthCheckPort != 0 {
		keys = append(keys, nodePortKey(string(corev1.ProtocolTCP), e.healthCheckPort))
	}
	for _, p := range e.ports {
		if p.nodePort != 0 {
			keys = append(keys, nodePortKey(string(p.protocol), p.nodePort))
		}
	}
	for _, text := range e.addrs {
		if addr, err := netip.ParseAddr(text); err == nil {
			keys = append(keys, addr.String())
		}
	}
	return keys, nil
}

// IndexHostPorts adds the indexes that ServiceWith and hostports.HostPod read.
func (c *Set) IndexHostPorts() error {
	if err := c.Services.Core().V1().Services().Informer().AddIndexers(cache.Indexers{servicePortIndex: indexServicePorts}); err != nil {
		return fmt.Errorf("index ports of services: %w", err)
	}
	if err := c.Local.Core().V1().Pods().Informer().AddIndexers(hostports.HostPodIndexers()); err != nil {
		return fmt.Errorf("index host ports of pods: %w", err)
	}
	return nil
}

// ServiceWith returns a Service, as NAMESPACE/NAME, with the port on all nodes or on one of the addresses; "": none.
func (c *Set) ServiceWith(protocol string, port int, addrs []netip.Addr) (string, error) {
	return serviceWith(c.Services.Core().V1().Services().Informer().GetIndexer(), protocol, port, addrs)
}

func serviceWith(services cache.Indexer, protocol string, port int, addrs []netip.Addr) (string, error) {
	names, err := services.IndexKeys(servicePortIndex, nodePortKey(protocol, port))
	if err != nil {
		return "", err
	}
	for _, addr := range addrs {
		external, err := services.ByIndex(servicePortIndex, addr.String())
		if err != nil {
			return "", err
		}
		for _, obj := range external {
			has := func(p servicePort) bool {
				return p.port == port && strings.EqualFold(string(p.protocol), protocol)
			}
			if !slices.ContainsFunc(exposureOf(obj).ports, has) {
				continue
			}
			name, err := cache.MetaNamespaceKeyFunc(obj)
			if err != nil {
				return "", err
			}
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "", nil
	}
	return slices.Min(names), nil
}
