package pods

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
)

// health is the last known state of Open vSwitch and of the disk, both of which ADD requires. STATUS reads nothing else.
type health struct {
	mu           sync.Mutex
	failedProbes int   // in a row
	bridge       error // of the last probe of Open vSwitch
	disk         error // of the last write of a lease
	sysctls      error // of the last reconciliation
	successes    successCounts
}

// successCounts counts the answers of Open vSwitch and the written leases. A failed operation is ignored if another one that
// started after it has succeeded: its counts then differ from those of its snapshot.
type successCounts struct{ bridge, disk uint64 }

// maxFailedProbes is the number of probes in a row that may fail without an effect on STATUS: one fails when Open vSwitch restarts or the
// processor is busy, and a failed STATUS makes the node not ready.
const maxFailedProbes = 1

// diskError reports that a lease could not be written or deleted.
type diskError struct{ err error }

func (e *diskError) Error() string { return e.err.Error() }
func (e *diskError) Unwrap() error { return e.err }

// recordResult updates the health from the result of a request. triedDisk reports that the request wrote a lease, as ADD does. Only probes
// record failures of Open vSwitch: many requests fail at the same moment.
func (m *Manager) recordResult(before successCounts, err error, triedDisk bool) {
	var disk *diskError
	switch {
	case err == nil:
		m.health.recordProbe(before, nil)
		if triedDisk {
			m.health.recordDisk(before, nil)
		}
	case errors.As(err, &disk):
		if m.health.recordDisk(before, err) {
			m.events.WarnNode(eventreason.AddressStorageFailing,
				fmt.Sprintf("node %s failed to write IP leases: %v; check whether its disk is full or read-only", m.NodeName, err))
		}
	}
}

// snapshot is called before an operation whose result is passed to recordProbe or recordDisk.
func (h *health) snapshot() successCounts {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.successes
}

// recordProbe records whether Open vSwitch answered.
func (h *health) recordProbe(before successCounts, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.successes.bridge++
		h.failedProbes, h.bridge = 0, nil
	case before.bridge == h.successes.bridge:
		h.failedProbes++
		h.bridge = err
	}
}

// recordDisk records whether a lease could be written.
func (h *health) recordDisk(before successCounts, err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.successes.disk++
	case before.disk != h.successes.disk:
		return false
	}
	changed = (h.disk == nil) != (err == nil)
	h.disk = err
	return changed
}

func (h *health) recordSysctls(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sysctls = err
}

func (h *health) get() (bridge, disk error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.failedProbes > maxFailedProbes {
		bridge = h.bridge
	}
	return bridge, h.disk
}

// Status reports whether ADD can succeed. It uses the recorded health only.
//
// A node without a free address is healthy, although the CNI specification asks for an error: after a failed STATUS Kubernetes' runtimes report
// that the node has no network, and kubelet makes it not ready, which would evict pods that need no further address. ADD returns an
// error instead, and an Event on the Node reports it.
func (m *Manager) Status(context.Context) error {
	if !m.recovered.Load() {
		return types.NewError(types.ErrPluginNotAvailable, "the node agent is starting", "")
	}
	bridge, disk := m.health.get()
	switch {
	case bridge != nil:
		return types.NewError(types.ErrLimitedConnectivity, "Open vSwitch does not answer on node "+m.NodeName, bridge.Error())
	case disk != nil:
		return types.NewError(types.ErrPluginNotAvailable, "node "+m.NodeName+" failed to write IP leases; check whether its disk is full or read-only", disk.Error())
	}
	return nil
}

// Healthy returns the failure of Open vSwitch that prevents ADD, or nil.
func (m *Manager) Healthy() error {
	bridge, _ := m.health.get()
	return bridge
}

// SysctlsHealthy returns the first failure to write sysctls of pods' interfaces in the last reconciliation, or nil.
func (m *Manager) SysctlsHealthy() error {
	m.health.mu.Lock()
	defer m.health.mu.Unlock()
	return m.health.sysctls
}

// requireRecovered returns an error before Recover has ended: an ADD could allocate the address of a running pod.
func (m *Manager) requireRecovered() error {
	if !m.recovered.Load() {
		return types.NewError(types.ErrTryAgainLater, "the node agent is starting", "")
	}
	return nil
}

// asCNIError returns ErrTryAgainLater when Open vSwitch is unavailable and ErrIOFailure when the disk failed. It returns other errors unchanged.
func asCNIError(err error) error {
	var cniErr *types.Error
	var disk *diskError
	switch {
	case errors.As(err, &cniErr):
		return err
	case errors.As(err, &disk):
		return types.NewError(types.ErrIOFailure, "failed to write IP leases; check whether the node's disk is full or read-only", err.Error())
	case ovs.IsUnavailable(err):
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	}
	return err
}
