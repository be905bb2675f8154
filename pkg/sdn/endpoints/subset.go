package endpoints

import (
	"encoding/binary"
	"hash/fnv"
	"math"
	"net/netip"
	"slices"
)

// Subset returns the endpoints that a node uses of more than it can balance: all up to the maximum, else as many as the maximum, in the same order. Which ones
// depends only on the node and on each endpoint, so that the addition or removal of an endpoint replaces at most one other.
//
// Endpoints on this node are selected first, up to half of the maximum, so that each endpoint on a node is used at least there. The others are selected by
// rendezvous hashing. Of E endpoints that are on no node, N nodes leave about E×exp(-N×maximum/E) unused. Of more than the maximum that are all on this node, the
// same ones are left out each time: with a traffic policy of Local no node uses these.
func Subset(endpoints []Target, nodeName string, maximum int) []Target {
	if len(endpoints) <= maximum {
		return endpoints
	}
	maximum = max(maximum, 0)
	seed := nodeSeed(nodeName)
	scores := make([]uint64, len(endpoints))
	for i, t := range endpoints {
		scores[i] = score(seed, t.Addr)
	}
	selected := make([]bool, len(endpoints))
	n := selectHighest(scores, selected, maximum/2, func(i int) bool { return endpoints[i].Local })
	selectHighest(scores, selected, maximum-n, func(i int) bool { return !selected[i] })

	out := make([]Target, 0, maximum)
	for i, t := range endpoints {
		if selected[i] {
			out = append(out, t)
		}
	}
	return out
}

// selectHighest selects those of the permitted indexes that have the highest scores, up to the limit, and returns their number.
func selectHighest(scores []uint64, selected []bool, limit int, permitted func(i int) bool) int {
	var of []uint64
	for i, s := range scores {
		if permitted(i) {
			of = append(of, s)
		}
	}
	limit = min(limit, len(of))
	if limit == 0 {
		return 0
	}
	lowest, n := nthHighest(of, limit), 0
	for _, tie := range []bool{false, true} {
		for i, s := range scores {
			if n < limit && (s > lowest && !tie || s == lowest && tie) && permitted(i) {
				selected[i] = true
				n++
			}
		}
	}
	return n
}

// nthHighest returns the n-th highest value of hashes, n from 1 to their number, and changes their order. Hashes are uniformly distributed: it is nearly always
// among the values in the top 2n/len of the range, and only these are sorted.
func nthHighest(hashes []uint64, n int) uint64 {
	if 2*n < len(hashes) {
		bound := math.MaxUint64 - math.MaxUint64/uint64(len(hashes))*uint64(2*n) //nolint:gosec // both are positive
		likely := slices.DeleteFunc(slices.Clone(hashes), func(h uint64) bool { return h < bound })
		if len(likely) >= n {
			hashes = likely
		}
	}
	slices.Sort(hashes)
	return hashes[len(hashes)-n]
}

func nodeSeed(name string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name)) // never fails
	return mix(h.Sum64())
}

// score returns the rendezvous hash of an endpoint on a node. It is the same in all versions and on all machines.
func score(seed uint64, a netip.AddrPort) uint64 {
	addr := a.Addr().As16()
	h := mix(seed ^ binary.BigEndian.Uint64(addr[:8]))
	h = mix(h ^ binary.BigEndian.Uint64(addr[8:]))
	return mix(h ^ uint64(a.Port()))
}

// mix is the finalizer of SplitMix64: each bit of the result depends on all bits of x.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
