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
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// egressIP is the i-th egress IP of the tests. They are in the network of the nodes, and no machine has one.
func egressIP(i int) netip.Addr { return netip.AddrFrom4([4]byte{172, 31, 0, byte(224 + i)}) }

// seeEgressIPs is a part of TestCapabilities: a host outside sees the egress IP of the namespace, by the pod on the node that hosts it and by one on another
// node. With an IP that no node hosts nothing arrives, and without IPs the sources are the nodes' addresses again.
func seeEgressIPs(t *testing.T, x *trio) {
	x.settle(t)
	before := x.footprints(t, fixture.Node1, fixture.Node2)
	hosted, unhosted := egressIP(0), egressIP(1)
	x.restoreEgressIPs(t, []string{x.namespace}, fixture.Node1)
	outside := place{"a host outside", x.outside.NetNS, lab.OutsideAddr()}
	node2 := place{fixture.Node2, x.node2.NetNS, x.Addr(t, fixture.Node2)}

	x.hostEgressIPs(t, fixture.Node1, hosted)
	x.useEgressIPs(t, x.namespace, hosted)
	for _, p := range []pod{x.a, x.c} {
		outside.sees(t, p, hosted)
	}
	node2.sees(t, x.a, x.Addr(t, fixture.Node1))

	x.useEgressIPs(t, x.namespace, unhosted)
	lost(t, x.a, outside.addr)
	lost(t, x.c, outside.addr)
	capture := capturing(t, x.outside.NetNS, uplinkName)
	closed, open := []byte("egress IP that no node hosts;"), []byte("no egress IP;")
	for _, p := range []pod{x.a, x.c} {
		sendMarked(t, p, outside.addr, closed, 5)
	}
	fixture.Meet(t, x.a.NetNS, x.c.Addr)

	x.useEgressIPs(t, x.namespace)
	for _, p := range []pod{x.a, x.c} {
		outside.sees(t, p, x.Addr(t, p.Node))
		sendMarked(t, p, outside.addr, open, 5)
	}
	fixture.Eventually(t, fixture.PacketTime, "packets without an egress IP arrive", func(context.Context) error {
		if len(capture.Frames(open)) == 0 {
			return fmt.Errorf("got none of 10")
		}
		return nil
	})
	if frames := capture.Frames(closed); len(frames) > 0 {
		fixture.Arrived(t, "got %d packets of a namespace whose egress IP no node hosts, want 0; for example %x", len(frames), frames[0])
	}
	x.hostEgressIPs(t, fixture.Node1)
	x.returnsTo(t, before)
}

// uplinkName is the interface of machines on the fabric.
const uplinkName = "eth0"

// capturing records the packets of an interface that have a text of these tests, until the test ends.
func capturing(t *testing.T, n wire.NetNS, iface string) *wire.Capture {
	t.Helper()
	c, err := n.Capture(iface, []byte("egress IP"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// discardPort is a UDP port on which no program listens.
const discardPort = 9

// sendMarked sends UDP datagrams with a text.
func sendMarked(t *testing.T, p pod, to netip.Addr, text []byte, count int) {
	t.Helper()
	conn, err := p.NetNS.DialContext(t.Context(), "udp4", netip.AddrPortFrom(to, discardPort).String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for range count {
		_, _ = conn.Write(text) // ECONNREFUSED: the port of an earlier datagram is closed
	}
}

// hostEgressIPs sets the egress IPs that a node hosts; none removes them.
func (c *cluster) hostEgressIPs(t *testing.T, node string, ips ...netip.Addr) {
	t.Helper()
	c.patchHostSubnet(t, node, map[string]any{"egressIPs": list(ips)})
}

// setEgressCIDRs sets the ranges of which the controller assigns egress IPs to a node. It writes the IPs, so they are removed with the ranges.
func (c *cluster) setEgressCIDRs(t *testing.T, node string, cidrs ...netip.Prefix) {
	t.Helper()
	fields := map[string]any{"egressCIDRs": list(cidrs)}
	if len(cidrs) == 0 {
		fields["egressIPs"] = nil
	}
	c.patchHostSubnet(t, node, fields)
}

func (c *cluster) patchHostSubnet(t *testing.T, node string, fields map[string]any) {
	t.Helper()
	if _, err := c.Network.NetworkV1().HostSubnets().Patch(t.Context(), node, types.MergePatchType, encoded(t, fields), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// useEgressIPs sets the egress IPs of a namespace; none removes them.
func (c *cluster) useEgressIPs(t *testing.T, namespace string, ips ...netip.Addr) {
	t.Helper()
	patch := encoded(t, map[string]any{"egressIPs": list(ips)})
	if _, err := c.Network.NetworkV1().NetNamespaces().Patch(t.Context(), namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// list returns the value of a field for a patch: without entries the field is deleted.
func list[T fmt.Stringer](all []T) any {
	if len(all) == 0 {
		return nil
	}
	texts := make([]string, len(all))
	for i, one := range all {
		texts[i] = one.String()
	}
	return texts
}

func encoded(t *testing.T, value any) []byte {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// restoreEgressIPs removes all egress IPs and ranges of the namespaces and nodes when the test ends.
func (c *cluster) restoreEgressIPs(t *testing.T, namespaces []string, nodes ...string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), fixture.SyncTime)
		defer cancel()
		none := []byte(`{"egressIPs":null,"egressCIDRs":null}`)
		for _, node := range nodes {
			if _, err := c.Network.NetworkV1().HostSubnets().Patch(ctx, node, types.MergePatchType, none, metav1.PatchOptions{}); err != nil {
				t.Errorf("remove the egress IPs of %s: %v", node, err)
			}
		}
		for _, ns := range namespaces {
			if _, err := c.Network.NetworkV1().NetNamespaces().Patch(ctx, ns, types.MergePatchType, []byte(`{"egressIPs":null}`), metav1.PatchOptions{}); err != nil {
				t.Errorf("remove the egress IPs of namespace %s: %v", ns, err)
			}
		}
	})
}

// place is an address outside of the pod network.
type place struct {
	name  string
	netns wire.NetNS
	addr  netip.Addr
}

// sees waits until new connections of a pod have the source at the place, by TCP and UDP, and get answers.
func (at place) sees(t *testing.T, p pod, want netip.Addr) {
	t.Helper()
	hasSource(t, "TCP of pod "+p.Name+" to "+at.name, p.NetNS, at.netns, netip.AddrPortFrom(at.addr, 0), want)
	fixture.Eventually(t, fixture.SyncTime, "UDP of pod "+p.Name+" to "+at.name, func(ctx context.Context) error {
		got, err := at.sourceUDP(ctx, p)
		if err == nil && got != want {
			err = fmt.Errorf("got source %s, want %s", got, want)
		}
		return err
	})
}

// sourceUDP returns the source that a datagram of the pod has at the place, after the pod has received an answer.
func (at place) sourceUDP(ctx context.Context, p pod) (source netip.Addr, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	server, err := at.netns.ListenPacket("udp4", netip.AddrPortFrom(at.addr, 0).String())
	if err != nil {
		return source, err
	}
	defer server.Close()
	client, err := p.NetNS.DialContext(ctx, "udp4", server.LocalAddr().String())
	if err != nil {
		return source, err
	}
	defer client.Close()
	buffer := make([]byte, 1<<10)
	var from net.Addr
	err = fixture.Resending(ctx, server, func() error {
		_, err := client.Write([]byte("egress IP"))
		return err
	}, func() (err error) {
		_, from, err = server.ReadFrom(buffer)
		return err
	})
	if err != nil {
		return source, err
	}
	err = fixture.Resending(ctx, client, func() error {
		_, err := server.WriteTo([]byte("egress IP"), from)
		return err
	}, func() error {
		_, err := client.Read(buffer)
		return err
	})
	if udp, ok := from.(*net.UDPAddr); ok {
		source = udp.AddrPort().Addr().Unmap()
	}
	if err != nil {
		err = fmt.Errorf("answer to %s: %w", from, err)
	}
	return source, err
}
