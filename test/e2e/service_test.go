package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// Pods reach a service through kube-proxy, on whatever node its endpoints are.
func TestServices(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities sees services")
	}
	testServices(t, newTrio(t))
}

func testServices(t *testing.T, x *trio) {
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		x.condition(t, node, corev1.ConditionFalse, config.ReasonReady, "service proxy external")
	}
	ends := []end{x.a.End(), x.b.End(), x.c.End(), x.nodeEnd(t, x.node1), x.nodeEnd(t, x.node2)}
	tcp := x.Expose(t, x.namespace, "tcp", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, x.b, x.c)
	udp := x.Expose(t, x.namespace, "udp", servicePort{Protocol: "UDP", Port: 53, Target: fixture.UDPPort}, x.b, x.c)
	for _, from := range ends {
		t.Run("tcp from "+from.Name, func(t *testing.T) {
			reachesBoth(t, func(ctx context.Context) (string, error) { return fixture.HostnameHTTP(ctx, from.NetNS, tcp, 80) })
		})
		t.Run("udp from "+from.Name, func(t *testing.T) {
			reachesBoth(t, func(ctx context.Context) (string, error) { return fixture.HostnameUDP(ctx, from.NetNS, udp, 53) })
		})
	}
	t.Run("fragments", func(t *testing.T) { testServiceFragments(t, x) })
	t.Run("from the API server", func(t *testing.T) { testAPIServerProxies(t, x) })
	t.Run("webhooks and aggregated APIs", func(t *testing.T) { testAPIServerClients(t, x) })
	t.Run("kubernetes", func(t *testing.T) {
		for _, from := range ends {
			fixture.Within(t, fixture.PacketTime, from.Name, func(ctx context.Context) error { return x.greetAPIServer(ctx, from.NetNS) })
		}
	})
}

// reachesBoth asks until both endpoints have answered: the proxy may learn of the second one later. Once the first has answered, no request may fail.
func reachesBoth(t *testing.T, ask func(context.Context) (string, error)) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, "the service answers", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := ask(ctx)
		return err
	})
	answers := map[string]int{}
	fixture.Eventually(t, fixture.SyncTime, "both endpoints answer", func(context.Context) error {
		fixture.Within(t, fixture.PacketTime, "the service answers", func(ctx context.Context) error {
			name, err := ask(ctx)
			answers[name]++
			return err
		})
		if t.Failed() || answers["b"] > 0 && answers["c"] > 0 {
			return nil
		}
		return fmt.Errorf("answers by endpoint: %v, want some of b and some of c", answers)
	})
}

// testAPIServerProxies gets pages by pods/proxy and services/proxy. For both the API server connects to a pod; testAPIServerClients has connections to services.
func testAPIServerProxies(t *testing.T, x *trio) {
	for _, p := range []pod{x.b, x.c} {
		fixture.Within(t, fixture.PacketTime, "pods/proxy of "+p.Name, func(ctx context.Context) error {
			name, err := x.Kube.CoreV1().Pods(x.namespace).ProxyGet("http", p.Name, strconv.Itoa(fixture.HTTPPort), "/hostname", nil).DoRaw(ctx)
			if err == nil && string(name) != p.Name {
				err = fmt.Errorf("got page of %q, want %q", name, p.Name)
			}
			return err
		})
	}
	reachesBoth(t, func(ctx context.Context) (string, error) {
		name, err := x.Kube.CoreV1().Services(x.namespace).ProxyGet("http", "tcp", "80", "/hostname", nil).DoRaw(ctx)
		return string(name), err
	})
}

// testServiceFragments sends fragmented datagrams to a service; only the first fragment has ports.
func testServiceFragments(t *testing.T, x *trio) {
	for _, endpoint := range []pod{x.b, x.c} {
		server, err := endpoint.NetNS.ListenPacket("udp4", netip.AddrPortFrom(endpoint.Addr, 0).String())
		if err != nil {
			t.Fatal(err)
		}
		defer server.Close()
		go echoUDP(server, make(chan netip.Addr))
		target := server.LocalAddr().(*net.UDPAddr).Port
		service := x.Expose(t, x.namespace, "large-"+endpoint.Name, servicePort{Protocol: "UDP", Port: 7, Target: int32(target)}, endpoint)
		fixture.Eventually(t, fixture.SyncTime, "the service with endpoint "+endpoint.Name+" answers", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			conn, err := x.a.NetNS.DialContext(ctx, "udp4", netip.AddrPortFrom(service, 7).String())
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
	conn, err := from.DialContext(ctx, "tcp4", netip.AddrPortFrom(c.apiAddr(), 443).String())
	if err != nil {
		return err
	}
	defer conn.Close()
	return tls.Client(conn, &tls.Config{RootCAs: authority, ServerName: "kubernetes.default.svc"}).HandshakeContext(ctx)
}
