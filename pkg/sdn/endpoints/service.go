package endpoints

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// ProxyNameLabel is the label of Services and EndpointSlices that another proxy handles.
const ProxyNameLabel = "service.kubernetes.io/service-proxy-name"

// Service is a Service with the fields that a proxy reads, for IPv4. A Service is a runtime.Object and has a key for caches. It must not be changed.
type Service struct {
	object

	// Created is the creation time in seconds since 1970. Of two Services with the same external address and port, the older one is used.
	Created int64

	// Proxied is false for headless and ExternalName Services, those with ProxyNameLabel, and those without an IPv4 cluster IP. Of these the
	// other fields are empty.
	Proxied bool

	// Idled is true if annotation idling.alpha.openshift.io/idled-at has a valid time. The Service may have endpoints all the same.
	Idled bool

	// ClusterIP is the IPv4 cluster IP. It may be outside of the service network.
	ClusterIP netip.Addr

	// ExternalIPs are the valid IPv4 addresses of spec.externalIPs, each once.
	ExternalIPs []netip.Addr

	// LoadBalancerIPs are the valid IPv4 addresses of status.loadBalancer with ipMode VIP, the default, each once.
	LoadBalancerIPs []netip.Addr

	// SourceRanges are the clients that may use LoadBalancerIPs: IPv4 ranges, masked, sorted and disjoint. None: all clients, as for a list that includes 0.0.0.0/0,
	// unless NoSources.
	SourceRanges []netip.Prefix

	// NoSources is true if the list of clients has no valid IPv4 range: no client may use LoadBalancerIPs.
	NoSources bool

	// Ports are the valid ports, in the order of the Service. Each protocol and number occurs once.
	Ports []ServicePort

	// HealthCheckNodePort is the port on which each node reports Selection.LocalReady, or 0.
	HealthCheckNodePort uint16

	// InternalLocal and ExternalLocal are true for the traffic policies Local.
	InternalLocal, ExternalLocal bool

	// Affinity is the timeout of session affinity by the client's address, in whole seconds from 1 s to 24 h, or 0 without it.
	Affinity time.Duration

	// Problems are the invalid fields.
	Problems Problems
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name     string
	Protocol corev1.Protocol // TCP, UDP or SCTP
	Number   uint16          // 1 to 65535, of all addresses of the Service
	NodePort uint16          // on all nodes, or 0
}

const (
	// maxAddresses is the number of addresses of each field of a Service that are used.
	maxAddresses = 256

	maxAffinity = 86_400 // seconds, as in the API
)

// NewService converts a Service.
func NewService(s *corev1.Service) *Service {
	out := &Service{object: newObject(&s.ObjectMeta)}
	if !s.CreationTimestamp.IsZero() {
		out.Created = s.CreationTimestamp.Unix()
	}
	if out.Proxied = out.setClusterIP(s); !out.Proxied {
		return out
	}
	_, out.Idled = config.IdledAt(s.Annotations)
	out.addPorts(s.Spec.Ports)
	out.ExternalIPs = out.addresses("spec.externalIPs[%d]", s.Spec.ExternalIPs)
	out.LoadBalancerIPs = out.addresses("status.loadBalancer.ingress[%d].ip", loadBalancerIPs(s))
	out.setSourceRanges(s.Spec.LoadBalancerSourceRanges)
	out.setPolicies(s)
	out.setAffinity(s)
	return out
}

// setClusterIP sets the IPv4 cluster IP, and reports whether the Service is proxied.
func (s *Service) setClusterIP(from *corev1.Service) bool {
	spec := &from.Spec
	if _, other := from.Labels[ProxyNameLabel]; other || spec.Type == corev1.ServiceTypeExternalName ||
		spec.ClusterIP == "" || spec.ClusterIP == corev1.ClusterIPNone {
		return false
	}
	text := spec.ClusterIP
	if len(spec.IPFamilies) > 0 {
		i := slices.Index(spec.IPFamilies, corev1.IPv4Protocol)
		if i < 0 || i >= len(spec.ClusterIPs) {
			return false
		}
		text = spec.ClusterIPs[i]
	}
	addr, ok := parseAddr(text)
	switch {
	case ok && addr.Is6() && len(spec.IPFamilies) == 0:
		return false
	case !ok || !addr.Is4():
		s.Problems.add(InvalidAddress, text, "spec.clusterIP")
		return false
	case isUnusable(addr):
		s.Problems.add(UnusableAddress, text, "spec.clusterIP")
		return false
	}
	s.ClusterIP = addr
	return true
}

// addPorts adds the valid ports. An invalid or duplicate node port is removed from its port.
func (s *Service) addPorts(ports []corev1.ServicePort) {
	type number struct {
		protocol corev1.Protocol
		port     uint16
	}
	used, usedOnNodes := map[number]bool{}, map[number]bool{}
	for i, p := range ports {
		if len(s.Ports) == maxPorts {
			s.Problems.add(TooManyPorts, strconv.Itoa(len(ports)), "spec.ports")
			return
		}
		protocol, ok := protocolOf(p.Protocol)
		if !ok {
			s.Problems.add(InvalidProtocol, string(p.Protocol), "spec.ports[%d].protocol", i)
			continue
		}
		port, ok := portNumber(p.Port)
		if kind, valid := validPort(ok, used[number{protocol, port}]); !valid {
			s.Problems.add(kind, strconv.Itoa(int(p.Port)), "spec.ports[%d].port", i)
			continue
		}
		used[number{protocol, port}] = true
		out := ServicePort{Name: p.Name, Protocol: protocol, Number: port}
		if p.NodePort != 0 {
			nodePort, ok := portNumber(p.NodePort)
			if kind, valid := validPort(ok, usedOnNodes[number{protocol, nodePort}]); valid {
				usedOnNodes[number{protocol, nodePort}] = true
				out.NodePort = nodePort
			} else {
				s.Problems.add(kind, strconv.Itoa(int(p.NodePort)), "spec.ports[%d].nodePort", i)
			}
		}
		s.Ports = append(s.Ports, out)
	}
}

// validPort returns the problem of a port that is out of range or used.
func validPort(inRange, used bool) (kind ProblemKind, ok bool) {
	switch {
	case !inRange:
		return InvalidPort, false
	case used:
		return DuplicatePort, false
	default:
		return "", true
	}
}

// loadBalancerIPs returns the addresses of load balancers that do not change the destination of packets, or "" for an entry without one. kube-proxy
// ignores the type of the Service here.
func loadBalancerIPs(from *corev1.Service) []string {
	ingress := from.Status.LoadBalancer.Ingress
	out := make([]string, len(ingress))
	for i, entry := range ingress {
		if entry.IPMode == nil || *entry.IPMode == corev1.LoadBalancerIPModeVIP {
			out[i] = entry.IP
		}
	}
	return out
}

// addresses returns the valid IPv4 addresses of a list, each once. IPv6 addresses and empty entries are no problems.
func (s *Service) addresses(path string, texts []string) []netip.Addr {
	var out []netip.Addr
	for i, text := range texts {
		addr, ok := parseAddr(text)
		switch {
		case strings.TrimSpace(text) == "" || ok && addr.Is6() || slices.Contains(out, addr):
		case !ok:
			s.Problems.add(InvalidAddress, text, path, i)
		case isUnusable(addr):
			s.Problems.add(UnusableAddress, text, path, i)
		case len(out) == maxAddresses:
			s.Problems.add(TooManyAddresses, strconv.Itoa(len(texts)), path, i)
			return out
		default:
			out = append(out, addr)
		}
	}
	return out
}

// setSourceRanges sets the valid IPv4 ranges, without those that another one contains. Without a list, and with 0.0.0.0/0, all clients are allowed. kube-proxy allows
// all clients of IPv4, too, if the list has no range of IPv4: here it has no client.
func (s *Service) setSourceRanges(texts []string) {
	var valid []netip.Prefix
	for i, text := range texts {
		text = strings.TrimSpace(text) // which the API allows
		p, ok := parsePrefix(text)
		switch {
		case text == "" || ok && p.Addr().Is6():
		case !ok:
			s.Problems.add(InvalidSourceRange, text, "spec.loadBalancerSourceRanges[%d]", i)
		default:
			valid = append(valid, p)
		}
	}
	if s.NoSources = len(texts) > 0 && len(valid) == 0; s.NoSources && len(s.LoadBalancerIPs) > 0 {
		s.Problems.add(NoSourceRange, texts[0], "spec.loadBalancerSourceRanges")
	}
	slices.SortFunc(valid, netip.Prefix.Compare) // a range precedes those that it contains
	for _, p := range valid {
		if n := len(s.SourceRanges); n == 0 || !s.SourceRanges[n-1].Overlaps(p) {
			s.SourceRanges = append(s.SourceRanges, p)
		}
	}
	if len(s.SourceRanges) > 0 && s.SourceRanges[0].Bits() == 0 {
		s.SourceRanges = nil
	}
}

// setPolicies sets the traffic policies and the port of health checks. The external policy has no effect on a Service that is not reached from outside.
func (s *Service) setPolicies(from *corev1.Service) {
	spec := &from.Spec
	s.InternalLocal = spec.InternalTrafficPolicy != nil && *spec.InternalTrafficPolicy == corev1.ServiceInternalTrafficPolicyLocal
	external := spec.Type == corev1.ServiceTypeLoadBalancer || spec.Type == corev1.ServiceTypeNodePort ||
		spec.Type == corev1.ServiceTypeClusterIP && len(spec.ExternalIPs) > 0
	s.ExternalLocal = external && spec.ExternalTrafficPolicy == corev1.ServiceExternalTrafficPolicyLocal
	if !s.ExternalLocal || spec.Type != corev1.ServiceTypeLoadBalancer {
		return
	}
	port, ok := portNumber(spec.HealthCheckNodePort)
	if !ok {
		s.Problems.add(InvalidHealthCheck, strconv.Itoa(int(spec.HealthCheckNodePort)), "spec.healthCheckNodePort")
	}
	s.HealthCheckNodePort = port
}

// setAffinity sets the timeout of session affinity.
func (s *Service) setAffinity(from *corev1.Service) {
	if from.Spec.SessionAffinity != corev1.ServiceAffinityClientIP {
		return
	}
	seconds := corev1.DefaultClientIPServiceAffinitySeconds
	if c := from.Spec.SessionAffinityConfig; c != nil && c.ClientIP != nil && c.ClientIP.TimeoutSeconds != nil {
		if seconds = *c.ClientIP.TimeoutSeconds; seconds < 1 || seconds > maxAffinity {
			s.Problems.add(InvalidAffinityTime, strconv.Itoa(int(seconds)), "spec.sessionAffinityConfig.clientIP.timeoutSeconds")
			seconds = corev1.DefaultClientIPServiceAffinitySeconds
		}
	}
	s.Affinity = time.Duration(seconds) * time.Second
}

// TransformService is the transform of an informer of Services, a cache.TransformFunc: it stores each as a *Service. It returns other objects unchanged.
func TransformService(obj any) (any, error) {
	if s, ok := obj.(*corev1.Service); ok {
		return NewService(s), nil
	}
	return obj, nil
}

// GetObjectKind returns the kind Service, for Events about it.
func (s *Service) GetObjectKind() schema.ObjectKind {
	return kind(corev1.SchemeGroupVersion, "Service")
}

// DeepCopyObject returns a copy of the Service.
func (s *Service) DeepCopyObject() runtime.Object {
	out := *s
	out.ExternalIPs, out.LoadBalancerIPs = slices.Clone(s.ExternalIPs), slices.Clone(s.LoadBalancerIPs)
	out.SourceRanges, out.Ports, out.Problems = slices.Clone(s.SourceRanges), slices.Clone(s.Ports), s.Problems.clone()
	return &out
}
