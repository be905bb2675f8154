package pipeline

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
)

// TestSlots: the number of slots is a power of two, all of them are allocated, and with at most 12 endpoints the shares differ by a twentieth. On the userspace
// datapath it does not change with the number of endpoints.
func TestSlots(t *testing.T) {
	for _, userspace := range []bool{false, true} {
		for endpoints := 1; endpoints <= MaxEndpoints; endpoints++ {
			slots, least := Node{Userspace: userspace}.slotsOf(endpoints), minSlots
			if userspace {
				least = maxSlots
			}
			if slots&(slots-1) != 0 || slots < least || slots > maxSlots {
				t.Errorf("%d endpoints, userspace %v: got %d slots, want a power of two from %d to %d", endpoints, userspace, slots, least, maxSlots)
			}
			shares := sharesOf(slots, endpoints)
			smallest, largest := slices.Min(shares), slices.Max(shares)
			if got := sum(shares); got != slots {
				t.Errorf("%d endpoints, userspace %v: sum of shares: got %d, want %d", endpoints, userspace, got, slots)
			}
			if smallest < 1 || largest-smallest > 1 || endpoints <= 12 && 20*(largest-smallest) > largest {
				t.Errorf("%d endpoints, userspace %v: got shares of %d to %d", endpoints, userspace, smallest, largest)
			}
		}
	}
}

// TestBuckets checks the weights by which Open vSwitch chooses the number of slots: they add up to it, and the smallest is 1.
func TestBuckets(t *testing.T) {
	for _, endpoints := range []int{1, 2, 3, 10, 25, 128, 200, MaxEndpoints} {
		f := Frontend{}
		addr := netip.MustParseAddr("10.128.0.1")
		for range endpoints {
			addr = addr.Next()
			f.Endpoints = append(f.Endpoints, netip.AddrPortFrom(addr, 8080))
		}
		for _, slots := range []int{Node{}.slotsOf(endpoints), maxSlots} {
			total, least := 0, maxSlots
			for _, b := range f.buckets(slots) {
				total, least = total+b.Weight, min(least, b.Weight)
			}
			if total != slots || least != 1 {
				t.Errorf("%d endpoints: got sum of weights %d and smallest weight %d, want %d and 1", endpoints, total, least, slots)
			}
		}
	}
}

// TestBalancedService_groups: frontends with the same protocol, endpoints and use of affinity have one group, which has the name of the first.
func TestBalancedService_groups(t *testing.T) {
	at := netip.MustParseAddrPort
	a, b := at("10.128.0.5:8080"), at("10.128.0.6:8080")
	frontend := func(port uint16, protocol goovs.Protocol, affinity uint16, endpoints ...netip.AddrPort) Frontend {
		return Frontend{Addr: netip.MustParseAddr("172.30.0.10"), Port: port, Protocol: protocol, Affinity: affinity, Endpoints: endpoints}
	}
	tcp, udp := goovs.ProtocolTCPv4, goovs.ProtocolUDPv4
	s := Node{}.BalancedService(BalancedService{Frontends: []Frontend{
		frontend(1, tcp, 0, a), frontend(2, tcp, 0, a, b), frontend(3, tcp, 0, a), frontend(4, tcp, 0, a, b), frontend(5, tcp, 0), frontend(6, tcp, 0),
		frontend(7, udp, 0, a), frontend(8, tcp, 60, a), frontend(9, tcp, 90, a), frontend(10, tcp, 0, b), frontend(11, tcp, 0, at("10.128.0.5:8081")),
	}})
	var got []string
	for _, group := range s.Groups {
		got = append(got, strings.TrimPrefix(group.Name, string(tcp)+"/172.30.0.10:"))
	}
	if want := []string{"1", "2", "udp/172.30.0.10:7", "8", "10", "11"}; !slices.Equal(got, want) {
		t.Errorf("got groups %q, want %q", got, want)
	}
}

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}

// TestNode_ServesNodePorts: pods reach node ports at addresses of the node that are in the ranges.
func TestNode_ServesNodePorts(t *testing.T) {
	node := balancing(subnetNode())
	gateway, vtep, other := netip.MustParseAddr("10.128.0.1"), node.VTEP, netip.MustParseAddr("172.31.0.99")
	for ranges, want := range map[string][]netip.Addr{"": {gateway, vtep}, "172.31.0.0/16": {vtep}, "10.0.0.0/8": {gateway}, "192.0.2.0/24": nil, "0.0.0.0/1": {gateway}} {
		node.NodePortAddresses = nil
		if ranges != "" {
			node.NodePortAddresses = prefixes(ranges)
		}
		var got []netip.Addr
		for _, addr := range []netip.Addr{gateway, vtep, other} {
			if node.ServesNodePorts(addr) {
				got = append(got, addr)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("ranges %q: got node ports at %v, want %v", ranges, got, want)
		}
	}
}

// TestAffineClients: hosts outside that forge sources fill at most maxServiceAffine flows of a service, unless it has very many endpoints and frontends.
func TestAffineClients(t *testing.T) {
	for _, test := range []struct{ frontends, endpoints, want int }{{1, 1, 1024}, {1, 64, 1024}, {1, 65, 512}, {1, 256, 256}, {4, 256, 64}, {32, 256, 8}, {64, 256, 8}} {
		frontends := []Frontend{{Endpoints: make([]netip.AddrPort, 256)}} // without affinity
		for range test.frontends {
			frontends = append(frontends, Frontend{Affinity: 1, Endpoints: make([]netip.AddrPort, test.endpoints)})
		}
		if got := affineClients(frontends); got != test.want {
			t.Errorf("%d frontends with %d endpoints: got %d clients of each, want %d", test.frontends, test.endpoints, got, test.want)
		}
	}
}
