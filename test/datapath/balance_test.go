package datapath_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	compiled "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// balanced is a service in the switches, with the flows that the agent compiles: TCP port 80 and UDP port 53 of vip.
type balanced struct {
	*cluster
	mode      config.Mode
	vnid      config.VNID                   // of the service
	pods      map[*datapath.Pod]config.VNID // default: the service's
	policies  map[*datapath.Pod]compiled.PodPolicies
	affinity  uint16
	closed    bool
	endpoints []netip.AddrPort
	bandwidth map[*datapath.Pod]config.Bandwidth
	external  []compiled.Frontend // more of the service
	opened    bool                // the hosts translate addresses to the service
	idled     bool                // packets that open connections are sent to the agent while there are no endpoints
	denied    bool                // an egress firewall denies all hosts to the pods

	selfPolicies *hairpinPolicies // of the first node's pods
}

// install installs the flows on all nodes.
func (b *balanced) install(t *testing.T) {
	t.Helper()
	for _, node := range b.Nodes {
		replace(t, node, b.compile(t, node))
	}
	for _, node := range b.Nodes {
		node.Revalidate(t) // else a megaflow may still open a connection to a previous endpoint
	}
}

// compile returns the flows and groups of a node.
func (b *balanced) compile(t *testing.T, node *datapath.Node) ovs.State {
	t.Helper()
	n := compiled.Node{
		Mode: b.mode, ClusterNetworks: []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)}, ServiceNetwork: netip.MustParsePrefix(datapath.ServiceNetwork),
		Subnets: []netip.Prefix{node.Subnet}, VTEP: node.VTEP, VXLANPort: 4789, BalancesServices: true, HoldsIdled: b.idled,
		Userspace: b.Type == ovstest.DatapathNetdev,
	}
	static, err := n.Static()
	if err != nil {
		t.Fatal(err)
	}
	service := n.BalancedService(b.service())
	states := []compiled.State{static, service}
	pods := node.Pods
	if b.selfPolicies != nil && node == b.Nodes[0] {
		states, pods = append(states, b.selfPolicies.states(t, n, pods)...), nil
	}
	var firewall compiled.EgressFirewall
	if b.denied {
		firewall = compiled.EgressFirewall{ID: 1, Rules: []compiled.EgressFirewallRule{{To: []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0")}, Deny: true}}}
		states = append(states, firewall.Compile(compiled.EgressVerdicts{}).State())
	}
	for _, p := range pods {
		vnid, ok := b.pods[p]
		if !ok {
			vnid = b.vnid
		}
		states = append(states, n.Pod(compiled.Pod{
			OFPort: p.OFPort, MAC: p.MAC, Addrs: []netip.Addr{p.Addr}, VNID: vnid, Policies: b.policies[p], Bandwidth: b.bandwidth[p], EgressFirewall: firewall.ID,
		}))
	}
	for _, peer := range b.Nodes {
		if peer != node {
			states = append(states, n.Peer(compiled.Peer{VTEP: peer.VTEP, Subnets: []netip.Prefix{peer.Subnet}, IsNode: true}))
		}
	}
	return numbered(states)
}

func (b *balanced) service() compiled.BalancedService {
	svc := compiled.BalancedService{VNID: b.vnid}
	for protocol, port := range map[goovs.Protocol]uint16{goovs.ProtocolTCPv4: 80, goovs.ProtocolUDPv4: 53} {
		svc.Frontends = append(svc.Frontends, compiled.Frontend{
			Addr: vip(port).Addr(), Protocol: protocol, Port: port, Endpoints: b.endpoints, Closed: b.closed, Affinity: b.affinity, Idled: b.idled,
		})
	}
	if b.opened {
		for _, f := range svc.Frontends {
			f.Kind = compiled.FromOutside
			svc.Frontends = append(svc.Frontends, f)
		}
	}
	svc.Frontends = append(svc.Frontends, b.external...)
	return svc
}

// numbered gives groups numbers, and installs flows that several states have once, as the flow store does.
func numbered(states []compiled.State) ovs.State {
	var all ovs.State
	for _, s := range states {
		numbers := map[string]uint32{}
		for _, g := range s.Groups {
			numbers[g.Name] = uint32(len(all.Groups)) + 1 //nolint:gosec // few
			all.Groups = append(all.Groups, ovs.Group{ID: numbers[g.Name], Buckets: g.Buckets})
		}
		for _, f := range s.Flows {
			flow := *f
			flow.Actions = append([]ovs.Action(nil), f.Actions...)
			for i, a := range flow.Actions {
				if r, ok := a.(compiled.Reference); ok {
					flow.Actions[i] = ovs.ToGroup(numbers[r.Group])
				}
			}
			if !slices.ContainsFunc(all.Flows, func(have *ovs.Flow) bool { return reflect.DeepEqual(have, &flow) }) {
				all.Flows = append(all.Flows, &flow)
			}
		}
		all.Meters = append(all.Meters, s.Meters...)
	}
	return all
}

// replace installs the state on the node's switch, and waits until the datapath uses it.
func replace(t *testing.T, node *datapath.Node, want ovs.State) {
	t.Helper()
	write(t, node, want)
	node.Revalidate(t)
}

// write is replace without the revalidation of megaflows.
func write(t *testing.T, node *datapath.Node, want ovs.State) {
	t.Helper()
	bridge := native.New(ovstest.Bridge, node.Switch.RunDir)
	defer bridge.Close()
	want.Learned = compiled.LearnedFlows()
	if _, err := bridge.Replace(t.Context(), want); err != nil {
		t.Fatal(err)
	}
}

// TestBalancedServices tests docs/decisions/0011-services.md with packets, in each mode. In the short tier, what is the same in each mode is tested in one.
func TestBalancedServices(t *testing.T) {
	tier.Parallel(t)
	c := newCluster(t, 3, 2)
	c.routeServices(t)
	const subnet, networkPolicy, each = config.ModeSubnet, config.ModeNetworkPolicy, config.Mode(0xff)
	for _, mode := range []config.Mode{subnet, networkPolicy, config.ModeMultitenant} {
		for _, test := range []struct {
			name  string
			run   func(*testing.T, *balanced)
			short config.Mode // of the short tier
		}{
			{"pods and nodes", testBalancedClients, networkPolicy},
			{"program at the node IP", testBalancedNodeIP, networkPolicy},
			{"hairpin", testBalancedHairpin, networkPolicy},
			{"hairpin and policies", testBalancedHairpinPolicies, networkPolicy},
			{"endpoint on the node", testBalancedOnNode, subnet},
			{"endpoint outside", testBalancedOutside, subnet},
			{"no endpoint", testBalancedRejects, subnet},
			{"removed endpoint", testBalancedRemoved, subnet},
			{"affinity", testBalancedAffinity, subnet},
			{"policies and VNIDs", testBalancedPolicies, each},
			{"spread", testBalancedSpread, subnet},
			{"one endpoint less", testBalancedOneLess, subnet},
			{"hairpin addresses", testHairpinAddresses, subnet},
			{"external addresses", testBalancedExternal, each},
			{"other ports", testBalancedOtherPorts, subnet},
			{"from outside", testBalancedFromOutside, each},
			{"affinity of outside", testBalancedOutsideAffinity, subnet},
			{"ICMP errors", testBalancedICMPErrors, subnet},
			{"replies to outside", testBalancedReplies, each},
			{"node port of an endpoint", testBalancedNodePortOfEndpoint, subnet},
			{"two services from one port", testBalancedSamePort, subnet},
			{"after another proxy", testBalancedAfterProxy, networkPolicy},
			{"from the middle", testBalancedMidstream, networkPolicy},
			{"SCTP", testBalancedSCTP, networkPolicy},
			{"idled", testBalancedIdled, networkPolicy},
		} {
			t.Run(mode.String()+"/"+test.name, func(t *testing.T) {
				if testing.Short() && test.short != each && test.short != mode {
					t.Skip("complete tier: another mode")
				}
				for _, node := range c.Nodes {
					node.AppCtl(t, "dpctl/flush-conntrack")
				}
				c.wantNoRecirculationDropped(t)
				test.run(t, &balanced{cluster: c, mode: mode, vnid: 10, policies: map[*datapath.Pod]compiled.PodPolicies{}, pods: map[*datapath.Pod]config.VNID{}})
			})
		}
	}
}

// testBalancedClients: every client reaches an endpoint, which sees the client's address; the client sees the service's.
func testBalancedClients(t *testing.T, b *balanced) {
	for _, server := range []*datapath.Pod{b.pod(0, 1), b.pod(1, 0)} {
		b.endpoints = []netip.AddrPort{netip.AddrPortFrom(server.Addr, 8080)}
		for _, evaluated := range []bool{false, true} {
			b.policies[b.pod(0, 0)], b.policies[server] = compiled.PodPolicies{Evaluated: evaluated}, compiled.PodPolicies{Evaluated: evaluated}
			b.install(t)
			mustServe(t, &b.pod(0, 0).Host, server, 8080)
			mustServe(t, &b.Nodes[0].Host, server, 8080)
		}
	}
}

// testBalancedNodeIP: a program that is bound to the node's own IP reaches endpoints of its node; with the host's rule of package servicenat, which gives it tun0's address,
// those of other nodes, too.
func testBalancedNodeIP(t *testing.T, b *balanced) {
	node := b.Nodes[0]
	program := &datapath.Host{NS: node.NS, Addr: node.VTEP}
	use := func(server *datapath.Pod, evaluated bool) {
		b.endpoints = []netip.AddrPort{netip.AddrPortFrom(server.Addr, 8080)}
		b.policies[server] = compiled.PodPolicies{Evaluated: evaluated}
		b.install(t)
	}
	for _, evaluated := range []bool{false, true} {
		use(b.pod(0, 1), evaluated)
		mustServe(t, program, b.pod(0, 1), 8080)
	}
	node.Sh(t, "nft add table ip program", "nft add chain ip program post '{ type nat hook postrouting priority srcnat - 10; }'",
		fmt.Sprintf("nft add rule ip program post oifname tun0 ip daddr %s meta l4proto '{ tcp, udp }' fib saddr type local ip saddr != %s snat to %[2]s:%d-65535",
			datapath.ServiceNetwork, node.Addr, compiled.FirstClientPort))
	t.Cleanup(func() { node.Sh(t, "nft delete table ip program") })
	for _, server := range []*datapath.Pod{b.pod(0, 1), b.pod(1, 0)} {
		for _, evaluated := range []bool{false, true} {
			use(server, evaluated)
			mustServeAs(t, program, node.Addr, server, 8080)
		}
	}
}

// testBalancedHairpin: a pod reaches itself, whatever policies isolate it, and sees no packet from its own address.
func testBalancedHairpin(t *testing.T, b *balanced) {
	pod := b.pod(0, 0)
	b.endpoints = []netip.AddrPort{netip.AddrPortFrom(pod.Addr, 8080)}
	if b.mode != config.ModeSubnet {
		b.policies[pod] = compiled.PodPolicies{Evaluated: true, Ingress: true}
	}
	b.install(t)
	asking, serving := pod.UDP(t, 0), pod.UDP(t, 8080)
	from := asking.MustReach(t, vip(53), serving)
	if from.Addr() != netip.MustParseAddr(hairpin) {
		t.Errorf("source at the endpoint: got %s, want %s", from, hairpin)
	}
	if from := serving.MustReach(t, from, asking); from != vip(53) {
		t.Errorf("source of the reply: got %s, want %s", from, vip(53))
	}
	s := pod.Dial(t, vip(80), pod.ListenTCP(t, 8080))
	s.MustPass(t)
}

// testBalancedOnNode: pods and the node itself reach an endpoint in the node's host network.
func testBalancedOnNode(t *testing.T, b *balanced) {
	node := b.Nodes[0]
	for _, addr := range []netip.Addr{node.VTEP, node.Addr} {
		host := datapath.Host{NS: node.NS, Addr: addr}
		b.endpoints = []netip.AddrPort{netip.AddrPortFrom(addr, 8080)}
		b.install(t)
		asking, serving := node.UDP(t, 0), host.UDP(t, 8080)
		from := asking.MustReach(t, vip(53), serving)
		if from.Addr() != compiled.HairpinNode() {
			t.Errorf("source at the endpoint: got %s, want %s", from, compiled.HairpinNode())
		}
		if from := serving.MustReach(t, from, asking); from != vip(53) {
			t.Errorf("source of the reply: got %s, want %s", from, vip(53))
		}
		l := host.ListenTCP(t, 8080)
		for _, client := range []*datapath.Host{&node.Host, {NS: node.NS, Addr: node.VTEP}, &b.pod(0, 0).Host} {
			s := client.Dial(t, vip(80), l)
			s.MustPass(t)
		}
		serving.Close()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// testBalancedOutside: pods and the node reach an endpoint that is another host, and another node's own IP.
func testBalancedOutside(t *testing.T, b *balanced) {
	for _, host := range []datapath.Host{*b.Outside, {NS: b.Nodes[1].NS, Addr: b.Nodes[1].VTEP}} {
		b.endpoints = []netip.AddrPort{netip.AddrPortFrom(host.Addr, 8080)}
		for _, evaluated := range []bool{false, true} {
			b.policies[b.pod(0, 0)] = compiled.PodPolicies{Evaluated: evaluated}
			b.install(t)
			l := host.ListenTCP(t, 8080)
			for _, client := range []*datapath.Host{&b.Nodes[0].Host, &b.pod(0, 0).Host} {
				s := client.Dial(t, vip(80), l)
				s.MustPass(t)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// testBalancedRemoved: connections to an endpoint that was removed continue, new ones go to the others.
func testBalancedRemoved(t *testing.T, b *balanced) {
	client, old, fresh := b.pod(0, 0), b.pod(0, 1), b.pod(1, 0)
	b.endpoints = []netip.AddrPort{netip.AddrPortFrom(old.Addr, 8080)}
	b.install(t)
	s := client.Dial(t, vip(80), old.ListenTCP(t, 8080))
	b.endpoints = []netip.AddrPort{netip.AddrPortFrom(fresh.Addr, 8080)}
	b.install(t)
	s.MustPass(t)
	next := client.Dial(t, vip(80), fresh.ListenTCP(t, 8080))
	next.MustPass(t)
}

// testBalancedAffinity: a client stays with its endpoint until the service loses it.
func testBalancedAffinity(t *testing.T, b *balanced) {
	client := b.pod(0, 0)
	servers := map[netip.AddrPort]*datapath.Socket{}
	for _, p := range []*datapath.Pod{b.pod(0, 1), b.pod(0, 2), b.pod(1, 0), b.pod(1, 1)} {
		endpoint := netip.AddrPortFrom(p.Addr, 8080)
		servers[endpoint] = p.UDP(t, 8080)
		b.endpoints = append(b.endpoints, endpoint)
	}
	b.affinity = 600
	b.install(t)
	chosen := func() netip.AddrPort {
		t.Helper()
		asking := client.UDP(t, 0)
		defer asking.Close()
		m := asking.Message()
		asking.Send(t, vip(53), m) // once: newCluster has resolved the neighbours
		for range 150 {            // half a minute
			for endpoint, s := range servers {
				if _, ok := s.Receive(t, m, 50*time.Millisecond); ok {
					return endpoint
				}
			}
		}
		t.Fatal("no endpoint received the packet")
		return netip.AddrPort{}
	}
	first := chosen()
	b.Nodes[0].Revalidate(t) // until then further connections may pass by megaflows from before the switch learned the endpoint
	for range 12 {
		if got := chosen(); got != first {
			t.Fatalf("endpoint of a later connection: got %s, want %s", got, first)
		}
	}
	learned := b.Nodes[0].Switch.OFCtl(t, "dump-flows", ovstest.Bridge, fmt.Sprintf("table=%d,udp", compiled.AffinityTable))
	if !strings.Contains(learned, "idle_timeout=600") || !strings.Contains(learned, "nw_src="+client.Addr.String()) {
		t.Errorf("learned flows: got %s, want one of client %s", learned, client.Addr)
	}
	b.install(t) // what was learned remains
	if got := chosen(); got != first {
		t.Errorf("endpoint after a replacement of all flows: got %s, want %s", got, first)
	}
	var others []netip.AddrPort
	for _, e := range b.endpoints {
		if e != first {
			others = append(others, e)
		}
	}
	b.endpoints = others
	b.install(t)
	if got := chosen(); got == first {
		t.Errorf("endpoint after its removal: got %s again", got)
	}
}
