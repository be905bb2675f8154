package policies

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// counted counts how often what the switch tracks is gone through.
type counted struct {
	*ovs.Fake
	lists atomic.Int32
}

func (c *counted) ListConnections(ctx context.Context, zones ovs.Zones, each func(ovs.Connection)) error {
	c.lists.Add(1)
	return c.Fake.ListConnections(ctx, zones, each)
}

// runCuts runs cuts by newJudge's policies until the context ends.
func runCuts(ctx context.Context, t *testing.T) (*counted, *Cuts) {
	t.Helper()
	tracker := &counted{Fake: ovs.NewFake("br0")}
	if err := tracker.EnsureBridge(ctx, ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	j := newJudge(t)
	cuts := newCuts(tracker, &sync.Mutex{}, func() *judge { return j })
	go cuts.Run(ctx)
	return tracker, cuts
}

// A loss of permission is heeded at once, an address after a while or with what comes first, and what is no loss never.
func TestOnlyLossesCostARun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		tracker, cuts := runCuts(ctx, t)
		after := func(what string, want int32) {
			t.Helper()
			if lists := tracker.lists.Load(); lists != want {
				t.Errorf("%s: %d runs, want %d", what, lists, want)
			}
		}
		wait := func() { // by the clock of the bubble
			<-time.After(forgetInterval)
			synctest.Wait()
		}
		cuts.Heed(policy.Loss{})
		wait()
		after("nothing is lost", 0)
		cuts.Heed(policy.Loss{Permission: true})
		synctest.Wait()
		after("a permission is lost", 1)
		wait()
		after("nothing more", 1)
		gone := tracked(zoneHere, protoTCP, "10.128.0.2:1000", "10.129.0.2:80")
		tracker.Connect(ovs.Connections{Zone: gone.Zone, Protocol: gone.Protocol, Original: gone.Original, Reply: gone.Reply})
		cuts.Heed(policy.Loss{Addrs: []netip.Addr{netip.MustParseAddr("10.129.0.2")}})
		synctest.Wait()
		after("a pod elsewhere has gone", 1)
		wait()
		after("a while later", 2)
		if left := tracker.Tracked(); len(left) > 0 {
			t.Errorf("%v is left", left)
		}
	})
}

// What is cut before the flows of the loss are on the switch would be allowed anew.
func TestCutsWaitForTheFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		defer synctest.Wait()
		defer stop()
		tracker, cuts := runCuts(ctx, t)
		st := store.New(tracker)
		cuts.Heed(policy.Loss{Permission: true}, st.Set(pipeline.Owner{Kind: pipeline.KindPolicy, Key: "p"}, pipeline.State{}))
		<-time.After(forgetInterval) // by the clock of the bubble
		synctest.Wait()
		if lists := tracker.lists.Load(); lists != 0 {
			t.Errorf("%d runs before the flows were there", lists)
		}
		go func() { _ = st.Run(ctx) }()
		synctest.Wait()
		if lists := tracker.lists.Load(); lists != 1 {
			t.Errorf("%d runs when they are, want 1", lists)
		}
	})
}

// What the switch tracks of a pod elsewhere does not outlive it, also when no rule knew it.
func TestConnectionsWithPodsElsewhereThatHaveGone(t *testing.T) {
	friend := podObject("b", "friend", "7", "10.129.0.7", nil)
	f := newFixture(t, func(f *fixture) {
		two(f)
		f.pods.Add(friend)
	})
	f.come(podObject("a", "web", "2", "", labels("web")), "s1", 3, "10.128.0.5")
	c := tracked(zoneHere, protoTCP, "10.128.0.5:1000", "10.129.0.7:80")
	f.bridge.Connect(ovs.Connections{Zone: c.Zone, Protocol: c.Protocol, Original: c.Original, Reply: c.Reply})
	f.pods.Delete(friend)
	f.eventually(func([]string) error {
		if !f.cuts.owes() && len(f.bridge.Tracked()) > 0 {
			return errors.New("nobody has told of the address")
		}
		return nil
	})
	f.must(f.cuts.cut(t.Context()))
	f.eventually(func([]string) error { // another run may have had it
		if left := f.bridge.Tracked(); len(left) > 0 {
			return fmt.Errorf("%v is left", left)
		}
		return nil
	})
}
