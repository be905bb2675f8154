package store

import (
	"sync"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// relay counts what a backend changes at its switch.
type relay struct {
	mu             sync.Mutex
	flows, deletes int
	groups, meters int
	flushes        int
	bundles        int
}

// newRelay starts a switch with the bridge, and returns a backend that reaches it through a relay.
func newRelay(t *testing.T) (*ovstest.Switch, *ovs.Native, *relay) {
	t.Helper()
	sw, _ := newSwitch(t)
	r := &relay{}
	bridge := ovs.NewNative(ovstest.Bridge, sw.Relay(t, r.note))
	t.Cleanup(bridge.Close)
	return sw, bridge, r
}

func (r *relay) note(m openflow.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch m := m.(type) {
	case *openflow.BundleAdd:
		switch inner := m.Message.(type) {
		case *openflow.FlowMod:
			if inner.Command == openflow.FlowAdd {
				r.flows++
			} else {
				r.deletes++
			}
		case *openflow.GroupMod:
			r.groups++
		}
	case *openflow.BundleControl:
		if m.Step == openflow.BundleCommit {
			r.bundles++
		}
	case *openflow.MeterMod:
		r.meters++
	case *openflow.CTFlush, *openflow.CTFlushZone:
		r.flushes++
	}
}

// counts are what came since the last call.
type counts struct{ flows, deletes, groups, meters, flushes, bundles int }

func (r *relay) take() counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := counts{r.flows, r.deletes, r.groups, r.meters, r.flushes, r.bundles}
	r.flows, r.deletes, r.groups, r.meters, r.flushes, r.bundles = 0, 0, 0, 0, 0, 0
	return c
}
