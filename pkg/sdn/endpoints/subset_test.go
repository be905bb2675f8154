package endpoints

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/tier"
)

const maxSubset = 256

// many returns n endpoints, of which the given number is on each node, from node 0 on. The others are outside of the cluster. Those of the node with the index
// are local.
func many(n, perNode, node int) []Target {
	out := make([]Target, n)
	for i := range out {
		addr := netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)})
		out[i] = Target{Addr: netip.AddrPortFrom(addr, 8080), Local: perNode > 0 && i/perNode == node}
	}
	return out
}

func nodeName(i int) string { return fmt.Sprintf("worker-%d.example.com", i) }

// TestSubset_spread checks the number of nodes that use each endpoint. If all endpoints are outside of the cluster, it is binomially distributed.
func TestSubset_spread(t *testing.T) {
	for _, endpoints := range []int{300, 1000, 5000} {
		for _, nodes := range []int{10, 100, tier.Size(t, 300, 1000, "nodes")} {
			for _, inCluster := range []bool{false, true} {
				perNode := 0
				if inCluster {
					perNode = (endpoints + nodes - 1) / nodes
				}
				t.Run(fmt.Sprintf("%d endpoints, %d nodes, in cluster %v", endpoints, nodes, inCluster), func(t *testing.T) {
					checkSpread(t, endpoints, nodes, perNode)
				})
			}
		}
	}
}

func checkSpread(t *testing.T, endpoints, nodes, perNode int) {
	uses := map[netip.AddrPort]int{}
	all := many(endpoints, 0, 0)
	for node := range nodes {
		for i := range all {
			all[i].Local = perNode > 0 && i/perNode == node
		}
		subset := Subset(all, nodeName(node), maxSubset)
		if len(subset) != maxSubset {
			t.Fatalf("node %d: got %d endpoints, want %d", node, len(subset), maxSubset)
		}
		for _, target := range subset {
			uses[target.Addr]++
		}
	}
	share := float64(maxSubset) / float64(endpoints)
	mean := float64(nodes) * share
	deviation := math.Sqrt(mean * (1 - share))
	least, most, sum := nodes, 0, 0.0
	for _, target := range all {
		n := uses[target.Addr]
		least, most, sum = min(least, n), max(most, n), sum+(float64(n)-mean)*(float64(n)-mean)
	}
	got := math.Sqrt(sum / float64(endpoints))
	t.Logf("nodes that use an endpoint: mean %.1f, least %d, most %d, standard deviation %.2f, binomial %.2f; unused %d", mean, least, most, got, deviation,
		endpoints-len(uses))
	if got > 1.15*deviation {
		t.Errorf("standard deviation: got %.2f, want at most %.2f", got, 1.15*deviation)
	}
	if unused := endpoints - len(uses); perNode > 0 && perNode <= maxSubset/2 && unused > 0 {
		t.Errorf("got %d unused endpoints that are on a node, want 0", unused)
	} else if want := 1 + 3*float64(endpoints)*math.Pow(1-share, float64(nodes)); float64(unused) > want {
		t.Errorf("got %d unused endpoints, want at most %.0f", unused, want)
	}
	if mean > 12 && least == 0 {
		t.Errorf("got an unused endpoint where the mean is %.1f nodes, want none", mean)
	}
}

// TestSubset_isStable checks that the addition or removal of an endpoint replaces at most one other, with any number of local endpoints.
func TestSubset_isStable(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		maximum := rapid.IntRange(1, 20).Draw(t, "maximum")
		all := many(rapid.IntRange(maximum+2, 60).Draw(t, "endpoints"), 0, 0)
		for i := range all[1:] { // the first one is remote
			all[i+1].Local = rapid.Bool().Draw(t, "local")
		}
		removed := rapid.IntRange(1, len(all)-1).Draw(t, "removed")
		name := rapid.StringN(0, 10, 20).Draw(t, "node")
		with, without := Subset(all, name, maximum), Subset(slices.Delete(slices.Clone(all), removed, removed+1), name, maximum)
		if len(with) != maximum || len(without) != maximum {
			t.Fatalf("got %d and %d endpoints, want %d", len(with), len(without), maximum)
		}
		replaced := 0
		for _, target := range with {
			if !slices.Contains(without, target) {
				replaced++
				if !slices.Contains(with, all[removed]) {
					t.Errorf("the removal of an unused endpoint replaced %v", target)
				}
			}
		}
		if replaced > 1 {
			t.Errorf("got %d replaced endpoints, want at most 1", replaced)
		}
	})
}

func TestSubset(t *testing.T) {
	local := many(300, 300, 0)
	for _, c := range []struct {
		name             string
		all              []Target
		maximum          int
		want, wantLocals int
	}{
		{"none", nil, 256, 0, 0},
		{"as many as the maximum", many(256, 0, 0), 256, 256, 0},
		{"one more", many(257, 0, 0), 256, 256, 0},
		{"local ones are selected first", many(1000, 50, 3), 256, 256, 50},
		{"at most half of the maximum, and some by hash", append(slices.Clone(local), many(60_000, 0, 0)[300:]...), 256, 256, 128},
		{"all are local", local, 256, 256, 256},
		{"maximum 0", many(3, 0, 0), 0, 0, 0},
		{"negative maximum", many(3, 0, 0), -1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := Subset(c.all, nodeName(0), c.maximum)
			locals := 0
			for _, target := range got {
				if target.Local {
					locals++
				}
			}
			if len(got) != c.want || locals < c.wantLocals || locals > c.wantLocals+8 {
				t.Errorf("got %d endpoints, %d local, want %d, %d", len(got), locals, c.want, c.wantLocals)
			}
			if !slices.IsSortedFunc(got, func(a, b Target) int { return a.Addr.Compare(b.Addr) }) {
				t.Error("got unsorted endpoints, want the order of the input")
			}
		})
	}
}

// TestSubset_isFixed checks that no change of the code moves connections of all nodes to other endpoints.
func TestSubset_isFixed(t *testing.T) {
	got := format(Subset(many(1000, 0, 0), nodeName(1), 4))
	if want := "10.128.0.0:8080 10.128.0.44:8080 10.128.1.183:8080 10.128.2.118:8080"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestNthHighest(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		hashes := rapid.SliceOfN(rapid.Uint64(), 1, 50).Draw(t, "hashes")
		n := rapid.IntRange(1, len(hashes)).Draw(t, "n")
		sorted := slices.Sorted(slices.Values(hashes))
		if got, want := nthHighest(hashes, n), sorted[len(sorted)-n]; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	})
}

func BenchmarkSubset(b *testing.B) {
	all := many(5000, 50, 1)
	for b.Loop() {
		Subset(all, nodeName(1), maxSubset)
	}
}
