package subnet

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// A subnet is in use once it is allocated, before it is written. Addresses of nodes are in use too.
func TestSetNetwork(t *testing.T) {
	f := newFixture(t, state{node: testNode("uid1", "192.0.2.1"), hs: testHostSubnet("uid1", "192.0.2.1", "10.128.2.0/23")})
	f.allocator.MarkAllocated("node1", netip.MustParsePrefix("10.128.2.0/23"))
	if _, err := f.allocator.Allocate("node2"); err != nil {
		t.Fatal(err)
	}
	to := func(ranges ...config.ClusterNetwork) *config.Network {
		return &config.Network{ClusterNetworks: ranges, ServiceNetwork: netip.MustParsePrefix("172.30.0.0/16")}
	}
	for text, n := range map[string]*config.Network{
		"HostSubnet node2 is in use: 10.128.0.0/23 lies outside": to(network("10.128.2.0/23", 9)),
		"HostSubnet node1 is in use: 10.128.2.0/23 lies outside": to(network("10.128.0.0/23", 9)),
		"node node1: its address 192.0.2.1 lies inside":          to(network("10.128.0.0/22", 9), network("192.0.0.0/16", 9)),
	} {
		if err := f.SetNetwork(n); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
	}
	if p, err := f.allocator.Allocate("node3"); err == nil {
		t.Errorf("got %s, want no subnet of a network that was refused", p)
	}
	if names := f.emptyQueue(t); names != nil {
		t.Errorf("got queued %q, want none", names)
	}

	if err := f.SetNetwork(to(network("10.128.0.0/21", 9))); err != nil {
		t.Fatal(err)
	}
	if p, err := f.allocator.Allocate("node3"); err != nil || p.String() != "10.128.4.0/23" {
		t.Errorf("got %s, %v, want 10.128.4.0/23", p, err)
	}
	if names := f.emptyQueue(t); !slices.Equal(names, []string{"node1"}) {
		t.Errorf("got queued %q, want node1", names)
	}
}
