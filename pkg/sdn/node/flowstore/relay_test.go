package flowstore

import (
	"sync"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs/native"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// relay counts the changes that a backend sends to its switch.
type relay struct {
	mu             sync.Mutex
	flows, deletes int
	groups, meters int
	bundles        int
}

// newRelay starts a switch with the bridge, and returns a backend that is connected through a relay.
func newRelay(t *testing.T) (*ovstest.Switch, *native.Native, *relay) {
	t.Helper()
	sw, _ := newSwitch(t)
	r := &relay{}
	bridge := native.New(ovstest.Bridge, sw.Relay(t, r.note))
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
	}
}

// counts are the changes since the previous call of take.
type counts struct{ flows, deletes, groups, meters, bundles int }

func (r *relay) take() counts {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := counts{r.flows, r.deletes, r.groups, r.meters, r.bundles}
	r.flows, r.deletes, r.groups, r.meters, r.bundles = 0, 0, 0, 0, 0
	return c
}
