package e2e

import (
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// servicePort is a service's only port and where it leads.
type servicePort struct {
	protocol corev1.Protocol
	port     int32
	target   int32
}

// expose makes a service for the pods and returns its address. Its endpoints are Kubernetes' own affair: they are told
// by a label.
func (c *cluster) expose(t *testing.T, namespace, name string, p servicePort, endpoints ...pod) netip.Addr {
	t.Helper()
	label := "service-" + name
	for _, e := range endpoints {
		patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:"yes"}}}`, label)
		if _, err := c.kube.CoreV1().Pods(namespace).Patch(t.Context(), e.name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return c.createService(t, namespace, name, p, map[string]string{label: "yes"})
}

// exposeAddr makes a service whose endpoint is any address.
func (c *cluster) exposeAddr(t *testing.T, namespace, name string, p servicePort, endpoint netip.Addr) netip.Addr {
	t.Helper()
	addr := c.createService(t, namespace, name, p, nil)
	portName := "" // as the service's; kube-proxy passes over ports without one
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{endpoint.String()}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Protocol: &p.protocol, Port: &p.target}},
	}
	if _, err := c.kube.DiscoveryV1().EndpointSlices(namespace).Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return addr
}

func (c *cluster) createService(t *testing.T, namespace, name string, p servicePort, selector map[string]string) netip.Addr {
	t.Helper()
	service, err := c.kube.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: selector,
			Ports:    []corev1.ServicePort{{Protocol: p.protocol, Port: p.port, TargetPort: intstr.FromInt32(p.target)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil {
		t.Fatal(err)
	}
	return addr
}
