package pods

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
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

// knownPorts answers a removal of a port that does not exist from its copy of the database, as ovs.Native does.
type knownPorts struct{ Switch }

func (knownPorts) DeletePort(context.Context, string) error { return nil }

// TestDel_nothingToDetach: a DEL of an unknown sandbox succeeds without a request to Open vSwitch, and does not count as its answer.
func TestDel_nothingToDetach(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	add(t, a, n.addPod("attached", newNetns(t))) // returns after the store's first flows: a DEL waits for these too
	n.bridge.(interface{ SetUnavailable(bool) }).SetUnavailable(true)
	a.bridge = knownPorts{a.bridge}
	a.probe(t.Context())
	a.probe(t.Context())
	del(t, a, n.addPod("unknown", newNetns(t)))
	if err := a.Status(t.Context()); code(err) != types.ErrLimitedConnectivity {
		t.Errorf("STATUS after two failed probes and a DEL of an unknown sandbox: got %v, want code %d", err, types.ErrLimitedConnectivity)
	}
}

// A question is answered by a failure, but before anybody hears of that a later one succeeds: the failure is over.
func TestFailureThatIsOlderThanASuccessIsForgotten(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	healthy := func(when string) {
		t.Helper()
		if err := a.Status(t.Context()); err != nil {
			t.Errorf("STATUS %s: %v", when, err)
		}
	}
	disk := a.ipam
	late := func(name string) *lateFailure {
		req := n.addPod(name, newNetns(t))
		return &lateFailure{IPAM: disk, then: func() { add(t, a, req) }}
	}

	a.faults.at("before allocate", false)
	if _, err := a.Add(t.Context(), n.addPod("failed", newNetns(t))); code(err) != types.ErrIOFailure {
		t.Errorf("ADD: %v", err)
	}
	if err := a.Status(t.Context()); code(err) != types.ErrPluginNotAvailable {
		t.Errorf("STATUS after an ADD that could not write: %v", err)
	}
	a.ipam = late("during-probe")
	a.probe(t.Context())
	healthy("after an ADD while the disk was probed")

	a.ipam = late("during-add")
	if _, err := a.Add(t.Context(), n.addPod("overtaken", newNetns(t))); code(err) != types.ErrIOFailure {
		t.Errorf("ADD: %v", err)
	}
	healthy("after an ADD during one that failed")
	a.ipam = disk

	lost := n.addPod("lost", newNetns(t))
	a.bridge = &whenListed{Switch: a.bridge, then: func() {
		add(t, a, lost)
		n.bridge.(interface{ SetUnavailable(bool) }).SetUnavailable(true)
	}}
	a.probe(t.Context())
	a.probe(t.Context())
	healthy("after one probe more than the ADD")
	a.probe(t.Context())
	if err := a.Status(t.Context()); code(err) != types.ErrLimitedConnectivity {
		t.Errorf("STATUS after two probes: %v", err)
	}
}

// lateFailure is a disk that fails the first who asks it, who hears of it after something else has succeeded.
type lateFailure struct {
	IPAM
	failed bool
	then   func()
}

func (l *lateFailure) fail() error {
	if l.failed {
		return nil
	}
	l.failed = true
	l.then()
	return unix.EROFS
}

func (l *lateFailure) Probe(ctx context.Context) error {
	return errors.Join(l.fail(), l.IPAM.Probe(ctx))
}

func (l *lateFailure) Allocate(ctx context.Context, id, ifName string) ([]netip.Addr, error) {
	if err := l.fail(); err != nil {
		return nil, err
	}
	return l.IPAM.Allocate(ctx, id, ifName)
}
