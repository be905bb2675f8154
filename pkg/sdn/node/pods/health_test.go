package pods

import (
	"testing"

	"github.com/containernetworking/cni/pkg/types"
)

// A manager without anything to ask: it would panic.
func TestStatusAsksNobody(t *testing.T) {
	m := &Manager{}
	m.recovered.Store(true)
	if err := m.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.Healthy(); err != nil {
		t.Error(err)
	}
}

// A node whose STATUS fails is not ready: neither one slow answer of Open vSwitch nor requests that come at that moment are enough.
func TestStatusFailsAfterTwoProbes(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	a.undoTime = 0
	wantHealthy := func(when string) {
		t.Helper()
		if err := a.Status(t.Context()); err != nil {
			t.Errorf("STATUS %s: %v", when, err)
		}
		if err := a.Healthy(); err != nil {
			t.Errorf("Healthy %s: %v", when, err)
		}
	}
	away := n.bridge.(interface{ SetUnavailable(bool) })
	away.SetUnavailable(true)
	for _, name := range []string{"a", "b"} {
		if _, err := a.Add(t.Context(), n.addPod(name, newNetns(t))); code(err) != types.ErrTryAgainLater {
			t.Errorf("ADD: %v", err)
		}
	}
	wantHealthy("after two requests")
	a.probe(t.Context())
	wantHealthy("after one probe")

	away.SetUnavailable(false)
	a.probe(t.Context())
	away.SetUnavailable(true)
	a.probe(t.Context())
	wantHealthy("after one probe more, with an answer between the two")

	a.probe(t.Context())
	if err := a.Status(t.Context()); code(err) != types.ErrLimitedConnectivity {
		t.Errorf("STATUS after two probes in a row: %v", err)
	}
	if a.Healthy() == nil {
		t.Error("healthy after two probes in a row")
	}
	away.SetUnavailable(false)
	a.probe(t.Context())
	wantHealthy("when Open vSwitch answers again")
}
