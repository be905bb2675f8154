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
	"github.com/ovsdn/ovsdn/test/seed"
)

// model is a simple allocator that checks every subnet in order, with the formula that OpenShift documents.
type model struct {
	networks []config.ClusterNetwork
	next     []uint32
	byOwner  map[string][]netip.Prefix
}

func (m *model) subnet(n config.ClusterNetwork, index uint32) netip.Prefix {
	subnetBits := n.SubnetBits() - n.Prefix.Bits()
	offset := index << n.HostBits
	if h := n.HostBits; h%8 != 0 && (h-1)/8 != (h+subnetBits-1)/8 {
		left := 8 - h%8
		offset = index<<h<<left&(1<<(32-n.Prefix.Bits())-1) | index<<h>>(subnetBits-left)&((1<<left-1)<<h)
	}
	base := n.Prefix.Addr().As4()
	var addr [4]byte
	binary.BigEndian.PutUint32(addr[:], binary.BigEndian.Uint32(base[:])|offset)
	return netip.PrefixFrom(netip.AddrFrom4(addr), n.SubnetBits())
}

func (m *model) isFree(p netip.Prefix) bool {
	for _, subnets := range m.byOwner {
		if slices.ContainsFunc(subnets, p.Overlaps) {
			return false
		}
	}
	return true
}

func (m *model) allocate(owner string) (netip.Prefix, bool) {
	for i, n := range m.networks {
		for k := range count(n) {
			index := (m.next[i] + k) % count(n)
			if p := m.subnet(n, index); m.isFree(p) {
				m.next[i] = index + 1
				m.byOwner[owner] = append(m.byOwner[owner], p)
				return p, true
			}
		}
		m.next[i] = 0
	}
	return netip.Prefix{}, false
}

// setNetworks continues after the last subnet of a previous range, if the new range has that subnet too.
func (m *model) setNetworks(networks []config.ClusterNetwork) {
	next := make([]uint32, len(networks))
	for i, n := range networks {
		for j, previous := range m.networks {
			if m.next[j] == 0 || previous.HostBits != n.HostBits {
				continue
			}
			last := m.subnet(previous, m.next[j]-1)
			for index := uint32(0); index < count(n); index++ {
				if m.subnet(n, index) == last {
					next[i] = index + 1
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

// sizeBits limits ranges to 2^8 subnets, so that they become full.
const sizeBits = 8

// drawRange returns a range in 10+i.0.0.0/8 with any number of host bits.
func drawRange(t *rapid.T, i int) config.ClusterNetwork {
	bits := rapid.IntRange(9, 28).Draw(t, "mask bits")
	within := uint32(10+i)<<24 | rapid.Uint32Range(0, 1<<24-1).Draw(t, "address")
	return config.ClusterNetwork{
		Prefix:   netip.PrefixFrom(address(within), bits).Masked(),
		HostBits: rapid.IntRange(max(2, 32-bits-sizeBits+2), 32-bits).Draw(t, "host bits"), // so that it can be extended
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

// drawChange edits a ClusterNetwork as users may, valid or not: the allocator does not validate it.
func drawChange(t *rapid.T, networks []config.ClusterNetwork, fresh int) []config.ClusterNetwork {
	networks = slices.Clone(networks)
	i := rapid.IntRange(0, len(networks)-1).Draw(t, "which")
	n := &networks[i]
	switch rapid.SampledFrom([]string{"grow", "shrink", "add", "drop", "host bits", "order"}).Draw(t, "change") {
	case "grow":
		lowest := max(8, n.SubnetBits()-sizeBits) // one /8 for each range
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

func TestAllocator_equalsModel(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &model{byOwner: map[string][]netip.Prefix{}}
		ranges := rapid.IntRange(1, 3).Draw(t, "ranges")
		for i := range ranges {
			m.networks = append(m.networks, drawRange(t, i))
		}
		m.next = make([]uint32, ranges)
		a := allocator(m.networks...)
		owner := rapid.StringMatching(`node[0-9]`)
		prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
			if rapid.IntRange(0, 20).Draw(t, "outside") == 0 {
				return netip.MustParsePrefix(rapid.SampledFrom([]string{"0.0.0.0/0", "10.0.0.0/7", "::/0", "192.0.2.0/24"}).Draw(t, "prefix"))
			}
			return drawWithin(t, rapid.SampledFrom(m.networks).Draw(t, "range"), 32)
		})
		allocations := func() map[Allocation]int {
			all := map[Allocation]int{}
			for name, list := range m.byOwner {
				for _, p := range list {
					all[Allocation{name, p}]++
				}
			}
			return all
		}
		compare := func(t *rapid.T, what string, want map[Allocation]int, list []Allocation) {
			got := map[Allocation]int{}
			for _, a := range list {
				got[a]++
			}
			if diff := cmp.Diff(want, got, comparePrefixes()); diff != "" {
				t.Fatalf("%s (-want +got): %s", what, diff)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"allocate": func(t *rapid.T) {
				name := owner.Draw(t, "owner")
				got, err := a.Allocate(name)
				want, ok := m.allocate(name)
				if got != want || (err == nil) != ok {
					t.Fatalf("got %s (%v), want %s (%v)", got, err, want, ok)
				}
			},
			"fill": func(t *rapid.T) {
				for range rapid.IntRange(1, 100).Draw(t, "times") {
					got, _ := a.Allocate("many")
					if want, _ := m.allocate("many"); got != want {
						t.Fatalf("got %s, want %s", got, want)
					}
				}
			},
			"mark": func(t *rapid.T) {
				name := owner.Draw(t, "owner")
				list := rapid.SliceOfN(prefix, 0, 3).Draw(t, "subnets")
				a.MarkAllocated(name, list...)
				m.byOwner[name] = list
			},
			"release": func(t *rapid.T) {
				name := rapid.OneOf(owner, rapid.Just("many")).Draw(t, "owner")
				a.Release(name)
				delete(m.byOwner, name)
			},
			"change": func(t *rapid.T) {
				ranges++
				networks := drawChange(t, m.networks, ranges)
				refusal := errors.New("refused")
				err := a.SetNetworks(networks, func(all []Allocation) error {
					compare(t, "allocations to validate", allocations(), all)
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
				for name, list := range m.byOwner {
					a.MarkAllocated(name, list...)
				}
				setNetworks(a, m.networks...)
				clear(m.next)
			},
			"": func(t *rapid.T) {
				for name, list := range m.byOwner {
					if diff := cmp.Diff(list, a.Subnets(name), comparePrefixes(), cmpopts.EquateEmpty()); diff != "" {
						t.Fatalf("subnets of %s (-want +got): %s", name, diff)
					}
				}
				p := prefix.Draw(t, "prefix")
				want := allocations()
				for x := range want {
					if x.Owner == "node1" || !x.Subnet.Overlaps(p) {
						delete(want, x)
					}
				}
				compare(t, fmt.Sprint("overlaps of ", p), want, a.Overlapping("node1", p))
			},
		})
	})
}
