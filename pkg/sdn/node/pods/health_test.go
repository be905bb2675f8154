package pods

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"
)

// A call to a dependency, all of which are nil, would panic.
func TestStatus_callsNoDependency(t *testing.T) {
	m := &Manager{}
	m.recovered.Store(true)
	if err := m.Status(t.Context()); err != nil {
		t.Error(err)
	}
	if err := m.Healthy(); err != nil {
		t.Error(err)
	}
}

// STATUS, whose failure makes the node not ready, fails after two failed probes in a row, and neither after one nor after failed requests.
func TestStatus_failsAfterTwoProbes(t *testing.T) {
	n := newNode(t)
	a, _ := n.start(t)
	a.cleanupTimeout = 0
	wantHealthy := func(when string) {
		t.Helper()
		if err := a.Status(t.Context()); err != nil {
			t.Errorf("STATUS %s: %v", when, err)
		}
		if err := a.Healthy(); err != nil {
			t.Errorf("Healthy %s: %v", when, err)
		}
	}
	bridge := n.bridge.(interface{ SetUnavailable(bool) })
	bridge.SetUnavailable(true)
	for _, name := range []string{"a", "b"} {
		if _, err := a.Add(t.Context(), n.addPod(name, newNetns(t))); code(err) != types.ErrTryAgainLater {
			t.Errorf("ADD: got %v", err)
		}
	}
	wantHealthy("after two requests")
	a.probe(t.Context())
	wantHealthy("after one probe")

	bridge.SetUnavailable(false)
	a.probe(t.Context())
	bridge.SetUnavailable(true)
	a.probe(t.Context())
	wantHealthy("after two failed probes with a successful one between them")

	a.probe(t.Context())
	if err := a.Status(t.Context()); code(err) != types.ErrLimitedConnectivity {
		t.Errorf("STATUS after two failed probes in a row: got %v, want code %d", err, types.ErrLimitedConnectivity)
	}
	if a.Healthy() == nil {
		t.Error("Healthy after two failed probes in a row: got no error")
	}
	bridge.SetUnavailable(false)
	a.probe(t.Context())
	wantHealthy("when Open vSwitch answers again")
}

// knownPorts answers a removal of a port that does not exist from its copy of the database, as native.Native does.
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

// An operation fails, but another one that started later has succeeded before: the failure is ignored.
func TestHealth_failureOlderThanSuccess(t *testing.T) {
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
		t.Errorf("ADD: got %v", err)
	}
	if err := a.Status(t.Context()); code(err) != types.ErrPluginNotAvailable {
		t.Errorf("STATUS after an ADD that failed to write: got %v, want code %d", err, types.ErrPluginNotAvailable)
	}
	a.ipam = late("during-probe")
	a.probe(t.Context())
	healthy("after an ADD during the probe of the disk")

	a.ipam = late("during-add")
	if _, err := a.Add(t.Context(), n.addPod("slow", newNetns(t))); code(err) != types.ErrIOFailure {
		t.Errorf("ADD: got %v", err)
	}
	healthy("after an ADD during another one that failed")
	a.ipam = disk

	lost := n.addPod("lost", newNetns(t))
	a.bridge = &whenListed{Switch: a.bridge, then: func() {
		add(t, a, lost)
		n.bridge.(interface{ SetUnavailable(bool) }).SetUnavailable(true)
	}}
	a.probe(t.Context())
	a.probe(t.Context())
	healthy("after the ADD and one failed probe")
	a.probe(t.Context())
	if err := a.Status(t.Context()); code(err) != types.ErrLimitedConnectivity {
		t.Errorf("STATUS after the ADD and two failed probes: got %v, want code %d", err, types.ErrLimitedConnectivity)
	}
}

// lateFailure is a disk whose first operation fails, after then has run.
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
