package br0

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// countingBridge counts comparisons of all flows.
type countingBridge struct {
	*ovs.Fake
	comparisons atomic.Int32
}

func (b *countingBridge) Replace(ctx context.Context, want ovs.State) (ovs.Difference, error) {
	b.comparisons.Add(1)
	return b.Fake.Replace(ctx, want)
}

// The switch changes flows of session affinity by itself, for tenants' clients: they cause neither events nor a pause of the monitor.
func TestMonitoredTables(t *testing.T) {
	got := MonitoredTables()
	if slices.Contains(got, pipeline.AffinityTable) || len(got) != len(pipeline.TableNames())-1 {
		t.Errorf("got tables %d, want those of the pipeline without %d", got, pipeline.AffinityTable)
	}
}

// The first foreign change is repaired immediately; a storm of them leads to one comparison per second.
func TestOnSwitchEvent_foreignChanges(t *testing.T) {
	for name, tc := range map[string]struct{ table, min, max int32 }{
		"flows of a program": {20, 10, 12},
		"groups, meters":     {native.NoTable, 10, 12},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bridge := &countingBridge{Fake: ovs.NewFake(Name)}
				if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: Name, DatapathType: "netdev"}); err != nil {
					t.Fatal(err)
				}
				st := flowstore.New(bridge)
				repair := NewFlowRepair(st)
				handle := OnEvent(st, nil, repair)
				ctx, cancel := context.WithCancel(t.Context())
				var parts sync.WaitGroup
				defer parts.Wait()
				defer cancel()
				parts.Go(func() { _ = st.Run(ctx) })
				parts.Go(func() { repair.Run(ctx) })
				synctest.Wait()
				before := bridge.comparisons.Load()
				for range 1000 {
					handle(native.Event{Kind: native.ForeignChange, Table: int(tc.table)})
					time.Sleep(10 * time.Millisecond) //nolint:forbidigo // of the bubble
				}
				synctest.Wait()
				if got := bridge.comparisons.Load() - before; got < tc.min || got > tc.max {
					t.Errorf("got %d comparisons in 10 seconds, want %d to %d", got, tc.min, tc.max)
				}
			})
		})
	}
}

// The restoration after lost flows may be delayed. An audit that precedes it counts no drift; the next one does.
func TestOnSwitchEvent_auditBeforeRestoration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bridge := ovs.NewFake(Name)
		if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: Name, DatapathType: "netdev"}); err != nil {
			t.Fatal(err)
		}
		st := flowstore.New(bridge)
		st.Set(pipeline.Owner{Kind: pipeline.KindNode, Key: "node1"}, pipeline.State{Flows: []*ovs.Flow{{Priority: 7, Actions: []ovs.Action{goovs.Drop()}}}})
		repair := NewFlowRepair(st)
		handle := OnEvent(st, NewReconciler(&Bridge{wanted: Identity()}, nil, nil, nil), repair)
		ctx, cancel := context.WithCancel(t.Context())
		var parts sync.WaitGroup
		defer parts.Wait()
		defer cancel()
		parts.Go(func() { _ = st.Run(ctx) })
		parts.Go(func() { repair.Run(ctx) })
		handle(native.Event{Kind: native.FlowsLost}) // delays the next restoration
		synctest.Wait()
		lose := func(kinds ...native.EventKind) {
			t.Helper()
			bridge.Restart()
			for _, kind := range kinds {
				handle(native.Event{Kind: kind})
			}
			synctest.Wait()
			if got := len(bridge.Flows()); got != 1 {
				t.Errorf("got %d flows, want 1", got)
			}
		}
		lose(native.FlowsLost, native.ForeignChange)
		if got := st.Drift(); got.Changes() != 0 {
			t.Errorf("got drift %+v after Open vSwitch lost its flows, want none", got)
		}
		time.Sleep(2 * repairInterval) //nolint:forbidigo // of the bubble
		lose(native.ForeignChange)
		if got := st.Drift().Missing; got != 1 {
			t.Errorf("got drift of %d, want 1", got)
		}
	})
}

// Another program that restores its settings of the bridge after each repair causes one repair per second, and lost flows one comparison per second.
func TestOnSwitchEvent_contestedSettings(t *testing.T) {
	for name, event := range map[string]native.Event{
		"settings of the bridge": {Kind: native.BridgeChanged},
		"fail mode":              {Kind: native.FlowsLost},
		"number of a fixed port": {Kind: native.PortChanged, Port: ovs.Port{Name: Name}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				bridge := &countingBridge{Fake: ovs.NewFake(Name)}
				if err := bridge.EnsureBridge(t.Context(), ovs.Bridge{Name: Name, DatapathType: "netdev"}); err != nil {
					t.Fatal(err)
				}
				st := flowstore.New(bridge)
				repair := NewFlowRepair(st)
				reconciler := NewReconciler(&Bridge{wanted: Identity()}, nil, nil, nil)
				handle := OnEvent(st, reconciler, repair)
				ctx, cancel := context.WithCancel(t.Context())
				var parts sync.WaitGroup
				defer parts.Wait()
				defer cancel()
				var repairs int
				reconciler.loop = reconcile.New("bridge", func(ctx context.Context, _ string) error {
					repairs++
					parts.Go(func() {
						select {
						case <-time.After(time.Millisecond):
							handle(event)
						case <-ctx.Done():
						}
					})
					return nil
				})
				parts.Go(func() { _ = st.Run(ctx) })
				parts.Go(func() { repair.Run(ctx) })
				synctest.Wait()
				before := bridge.comparisons.Load()
				parts.Go(func() { reconciler.Run(ctx) })
				time.Sleep(10 * time.Second) //nolint:forbidigo // of the bubble
				cancel()
				parts.Wait()
				if repairs < 10 || repairs > 12 {
					t.Errorf("got %d repairs of the bridge in 10 seconds, want 10 to 12", repairs)
				}
				if got := bridge.comparisons.Load() - before; got > 12 {
					t.Errorf("got %d comparisons of flows in 10 seconds, want at most 12", got)
				}
			})
		})
	}
}
