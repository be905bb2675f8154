package node

import (
	"context"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// repairInterval is the minimum time between two comparisons of the bridge after changes by other programs. It bounds the cost of a program that changes
// flows all the time.
const repairInterval = time.Second

// newRepair returns the runner that repairs the bridge after changes by other programs.
func newRepair(st *store.Store) *reconcile.Runner {
	return reconcile.NewRunner("flow repair", repairInterval, func(context.Context) error {
		st.Audit()
		return nil
	})
}

// onSwitchEvent returns the handler of Open vSwitch's events. A restarted vswitchd has no flows: the store writes them again, and writes nothing
// if they are active. The switch itself changes the flows of session affinity.
func onSwitchEvent(st *store.Store, bridge *bridgeReconciler, limits *zoneLimits, repair *reconcile.Runner) func(native.Event) {
	return func(e native.Event) {
		switch e.Kind {
		case native.SwitchConnected:
			st.Resync()
			limits.Reset()
		case native.DatabaseConnected, native.BridgeChanged:
			bridge.enqueue(bridgeName)
		case native.ForeignChange:
			if e.Table != pipeline.AffinityTable {
				repair.Trigger()
			}
		case native.PortChanged:
			bridge.enqueue(e.Port.Name)
		case native.FlowsLost:
			bridge.enqueue(bridgeName)
			st.Resync()
		}
	}
}
