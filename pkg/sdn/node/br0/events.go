package br0

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// repairInterval is the minimum time between two repairs of the bridge, and between two comparisons of its flows, after changes by other programs. It bounds
// the cost of a program that changes them all the time, or after each repair.
const repairInterval = time.Second

// FlowRepair repairs the flows after changes by other programs.
type FlowRepair struct {
	changed *reconcile.Runner
	lost    *reconcile.Runner // all of them
}

// NewFlowRepair returns the repair of the flows of the store.
func NewFlowRepair(st *flowstore.Store) *FlowRepair {
	runner := func(name string, run func()) *reconcile.Runner {
		return reconcile.NewRunner(name, repairInterval, func(context.Context) error {
			run()
			return nil
		})
	}
	return &FlowRepair{changed: runner("flow repair", st.Audit), lost: runner("flow restoration", st.Resync)}
}

// Run repairs flows until the context ends.
func (r *FlowRepair) Run(ctx context.Context) {
	var parts sync.WaitGroup
	defer parts.Wait()
	parts.Go(func() { r.changed.Run(ctx) })
	r.lost.Run(ctx)
}

// MonitoredTables returns the tables whose changes are repaired: those of the pipeline except for session affinity, whose flows the switch changes by itself,
// as often as tenants' clients connect.
func MonitoredTables() []int {
	names := pipeline.TableNames()
	delete(names, pipeline.AffinityTable)
	return slices.Sorted(maps.Keys(names))
}

// OnEvent returns the handler of Open vSwitch's events. A restarted vswitchd has no flows: the store writes them again, and writes nothing
// if they are active. onConnected are called after a new connection to vswitchd.
func OnEvent(st *flowstore.Store, bridge *Reconciler, repair *FlowRepair, onConnected ...func()) func(native.Event) {
	return func(e native.Event) {
		switch e.Kind {
		case native.SwitchConnected:
			st.Resync()
			for _, f := range onConnected {
				f()
			}
		case native.DatabaseConnected, native.BridgeChanged:
			bridge.enqueue(Name)
		case native.ForeignChange:
			repair.changed.Trigger()
		case native.PortChanged:
			bridge.enqueue(e.Port.Name)
		case native.FlowsLost:
			st.FlowsLost() // immediately: an audit may precede the restoration
			bridge.enqueue(Name)
			repair.lost.Trigger()
		}
	}
}
