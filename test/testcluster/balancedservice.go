package testcluster

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

// MaxServiceEndpoints is the largest number of endpoints of a service's port that DrawBalancedServices draws.
const MaxServiceEndpoints = 6

// DrawBalancedServices replaces all Services and EndpointSlices by random ones: all types, traffic policies and conditions, with ports of the protocols. They have few
// external addresses, some of which conflict or belong to a node.
func (w *World) DrawBalancedServices(r *rand.Rand, n int, protocols []corev1.Protocol) {
	w.Services, w.EndpointSlices = nil, nil
	for i := range n {
		svc := w.drawService(r, i, protocols)
		w.Services = append(w.Services, svc)
		w.drawSlices(r, svc)
	}
	r.Shuffle(n, func(i, j int) { w.Services[i], w.Services[j] = w.Services[j], w.Services[i] })
}

func drawOf[T any](r *rand.Rand, from ...T) T { return from[r.IntN(len(from))] }

func (w *World) drawService(r *rand.Rand, i int, protocols []corev1.Protocol) *corev1.Service {
	internal := drawOf(r, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyCluster, corev1.ServiceInternalTrafficPolicyLocal)
	addr := netip.AddrFrom4([4]byte{172, 30, 2, byte(i)}).String()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: drawOf(r, w.Namespaces...).Name, Name: fmt.Sprintf("svc%d", i), CreationTimestamp: metav1.NewTime(time.Unix(int64(1000+i), 0)),
		},
		Spec: corev1.ServiceSpec{
			Type: drawOf(r, corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort, corev1.ServiceTypeLoadBalancer), ClusterIP: addr, ClusterIPs: []string{addr},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, InternalTrafficPolicy: &internal,
			SessionAffinity: drawOf(r, corev1.ServiceAffinityNone, corev1.ServiceAffinityNone, corev1.ServiceAffinityClientIP),
		},
	}
	for j, name := range drawOf(r, []string{"web"}, []string{"web", "api"}) {
		port := corev1.ServicePort{Name: name, Protocol: drawOf(r, protocols...), Port: drawOf(r, []int32{80, 443}[j], 40000+int32(j))}
		if svc.Spec.Type != corev1.ServiceTypeClusterIP {
			port.NodePort = int32(30000 + 2*i + j)
		}
		svc.Spec.Ports = append(svc.Spec.Ports, port)
	}
	if r.IntN(2) == 0 {
		svc.Spec.ExternalIPs = []string{drawOf(r, "203.0.113.1", "203.0.113.2", NodeIP(0).String(), "172.30.9.9", "10.128.0.200")}
	}
	if svc.Spec.Type == corev1.ServiceTypeLoadBalancer {
		mode := drawOf(r, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)
		svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: drawOf(r, "203.0.113.2", "203.0.113.3", "203.0.113.4"), IPMode: &mode}}
		svc.Spec.LoadBalancerSourceRanges = drawOf(r, nil, nil, []string{"10.128.0.0/23"}, []string{"192.0.2.0/24", "10.128.2.0/28"})
	}
	if svc.Spec.Type != corev1.ServiceTypeClusterIP || len(svc.Spec.ExternalIPs) > 0 {
		svc.Spec.ExternalTrafficPolicy = drawOf(r, corev1.ServiceExternalTrafficPolicyCluster, corev1.ServiceExternalTrafficPolicyLocal)
		svc.Spec.HealthCheckNodePort = int32(31000 + i) // which the API server allocates
	}
	switch r.IntN(20) { // Services that are not proxied
	case 0:
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	case 1:
		svc.Spec.ClusterIP, svc.Spec.ClusterIPs = corev1.ClusterIPNone, []string{corev1.ClusterIPNone}
	}
	return svc
}

// drawSlices draws the EndpointSlices of a Service, in which each address occurs once.
func (w *World) drawSlices(r *rand.Rand, svc *corev1.Service) {
	ends := slices.DeleteFunc(w.Endpoints(), func(e oracle.Endpoint) bool { return e.Through != "" })
	r.Shuffle(len(ends), func(i, j int) { ends[i], ends[j] = ends[j], ends[i] })
	ends = ends[:min(len(ends), r.IntN(MaxServiceEndpoints+1))]
	conditions := drawOf(r, []int{0}, []int{0, 0, 1, 2}, []int{1, 2, 3})
	hinted := drawOf(r, 0, 0, 1, 2, 3)
	for i := range 2 {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: svc.Namespace, Name: fmt.Sprintf("%s-%d", svc.Name, i), Labels: map[string]string{discoveryv1.LabelServiceName: svc.Name},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for _, port := range svc.Spec.Ports {
			if r.IntN(10) > 0 {
				number := drawOf(r, Ports(port.Protocol)...)
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &port.Name, Protocol: &port.Protocol, Port: &number})
			}
		}
		half := len(ends) / (2 - i)
		for _, e := range ends[:half] {
			s.Endpoints = append(s.Endpoints, w.drawEndpoint(r, e, drawOf(r, conditions...), hinted))
		}
		ends = ends[half:]
		w.EndpointSlices = append(w.EndpointSlices, s)
	}
}

// drawEndpoint draws an endpoint that is ready (0), not ready (1), terminating (2), or both (3), with hints of the kinds in the bits of hinted.
func (w *World) drawEndpoint(r *rand.Rand, at oracle.Endpoint, condition, hinted int) discoveryv1.Endpoint {
	e := discoveryv1.Endpoint{Addresses: []string{at.Addr.String()}}
	switch {
	case at.Pod != nil:
		e.NodeName = &at.Pod.Spec.NodeName
	case at.Node != "":
		e.NodeName = &at.Node
	}
	switch condition {
	case 1:
		e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false)}
	case 2:
		e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(true), Terminating: new(true)}
	case 3:
		e.Conditions = discoveryv1.EndpointConditions{Ready: new(false), Serving: new(false), Terminating: new(true)}
	}
	if hinted != 0 && r.IntN(8) > 0 {
		e.Hints = &discoveryv1.EndpointHints{}
		node := drawOf(r, w.Nodes...)
		if hinted&1 != 0 {
			e.Hints.ForZones = []discoveryv1.ForZone{{Name: w.NodeLabels[node][corev1.LabelTopologyZone]}}
		}
		if hinted&2 != 0 {
			e.Hints.ForNodes = []discoveryv1.ForNode{{Name: node}}
		}
	}
	return e
}

// BalancedConnections returns a connection of each client of a node (its pods, the node itself by both addresses, and hosts outside) to each address and port of the
// Services, to their node ports on both nodes, and to a port of each cluster IP that no Service has.
func (w *World) BalancedConnections(node string) (all []oracle.ServiceConnection) {
	for _, from := range w.Endpoints() {
		if from.Pod != nil && from.Pod.Spec.NodeName != node || from.Node != "" && from.Node != node || from.Through != "" {
			continue
		}
		for _, svc := range w.Services {
			for _, port := range svc.Spec.Ports {
				for _, to := range w.addressesOf(svc, port) {
					all = append(all, oracle.ServiceConnection{From: from, At: node, To: to, Protocol: port.Protocol})
				}
			}
		}
	}
	return all
}

func (w *World) addressesOf(svc *corev1.Service, port corev1.ServicePort) (all []netip.AddrPort) {
	add := func(text string, number int32) {
		if addr, err := netip.ParseAddr(text); err == nil && number != 0 { // a headless Service has no address
			all = append(all, netip.AddrPortFrom(addr, uint16(number))) //nolint:gosec // a port
		}
	}
	add(svc.Spec.ClusterIP, port.Port)
	add(svc.Spec.ClusterIP, port.Port+1000)
	for _, text := range svc.Spec.ExternalIPs {
		add(text, port.Port)
	}
	for _, ingress := range svc.Status.LoadBalancer.Ingress {
		add(ingress.IP, port.Port)
	}
	for _, node := range w.Nodes {
		for _, addr := range w.NodeAddrs[node] {
			add(addr.String(), port.NodePort)
		}
	}
	return all
}
