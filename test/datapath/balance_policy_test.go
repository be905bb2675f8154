package datapath_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	compiled "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// testBalancedPolicies: policies and VNIDs evaluate the endpoint, and a client of another VNID does not reach the service.
func testBalancedPolicies(t *testing.T, b *balanced) {
	client, server, stranger := b.pod(0, 0), b.pod(1, 0), b.pod(0, 2)
	b.endpoints = []netip.AddrPort{netip.AddrPortFrom(server.Addr, 8080)}
	serving := server.UDP(t, 8080)
	switch b.mode {
	case config.ModeSubnet:
		return
	case config.ModeMultitenant:
		b.pods[stranger] = 11
		b.install(t)
		stranger.UDP(t, 0).MustNotReach(t, vip(53), serving)
		b.vnid = 0
		b.pods[server], b.pods[client] = 10, 10
		b.install(t) // a service of VNID 0 with an endpoint of another VNID
		stranger.UDP(t, 0).MustNotReach(t, vip(53), serving)
		client.UDP(t, 0).MustReach(t, vip(53), serving)
	case config.ModeNetworkPolicy:
		for _, isolated := range []*datapath.Pod{client, server} {
			b.policies = map[*datapath.Pod]compiled.PodPolicies{isolated: {Evaluated: true, Ingress: true, Egress: true}}
			b.install(t)
			asking := client.UDP(t, 0)
			asking.MustNotReach(t, vip(53), serving)
			// The endpoint was selected before the verdict, which lets no reply in.
			serving.MustNotReach(t, asking.Addr(), asking)
		}
	}
}

// testBalancedMidstream: a packet of a TCP connection that has no entry, as that of a server to a client of long ago, opens none: the endpoint's packets to the pod
// are no replies, and policies decide.
func testBalancedMidstream(t *testing.T, b *balanced) {
	if b.mode == config.ModeSubnet {
		return // has no policies
	}
	const endpointPort = 40000 // a client's, as those below are servers'
	client := b.pod(0, 0)
	for port, server := range map[uint16]*datapath.Pod{8080: b.pod(0, 1), 8081: b.pod(1, 0)} {
		t.Run(server.Addr.String(), func(t *testing.T) {
			b.endpoints = []netip.AddrPort{netip.AddrPortFrom(server.Addr, endpointPort)}
			b.policies[client] = compiled.PodPolicies{Evaluated: true, Ingress: true}
			b.install(t)
			l := server.ListenTCP(t, endpointPort)
			for _, pod := range []*datapath.Pod{client, server} { // whose kernels must not end the connection
				pod.Sh(t, "iptables -A OUTPUT -p tcp --tcp-flags RST RST -j DROP")
				t.Cleanup(func() { pod.Sh(t, "iptables -D OUTPUT -p tcp --tcp-flags RST RST -j DROP") })
			}
			s := datapath.Stream{Client: dialFrom(t, client, int(port)+100, vip(80), 10*time.Second)} // from a server's port, too
			s.Server = datapath.Accept(t, l)
			s.MustPass(t)
			asking, serving := client.Listen(t, "ip4:tcp", 0), server.Listen(t, "ip4:tcp", 0)
			source := netip.AddrPortFrom(client.Addr, port)
			request := func(message []byte) []byte { return wire.TCPSegment(source, vip(80), wire.TCPACK|wire.TCPPSH, message) }
			answer := func(message []byte) []byte {
				return wire.TCPSegment(b.endpoints[0], source, wire.TCPACK|wire.TCPPSH, message)
			}
			mustReachTranslated(t, asking, vip(80), serving, request)
			for range 3 {
				if from, arrived := reachesTranslated(t, serving, source, asking, answer); arrived {
					t.Fatalf("a packet of the endpoint has come in at the pod, from %s: policies isolate the pod", from)
				}
			}
			b.policies[client] = compiled.PodPolicies{Evaluated: true}
			b.install(t)
			if from := mustReachTranslated(t, serving, source, asking, answer); from.Addr() != vip(80).Addr() {
				t.Errorf("source of the endpoint's packet without isolation: got %s, want %s", from.Addr(), vip(80).Addr())
			}
		})
	}
}
