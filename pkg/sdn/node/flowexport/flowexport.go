// Package flowexport reconciles the IPFIX exporter of br0's samples in OVSDB (docs/decisions/0021-flow-export.md). The flows of other features have the samples.
package flowexport

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// DefaultCheckInterval is the interval at which changes by other programs are repaired: they cause no event. A check reads memory only.
const DefaultCheckInterval = 10 * time.Second

// Bridge is the bridge with the samples (*native.Native).
type Bridge interface {
	EnsureExporter(ctx context.Context, want *ovs.Exporter) (changed bool, err error)
}

// Exporter is the exporter of the bridge.
type Exporter struct {
	bridge   Bridge
	want     *ovs.Exporter
	interval time.Duration
	runner   *reconcile.Runner
	existed  bool // it was in sync once; used only by the runner
}

// New returns an exporter that Run reconciles. If want is nil, Run removes that of a previous agent.
func New(bridge Bridge, want *ovs.Exporter, interval time.Duration) *Exporter {
	e := &Exporter{bridge: bridge, want: want, interval: interval}
	e.runner = reconcile.NewRunner("flow export", 0, e.reconcile).WithMaxBackoff(interval)
	return e
}

// Resync checks the rows. Call it for each new session with vswitchd.
func (e *Exporter) Resync() { e.runner.Trigger() }

// Run reconciles the rows until the context ends. They remain then, as the flows do.
func (e *Exporter) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { e.runner.Run(ctx) })
	wait.UntilWithContext(ctx, func(context.Context) { e.runner.Trigger() }, e.interval)
	parts.Wait()
}

// reconcile returns no error if vswitchd does not answer or the bridge does not exist: others report that, and the next check follows.
func (e *Exporter) reconcile(ctx context.Context) error {
	changed, err := e.bridge.EnsureExporter(ctx, e.want)
	log := klog.FromContext(ctx)
	switch {
	case ovs.IsUnavailable(err) || ovs.IsNoBridge(err):
		return nil
	case err != nil:
		return err
	case changed && e.want == nil:
		log.Info("Removed the IPFIX exporter of a previous agent")
	case changed && e.existed:
		log.Info("Restored the IPFIX exporter, which another program changed or deleted", "collectors", e.want.Collectors)
	case changed:
		log.Info("Configured the IPFIX exporter", "collectors", e.want.Collectors)
	}
	e.existed = true
	return nil
}
