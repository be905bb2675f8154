package podinterface

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/veth"
)

func testOptions() Options {
	return Options{
		NodeName:        "node1",
		Subnets:         []netip.Prefix{netip.MustParsePrefix("10.128.2.0/23")},
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix("10.128.0.0/14")},
		ServiceNetwork:  netip.MustParsePrefix("172.30.0.0/16"),
		MTU:             1450,
		Datapath:        ovs.DatapathNetdev,
		Devices:         []string{"br0"},
	}
}

func TestOptions(t *testing.T) {
	if err := testOptions().Validate(); err != nil {
		t.Error(err)
	}
	err := Options{Subnets: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/24")}, RouteMTU: 1400, Datapath: "magic"}.Validate()
	for _, text := range []string{"MTU 0", "the routes' MTU 1400 is not between", `datapath "magic"`, "service network is not set", "devices of the pod network are not set", "10.1.0.0/24 is in none of the cluster networks"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want error with %q", err, text)
		}
	}
}

// route returns a route; via may be empty.
func route(to, via string) veth.Route {
	r := veth.Route{To: netip.MustParsePrefix(to)}
	if via != "" {
		r.Via = netip.MustParseAddr(via)
	}
	return r
}

func TestInterfaceConfig(t *testing.T) {
	for _, tt := range []struct {
		name     string
		subnets  string
		clusters string
		service  string
		addrs    string
		prefixes string
		routes   []veth.Route
	}{
		{
			name: "usual", subnets: "10.128.2.0/23", clusters: "10.128.0.0/14", service: "172.30.0.0/16",
			addrs: "10.128.3.7", prefixes: "10.128.3.7/23",
			routes: []veth.Route{
				route("10.128.0.0/14", ""), route("224.0.0.0/4", ""),
				route("172.30.0.0/16", "10.128.2.1"), route("0.0.0.0/0", "10.128.2.1"),
			},
		},
		{
			name: "several cluster networks and subnets", subnets: "10.128.2.0/23 10.4.0.0/26", clusters: "10.128.0.0/14 10.4.0.0/16",
			service: "172.30.0.0/16", addrs: "10.4.0.9", prefixes: "10.4.0.9/26",
			routes: []veth.Route{
				route("10.128.0.0/14", ""), route("10.4.0.0/16", ""), route("224.0.0.0/4", ""),
				route("172.30.0.0/16", "10.4.0.1"), route("0.0.0.0/0", "10.4.0.1"),
			},
		},
		{
			name: "two families", subnets: "10.128.2.0/23 fd00:1::/64", clusters: "10.128.0.0/14 fd00::/16", service: "172.30.0.0/16",
			addrs: "10.128.2.2 fd00:1::2", prefixes: "10.128.2.2/23 fd00:1::2/64",
			routes: []veth.Route{
				route("10.128.0.0/14", ""), route("224.0.0.0/4", ""),
				route("172.30.0.0/16", "10.128.2.1"), route("0.0.0.0/0", "10.128.2.1"),
				route("fd00::/16", ""), route("::/0", "fd00:1::1"),
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var pod sandbox.Pod
			for _, a := range strings.Fields(tt.addrs) {
				pod.Addrs = append(pod.Addrs, netip.MustParseAddr(a))
			}
			o := Options{
				Subnets: prefixes(tt.subnets), ClusterNetworks: prefixes(tt.clusters), ServiceNetwork: netip.MustParsePrefix(tt.service),
			}
			got := o.InterfaceConfig(pod)
			compare := cmp.Options{cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })}
			if diff := cmp.Diff(prefixes(tt.prefixes), got.Addrs, compare); diff != "" {
				t.Errorf("addresses (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tt.routes, got.Routes, compare); diff != "" {
				t.Errorf("routes (-want +got):\n%s", diff)
			}
		})
	}
}

func prefixes(text string) []netip.Prefix {
	var out []netip.Prefix
	for _, p := range strings.Fields(text) {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}
