package balancer

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
)

// TestUDPConnectionsAreFlushed checks that connections of UDP to a removed endpoint are flushed, and no others.
func TestUDPConnectionsAreFlushed(t *testing.T) {
	f := newFixture(t, config.ModeSubnet)
	f.services.Add(service(nil))
	f.slices.Add(slice("web", "web", corev1.ProtocolTCP, 8080, "10.128.0.5", "10.129.0.7"))
	f.slices.Add(slice("dns", "dns", corev1.ProtocolUDP, 5353, "10.128.0.5", "10.129.0.7"))
	f.expect("two endpoints", []string{toA, toB, "nat(dst=10.128.0.5:5353)", "nat(dst=10.129.0.7:5353)"})
	from := uint16(4000)
	connection := func(zone uint16, protocol uint8, port, endpointPort uint16, endpoint string) ovs.Connections {
		from++
		client, svc := netip.MustParseAddr("10.128.0.9"), netip.MustParseAddr("172.30.0.10")
		return ovs.Connections{
			Zone: zone, Protocol: protocol,
			Original: ovs.Tuple{Src: client, Dst: svc, SrcPort: from, DstPort: port},
			Reply:    ovs.Tuple{Src: netip.MustParseAddr(endpoint), Dst: client, SrcPort: endpointPort, DstPort: from},
		}
	}
	const nat, allowed = 0x4009, 0x6009
	remaining := []ovs.Connections{
		connection(nat, 6, 80, 8080, "10.128.0.5"), connection(nat, ovs.ProtocolNumberUDP, 53, 5353, "10.129.0.7"), connection(allowed, ovs.ProtocolNumberUDP, 53, 5353, "10.128.0.5"),
	}
	removed := connection(nat, ovs.ProtocolNumberUDP, 53, 5353, "10.128.0.5")
	for _, c := range append(slices.Clone(remaining), removed) {
		f.bridge.Connect(c)
	}
	f.slices.Modify(slice("web", "web", corev1.ProtocolTCP, 8080, "10.129.0.7"))
	f.slices.Modify(slice("dns", "dns", corev1.ProtocolUDP, 5353, "10.129.0.7"))
	await.OK(t, timeout, func(context.Context) error {
		if got := f.bridge.Tracked(); len(got) != len(remaining) || slices.Contains(got, removed) {
			return fmt.Errorf("connections: got %v, want %v", got, remaining)
		}
		return nil
	})
}

func TestFlushedFrontends(t *testing.T) {
	at := func(endpoints ...string) []pipeline.Frontend {
		f := pipeline.Frontend{Addr: netip.MustParseAddr("172.30.0.10"), Port: 53, Protocol: goovs.ProtocolUDPv4}
		for _, e := range endpoints {
			f.Endpoints = append(f.Endpoints, netip.MustParseAddrPort(e))
		}
		return []pipeline.Frontend{f}
	}
	tcp := at("10.0.0.1:1")
	tcp[0].Protocol = goovs.ProtocolTCPv4
	u := newFlushedFrontends()
	sctp := at("10.0.0.1:1")
	sctp[0].Protocol = pipeline.ProtocolSCTP
	for _, step := range []struct {
		name      string
		frontends []pipeline.Frontend
		lost      bool
	}{
		{"new", at("10.0.0.1:1"), false}, {"one more", at("10.0.0.1:1", "10.0.0.2:1"), false}, {"one less", at("10.0.0.2:1"), true},
		{"another port", at("10.0.0.2:2"), true}, {"TCP only", tcp, true}, {"no TCP", nil, false},
		{"SCTP", sctp, false}, {"deleted", nil, true}, {"deleted again", nil, false},
	} {
		if got := u.set("ns/svc", step.frontends); got != step.lost {
			t.Errorf("%s: lost an endpoint: got %v, want %v", step.name, got, step.lost)
		}
	}
	u.set("ns/old", at("10.0.0.1:1"))
	u.set("ns/svc", at("10.0.0.1:1")) // before the other one is compiled without the frontend
	if lost := u.set("ns/old", nil); !lost || !u.has(flushedFrontend{protocol: ovs.ProtocolNumberUDP, at: netip.MustParseAddrPort("172.30.0.10:53")}, netip.MustParseAddrPort("10.0.0.1:1")) {
		t.Errorf("frontend of another service: got lost %t and %v, want the endpoints of the service that has it now", lost, u)
	}
	u.set("ns/svc", nil)
	if len(u.endpoints)+len(u.services) > 0 {
		t.Errorf("after the deletion: got %v, want nothing", u)
	}
}

// TestUDPConnectionsAreFlushed_externalAddress checks that connections of UDP end with the external address by which they were opened, and that others to the same
// endpoint remain.
func TestUDPConnectionsAreFlushed_externalAddress(t *testing.T) {
	f := newFixture(t, config.ModeSubnet)
	f.services.Add(service(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"198.51.100.10", "198.51.100.11"} }))
	f.slices.Add(slice("dns", "dns", corev1.ProtocolUDP, 5353, "10.128.0.5"))
	f.expect("external IPs", []string{"udp,nw_dst=198.51.100.10,tp_dst=53,actions=group:", "udp,nw_dst=198.51.100.11,tp_dst=53,actions=group:"})
	to := map[string]ovs.Connections{}
	for i, addr := range []string{"172.30.0.10", "198.51.100.10", "198.51.100.11"} {
		client, from := netip.MustParseAddr("10.128.0.9"), uint16(4000+i) //nolint:gosec // small
		to[addr] = ovs.Connections{
			Zone: 0x4009, Protocol: ovs.ProtocolNumberUDP,
			Original: ovs.Tuple{Src: client, Dst: netip.MustParseAddr(addr), SrcPort: from, DstPort: 53},
			Reply:    ovs.Tuple{Src: netip.MustParseAddr("10.128.0.5"), Dst: client, SrcPort: 5353, DstPort: from},
		}
		f.bridge.Connect(to[addr])
	}
	f.services.Modify(service(func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"198.51.100.11"} }))
	await.OK(t, timeout, func(context.Context) error {
		if got := f.bridge.Tracked(); len(got) != 2 || slices.Contains(got, to["198.51.100.10"]) {
			return fmt.Errorf("connections: got %v, want those to %v and %v", got, to["172.30.0.10"], to["198.51.100.11"])
		}
		return nil
	})
}

// TestEvaluateConnections: a connection is valid while the frontend by which it was opened has its endpoint, that of hosts outside for connections from there.
func TestEvaluateConnections(t *testing.T) {
	const pod, outside, restricted = 0x4009, 0x4000, 0 // pod, with NodePortAddresses
	local, remote, other := "10.128.0.5:5353", "10.129.0.7:5353", "10.128.0.6:5353"
	udp := func(at string, outside bool, endpoints ...string) pipeline.Frontend {
		addr := netip.MustParseAddrPort(at)
		f := pipeline.Frontend{Addr: addr.Addr(), Port: addr.Port(), Protocol: goovs.ProtocolUDPv4}
		if outside {
			f.Kind = pipeline.FromOutside
		}
		for _, e := range endpoints {
			f.Endpoints = append(f.Endpoints, netip.MustParseAddrPort(e))
		}
		return f
	}
	nodePort := udp("0.0.0.0:30053", false, local, remote)
	nodePort.Addr = netip.Addr{}
	b := &Balancer{
		node:    pipeline.Node{Subnets: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/23")}, VTEP: netip.MustParseAddr("192.0.2.1")},
		flushed: newFlushedFrontends(),
	}
	b.flushed.set("ns/svc", []pipeline.Frontend{
		udp("172.30.0.10:53", false, local, remote), udp("172.30.0.10:53", true, local), udp("198.51.100.10:53", false, local, remote), nodePort,
	})
	b.flushed.set("ns/closed", []pipeline.Frontend{
		udp("172.30.0.11:53", false, local), udp("198.51.100.20:53", false), udp("192.0.2.1:30053", false, other), // an external IP, after the node port
	})
	for _, test := range []struct {
		zone         uint16
		to, endpoint string
		invalid      bool
	}{
		{pod, "172.30.0.10:53", local, false},
		{pod, "172.30.0.10:53", remote, false},
		{pod, "172.30.0.10:53", other, true},
		{outside, "172.30.0.10:53", local, false},
		{outside, "172.30.0.10:53", remote, true},      // externalTrafficPolicy is Local
		{outside, "172.30.0.11:53", local, true},       // not open to outside
		{outside, "198.51.100.10:53", local, true},     // the host translates to the cluster IP
		{outside, "192.0.2.1:30053", local, true},      // as well
		{pod, "198.51.100.10:53", remote, false},       // pods reach all endpoints
		{pod, "198.51.100.10:30053", local, true},      // removed; not the node port with the same number
		{pod, "172.30.0.10:30053", local, true},        // as well
		{pod, "198.51.100.20:53", local, true},         // closed
		{pod, "10.128.0.1:30053", remote, false},       // tun0
		{pod, "192.0.2.1:30053", local, false},         // the node
		{pod, "192.0.2.1:30053", other, true},          // a removed endpoint
		{pod, "192.0.2.1:30054", local, true},          // a removed node port
		{pod, "192.0.2.2:30053", local, true},          // another node
		{restricted, "10.128.0.1:30053", remote, true}, // tun0 has no node ports
		{restricted, "192.0.2.1:30053", remote, false},
	} {
		b.node.NodePortAddresses = nil
		if test.zone == restricted {
			test.zone, b.node.NodePortAddresses = pod, []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		}
		to, endpoint, client := netip.MustParseAddrPort(test.to), netip.MustParseAddrPort(test.endpoint), netip.MustParseAddr("10.128.0.9")
		c := ovs.Connection{
			Zone: test.zone, Protocol: ovs.ProtocolNumberUDP, Original: ovs.Tuple{Src: client, Dst: to.Addr(), SrcPort: 4000, DstPort: to.Port()},
			Reply: ovs.Tuple{Src: endpoint.Addr(), Dst: client, SrcPort: endpoint.Port(), DstPort: 4000},
		}
		if got := b.evaluateConnections(false)(c); got != test.invalid {
			t.Errorf("zone %#x, to %s, endpoint %s: got invalid %v, want %v", test.zone, to, endpoint, got, test.invalid)
		}
		if c.Protocol = ovs.ProtocolNumberSCTP; !b.evaluateConnections(false)(c) {
			t.Errorf("zone %#x, to %s, endpoint %s, SCTP: got a valid connection, want an invalid one: the services have UDP only", test.zone, to, endpoint)
		}
		if c.Protocol = ovs.ProtocolNumberTCP; b.evaluateConnections(false)(c) {
			t.Errorf("zone %#x, to %s, endpoint %s, TCP: got an invalid connection, want a valid one", test.zone, to, endpoint)
		}
	}
}
