package networkpolicy

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// previousTime is the time after the start of the agent in which replies to connections that the previous version committed pass. A connection whose
// opener sends a packet in that time is committed again, in a zone of this version.
const previousTime = time.Hour

// findPrevious installs the lookup of connections that the previous version committed, if any exist.
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
		p.store.SetAll(p.compiler.previousZones(true))
	}
	return nil
}

// expirePrevious removes the lookup after previousTime.
func (p *Policies) expirePrevious(ctx context.Context) {
	select {
	case <-p.previous: // nil if the lookup was not installed
		p.store.SetAll(p.compiler.previousZones(false))
		klog.FromContext(ctx).Info("Removed lookup of the previous version's connections")
	case <-ctx.Done():
	}
}

// previousZones returns the change that installs or removes the lookup.
func (c *Compiler) previousZones(install bool) flowstore.Change {
	change := flowstore.Change{Owner: pipeline.Owner{Kind: pipeline.KindPolicy, Key: "connections of the previous version"}}
	if install {
		change.State = c.node.PreviousZones()
	}
	return change
}
