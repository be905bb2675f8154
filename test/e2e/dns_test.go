package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// apiName is the name of the API server's service.
const apiName = "kubernetes.default.svc.cluster.local"

// Pods on each node resolve names of services by UDP and by TCP, and connect to a service by the name that their resolver completes.
func TestDNS(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: TestCapabilities resolves names")
	}
	testDNS(t, newTrio(t))
}

func testDNS(t *testing.T, x *trio) {
	web := x.Expose(t, x.namespace, "web", servicePort{Protocol: "TCP", Port: 80, Target: fixture.HTTPPort}, x.b, x.c)
	for _, from := range []pod{x.a, x.c} {
		t.Run("from "+from.Node, func(t *testing.T) {
			x.resolves(t, from, apiName, x.apiAddr())
			x.resolves(t, from, "web."+x.namespace+".svc.cluster.local", web)
			fixture.Eventually(t, fixture.SyncTime, "the pod connects to service web", func(ctx context.Context) error {
				// Not -T, with which Debian's wget of busybox crashes.
				stdout, stderr, err := x.Kubectl(ctx, "--namespace", x.namespace, "exec", from.Name, "--", "timeout", "5", "wget", "-q", "-O-", "http://web/hostname")
				if err != nil {
					return fmt.Errorf("%w: %s", err, stderr)
				}
				if stdout != x.b.Name && stdout != x.c.Name {
					return fmt.Errorf("got page of %q, want %q or %q", stdout, x.b.Name, x.c.Name)
				}
				return nil
			})
		})
	}
}

// apiAddr is the address of service kubernetes.
func (c *cluster) apiAddr() netip.Addr { return c.Shape().ServiceNetwork.Addr().Next() }

// resolves asks the cluster's DNS from a pod, by UDP and by TCP, until the name has the address.
func (c *cluster) resolves(t *testing.T, from pod, name string, want netip.Addr) {
	t.Helper()
	for _, network := range []string{"udp4", "tcp4"} {
		resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return from.NetNS.DialContext(ctx, network, netip.AddrPortFrom(c.Shape().DNSAddr(), 53).String())
		}}
		fixture.Eventually(t, fixture.SyncTime, from.Name+" resolves "+name+" by "+network, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			got, err := resolver.LookupNetIP(ctx, "ip4", name+".")
			if err == nil && !slices.Equal(got, []netip.Addr{want}) {
				err = fmt.Errorf("got %v, want %v", got, want)
			}
			return err
		})
	}
}
