package node

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// newZoneLimits returns what keeps every opener of connections from filling the tracker (docs/decisions/0001). It is to be poked whenever
// there is another session with vswitchd, which may have forgotten the limits.
func newZoneLimits(bridge *ovs.Native) *reconcile.Runner {
	r := reconcile.NewRunner("zone limits", time.Second, func(ctx context.Context) error {
		limit, err := bridge.LimitZones(ctx, pipeline.Zones(), pipeline.ZoneShare)
		if err != nil {
			return err
		}
		klog.FromContext(ctx).Info("Whoever opens connections has room for so many and no more", "connections", limit)
		return nil
	})
	r.Poke()
	return r
}
