package pipeline

import (
	"net/netip"
	"slices"
	"testing"
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

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}
