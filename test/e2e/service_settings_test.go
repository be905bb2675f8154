package e2e

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

// endpointState is an endpoint of a hand-written EndpointSlice.
type endpointState struct {
	name                        string
	ready, serving, terminating bool
	zone                        string // of its hint
}

func ready(names ...string) (all []endpointState) {
	for _, name := range names {
		all = append(all, endpointState{name: name, ready: true, serving: true})
	}
	return all
}

func draining(name string) endpointState {
	return endpointState{name: name, serving: true, terminating: true}
}

func inZone(name, zone string) endpointState {
	return endpointState{name: name, ready: true, serving: true, zone: zone}
}

func (e endpointState) endpoint(addr, node string) discoveryv1.Endpoint {
	out := discoveryv1.Endpoint{
		Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &e.ready, Serving: &e.serving, Terminating: &e.terminating},
	}
	if node != "" {
		out.NodeName = &node
	}
	if e.zone != "" {
		out.Zone, out.Hints = &e.zone, &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: e.zone}}}
	}
	return out
}

func combine(all ...settings) settings {
	return func(svc *corev1.Service, external, alone string) {
		for _, set := range all {
			set(svc, external, alone)
		}
	}
}

func selected(label, value string) settings {
	return func(svc *corev1.Service, _, _ string) { svc.Spec.Selector = map[string]string{label: value} }
}

func nodePort(svc *corev1.Service, _, _ string) { svc.Spec.Type = corev1.ServiceTypeNodePort }

func withExternalIP(svc *corev1.Service, external, _ string) {
	svc.Spec.ExternalIPs = []string{external}
}

func onAlone(svc *corev1.Service, _, alone string) { svc.Spec.ExternalIPs = []string{alone} }

func balancer(ranges ...string) settings {
	return func(svc *corev1.Service, external, _ string) {
		svc.Spec.Type, svc.Spec.LoadBalancerSourceRanges = corev1.ServiceTypeLoadBalancer, ranges
		setBalancer(svc, external, corev1.LoadBalancerIPModeVIP)
	}
}

func balancerProxy(svc *corev1.Service, _, alone string) {
	svc.Spec.Type = corev1.ServiceTypeLoadBalancer
	setBalancer(svc, alone, corev1.LoadBalancerIPModeProxy)
}

func setBalancer(svc *corev1.Service, ip string, mode corev1.LoadBalancerIPMode) {
	svc.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: ip, IPMode: &mode}}
}

func affinity(svc *corev1.Service, _, _ string) {
	svc.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
}

func internalLocal(svc *corev1.Service, _, _ string) {
	local := corev1.ServiceInternalTrafficPolicyLocal
	svc.Spec.InternalTrafficPolicy = &local
}

func externalLocal(svc *corev1.Service, _, _ string) {
	svc.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
}

func preferSameNode(svc *corev1.Service, _, _ string) {
	distribution := corev1.ServiceTrafficDistributionPreferSameNode
	svc.Spec.TrafficDistribution = &distribution
}

func publishNotReady(svc *corev1.Service, _, _ string) { svc.Spec.PublishNotReadyAddresses = true }

func headless(svc *corev1.Service, _, _ string) { svc.Spec.ClusterIP = corev1.ClusterIPNone }

func externalName(svc *corev1.Service, _, _ string) {
	svc.Spec.Type, svc.Spec.ExternalName = corev1.ServiceTypeExternalName, "outside.example"
}

func otherProxy(svc *corev1.Service, _, _ string) {
	svc.Labels = map[string]string{endpoints.ProxyNameLabel: "other"}
}
