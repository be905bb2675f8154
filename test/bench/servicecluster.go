package main

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/bareagent"
)

// The services of a large cluster, whose endpoints are different pods on other nodes.
const (
	manyServices        = 10_000
	endpointsPerService = 10
	serviceNodes        = 200

	servicePort  = 80
	endpointPort = 8080
)

// serviceNode returns the HostSubnet's data of a node with endpoints.
func serviceNode(i int) (name string, addr netip.Addr, subnet netip.Prefix) {
	return fmt.Sprintf("peer%d", i), netip.AddrFrom4([4]byte{192, 168, byte(i / 250), byte(1 + i%250)}), netip.PrefixFrom(podAt((1+i)<<9), 23)
}

// serviceObjects returns the i-th service, and the slice of its endpoints, each of which is on another node.
func serviceObjects(i int) (*corev1.Service, *discoveryv1.EndpointSlice) {
	name := fmt.Sprintf("service%d", i)
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: name}}
	svc.Spec.ClusterIP = netip.AddrFrom4([4]byte{172, 30, byte(16 + i>>8), byte(i)}).String()
	svc.Spec.Ports = []corev1.ServicePort{{Name: "web", Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(endpointPort)}}
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Namespace: podNamespace, Name: name + "-1", Labels: map[string]string{
			discoveryv1.LabelServiceName: name, discoveryv1.LabelManagedBy: "bench",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("web"), Protocol: new(corev1.ProtocolTCP), Port: new(int32(endpointPort))}},
	}
	for k := range endpointsPerService {
		const reserved = 2 // the subnet's own address and the gateway's
		at := i*endpointsPerService + k
		node, pod := at%serviceNodes, at/serviceNodes
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{podAt((1+node)<<9 + reserved + pod).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true)},
			NodeName:   new(fmt.Sprintf("peer%d", node)),
		})
	}
	return svc, slice
}

// fillForServices makes the objects of a cluster in mode networkpolicy, except services.
func (n *startNode) fillForServices() {
	n.b.Helper()
	ctx := n.b.Context()
	n.createNetwork(config.ModeNetworkPolicy, netip.MustParsePrefix("10.128.0.0/14"))
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: bareagent.NodeName}}
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: nodeAddr}} // kube-proxy waits for it
	_, err := n.kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	n.b.must(err)
	_, err = n.kube.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: podNamespace}}, metav1.CreateOptions{})
	n.b.must(err)
	n.b.must(n.hostSubnet(ctx, bareagent.NodeName, nodeAddr, "10.128.0.0/23"))
	n.b.must(each(ctx, serviceNodes, func(ctx context.Context, i int) error {
		name, addr, subnet := serviceNode(i)
		return n.hostSubnet(ctx, name, addr.String(), subnet.String())
	}))
}

// createServices creates the services from one number to before another.
func (n *startNode) createServices(from, to int) {
	n.b.Helper()
	n.b.progress("making %d services with %d endpoints each", to-from, endpointsPerService)
	n.b.must(each(n.b.Context(), to-from, func(ctx context.Context, i int) error {
		svc, slice := serviceObjects(from + i)
		if _, err := n.kube.CoreV1().Services(svc.Namespace).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := n.kube.DiscoveryV1().EndpointSlices(slice.Namespace).Create(ctx, slice, metav1.CreateOptions{})
		return err
	}))
}
