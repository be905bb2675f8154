package policies

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// isolateWith replaces the site's policy by one that isolates all pods in both directions, and allows what the two functions add.
func (s *site) isolateWith(t *testing.T, in []networkingv1.NetworkPolicyIngressRule, out []networkingv1.NetworkPolicyEgressRule) {
	t.Helper()
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "allow"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     in, Egress: out,
		},
	}
	if err := s.engine.SetNetworkPolicy(policy); err != nil {
		t.Fatal(err)
	}
	s.follow(t)
}

// zoneOf returns the zone of the only connection between two addresses.
func (s *site) zoneOf(t *testing.T, src, dst netip.Addr) uint16 {
	t.Helper()
	var zones []uint16
	if err := s.bridge.ListConnections(t.Context(), pipeline.Zones(), func(c ovs.Connection) {
		if c.Original.Src == src && c.Original.Dst == dst {
			zones = append(zones, c.Zone)
		}
	}); err != nil {
		t.Fatal(err)
	}
	zones = slices.Compact(zones)
	if len(zones) != 1 {
		t.Fatalf("connections from %s to %s are in the zones %v, want one", src, dst, zones)
	}
	return zones[0]
}

// A client outside of the node that fills the zone of its connections to a pod uses no room of another client's, whatever its address.
func TestRemoteOpenersShareNoRoom(t *testing.T) {
	const limit = 20
	s := newSite(t)
	s.isolateWith(t, []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{onUDP(53)}}}, nil)
	s.world.RouteTo(t, s.node)
	// The low 15 bits of the two are equal.
	greedy, modest := s.address(t, "198.51.100.2"), s.address(t, "198.51.228.2")
	target, other := s.node.Pods[0].UDP(t, 53), s.node.Pods[1].UDP(t, 53)

	first := greedy.UDP(t, 0)
	first.MustReach(t, target.Addr(), target)
	zone := s.zoneOf(t, greedy.Addr, target.Addr().Addr())
	s.node.AppCtl(t, "dpctl/ct-set-limits", fmt.Sprintf("zone=%d,limit=%d", zone, limit))
	t.Cleanup(func() { s.node.AppCtl(t, "dpctl/ct-del-limits", fmt.Sprintf("zone=%d", zone)) })
	for range limit + 5 {
		u := greedy.UDP(t, 0)
		m := u.Message()
		u.Send(t, target.Addr(), m)
		target.Receive(t, m, 50*time.Millisecond)
	}
	if got := len(s.node.Connections(t, zone)); got < limit {
		t.Fatalf("zone %#x has %d connections, want at least %d", zone, got, limit)
	}
	late := modest.UDP(t, 0)
	late.MustReach(t, other.Addr(), other)
	other.MustReach(t, late.Addr(), late)
	target.MustReach(t, first.Addr(), first)
}

// address returns the host outside with another address, to which the node has a route.
func (s *site) address(t *testing.T, addr string) *datapath.Host {
	t.Helper()
	host := &datapath.Host{NS: s.world.NS, Addr: netip.MustParseAddr(addr)}
	host.Sh(t, fmt.Sprintf("ip addr add %s/32 dev eth0", addr))
	s.node.Sh(t, fmt.Sprintf("ip route add %s/32 via %s", addr, s.world.Addr))
	return host
}

// upcalls returns how many packets the datapath has looked up, and for how many of them it had no flow.
func (s *site) upcalls(t *testing.T) (lookups, missed int) {
	t.Helper()
	kind := ovstest.DatapathType(t)
	text := s.node.AppCtl(t, "dpctl/show", kind+"@ovs-"+kind)
	found := regexp.MustCompile(`lookups: hit:(\d+) missed:(\d+)`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("no lookups: %s", text)
	}
	hit, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	if missed, err = strconv.Atoi(found[2]); err != nil {
		t.Fatal(err)
	}
	return hit + missed, missed
}

// A pod that policies are about needs no upcall for each destination, so it delays no other pod's first packets.
func TestDestinationSweepCostsNoUpcalls(t *testing.T) {
	const batch, allowed = 500, 200
	destinations := 200_000
	if ovstest.DatapathType(t) == ovstest.DatapathSystem {
		destinations = 20_000 // on an emulated processor
	}
	s := newSite(t)
	everywhere := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"203.0.113.0/24"}}}
	s.isolateWith(t, []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{onUDP(53)}}},
		[]networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{everywhere}}})
	s.node.Sh(t, "nft add chain ip track sweep '{ type filter hook prerouting priority -400; }'", "nft add rule ip track sweep ip daddr 198.16.0.0/12 drop")
	if ovstest.DatapathType(t) == ovstest.DatapathNetdev {
		// With tun0's MAC, Open vSwitch's userspace datapath compares each destination with the endpoints of tunnels, whatever the flows are.
		s.node.Pods[0].Sh(t, fmt.Sprintf("ip neigh replace %s lladdr 0a:58:00:00:00:01 dev eth0 nud permanent", s.node.Addr))
	}
	sweeper, dns := s.node.Pods[0].UDP(t, 0), s.node.Pods[2].UDP(t, 53)
	firstPacket := func() time.Duration {
		began := time.Now()
		s.node.Pods[1].UDP(t, 0).MustReach(t, dns.Addr(), dns)
		return time.Since(began)
	}
	var idle, busy []time.Duration
	for range 50 {
		idle = append(idle, firstPacket())
	}
	first := binary.BigEndian.Uint32([]byte{198, 16, 0, 1})
	before, missedBefore := s.upcalls(t)
	for i := range uint32(destinations) {
		var to [4]byte
		binary.BigEndian.PutUint32(to[:], first+i)
		sweeper.Send(t, netip.AddrPortFrom(netip.AddrFrom4(to), 53), []byte("x"))
		if i%batch == batch-1 {
			busy = append(busy, firstPacket())
		}
	}
	after, missedAfter := s.upcalls(t)
	slices.Sort(idle)
	slices.Sort(busy)
	t.Logf("%d destinations: %d lookups, %d upcalls; another pod's first packet: %v idle, %v during the sweep (medians)",
		destinations, after-before, missedAfter-missedBefore, idle[len(idle)/2], busy[len(busy)/2])
	// A busy machine drops packets between the pod and the switch.
	if got := after - before; got < destinations/10 {
		t.Errorf("the datapath looked up %d packets, want at least %d", got, destinations/10)
	}
	if got := missedAfter - missedBefore; got > allowed {
		t.Errorf("%d destinations took %d upcalls, want at most %d", destinations, got, allowed)
	}
}

// previousFlows returns the flows by which the previous version looked up and committed connections that were opened outside of the node.
func previousFlows() []string {
	return []string{
		"table=26,priority=100,ip,reg4=0x1/0x1 actions=move:NXM_OF_IP_DST[0..14]->NXM_NX_REG3[0..14],load:0x1->NXM_NX_REG3[15..31],ct(table=27,zone=NXM_NX_REG3[0..15])",
		"table=82,priority=100,ip,reg4=0x8/0x8 actions=move:NXM_OF_IP_SRC[0..14]->NXM_NX_REG3[0..14],load:0x1->NXM_NX_REG3[15..31],goto_table:130",
	}
}

// storeSwitch is a Switch without flows of pods.
type storeSwitch struct{ *store.Store }

func (s storeSwitch) Recompile(changes []store.Change, _ ...pipeline.Owner) []*store.Commit {
	return s.SetAll(changes...)
}

// A connection that the previous version committed goes on, also if its opener is silent. A packet of the opener commits it again.
func TestConnectionsOfPreviousVersionGoOn(t *testing.T) {
	s := newSite(t)
	s.world.RouteTo(t, s.node)
	s.isolateWith(t, []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{onPort(80), onUDP(53)}}}, nil)
	server := s.node.Pods[0]
	for _, flow := range previousFlows() {
		s.node.Switch.OFCtl(t, "--strict", "mod-flows", ovstest.Bridge, flow)
	}
	s.node.Revalidate(t)
	asking, dns, stranger := s.world.UDP(t, 0), server.UDP(t, 53), s.world.UDP(t, 0)
	asking.MustReach(t, dns.Addr(), dns)
	dns.MustReach(t, asking.Addr(), asking)
	l := server.ListenTCP(t, 80)
	silent, late := s.world.Dial(t, netip.AddrPortFrom(server.Addr, 80), l), s.world.Dial(t, netip.AddrPortFrom(server.Addr, 80), l)
	silent.MustPass(t)
	late.MustPass(t)
	if zone := s.zoneOf(t, s.world.Addr, server.Addr); zone == 0x8000|uint16(1)<<8|2 {
		t.Fatalf("the connection is in zone %#x of this version already", zone)
	}

	p := &Policies{compiler: s.Compiler, bridge: s.bridge, sw: storeSwitch{s.store}}
	if err := p.findPrevious(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.previous == nil {
		t.Fatal("found no connection of the previous version")
	}
	s.store.Resync()
	s.follow(t)
	dns.MustReach(t, asking.Addr(), asking)
	dns.MustNotReach(t, stranger.Addr(), stranger)
	datapath.MustPass(t, silent.Server, silent.Client)

	if err := s.store.Set(s.previousZones(false).Owner, pipeline.State{}).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.follow(t)
	datapath.MustPass(t, silent.Server, silent.Client) // whose acknowledgement was committed
	datapath.MustNotPass(t, late.Server, late.Client)
	datapath.MustPass(t, late.Client, late.Server)
	datapath.MustArrive(t, late.Client, 30*time.Second)
	if err := p.findPrevious(t.Context()); err != nil {
		t.Fatal(err)
	}
}
