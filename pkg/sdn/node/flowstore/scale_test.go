package flowstore

import (
	"context"
	"fmt"
	"runtime"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// The cost of a change depends on its size, and not on that of the store.
func BenchmarkSet(b *testing.B) {
	for _, others := range []int{100, 10_000} {
		b.Run(fmt.Sprintf("owners=%d", others), func(b *testing.B) {
			s := New(newFake(b))
			s.Resync()
			for i := range others {
				s.Set(pod(fmt.Sprint(i)), flows(flow(2*i, goovs.Output(1)), flow(2*i+1, goovs.Output(1))))
			}
			if err := s.write(b.Context()); err != nil {
				b.Fatal(err)
			}
			owner := pod("one")
			n := 0
			for b.Loop() {
				n++
				s.Set(owner, flows(flow(60_000, goovs.Output(n))))
				if err := s.write(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// sink accepts all changes and stores none.
type sink struct{ ovs.Interface }

func (sink) NewTransaction() *ovs.Transaction { return &ovs.Transaction{} }

func (sink) Run(context.Context, *ovs.Transaction) error { return nil }

func (sink) Replace(context.Context, ovs.State) (ovs.Difference, error) { return ovs.Difference{}, nil }

// The cost of adding and removing an owner of a key does not depend on the number of its owners: for a flow with identical contributions, and for one with
// many conjunctions, one of which the owner shares with others.
func BenchmarkSharedKey(b *testing.B) {
	for _, owners := range []int{10, 5_000} {
		for name, action := range map[string]func(n int) ovs.Action{
			"identical":   func(int) ovs.Action { return ovs.GotoTable(30) },
			"conjunction": func(n int) ovs.Action { return goovs.Conjunction(n%1000+1, 1, 2) },
		} {
			b.Run(fmt.Sprintf("%s/owners=%d", name, owners), func(b *testing.B) {
				s := New(sink{})
				s.Resync()
				for n := range owners {
					s.Set(pod(fmt.Sprint(n)), flows(flow(0, action(n))))
				}
				if err := s.write(b.Context()); err != nil {
					b.Fatal(err)
				}
				added := true
				for b.Loop() {
					if added = !added; added {
						s.Set(pod("one"), flows(flow(0, action(0))))
					} else {
						s.Delete(pod("one"))
					}
					if err := s.write(b.Context()); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// The store retains texts, some 130 bytes for each of these flows, and no objects of owners.
func TestMemoryOfFlows(t *testing.T) {
	const owners, each, bound = 1_000, 10, 560 // bytes for each flow
	state := func(owner int) (st pipeline.State) {
		for i := range each {
			n := uint32(0x0a80_0000 + each*owner + i) //nolint:gosec // small
			st.Flows = append(st.Flows, &ovs.Flow{
				Table: 67, Priority: 100, Protocol: goovs.ProtocolTCPv4, Matches: []ovs.Match{ovs.Reg(8, n), ovs.Reg(9, 8080)},
				Actions: []ovs.Action{
					goovs.Load("0x1", "NXM_NX_REG4[20]"),
					goovs.ConnectionTracking(fmt.Sprintf("commit,nat(dst=10.128.%03d.%03d:8080),table=68,zone=NXM_NX_REG3[0..15]", n>>8&0xff, n&0xff)),
				},
			})
		}
		return st
	}
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var stats runtime.MemStats
		runtime.ReadMemStats(&stats)
		return stats.HeapAlloc
	}
	before := heap()
	s := New(sink{})
	s.Resync()
	for owner := range owners {
		s.Set(pod(fmt.Sprint(owner)), state(owner))
	}
	if err := s.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	perFlow := float64(heap()-before) / (owners * each)
	t.Logf("%.0f bytes for each flow", perFlow)
	if s.Statistics().Flows != owners*each || perFlow > bound {
		t.Errorf("got %d flows, of %.0f bytes, want %d of at most %d", s.Statistics().Flows, perFlow, owners*each, bound)
	}
}

// Time and memory for each flow of a node, to compile, merge and send it.
func BenchmarkFill(b *testing.B) {
	for _, n := range []int{5_000, 50_000} {
		b.Run(fmt.Sprintf("flows=%d", n), func(b *testing.B) {
			const each = 5
			changes := make([]Change, n/each)
			for i := range changes {
				var st pipeline.State
				for j := range each {
					f := flow(i, goovs.Load("0x64", "NXM_NX_REG0[]"), ovs.GotoTable(30))
					f.Table = j
					st.Flows = append(st.Flows, f)
				}
				changes[i] = Change{Owner: pod(fmt.Sprint(i)), State: st}
			}
			var before, after runtime.MemStats
			for b.Loop() {
				runtime.GC()
				runtime.ReadMemStats(&before)
				s := New(sink{})
				s.Resync()
				s.SetAll(changes...)
				if err := s.write(b.Context()); err != nil {
					b.Fatal(err)
				}
				runtime.GC()
				runtime.ReadMemStats(&after)
				if len(s.table.entries) != n {
					b.Fatalf("got %d keys, want %d", len(s.table.entries), n)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/flow")
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(n), "B/flow")
		})
	}
}
