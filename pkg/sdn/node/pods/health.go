package pods

import (
	"context"
	"errors"
	"sync"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// health is what requests and Run last saw of what every ADD needs. STATUS answers from it alone.
type health struct {
	mu     sync.Mutex
	misses int   // probes in a row that Open vSwitch did not answer
	bridge error // the last one's
	disk   error // addresses can't be written
	works  works
}

// works counts how often Open vSwitch has answered, and an address has been written. Who asks takes note of it: a failure is over, though
// it is told later, if there has been a success since the question.
type works struct{ bridge, disk uint64 }

// maxMisses is how many probes may fail in a row: Open vSwitch misses one when it restarts, or the processor is busy, and a STATUS that
// fails makes the node not ready.
const maxMisses = 1

// diskError says that an address could not be taken, or freed, because of the disk that they are kept on.
type diskError struct{ err error }

func (e *diskError) Error() string { return e.err.Error() }
func (e *diskError) Unwrap() error { return e.err }

// learn draws conclusions from how a request ended. ADD tries everything; a DEL may have found no address to free. That Open vSwitch did
// not answer is for the probes to say: a wave of requests finds that many times in one moment.
func (m *Manager) learn(asked works, err error, triedDisk bool) {
	var disk *diskError
	switch {
	case err == nil:
		m.health.probed(asked, nil)
		if triedDisk {
			m.health.setDisk(asked, nil)
		}
	case errors.As(err, &disk):
		if m.health.setDisk(asked, err) {
			m.events.WarnNode(ReasonAddressStorage, err.Error())
		}
	}
}

// asking is called before a question whose answer probed or setDisk is told.
func (h *health) asking() works {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.works
}

// probed takes note of whether Open vSwitch has answered.
func (h *health) probed(asked works, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.works.bridge++
		h.misses, h.bridge = 0, nil
	case asked.bridge == h.works.bridge:
		h.misses++
		h.bridge = err
	}
}

// setDisk takes note of whether addresses can be written.
func (h *health) setDisk(asked works, err error) (changed bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case err == nil:
		h.works.disk++
	case asked.disk != h.works.disk:
		return false
	}
	changed = (h.disk == nil) != (err == nil)
	h.disk = err
	return changed
}

func (h *health) get() (bridge, disk error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.misses > maxMisses {
		bridge = h.bridge
	}
	return bridge, h.disk
}

// Status tells whether ADD can be served, from memory.
//
// A node without a free address is healthy, though the specification would have an error: to Kubernetes' runtimes a
// STATUS that fails means that the node has no network, so kubelet would call it not ready and its pods, which need no further
// address, would be evicted. ADD answers for itself, and an Event on the node says it.
func (m *Manager) Status(context.Context) error {
	if !m.recovered.Load() {
		return types.NewError(types.ErrPluginNotAvailable, "the node agent is starting", "")
	}
	bridge, disk := m.health.get()
	switch {
	case bridge != nil:
		return types.NewError(types.ErrLimitedConnectivity, "Open vSwitch does not answer on node "+m.NodeName, bridge.Error())
	case disk != nil:
		return types.NewError(types.ErrPluginNotAvailable, "the addresses of node "+m.NodeName+" can't be written: is its disk full or read-only?", disk.Error())
	}
	return nil
}

// Healthy returns what keeps Open vSwitch from serving pods, nil if nothing does.
func (m *Manager) Healthy() error {
	bridge, _ := m.health.get()
	return bridge
}

// starting refuses what must not run before Recover: it could take a living pod's address.
func (m *Manager) starting() error {
	if !m.recovered.Load() {
		return types.NewError(types.ErrTryAgainLater, "the node agent is starting", "")
	}
	return nil
}

// asCNIError tells the runtime to come again while Open vSwitch is away, and what is the disk's fault. Other errors go as they are.
func asCNIError(err error) error {
	var own *types.Error
	var disk *diskError
	switch {
	case errors.As(err, &own):
		return err
	case errors.As(err, &disk):
		return types.NewError(types.ErrIOFailure, "the node's addresses can't be written: is its disk full or read-only?", err.Error())
	case ovs.IsUnavailable(err):
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	}
	return err
}
