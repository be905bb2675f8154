package endpoints

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// drawService draws Service ns/web as the API server stores it: valid, with all combinations of policies and frontends.
func drawService(t *rapid.T) *corev1.Service {
	internal := corev1.ServiceInternalTrafficPolicy(rapid.SampledFrom([]string{"Cluster", "Local"}).Draw(t, "internalTrafficPolicy"))
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"},
		Spec: corev1.ServiceSpec{
			Type:      rapid.SampledFrom([]corev1.ServiceType{"ClusterIP", "NodePort", "LoadBalancer"}).Draw(t, "type"),
			ClusterIP: "172.30.0.10", ClusterIPs: []string{"172.30.0.10"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			InternalTrafficPolicy: &internal,
			ExternalTrafficPolicy: rapid.SampledFrom([]corev1.ServiceExternalTrafficPolicy{"", "Cluster", "Local"}).Draw(t, "externalTrafficPolicy"),
			ExternalIPs:           rapid.SampledFrom([][]string{nil, {"192.0.2.1"}, {"2001:db8::1"}, {"192.0.2.1", "192.0.2.2"}}).Draw(t, "externalIPs"),
			LoadBalancerSourceRanges: rapid.SampledFrom([][]string{nil, {"192.0.2.0/24"}, {" 192.0.2.7/24"}, {"x"}, {"2001:db8::/32"}, {"0.0.0.0/0", "192.0.2.0/24"}}).
				Draw(t, "loadBalancerSourceRanges"),
			HealthCheckNodePort: rapid.SampledFrom([]int32{0, 31000}).Draw(t, "healthCheckNodePort"),
			Ports: []corev1.ServicePort{
				{Name: "http", Protocol: corev1.ProtocolTCP, Port: 80, NodePort: rapid.SampledFrom([]int32{0, 30080}).Draw(t, "nodePort")},
				{Name: "dns", Protocol: corev1.ProtocolUDP, Port: 53},
			},
		},
	}
	if rapid.Bool().Draw(t, "affinity") {
		seconds := rapid.Int32Range(1, 86_400).Draw(t, "timeout")
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.SessionAffinityConfig = &corev1.SessionAffinityConfig{ClientIP: &corev1.ClientIPConfig{TimeoutSeconds: &seconds}}
	}
	for range rapid.IntRange(0, 2).Draw(t, "ingresses") {
		entry := corev1.LoadBalancerIngress{IP: rapid.SampledFrom([]string{"", "198.51.100.1", "198.51.100.2", "2001:db8::2"}).Draw(t, "ingress")}
		if mode := corev1.LoadBalancerIPMode(rapid.SampledFrom([]string{"", "VIP", "Proxy"}).Draw(t, "ipMode")); mode != "" {
			entry.IPMode = &mode
		}
		s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, entry)
	}
	return s
}

// drawSlices draws slices of the Service. An address may occur several times in a slice, and in one slice only: the order of slices does not matter to
// kube-proxy.
func drawSlices(t *rapid.T) []*discoveryv1.EndpointSlice {
	var out []*discoveryv1.EndpointSlice
	for i := range rapid.IntRange(0, 3).Draw(t, "slices") {
		s := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("web-%d", i), Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		hinted := rapid.SampledFrom([]string{"", "zones", "nodes", "both", "mixed"}).Draw(t, "hinted")
		for range rapid.IntRange(0, 4).Draw(t, "endpoints") {
			s.Endpoints = append(s.Endpoints, drawEndpoint(t, i, hinted))
		}
		for _, name := range rapid.SampledFrom([][]string{{"http"}, {"http", "dns"}, {"dns", "other"}, {}}).Draw(t, "ports") {
			number := rapid.Int32Range(0, 2).Draw(t, "port")
			protocol := map[string]corev1.Protocol{"http": corev1.ProtocolTCP, "dns": corev1.ProtocolUDP, "other": corev1.ProtocolTCP}[name]
			s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: &name, Protocol: &protocol, Port: &number})
		}
		out = append(out, s)
	}
	return out
}

func drawEndpoint(t *rapid.T, slice int, hinted string) discoveryv1.Endpoint {
	condition := func(label string) *bool { return rapid.SampledFrom([]*bool{nil, new(false), new(true)}).Draw(t, label) }
	out := discoveryv1.Endpoint{
		Addresses:  []string{fmt.Sprintf("10.128.%d.%d", slice, rapid.IntRange(1, 5).Draw(t, "address"))},
		Conditions: discoveryv1.EndpointConditions{Ready: condition("ready"), Serving: condition("serving"), Terminating: condition("terminating")},
	}
	if node := rapid.SampledFrom([]string{"", "n1", "n2"}).Draw(t, "node"); node != "" {
		out.NodeName = &node
	}
	has := func(kind string) bool {
		return hinted == kind || hinted == "both" || hinted == "mixed" && rapid.Bool().Draw(t, kind)
	}
	zones, nodes := has("zones"), has("nodes")
	if !zones && !nodes {
		return out
	}
	out.Hints = &discoveryv1.EndpointHints{}
	if zones {
		for _, zone := range rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "aa"}), 1, 2).Draw(t, "zoneHints") {
			out.Hints.ForZones = append(out.Hints.ForZones, discoveryv1.ForZone{Name: zone})
		}
	}
	if nodes {
		for _, node := range rapid.SliceOfN(rapid.SampledFrom([]string{"n1", "n2", "n11"}), 1, 2).Draw(t, "nodeHints") {
			out.Hints.ForNodes = append(out.Hints.ForNodes, discoveryv1.ForNode{Name: node})
		}
	}
	return out
}

// drawNode draws a node, whose name and zone may be unknown.
func drawNode(t *rapid.T) (name, zone string) {
	return rapid.SampledFrom([]string{"n1", "n2", "n3", ""}).Draw(t, "this"), rapid.SampledFrom([]string{"a", "b", ""}).Draw(t, "zone")
}
