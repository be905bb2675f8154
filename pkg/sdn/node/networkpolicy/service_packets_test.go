package networkpolicy

import (
	"fmt"
	"net/netip"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/tier"
)

// addService adds a service with one endpoint on TCP and UDP port 80 and the node port: its flows, and the rules of the host's proxy.
func (s *packetNode) addService(t *testing.T, addr string, nodePort uint16, to netip.AddrPort) {
	t.Helper()
	svc := netip.AddrPortFrom(netip.MustParseAddr(addr), 80)
	var outside pipeline.OutsideEndpoints
	if s.Compiler.node.IsOutside(to.Addr()) {
		outside.Addrs = []netip.AddrPort{to}
	}
	s.outside[svc], s.outside[netip.AddrPortFrom(netip.Addr{}, nodePort)] = outside, outside
	state := s.Compiler.node.Service(pipeline.Service{
		ClusterIPs: []netip.Addr{svc.Addr()},
		Ports: []pipeline.ServicePort{
			{Protocol: goovs.ProtocolTCPv4, Port: 80, Outside: outside}, {Protocol: goovs.ProtocolUDPv4, Port: 80, Outside: outside},
		},
		NodePorts: []pipeline.ServicePort{
			{Protocol: goovs.ProtocolTCPv4, Port: nodePort, Outside: outside}, {Protocol: goovs.ProtocolUDPv4, Port: nodePort, Outside: outside},
		},
	})
	if err := s.store.Set(pipeline.Owner{Kind: pipeline.KindService, Key: addr}, state).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, protocol := range []string{"tcp", "udp"} {
		s.node.Sh(t, fmt.Sprintf("nft add rule ip proxy pre ip daddr %s %s dport 80 dnat to %s", svc.Addr(), protocol, to),
			fmt.Sprintf("nft add rule ip proxy pre ip daddr %s %s dport %d dnat to %s", s.node.VTEP, protocol, nodePort, to))
	}
}

// addProxy adds the chains of the host's proxy. Packets that leave the pod network are masqueraded.
func (s *packetNode) addProxy(t *testing.T) {
	t.Helper()
	s.node.Sh(t, "nft add table ip proxy",
		"nft add chain ip proxy pre '{ type nat hook prerouting priority dstnat; }'",
		"nft add chain ip proxy post '{ type nat hook postrouting priority srcnat; }'",
		// As the host's firewall: packets that arrive through a node port are not the node's own.
		"nft add chain ip proxy mangle '{ type filter hook postrouting priority mangle; }'",
		fmt.Sprintf("nft add rule ip proxy mangle iifname != tun0 oifname tun0 ct status dnat ct original ip daddr != %s ip dscp set %d",
			datapath.ServiceNetwork, pipeline.ForwardedDSCP),
		fmt.Sprintf("nft add rule ip proxy post ip saddr %s ip daddr != %s masquerade", datapath.ClusterNetwork, datapath.ClusterNetwork))
}

// allowEgress allows pod 0 to reach the blocks, and nothing else.
func (s *packetNode) allowEgress(t *testing.T, blocks ...string) {
	t.Helper()
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "egress"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "0"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	}
	for _, b := range blocks {
		p.Spec.Egress = append(p.Spec.Egress, networkingv1.NetworkPolicyEgressRule{To: []networkingv1.NetworkPolicyPeer{block(b)}})
	}
	if err := s.engine.SetNetworkPolicy(p); err != nil {
		t.Fatal(err)
	}
	s.apply(t)
}

// TestServiceToTheOutside: a pod reaches a service whose endpoint is outside of the pod network only while its policies allow the endpoint. An established
// connection that is no longer allowed is denied in both directions.
func TestServiceToTheOutside(t *testing.T) {
	tier.Parallel(t)
	for name, place := range map[string]struct {
		service  string
		nodePort uint16
		host     func(*packetNode) *datapath.Host
	}{
		"a host outside":   {"172.30.0.50", 30050, func(s *packetNode) *datapath.Host { return s.world }},
		"the node":         {"172.30.0.51", 30051, func(s *packetNode) *datapath.Host { return &datapath.Host{NS: s.node.NS, Addr: s.node.VTEP} }},
		"the node by tun0": {"172.30.0.52", 30052, func(s *packetNode) *datapath.Host { return &s.node.Host }},
	} {
		t.Run(name, func(t *testing.T) {
			tier.Parallel(t)
			s := newPacketNode(t)
			s.addProxy(t)
			evaluated, free, host := s.node.Pods[0], s.node.Pods[1], place.host(s)
			to := netip.MustParseAddrPort(place.service + ":80")
			server, l := host.UDP(t, 8080), host.ListenTCP(t, 8080)
			s.addService(t, place.service, place.nodePort, server.Addr())
			client, other := evaluated.UDP(t, 0), free.UDP(t, 0)

			s.allowEgress(t)
			other.MustReach(t, to, server)
			client.MustNotReach(t, to, server)
			client.MustNotReachWith(t, to, server, client.Large)

			s.allowEgress(t, host.Addr.String()+"/32")
			server.MustReach(t, client.MustReach(t, to, server), client)
			client.MustReachWith(t, to, server, client.Large)
			conn := evaluated.Dial(t, to, l)
			conn.MustPass(t)

			s.allowEgress(t, "203.0.113.0/24")
			datapath.MustNotPass(t, conn.Server, conn.Client)
			datapath.MustNotPass(t, conn.Client, conn.Server)
			client.MustNotReach(t, to, server)
		})
	}
}

// TestNodePortToTheOutside is TestServiceToTheOutside for a node port: the pod must be allowed to reach the node and the endpoint.
func TestNodePortToTheOutside(t *testing.T) {
	tier.Parallel(t)
	s := newPacketNode(t)
	s.addProxy(t)
	s.engine.SetNode("n1", nil, s.node.VTEP, s.node.Addr)
	evaluated, free := s.node.Pods[0], s.node.Pods[1]
	const nodePort = 30050
	to := netip.AddrPortFrom(s.node.VTEP, nodePort)
	server, l := s.world.UDP(t, 8080), s.world.ListenTCP(t, 8080)
	s.addService(t, "172.30.0.50", nodePort, server.Addr())
	client, other := evaluated.UDP(t, 0), free.UDP(t, 0)
	node, world := s.node.VTEP.String()+"/32", s.world.Addr.String()+"/32"

	s.allowEgress(t, node)
	other.MustReach(t, to, server)
	client.MustNotReach(t, to, server)
	s.allowEgress(t, world)
	client.MustNotReach(t, to, server)

	s.allowEgress(t, node, world)
	server.MustReach(t, client.MustReach(t, to, server), client)
	conn := evaluated.Dial(t, to, l)
	conn.MustPass(t)
	s.allowEgress(t, node)
	datapath.MustNotPass(t, conn.Server, conn.Client)
	datapath.MustNotPass(t, conn.Client, conn.Server)
}
