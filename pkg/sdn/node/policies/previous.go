package policies

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// previousTime is how long replies to connections that the previous version committed pass after the start of the agent. A connection whose
// opener sends a packet in that time is committed again, in a zone of this version.
const previousTime = time.Hour

// findPrevious installs the lookup of connections that the previous version committed, if there are any.
func (p *Policies) findPrevious(ctx context.Context) error {
	found := 0
	if err := p.bridge.ListConnections(ctx, pipeline.AllowedZones(), func(c ovs.Connection) {
		if pipeline.IsPrevious(c) {
			found++
		}
	}); err != nil {
		return err
	}
	if found > 0 {
		klog.FromContext(ctx).Info("Installed lookup of the previous version's connections", "connections", found, "duration", previousTime)
		p.previous = time.After(previousTime)
		p.sw.Recompile([]store.Change{p.compiler.previousZones(true)})
	}
	return nil
}

// expirePrevious removes the lookup after its time.
func (p *Policies) expirePrevious(ctx context.Context) {
	select {
	case <-p.previous: // nil if it was never installed
		p.sw.Recompile([]store.Change{p.compiler.previousZones(false)})
		klog.FromContext(ctx).Info("Removed lookup of the previous version's connections")
	case <-ctx.Done():
	}
}

func (c *Compiler) previousZones(exist bool) store.Change {
	change := store.Change{Owner: pipeline.Owner{Kind: pipeline.KindPolicy, Key: "connections of the previous version"}}
	if exist {
		change.State = c.node.PreviousZones()
	}
	return change
}
