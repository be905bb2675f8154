package networkpolicy

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Open vSwitch lists a TCP connection as closed after a reset, and after both ends have closed it. From the same port another one may be open then.
func TestClosedConnections(t *testing.T) {
	tier.Parallel(t)
	s := newPacketNode(t)
	s.isolate(t, []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{onPort(80)}}}, []networkingv1.NetworkPolicyEgressRule{{}})
	client, server := s.node.Pods[0], s.node.Pods[1]
	listener := server.ListenTCP(t, 80)
	awaitClosed := func(addr net.Addr, want bool) {
		t.Helper()
		port := addr.(*net.TCPAddr).AddrPort().Port()
		await.OK(t, 30*time.Second, func(context.Context) error {
			var found, closed bool
			if err := s.bridge.ListConnections(t.Context(), pipeline.AllowedZones(), func(c ovs.Connection) {
				if c.Original.SrcPort == port {
					found, closed = true, c.Closed
				}
			}); err != nil {
				return err
			}
			if !found || closed != want {
				return fmt.Errorf("connection from port %d: listed %t, closed %t, want closed %t", port, found, closed, want)
			}
			return nil
		})
	}
	to := netip.AddrPortFrom(server.Addr, 80)
	for name, end := range map[string]func(client, server net.Conn) error{
		"reset": func(client, _ net.Conn) error {
			if err := client.(*net.TCPConn).SetLinger(0); err != nil {
				return err
			}
			return client.Close()
		},
		"closed by the server, then by the client": func(client, server net.Conn) error {
			if err := server.Close(); err != nil {
				return err
			}
			return client.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			stream := client.Dial(t, to, listener)
			stream.MustPass(t)
			addr := stream.Client.LocalAddr()
			awaitClosed(addr, false)
			if err := end(stream.Client, stream.Server); err != nil {
				t.Fatal(err)
			}
			awaitClosed(addr, true)
		})
	}
}
