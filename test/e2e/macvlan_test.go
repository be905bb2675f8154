package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	networkv1 "github.com/openshift/api/network/v1"
	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// seeMacvlan has a privileged pod on the nodes' network by macvlan0, and in the pod network too. One that is not privileged does not start.
func seeMacvlan(t *testing.T, x *trio) {
	started := time.Now()
	x.Create(t, x.namespace, withMacvlan("unprivileged", false))
	x.Warned(t, started, "Pod", "unprivileged", "can't have the macvlan interface", "no container of the pod is privileged")
	router := x.Run(t, x.namespace, withMacvlan("router", true))[0]
	// No machine of the lab has this address.
	addr := x.Addr(t, fixture.Node1).As4()
	addr[3] = 253
	own := netip.AddrFrom4(addr)
	if err := router.NetNS.Do(func() error {
		link, err := netlinksafe.LinkByName(sandbox.MacvlanName)
		if err != nil {
			return err
		}
		return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: own.AsSlice(), Mask: net.CIDRMask(24, 32)}})
	}); err != nil {
		t.Fatal(err)
	}
	// The kernel does not forward between macvlan0 and its parent: the pod reaches its node through the pod network.
	node := netip.AddrPortFrom(x.Addr(t, fixture.Node1), kubeletPort)
	fixture.Eventually(t, fixture.SyncTime, "the router reaches its node", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		conn, err := router.NetNS.DialContext(ctx, "tcp4", node.String())
		if err != nil {
			return err
		}
		return conn.Close()
	})
	for _, asked := range []struct {
		from end
		addr netip.Addr
	}{{end{Name: "outside", NetNS: x.outside.NetNS}, own}, {x.nodeEnd(t, x.node2), own}, {x.a.End(), router.Addr}, {x.c.End(), router.Addr}} {
		fixture.Eventually(t, fixture.SyncTime, fmt.Sprintf("%s reaches the router at %s", asked.from.Name, asked.addr), func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
			defer cancel()
			got, err := fixture.HostnameHTTP(ctx, asked.from.NetNS, asked.addr, fixture.HTTPPort)
			if err == nil && got != router.Name {
				err = fmt.Errorf("got an answer of %q, want %q", got, router.Name)
			}
			return err
		})
	}
	for _, name := range []string{"unprivileged", "router"} {
		if err := x.DeletePod(t.Context(), x.namespace, name); err != nil {
			t.Fatal(err)
		}
	}
	fixture.Eventually(t, fixture.SyncTime, "no macvlan interfaces on "+fixture.Node1, func(ctx context.Context) error {
		left, err := x.TryOutput(ctx, fixture.Node1, "ip", "-o", "link", "show", "type", "macvlan")
		if err == nil && left != "" {
			err = fmt.Errorf("there are\n%s", left)
		}
		return err
	})
}

// withMacvlan is a pod of the first node that asks for a macvlan interface on the default route.
func withMacvlan(name string, privileged bool) *corev1.Pod {
	object := fixture.Netexec(name, fixture.Node1)
	object.Annotations = map[string]string{networkv1.AssignMacvlanAnnotation: "true"}
	object.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
	return object
}
