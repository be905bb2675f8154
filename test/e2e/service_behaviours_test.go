package e2e

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
)

// behaviour is a Service, and what its clients get.
type behaviour struct {
	feature   string
	set       settings
	endpoints []endpointState // of its EndpointSlice; none if Kubernetes selects its pods
	lines     []line
}

// line has what clients get that ask the Service at an address. docs/services.md describes clients and endpoints.
type line struct {
	at                     address
	a, b, d, node, outside answer
}

// answer lists the endpoints that answer, such as "b c". "b|c" is one of them, always the same. Two answers with " / " between them are that of kube-proxy, and that of
// the switch.
type answer string

func (l line) answers() []answer { return []answer{l.a, l.b, l.d, l.node, l.outside} }

// forProxy is the answer with a proxy.
func (a answer) forProxy(proxy config.ServiceProxy) answer {
	kubeProxy, ovs, differs := strings.Cut(string(a), " / ")
	if differs && proxy == config.ServiceProxyOVS {
		return answer(ovs)
	}
	return answer(kubeProxy)
}

// Other answers.
const (
	rejected  answer = "rejected" // at once
	dropped   answer = "dropped"
	none      answer = "–" // the client has no route to the address
	status200 answer = "status 200"
	status503 answer = "status 503"
)

// address is how a client asks.
type address string

// Addresses. Packets of hosts outside to external IPs and addresses of load balancers enter by node1.
const (
	clusterIP      address = "cluster IP"
	otherPort      address = "cluster IP, another port"
	externalIP     address = "external IP"
	balancerIP     address = "load balancer's IP"
	nodePort1      address = "node port of node1"
	nodePort2      address = "node port of node2"
	aloneIP        address = "external IP of a host"
	aloneBalancer  address = "load balancer's IP of a host"
	endpointItself address = "address of b"
	healthOfNode1  address = "health check of node1"
	healthOfNode2  address = "health check of node2"
)

// settings change a Service with cluster IP and ports 80 of TCP and UDP. external is an address that no host has, alone one of the host outside.
type settings func(svc *corev1.Service, external, alone string)

// serviceBehaviours is the table. Pods a and b are on node1, c, d and e on node2; e is not ready. "outside" and "node1" as endpoints are servers in the network of a
// host.
func serviceBehaviours() []behaviour {
	return slices.Concat(addressBehaviours(), policyBehaviours(), endpointBehaviours(), ignoredBehaviours())
}

func addressBehaviours() []behaviour {
	all, both := selected("pair", "yes"), ready("b", "c")
	return []behaviour{
		{"cluster IP", all, nil, []line{
			{clusterIP, "b c", "b c", "b c", "b c", none},
			{otherPort, dropped, dropped, dropped, "rejected / dropped", none},
		}},
		{"node port", nodePort, both, []line{
			{nodePort1, "b c", "b c", "b c", "b c", "b c"},
			{nodePort2, "b c", "b c", "b c", "b c", "b c"},
		}},
		{"`externalIPs`", withExternalIP, both, []line{{externalIP, "b c", "b c", "b c", "b c", "b c"}}},
		{"load balancer, `ipMode: VIP`", balancer(), both, []line{{balancerIP, "b c", "b c", "b c", "b c", "b c"}}},
		{"load balancer, `ipMode: Proxy`", balancerProxy, both, []line{{aloneBalancer, "outside", "outside", "outside", "outside", none}}},
		{"`loadBalancerSourceRanges`: the host outside", balancer(fabricOutside().String() + "/32"), both, []line{
			{balancerIP, dropped, dropped, dropped, dropped, "b c"},
			{nodePort1, "b c", "b c", "b c", "b c", "b c"},
		}},
		{"`loadBalancerSourceRanges`: pods", balancer("10.128.0.0/14"), both, []line{{balancerIP, "b c", "b c", "b c", dropped, dropped}}},
		{"`sessionAffinity: ClientIP`", combine(affinity, nodePort), both, []line{
			{clusterIP, "b|c", "b|c", "b|c", "b|c", none},
			{nodePort1, "b|c", "b|c", "b|c", "b|c", "b|c"},
		}},
		{"hairpin: the only endpoint as the client", combine(nodePort, withExternalIP), ready("b"), []line{
			{clusterIP, "b", "b", "b", "b", none},
			{externalIP, "b", "b", "b", "b", "b"},
			{nodePort1, "b", "b", "b", "b", "b"},
		}},
	}
}

func policyBehaviours() []behaviour {
	return []behaviour{
		{"`internalTrafficPolicy: Local`, endpoint on node1", internalLocal, ready("b"), []line{{clusterIP, "b", "b", dropped, "b", none}}},
		{"`externalTrafficPolicy: Local`, endpoint on node1", combine(nodePort, withExternalIP, externalLocal), ready("b"), []line{
			{externalIP, "b", "b", "b", "b", "b"},
			{nodePort1, "b", "b", "b", "b", "b"},
			{nodePort2, dropped, dropped, "b", dropped, dropped},
		}},
		{"`externalTrafficPolicy: Local`, endpoint on node2", combine(nodePort, withExternalIP, externalLocal), ready("c"), []line{
			{externalIP, "c", "c", "c", "c / dropped", dropped},
			{nodePort1, "c", "c", dropped, "c / dropped", dropped},
		}},
		{"`externalTrafficPolicy: Local`, endpoints on both", combine(nodePort, withExternalIP, externalLocal), ready("b", "c"), []line{
			{clusterIP, "b c", "b c", "b c", "b c", none},
			{externalIP, "b c", "b c", "b c", "b c", "b"},
			{nodePort1, "b c", "b c", "b", "b c", "b"},
		}},
		{"`healthCheckNodePort`, endpoint on node1", combine(balancer(), externalLocal), ready("b"), []line{
			{healthOfNode1, status200, status200, status200, status200, status200},
			{healthOfNode2, status503, status503, status503, status503, status503},
		}},
		{"`trafficDistribution: PreferSameNode`", combine(selected("pair", "yes"), preferSameNode, withExternalIP), nil, []line{
			{clusterIP, "b", "b", "c", "b", none},
			{externalIP, "b", "b", "c", "b", "b"},
		}},
		{"hints `forZones`, a zone for each node", withExternalIP, []endpointState{inZone("b", "node1"), inZone("c", "node2")}, []line{
			{clusterIP, "b", "b", "c", "b", none},
			{externalIP, "b", "b", "c", "b", "b"},
		}},
	}
}

func endpointBehaviours() []behaviour {
	unready := selected("app", "e")
	return []behaviour{
		{"pod that is not ready", unready, nil, []line{{clusterIP, rejected, rejected, rejected, rejected, none}}},
		{"`publishNotReadyAddresses`", combine(unready, publishNotReady), nil, []line{{clusterIP, "e", "e", "e", "e", none}}},
		{"no endpoint", combine(nodePort, withExternalIP), nil, []line{
			{clusterIP, rejected, rejected, rejected, rejected, none},
			{externalIP, rejected, rejected, rejected, rejected, rejected},
			{nodePort1, rejected, rejected, rejected, rejected, rejected},
		}},
		{"b ready, c terminating and serving", nil, []endpointState{{name: "b", ready: true, serving: true}, draining("c")}, []line{
			{clusterIP, "b", "b", "b", "b", none},
		}},
		{"b terminating, c terminating and serving", withExternalIP, []endpointState{{name: "b", terminating: true}, draining("c")}, []line{
			{clusterIP, "c", "c", "c", "c", none},
			{externalIP, "c", "c", "c", "c", "c"},
		}},
		{
			"`externalTrafficPolicy: Local`, b terminating and serving, c ready", combine(withExternalIP, externalLocal),
			[]endpointState{draining("b"), {name: "c", ready: true, serving: true}}, []line{{externalIP, "c", "c", "c", "c", "b"}},
		},
		{"terminating endpoints only", withExternalIP, []endpointState{{name: "b", terminating: true}, {name: "c", terminating: true}}, []line{
			{clusterIP, rejected, rejected, rejected, rejected, none},
			{externalIP, rejected, rejected, rejected, rejected, rejected},
		}},
		{"endpoint in the network of its node", combine(nodePort, withExternalIP), ready("node1"), []line{
			{clusterIP, "node1", "node1", "node1", "node1", none},
			{externalIP, "node1", "node1", "node1", "node1", "node1"},
			{nodePort2, "node1", "node1", "node1", "node1", "node1"},
		}},
		{"endpoint outside of the cluster", withExternalIP, ready("outside"), []line{
			{clusterIP, "outside", "outside", "outside", "outside", none},
			{externalIP, "outside", "outside", "outside", "outside", "outside"},
		}},
	}
}

// ignoredBehaviours are Services that no proxy serves. Their external IP is an address of the host outside, whose server answers.
func ignoredBehaviours() []behaviour {
	both, alone := ready("b", "c"), line{aloneIP, "outside", "outside", "outside", "outside", none}
	return []behaviour{
		{"headless", combine(headless, onAlone), both, []line{{endpointItself, "b", "b", "b", "b", none}, alone}},
		{"`ExternalName`", combine(externalName, onAlone), nil, []line{alone}},
		{"label `" + endpoints.ProxyNameLabel + "`", combine(otherProxy, onAlone), both, []line{
			{clusterIP, "dropped|rejected / dropped", "dropped|rejected / dropped", "dropped|rejected / dropped", dropped, none}, alone,
		}},
	}
}

// sourceRule is the source that endpoints see, as in docs/decisions/0011-services.md: a pod of the node that translates the client's packet, a pod of another node, a
// server on that node, and on another host.
type sourceRule struct {
	proxies []config.ServiceProxy
	clients []clientKind
	at      []addressKind
	seen    [placeCount]source
}

func sourceRules() []sourceRule {
	ovs, kubeProxy := []config.ServiceProxy{config.ServiceProxyOVS}, []config.ServiceProxy{config.ServiceProxyExternal}
	proxies, addresses := slices.Concat(ovs, kubeProxy), []addressKind{internalKind, externalKind, externalLocalKind}
	pod, itself, program, host := []clientKind{podClient}, []clientKind{itselfClient}, []clientKind{programClient}, []clientKind{hostClient}
	return []sourceRule{
		{proxies, []clientKind{podClient, itselfClient}, []addressKind{directKind}, [...]source{seenClient, seenClient, seenClient, seenNode}},
		{proxies, program, []addressKind{directKind}, [...]source{seenTun0, seenTun0, seenNode, seenNode}},

		{ovs, pod, addresses, [...]source{seenClient, seenClient, seenClient, seenNode}},
		{ovs, itself, addresses, [...]source{"169.254.0.10", "", "", ""}},
		{ovs, program, addresses, [...]source{seenTun0, seenTun0, "169.254.0.11", seenNode}},
		{ovs, host, addresses, [...]source{seenClient, seenTun0, "169.254.0.12", seenNode}},

		{kubeProxy, pod, addresses, [...]source{seenClient, seenClient, seenClient, seenNode}},
		{kubeProxy, itself, addresses, [...]source{seenTun0, "", "", ""}},
		{kubeProxy, program, addresses, [...]source{seenTun0, seenTun0, seenNode, seenNode}},
		{kubeProxy, host, []addressKind{externalKind}, [...]source{seenTun0, seenTun0, seenClient, seenNode}},
		{kubeProxy, host, []addressKind{externalLocalKind}, [...]source{seenClient, "", seenClient, ""}},
	}
}
