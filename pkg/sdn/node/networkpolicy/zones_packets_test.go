package networkpolicy

import (
	"context"
	"encoding/binary"
	"errors"
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
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// isolate replaces the policy by one that isolates all pods in both directions and has the given rules.
func (s *packetNode) isolate(t *testing.T, ingress []networkingv1.NetworkPolicyIngressRule, egress []networkingv1.NetworkPolicyEgressRule) {
	t.Helper()
	policy := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "allow"},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     ingress, Egress: egress,
		},
	}
	if err := s.engine.SetNetworkPolicy(policy); err != nil {
		t.Fatal(err)
	}
	s.apply(t)
}

// zoneOf returns the zone of the only connection between two addresses.
func (s *packetNode) zoneOf(t *testing.T, src, dst netip.Addr) uint16 {
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

// A client outside of the node that fills its conntrack zone does not limit other clients, whatever their addresses.
func TestRemoteClientsDoNotShareZones(t *testing.T) {
	tier.Parallel(t)
	const limit = 20
	s := newPacketNode(t)
	s.isolate(t, []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{onUDP(53)}}}, nil)
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

// address returns the outside host with another address, to which the node has a route.
func (s *packetNode) address(t *testing.T, addr string) *datapath.Host {
	t.Helper()
	host := &datapath.Host{NS: s.world.NS, Addr: netip.MustParseAddr(addr)}
	host.Sh(t, fmt.Sprintf("ip addr add %s/32 dev eth0", addr))
	s.node.Sh(t, fmt.Sprintf("ip route add %s/32 via %s", addr, s.world.Addr))
	return host
}

// upcalls returns the number of lookups of the datapath, and the number of those without a flow.
func (s *packetNode) upcalls(t *testing.T) (lookups, missed int) {
	t.Helper()
	kind := ovstest.DatapathType(t)
	text := s.node.AppCtl(t, "dpctl/show", kind+"@ovs-"+kind)
	found := regexp.MustCompile(`lookups: hit:(\d+) missed:(\d+)`).FindStringSubmatch(text)
	if found == nil {
		t.Fatalf("parse dpctl/show: no lookups in %s", text)
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

// A pod with policies that sends to many destinations causes few upcalls, so it does not delay the first packets of other pods.
func TestDestinationSweepCausesFewUpcalls(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: bounds of lost packets and upcalls")
	}
	const batch, allowed = 500, 200
	destinations := 200_000
	if ovstest.DatapathType(t) == ovstest.DatapathSystem {
		destinations = 20_000 // on an emulated processor
	}
	s := newPacketNode(t)
	everywhere := networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{CIDR: "0.0.0.0/0", Except: []string{"203.0.113.0/24"}}}
	s.isolate(t, []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{onUDP(53)}}},
		[]networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{everywhere}}})
	s.node.Sh(t, "nft add chain ip track sweep '{ type filter hook prerouting priority -400; }'", "nft add rule ip track sweep ip daddr 198.16.0.0/12 drop")
	if ovstest.DatapathType(t) == ovstest.DatapathNetdev {
		// With tun0's MAC, the userspace datapath matches each destination exactly, to compare it with the endpoints of tunnels.
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
	send := func(i uint32) {
		var to [4]byte
		binary.BigEndian.PutUint32(to[:], binary.BigEndian.Uint32([]byte{198, 16, 0, 1})+i)
		sweeper.Send(t, netip.AddrPortFrom(netip.AddrFrom4(to), 53), []byte("x"))
	}
	// Until the flows for the first destination are in the datapath, each packet takes an upcall: send one at a time, since a machine may take long.
	before, missedBefore := s.upcalls(t)
	previousLookups, previousMissed := before, missedBefore
	await.OK(t, 90*time.Second, func(context.Context) error {
		lookups, missed := s.upcalls(t)
		if lookups > previousLookups && missed == previousMissed {
			return nil
		}
		previousLookups, previousMissed = lookups, missed
		send(0)
		return errors.New("packets to one destination still take upcalls")
	})
	for i := range uint32(destinations) {
		send(i)
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
	if looked, missed := after-before, missedAfter-missedBefore; looked < destinations/10 || missed > allowed {
		t.Errorf("%d destinations: got %d lookups, %d upcalls; want at least %d, at most %d", destinations, looked, missed, destinations/10, allowed)
	}
}

// previousFlows returns the flows of the previous version that look up and commit connections from outside of the node.
func previousFlows() []string {
	return []string{
		"table=26,priority=100,ip,reg4=0x1/0x1 actions=move:NXM_OF_IP_DST[0..14]->NXM_NX_REG3[0..14],load:0x1->NXM_NX_REG3[15..31],ct(table=27,zone=NXM_NX_REG3[0..15])",
		"table=82,priority=100,ip,reg4=0x8/0x8 actions=move:NXM_OF_IP_SRC[0..14]->NXM_NX_REG3[0..14],load:0x1->NXM_NX_REG3[15..31],goto_table:130",
	}
}

// A connection that the previous version committed continues, also if its opener sends nothing. A packet of the opener commits it again.
func TestConnectionsOfPreviousVersionContinue(t *testing.T) {
	tier.Parallel(t)
	s := newPacketNode(t)
	s.world.RouteTo(t, s.node)
	s.isolate(t, []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{onPort(80), onUDP(53)}}}, nil)
	server := s.node.Pods[0]
	for _, flow := range previousFlows() {
		s.node.Switch.OFCtl(t, "--strict", "mod-flows", ovstest.Bridge, flow)
	}
	s.node.Revalidate(t)
	client, dns, stranger := s.world.UDP(t, 0), server.UDP(t, 53), s.world.UDP(t, 0)
	client.MustReach(t, dns.Addr(), dns)
	dns.MustReach(t, client.Addr(), client)
	l := server.ListenTCP(t, 80)
	silent, late := s.world.Dial(t, netip.AddrPortFrom(server.Addr, 80), l), s.world.Dial(t, netip.AddrPortFrom(server.Addr, 80), l)
	silent.MustPass(t)
	late.MustPass(t)
	if zone := s.zoneOf(t, s.world.Addr, server.Addr); zone == 0x8000|uint16(1)<<8|2 {
		t.Fatalf("the connection is in zone %#x of this version", zone)
	}

	p := &Policies{compiler: s.Compiler, bridge: s.bridge, store: s.store}
	if err := p.findPrevious(t.Context()); err != nil {
		t.Fatal(err)
	}
	if p.previous == nil {
		t.Fatal("findPrevious found no connection of the previous version")
	}
	s.store.Resync()
	s.apply(t)
	dns.MustReach(t, client.Addr(), client)
	dns.MustNotReach(t, stranger.Addr(), stranger)
	datapath.MustPass(t, silent.Server, silent.Client)

	if err := s.store.Set(s.previousZones(false).Owner, pipeline.State{}).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.apply(t)
	datapath.MustPass(t, silent.Server, silent.Client) // the opener's acknowledgement was committed
	datapath.MustNotPass(t, late.Server, late.Client)
	datapath.MustPass(t, late.Client, late.Server)
	datapath.MustArrive(t, late.Client, 30*time.Second)
	if err := p.findPrevious(t.Context()); err != nil {
		t.Fatal(err)
	}
}
