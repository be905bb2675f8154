package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// testMasquerade is a part of TestCapabilities: the sources that a host outside and another node see, with an exception and without, while the agents run.
func testMasquerade(t *testing.T, x *trio) {
	subnet, node := x.Subnet(t, fixture.Node1).String(), x.Addr(t, fixture.Node1)
	x.Output(t, x.outside.Name, "ip", "route", "add", subnet, "via", node.String())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.PacketTime)
		defer cancel()
		if _, err := x.TryOutput(ctx, x.outside.Name, "ip", "route", "del", subnet); err != nil {
			t.Errorf("delete the route of the host outside: %v", err)
		}
	})
	other := netip.AddrPortFrom(x.Addr(t, fixture.Node2), 0)
	for _, step := range []struct {
		exceptions any
		want       netip.Addr
	}{{nil, node}, {lab.OutsideAddr().String() + "/32", x.a.Addr}, {"0.0.0.0/0", x.a.Addr}, {nil, node}} {
		if err := x.setNonMasqueradeCIDRs(t.Context(), step.exceptions); err != nil {
			t.Fatal(err)
		}
		hasSource(t, fmt.Sprintf("a host outside, with exceptions %v", step.exceptions), x.a.NetNS, x.outside.NetNS, netip.AddrPortFrom(lab.OutsideAddr(), 0), step.want)
		hasSource(t, fmt.Sprintf("another node, with exceptions %v", step.exceptions), x.a.NetNS, x.node2.NetNS, other, node)
	}
}

func (c *cluster) setNonMasqueradeCIDRs(ctx context.Context, value any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{"ovsdn.io/non-masquerade-cidrs": value}}})
	if err != nil {
		return err
	}
	_, err = c.Network.NetworkV1().ClusterNetworks().Patch(ctx, "default", apitypes.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// hasSource waits until a new connection has the source at its destination.
func hasSource(t *testing.T, what string, from, to wire.NetNS, addr netip.AddrPort, want netip.Addr) {
	t.Helper()
	fixture.Eventually(t, fixture.SyncTime, what, func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		l, err := to.Listen("tcp4", addr.String())
		if err != nil {
			return err
		}
		defer l.Close()
		conn, err := from.DialContext(ctx, "tcp4", l.Addr().String())
		if err != nil {
			return err
		}
		defer conn.Close()
		accepted, err := await.Accept(ctx, l)
		if err != nil {
			return err
		}
		defer accepted.Close()
		got, ok := accepted.RemoteAddr().(*net.TCPAddr)
		if !ok || got.AddrPort().Addr().Unmap() != want {
			return fmt.Errorf("got a connection from %v, want %s", accepted.RemoteAddr(), want)
		}
		return nil
	})
}
