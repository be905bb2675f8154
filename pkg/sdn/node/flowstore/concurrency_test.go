package flowstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/seed"
)

// churn sets and deletes random states of n owners concurrently, and waits for a last state of each. The owners share a flow. It returns the seed for the
// failure message.
func churn(t *testing.T, s *Store, n, rounds int) (first uint64) {
	t.Helper()
	first = seed.Value(t)
	var owners sync.WaitGroup
	for i := range n {
		owners.Go(func() {
			rng := rand.New(rand.NewPCG(first, uint64(i)))
			owner := pod(fmt.Sprint(i))
			random := func() pipeline.State {
				st := flows(flow(0, ovs.GotoTable(30)))
				for range rng.IntN(5) {
					st.Flows = append(st.Flows, flow(100*(i+1)+len(st.Flows), goovs.Output(1+rng.IntN(3))))
				}
				return st
			}
			for range rounds {
				var c *Commit
				if rng.IntN(4) == 0 {
					c = s.Delete(owner)
				} else {
					c = s.Set(owner, random())
				}
				if rng.IntN(3) == 0 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(rng.IntN(3000))*time.Microsecond)
					_ = c.Wait(ctx) // both results are valid
					cancel()
				}
			}
			if err := s.Set(owner, random()).Wait(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	owners.Wait()
	return first
}

func TestRun_concurrentOwnersAndOutages(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	ctx, cancel := context.WithCancel(t.Context())
	var outages sync.WaitGroup
	outages.Go(func() {
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for n := 0; ctx.Err() == nil; n++ {
			<-tick.C
			f.SetUnavailable(n%3 == 0)
			if n%7 == 0 {
				f.Restart()
				s.Resync()
			}
		}
		f.SetUnavailable(false)
	})
	churn(t, s, 20, 200)
	cancel()
	outages.Wait()
	s.Resync()
	must(t, s.Set(pod("last"), flows(flow(9, goovs.Drop()))))

	var want []string
	for _, flow := range allFlows(s.table.state()) {
		text, err := ovs.FlowText(flow)
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, text)
	}
	if diff := cmp.Diff(want, f.Flows(), cmpopts.SortSlices(strings.Compare)); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
	if n := len(s.current); n != 21 {
		t.Errorf("got %d owners, want 21", n)
	}
	if !slices.ContainsFunc(want, func(s string) bool { return strings.Contains(s, fmt.Sprintf("cookie=0x%x,", pipeline.SharedCookie())) }) {
		t.Error("got no shared flow")
	}
}
