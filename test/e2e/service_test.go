package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/ovsdn/ovsdn/test/e2e/wire"
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

// A service is reached through kube-proxy, wherever its endpoints are.
func TestServices(t *testing.T) {
	x := newTrio(t)
	ends := []end{x.a.end(), x.b.end(), x.c.end(), x.nodeEnd(t, x.node1), x.nodeEnd(t, x.node2)}
	tcp := x.expose(t, x.namespace, "tcp", servicePort{"TCP", 80, httpPort}, x.b, x.c)
	udp := x.expose(t, x.namespace, "udp", servicePort{"UDP", 53, udpPort}, x.b, x.c)
	for _, from := range ends {
		t.Run("tcp from "+from.name, func(t *testing.T) {
			reachesBoth(t, func(ctx context.Context) (string, error) { return hostnameHTTP(ctx, from.netns, tcp, 80) })
		})
		t.Run("udp from "+from.name, func(t *testing.T) {
			reachesBoth(t, func(ctx context.Context) (string, error) { return hostnameUDP(ctx, from.netns, udp, 53) })
		})
	}
	t.Run("fragments", func(t *testing.T) { testServiceFragments(t, x) })
	t.Run("kubernetes", func(t *testing.T) {
		for _, from := range ends {
			within(t, packetTime, from.name, func(ctx context.Context) error { return x.greetAPIServer(ctx, from.netns) })
		}
	})
}

// reachesBoth asks until both endpoints have answered. Once the first has, no request may fail.
func reachesBoth(t *testing.T, ask func(context.Context) (string, error)) {
	t.Helper()
	eventually(t, syncTime, "the service answers", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := ask(ctx)
		return err
	})
	answers := map[string]int{}
	for range 100 { // Fair coins show one side only once in 2^99.
		within(t, packetTime, "the service answers", func(ctx context.Context) error {
			name, err := ask(ctx)
			answers[name]++
			return err
		})
		if t.Failed() || answers["b"] > 0 && answers["c"] > 0 {
			return
		}
	}
	t.Errorf("the endpoints answered %v, want some of b and some of c", answers)
}

func hostnameHTTP(ctx context.Context, from wire.NetNS, to netip.Addr, port uint16) (string, error) {
	return hostnameBy(ctx, from.HTTP(), to, port)
}

func hostnameBy(ctx context.Context, client *http.Client, to netip.Addr, port uint16) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+netip.AddrPortFrom(to, port).String()+"/hostname", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	return string(body), err
}

func hostnameUDP(ctx context.Context, from wire.NetNS, to netip.Addr, port uint16) (string, error) {
	conn, err := from.DialContext(ctx, "udp4", netip.AddrPortFrom(to, port).String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	buffer, length := make([]byte, 1<<10), 0
	err = resending(ctx, conn, func() error {
		_, err := conn.Write([]byte("hostname"))
		return err
	}, func() (err error) {
		length, err = conn.Read(buffer)
		return err
	})
	return string(buffer[:length]), err
}

// testServiceFragments asks a service with datagrams that take several packets, of which only the first has ports.
func testServiceFragments(t *testing.T, x *trio) {
	for _, endpoint := range []pod{x.b, x.c} {
		server, err := endpoint.netns.ListenPacket("udp4", netip.AddrPortFrom(endpoint.addr, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		go echoUDP(server, make(chan netip.Addr))
		target := server.LocalAddr().(*net.UDPAddr).Port
		service := x.expose(t, x.namespace, "large-"+endpoint.name, servicePort{"UDP", 7, int32(target)}, endpoint)
		eventually(t, syncTime, "the service with endpoint "+endpoint.name+" answers", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			conn, err := x.a.netns.DialContext(ctx, "udp4", netip.AddrPortFrom(service, 7).String())
			if err != nil {
				return err
			}
			defer conn.Close()
			return askUDP(ctx, conn, 4000)
		})
	}
}

// greetAPIServer makes a TLS connection to service kubernetes and checks that it is the API server's.
func (c *cluster) greetAPIServer(ctx context.Context, from wire.NetNS) error {
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(config.CAData) {
		return errors.New("the kubeconfig has no authority")
	}
	first := c.Shape().ServiceNetwork.Addr().Next()
	conn, err := from.DialContext(ctx, "tcp4", net.JoinHostPort(first.String(), strconv.Itoa(443)))
	if err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, &tls.Config{RootCAs: authority, ServerName: "kubernetes.default.svc"}).HandshakeContext(ctx)
}
