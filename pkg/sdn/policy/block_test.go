package policy

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/ovsdn/ovsdn/test/seed"
	"github.com/ovsdn/ovsdn/test/tier"
)

// FuzzBlocks compares the prefixes of a block without its exceptions with a model that evaluates each address of 10.0.0.0/24.
func FuzzBlocks(f *testing.F) {
	f.Add(uint8(0), uint8(24), []byte{1, 32, 3, 32, 128, 25})
	f.Add(uint8(64), uint8(26), []byte{0, 24})
	f.Add(uint8(0), uint8(25), []byte{128, 25, 7, 30, 4, 31, 4, 31})
	random := seed.Rand(f)
	for range tier.Size(f, 100, 500, "random blocks") {
		exceptions := make([]byte, random.IntN(40))
		for i := range exceptions {
			exceptions[i] = byte(random.Uint32())
		}
		f.Add(uint8(random.Uint32()), uint8(random.Uint32()), exceptions)
	}
	f.Fuzz(func(t *testing.T, at, bits uint8, exceptions []byte) {
		prefix := func(at, bits uint8) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, at}), 24+int(bits)%9)
		}
		b := &networkingv1.IPBlock{CIDR: prefix(at, bits).String()}
		var except []netip.Prefix
		for pair := range slices.Chunk(exceptions, 2) {
			if len(pair) == 2 {
				except = append(except, prefix(pair[0], pair[1]))
				b.Except = append(b.Except, except[len(except)-1].String())
			}
		}
		got, err := blocks(b)
		if err != nil {
			t.Fatal(err)
		}
		for addr := netip.MustParseAddr("10.0.0.0"); addr != netip.MustParseAddr("10.0.1.0"); addr = addr.Next() {
			contains := func(p netip.Prefix) bool { return p.Masked().Contains(addr) }
			want := 0
			if contains(prefix(at, bits)) && !slices.ContainsFunc(except, contains) {
				want = 1
			}
			n := len(slices.DeleteFunc(slices.Clone(got), func(p netip.Prefix) bool { return !contains(p) }))
			if n != want {
				t.Errorf("%s is in %d prefixes of %v, want %d", addr, n, got, want)
			}
		}
		for addr := netip.MustParseAddr("10.0.0.0"); addr != netip.MustParseAddr("10.0.1.0"); addr = addr.Next() {
			in := func(p netip.Prefix) bool { return p.Contains(addr) }
			if is, want := contains(disjoint(masked(except)), addr), slices.ContainsFunc(masked(except), in); is != want {
				t.Errorf("%s in one of %v: got %v, want %v", addr, except, is, want)
			}
		}
		for i := 1; i < len(got); i++ { // fewest: no two are halves of one
			if p, q := got[i-1], got[i]; p.Bits() == q.Bits() && netip.PrefixFrom(p.Addr(), p.Bits()-1).Masked().Contains(q.Addr()) {
				t.Errorf("got %s and %s, want one prefix for both", p, q)
			}
		}
	})
}

func TestBlocksOfManyExceptions(t *testing.T) {
	got, err := blocks(alternating(40_000))
	if err != nil {
		t.Fatal(err)
	}
	if want := 40_021; len(got) != want {
		t.Errorf("prefixes: got %d, want %d", len(got), want)
	}
}

func TestBlocksOfManyExceptions_duration(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: bound of a duration")
	}
	start := time.Now()
	if _, err := blocks(alternating(40_000)); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took > bombTime {
		t.Errorf("took %v, want at most %v", took, bombTime)
	}
}

func masked(list []netip.Prefix) (out []netip.Prefix) {
	for _, p := range list {
		out = append(out, p.Masked())
	}
	return out
}
