package subnet

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

func network(cidr string, hostBits int) config.ClusterNetwork {
	return config.ClusterNetwork{Prefix: netip.MustParsePrefix(cidr), HostBits: hostBits}
}

func allocator(networks ...config.ClusterNetwork) *Allocator {
	a := NewAllocator()
	setNetworks(a, networks...)
	return a
}

func setNetworks(a *Allocator, networks ...config.ClusterNetwork) {
	_ = a.SetNetworks(networks, func([]Allocation) error { return nil }) // it only returns the error of the function
}

// wantNext allocates the subnets, in this order, for owners named after them.
func wantNext(t *testing.T, a *Allocator, want ...string) {
	t.Helper()
	for _, w := range want {
		p, err := a.Allocate("owner of " + w)
		if err != nil {
			t.Fatalf("want %s: %v", w, err)
		}
		if p.String() != w {
			t.Fatalf("got %s, want %s", p, w)
		}
	}
}

func wantFull(t *testing.T, a *Allocator) {
	t.Helper()
	p, err := a.Allocate("another")
	if _, full := errors.AsType[*FullError](err); !full {
		t.Fatalf("got %s, %v; want a FullError", p, err)
	}
}

// fill allocates n subnets.
func fill(t *testing.T, a *Allocator, n int) []string {
	t.Helper()
	var list []string
	for i := range n {
		p, err := a.Allocate(fmt.Sprint("node", i))
		if err != nil {
			t.Fatalf("allocate after %d: %v", i, err)
		}
		list = append(list, p.String())
	}
	return list
}

func TestAllocate_orderOfOpenShift(t *testing.T) {
	list := func(n int, format string, step int) []string {
		var l []string
		for i := range n {
			l = append(l, fmt.Sprintf(format, i*step))
		}
		return l
	}
	for _, tc := range []struct {
		cidr     string
		hostBits int
		want     []string
		subnets  int // in total
	}{
		// The default of OpenShift 4.
		{"10.128.0.0/14", 9, []string{
			"10.128.0.0/23", "10.129.0.0/23", "10.130.0.0/23", "10.131.0.0/23",
			"10.128.2.0/23", "10.129.2.0/23", "10.130.2.0/23", "10.131.2.0/23", "10.128.4.0/23",
		}, 512},
		{"10.1.0.0/16", 6, append(append(list(256, "10.1.%d.0/26", 1), list(256, "10.1.%d.64/26", 1)...), "10.1.0.128/26"), 1024},
		{"10.1.0.0/16", 8, list(256, "10.1.%d.0/24", 1), 256},
		{"10.1.0.0/16", 10, list(64, "10.1.%d.0/22", 4), 64},
		{"10.0.0.0/14", 10, []string{
			"10.0.0.0/22", "10.1.0.0/22", "10.2.0.0/22", "10.3.0.0/22",
			"10.0.4.0/22", "10.1.4.0/22", "10.2.4.0/22", "10.3.4.0/22", "10.0.8.0/22",
		}, 256},
		{"10.1.0.0/16", 14, list(4, "10.1.%d.0/18", 64), 4},
		{"10.1.0.0/16", 16, []string{"10.1.0.0/16"}, 1},
		// The number is in one octet: no rotation.
		{"10.1.2.0/24", 6, list(4, "10.1.2.%d/26", 64), 4},
		// The number is in two octets.
		{"10.1.2.0/23", 6, []string{
			"10.1.2.0/26", "10.1.3.0/26", "10.1.2.64/26", "10.1.3.64/26", "10.1.2.128/26", "10.1.3.128/26", "10.1.2.192/26", "10.1.3.192/26",
		}, 8},
	} {
		t.Run(fmt.Sprint(tc.cidr, " ", tc.hostBits), func(t *testing.T) {
			a := allocator(network(tc.cidr, tc.hostBits))
			got := fill(t, a, tc.subnets)
			wantFull(t, a)
			if diff := cmp.Diff(tc.want, got[:len(tc.want)]); diff != "" {
				t.Error(diff)
			}
			slices.Sort(got)
			if n := len(slices.Compact(got)); n != tc.subnets {
				t.Errorf("got %d different subnets, want %d", n, tc.subnets)
			}
		})
	}
}

func TestAllocate_continuesAfterTheLast(t *testing.T) {
	a := allocator(network("10.1.0.0/16", 14))
	wantNext(t, a, "10.1.0.0/18", "10.1.64.0/18")
	a.Release("owner of 10.1.0.0/18")
	a.Release("owner of 10.1.64.0/18")
	wantNext(t, a, "10.1.128.0/18", "10.1.192.0/18")
	// Wraps around.
	wantNext(t, a, "10.1.0.0/18", "10.1.64.0/18")
	wantFull(t, a)
	// A full range starts again from its first subnet, as in OpenShift.
	a.Release("owner of 10.1.192.0/18")
	a.Release("owner of 10.1.64.0/18")
	wantNext(t, a, "10.1.64.0/18", "10.1.192.0/18")
	wantFull(t, a)
}

func TestAllocate_wrapsAround(t *testing.T) {
	a := allocator(network("10.1.0.0/16", 6))
	fill(t, a, 513)
	a.ranges[0].next = 1023
	wantNext(t, a, "10.1.255.192/26", "10.1.1.128/26")
}

func TestAllocate_rangesInOrder(t *testing.T) {
	a := allocator(network("10.1.0.0/24", 7), network("10.9.0.0/24", 6), network("10.2.0.0/24", 8))
	wantNext(t, a, "10.1.0.0/25", "10.1.0.128/25",
		"10.9.0.0/26", "10.9.0.64/26")
	a.Release("owner of 10.1.0.128/25")
	wantNext(t, a, "10.1.0.128/25", "10.9.0.128/26", "10.9.0.192/26", "10.2.0.0/24")
	_, err := a.Allocate("node")
	if diff := cmp.Diff("no subnet is free in the cluster network "+
		"10.1.0.0/24 with 7 host bits, 10.9.0.0/24 with 6 host bits, 10.2.0.0/24 with 8 host bits", fmt.Sprint(err)); diff != "" {
		t.Error(diff)
	}
}

// An extended range retains its allocations and continues after the last. New ranges are used in their order.
func TestSetNetworks_extendsRanges(t *testing.T) {
	a := allocator(network("10.128.0.0/15", 9))
	wantNext(t, a, "10.128.0.0/23", "10.129.0.0/23", "10.128.2.0/23")
	setNetworks(a, network("10.128.0.0/14", 9))
	wantNext(t, a, "10.129.2.0/23", "10.130.2.0/23", "10.131.2.0/23", "10.128.4.0/23")

	full := allocator(network("10.1.2.0/24", 7))
	wantNext(t, full, "10.1.2.0/25", "10.1.2.128/25")
	wantFull(t, full)
	refusal := errors.New("refused")
	if err := full.SetNetworks([]config.ClusterNetwork{network("10.1.2.0/23", 7)}, func([]Allocation) error { return refusal }); !errors.Is(err, refusal) {
		t.Fatal(err)
	}
	wantFull(t, full)
	setNetworks(full, network("10.1.2.0/23", 7), network("10.9.0.0/24", 7))
	wantNext(t, full, "10.1.3.0/25", "10.1.3.128/25", "10.9.0.0/25", "10.9.0.128/25")
	wantFull(t, full)
}

// The allocator of OpenShift SDN could allocate a subnet that overlapped a marked one of another length.
func TestAllocate_skipsOverlaps(t *testing.T) {
	for _, tc := range []struct {
		name    string
		marked  []string
		want    []string
		network config.ClusterNetwork
	}{
		{
			name:    "smaller, larger, unaligned, outside",
			network: network("10.1.0.0/20", 8),
			marked:  []string{"10.1.0.128/25", "10.1.4.0/22", "10.1.9.7/32", "10.1.10.0/24", "10.1.11.0/24", "192.0.2.0/24", "fd00::/8"},
			want: []string{"10.1.1.0/24", "10.1.2.0/24", "10.1.3.0/24", "10.1.8.0/24",
				"10.1.12.0/24", "10.1.13.0/24", "10.1.14.0/24", "10.1.15.0/24"},
		},
		{
			name:    "in rotated order",
			network: network("10.1.0.0/22", 7),
			marked:  []string{"10.1.0.0/23", "10.1.2.129/32"},
			want:    []string{"10.1.2.0/25", "10.1.3.0/25", "10.1.3.128/25"},
		},
		{name: "equal to the range", network: network("10.1.0.0/22", 7), marked: []string{"10.1.0.0/22"}},
		{name: "contains the range", network: network("10.1.0.0/22", 7), marked: []string{"0.0.0.0/0"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := allocator(tc.network)
			for _, m := range tc.marked {
				a.MarkAllocated(m, netip.MustParsePrefix(m))
			}
			wantNext(t, a, tc.want...)
			wantFull(t, a)
			for _, m := range tc.marked {
				a.Release(m)
			}
			for _, w := range tc.want {
				a.Release("owner of " + w)
			}
			fill(t, a, 1<<(tc.network.SubnetBits()-tc.network.Prefix.Bits()))
		})
	}
}

func TestOverlapping(t *testing.T) {
	p := netip.MustParsePrefix
	a := allocator(network("10.1.0.0/16", 8))
	a.MarkAllocated("node1", p("10.1.1.0/24"))
	a.MarkAllocated("node2", p("10.1.1.0/24"), p("10.1.1.128/25"))
	a.MarkAllocated("node3", p("10.1.0.0/23"))
	a.MarkAllocated("node4", p("10.1.2.0/24"))
	for _, tc := range []struct {
		owner, subnet string
		want          []Allocation
	}{
		{"node1", "10.1.1.0/24", []Allocation{{"node3", p("10.1.0.0/23")}, {"node2", p("10.1.1.0/24")}, {"node2", p("10.1.1.128/25")}}},
		{"node2", "10.1.1.128/25", []Allocation{{"node3", p("10.1.0.0/23")}, {"node1", p("10.1.1.0/24")}}},
		{"node4", "10.1.2.0/24", nil},
		{"node4", "10.1.2.77/31", nil},
		{"", "10.1.1.77/32", []Allocation{{"node3", p("10.1.0.0/23")}, {"node1", p("10.1.1.0/24")}, {"node2", p("10.1.1.0/24")}}},
		{"", "0.0.0.0/0", []Allocation{{"node3", p("10.1.0.0/23")}, {"node1", p("10.1.1.0/24")}, {"node2", p("10.1.1.0/24")},
			{"node2", p("10.1.1.128/25")}, {"node4", p("10.1.2.0/24")}}},
	} {
		if diff := cmp.Diff(tc.want, a.Overlapping(tc.owner, p(tc.subnet)), comparePrefixes()); diff != "" {
			t.Errorf("overlapping %s, not of %q (-want +got): %s", tc.subnet, tc.owner, diff)
		}
	}

	a.MarkAllocated("node2", p("10.1.7.0/24"))
	if diff := cmp.Diff([]netip.Prefix{p("10.1.7.0/24")}, a.Subnets("node2"), comparePrefixes()); diff != "" {
		t.Error(diff)
	}
	a.Release("node1")
	a.Release("unknown")
	if got := a.Overlapping("", p("10.1.1.0/24")); len(got) != 1 || got[0].Owner != "node3" {
		t.Errorf("got %v overlapping 10.1.1.0/24, want that of node3", got)
	}
	a.Release("node3")
	wantNext(t, a, "10.1.0.0/24", "10.1.1.0/24", "10.1.3.0/24")
}

// A /8 with 2 host bits has four million subnets: memory and time must not grow with them.
func TestAllocator_largeRange(t *testing.T) {
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	a := allocator(network("10.0.0.0/8", 2))
	wantNext(t, a, "10.0.0.0/30", "10.0.1.0/30")
	a.MarkAllocated("most", netip.MustParsePrefix("10.0.0.0/9"), netip.MustParsePrefix("10.128.0.0/10"),
		netip.MustParsePrefix("10.192.0.0/11"), netip.MustParsePrefix("10.224.0.0/12"))
	wantNext(t, a, "10.240.0.0/30")
	a.MarkAllocated("rest", netip.MustParsePrefix("10.240.0.0/12"))
	wantFull(t, a)
	runtime.ReadMemStats(&after)
	if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
		t.Errorf("got %d bytes allocated, want at most 1 MiB", used)
	}
	runtime.KeepAlive(a)
}

func TestRelease_emptiesBitmap(t *testing.T) {
	a := allocator(network("10.128.0.0/14", 9))
	for i, p := range []string{"10.128.0.0/23", "10.129.0.0/16", "10.130.0.1/32", "0.0.0.0/0"} {
		a.MarkAllocated(fmt.Sprint(i), netip.MustParsePrefix(p))
	}
	for i := range 4 {
		a.Release(fmt.Sprint(i))
	}
	if a.ranges[0].used.root != nil || len(a.allocations) != 0 || len(a.byOwner) != 0 {
		t.Errorf("got %+v, want no allocations and no tree", a)
	}
}

func comparePrefixes() cmp.Option {
	return cmpopts.EquateComparable(netip.Prefix{}, netip.Addr{})
}

func BenchmarkAllocate(b *testing.B) {
	for b.Loop() {
		a := allocator(network("10.128.0.0/10", 9))
		for i := range 5000 {
			if _, err := a.Allocate(fmt.Sprint("node", i)); err != nil {
				b.Fatal(err)
			}
		}
	}
}
