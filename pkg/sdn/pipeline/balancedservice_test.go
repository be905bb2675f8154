package pipeline

import (
	"net/netip"
	"testing"
)

// TestSlots checks the shares of endpoints: all hash values are allocated, and with at most 12 endpoints the shares differ by a twentieth.
func TestSlots(t *testing.T) {
	for endpoints := 1; endpoints <= MaxEndpoints; endpoints++ {
		shares := slotsOf(endpoints)
		total, least, most := 0, shares[0], shares[0]
		for _, s := range shares {
			total, least, most = total+s, min(least, s), max(most, s)
		}
		if total&(total-1) != 0 || total < minSlots || total > maxSlots {
			t.Errorf("%d endpoints: got %d slots, want a power of two from %d to %d", endpoints, total, minSlots, maxSlots)
		}
		if least < 1 || most-least > 1 || endpoints <= 12 && 20*(most-least) > most {
			t.Errorf("%d endpoints: got shares of %d to %d", endpoints, least, most)
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
		total, least := 0, maxSlots
		for _, b := range f.buckets() {
			total, least = total+b.Weight, min(least, b.Weight)
		}
		if want := sum(slotsOf(endpoints)); total != want {
			t.Errorf("%d endpoints: sum of weights: got %d, want %d", endpoints, total, want)
		}
		if endpoints > 1 && least != 1 {
			t.Errorf("%d endpoints: smallest weight: got %d, want 1", endpoints, least)
		}
	}
}

func sum(numbers []int) (total int) {
	for _, n := range numbers {
		total += n
	}
	return total
}
