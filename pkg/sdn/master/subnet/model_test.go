package subnet

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// model is the obvious allocator: it looks at every subnet in turn, by the formula as OpenShift documents it.
type model struct {
	networks []config.ClusterNetwork
	next     []uint32
	held     map[string][]netip.Prefix
}

func (m *model) subnet(n config.ClusterNetwork, place uint32) netip.Prefix {
	subnetBits := n.SubnetBits() - n.Prefix.Bits()
	offset := place << n.HostBits
	if h := n.HostBits; h%8 != 0 && (h-1)/8 != (h+subnetBits-1)/8 {
		left := 8 - h%8
		offset = place<<h<<left&(1<<(32-n.Prefix.Bits())-1) | place<<h>>(subnetBits-left)&((1<<left-1)<<h)
	}
	base := n.Prefix.Addr().As4()
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], binary.BigEndian.Uint32(base[:])|offset)
	return netip.PrefixFrom(netip.AddrFrom4(addr), n.SubnetBits())
}

func (m *model) isFree(p netip.Prefix) bool {
	for _, held := range m.held {
		if slices.ContainsFunc(held, p.Overlaps) {
			return false
		}
	}
	return true
}

func (m *model) allocate(holder string) (netip.Prefix, bool) {
	for i, n := range m.networks {
		for k := range count(n) {
			place := (m.next[i] + k) % count(n)
			if p := m.subnet(n, place); m.isFree(p) {
				m.next[i] = place + 1
				m.held[holder] = append(m.held[holder], p)
				return p, true
			}
		}
		m.next[i] = 0
	}
	return netip.Prefix{}, false
}

// setNetworks goes on behind the last subnet that a former range gave, if a new one of the same host length has it.
func (m *model) setNetworks(networks []config.ClusterNetwork) {
	next := make([]uint32, len(networks))
	for i, n := range networks {
		for j, former := range m.networks {
			if m.next[j] == 0 || former.HostBits != n.HostBits {
				continue
			}
			last := m.subnet(former, m.next[j]-1)
			for place := uint32(0); place < count(n); place++ {
				if m.subnet(n, place) == last {
					next[i] = place + 1
				}
			}
			if next[i] != 0 {
				break
			}
		}
	}
	m.networks, m.next = networks, next
}

func count(n config.ClusterNetwork) uint32 { return 1 << (n.SubnetBits() - n.Prefix.Bits()) }

// sizeBits bounds ranges to 2^8 subnets, so that they run full.
const sizeBits = 8

// drawRange returns a range within 10+i.0.0.0/8, of any host length.
func drawRange(t *rapid.T, i int) config.ClusterNetwork {
	bits := rapid.IntRange(9, 28).Draw(t, "mask bits")
	within := uint32(10+i)<<24 | rapid.Uint32Range(0, 1<<24-1).Draw(t, "place")
	return config.ClusterNetwork{
		Prefix:   netip.PrefixFrom(address(within), bits).Masked(),
		HostBits: rapid.IntRange(max(2, 32-bits-sizeBits+2), 32-bits).Draw(t, "host bits"), // leaves room to grow
	}
}

func address(n uint32) netip.Addr {
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], n)
	return netip.AddrFrom4(a)
}

// drawWithin returns a prefix of any length in the range.
func drawWithin(t *rapid.T, n config.ClusterNetwork, maxBits int) netip.Prefix {
	base := n.Prefix.Addr().As4()
	offset := rapid.Uint32Range(0, 1<<(32-n.Prefix.Bits())-1).Draw(t, "offset")
	bits := rapid.IntRange(n.Prefix.Bits(), maxBits).Draw(t, "bits")
	return netip.PrefixFrom(address(binary.BigEndian.Uint32(base[:])+offset), bits).Masked()
}

// drawChange edits a ClusterNetwork as people do, right or wrong: whether that is wise is not the allocator's to say.
func drawChange(t *rapid.T, networks []config.ClusterNetwork, fresh int) []config.ClusterNetwork {
	networks = slices.Clone(networks)
	i := rapid.IntRange(0, len(networks)-1).Draw(t, "which")
	n := &networks[i]
	switch rapid.SampledFrom([]string{"grow", "shrink", "add", "drop", "host bits", "order"}).Draw(t, "change") {
	case "grow":
		lowest := max(8, n.SubnetBits()-sizeBits) // a /8 is its own
		n.Prefix = netip.PrefixFrom(n.Prefix.Addr(), rapid.IntRange(min(lowest, n.Prefix.Bits()), n.Prefix.Bits()).Draw(t, "mask bits")).Masked()
	case "shrink":
		n.Prefix = drawWithin(t, *n, n.SubnetBits())
	case "add":
		networks = slices.Insert(networks, i, drawRange(t, fresh))
	case "drop":
		if len(networks) > 1 {
			networks = slices.Delete(networks, i, i+1)
		}
	case "host bits":
		room := 32 - n.Prefix.Bits()
		n.HostBits = rapid.IntRange(max(2, room-sizeBits), room).Draw(t, "host bits")
	case "order":
		networks = rapid.Permutation(networks).Draw(t, "order")
	}
	return networks
}

// TestAllocatorIsTheModel allocates, marks, releases, grows and restarts in any order, and compares all that can be seen.
func TestAllocatorIsTheModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{held: map[string][]netip.Prefix{}}
		ranges := rapid.IntRange(1, 3).Draw(t, "ranges")
		for i := range ranges {
			m.networks = append(m.networks, drawRange(t, i))
		}
		m.next = make([]uint32, ranges)
		a := allocator(m.networks...)
		holder := rapid.StringMatching(`node[0-9]`)
		prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
			if rapid.IntRange(0, 20).Draw(t, "absurd") == 0 {
				return netip.MustParsePrefix(rapid.SampledFrom([]string{"0.0.0.0/0", "10.0.0.0/7", "::/0", "192.0.2.0/24"}).Draw(t, "prefix"))
			}
			return drawWithin(t, rapid.SampledFrom(m.networks).Draw(t, "range"), 32)
		})
		held := func() map[Hold]int {
			all := map[Hold]int{}
			for h, list := range m.held {
				for _, p := range list {
					all[Hold{h, p}]++
				}
			}
			return all
		}
		compare := func(t *rapid.T, what string, want map[Hold]int, list []Hold) {
			got := map[Hold]int{}
			for _, h := range list {
				got[h]++
			}
			if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
				t.Fatalf("%s: %s", what, diff)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"allocate": func(t *rapid.T) {
				h := holder.Draw(t, "holder")
				got, err := a.Allocate(h)
				want, ok := m.allocate(h)
				if got != want || (err == nil) != ok {
					t.Fatalf("got %s (%v), want %s (%v)", got, err, want, ok)
				}
			},
			"fill": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "times") {
					got, _ := a.Allocate("crowd")
					if want, _ := m.allocate("crowd"); got != want {
						t.Fatalf("got %s, want %s", got, want)
					}
				}
			},
			"mark": func(t *rapid.T) {
				h := holder.Draw(t, "holder")
				list := rapid.SliceOfN(prefix, 0, 3).Draw(t, "subnets")
				a.MarkAllocated(h, list...)
				m.held[h] = list
			},
			"release": func(t *rapid.T) {
				h := rapid.OneOf(holder, rapid.Just("crowd")).Draw(t, "holder")
				a.Release(h)
				delete(m.held, h)
			},
			"change": func(t *rapid.T) {
				ranges++
				networks := drawChange(t, m.networks, ranges)
				refusal := errors.New("refused")
				err := a.SetNetworks(networks, func(all []Hold) error {
					compare(t, "asked to agree with", held(), all)
					if rapid.IntRange(0, 3).Draw(t, "refused") == 0 {
						return refusal
					}
					return nil
				})
				switch {
				case err == nil:
					m.setNetworks(networks)
				case !errors.Is(err, refusal):
					t.Fatal(err)
				}
			},
			"restart": func(t *rapid.T) {
				a = NewAllocator()
				for h, list := range m.held {
					a.MarkAllocated(h, list...)
				}
				setNetworks(a, m.networks...)
				clear(m.next)
			},
			"": func(t *rapid.T) {
				for h, list := range m.held {
					if diff := cmp.Diff(list, a.HeldBy(h), comparePrefixes(), cmpopts.EquateEmpty()); diff != "" {
						t.Fatalf("%s: %s", h, diff)
					}
				}
				p := prefix.Draw(t, "asked")
				want := held()
				for h := range want {
					if h.Holder == "node1" || !h.Subnet.Overlaps(p) {
						delete(want, h)
					}
				}
				compare(t, fmt.Sprint("overlaps of ", p), want, a.Overlapping("node1", p))
			},
		})
	})
}
