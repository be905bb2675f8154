// Package pods handles CNI requests: it creates and removes the address, veth pair, OVS port and flows of an attachment of a sandbox to the
// pod network.
//
// The order of steps makes every crash recoverable. ADD allocates the address first and DEL releases it last, so that all that an
// interrupted ADD or DEL leaves has a lease with its container id and interface name, from which all other names are derived. Cleanup of a
// failed ADD, DEL, GC and the reconciliation therefore share one function, remove.
//
// A sandbox counts as running while its host veth exists. If a running sandbox has no port, because the bridge or OVSDB was lost or an ADD or DEL was
// interrupted, its port and flows are rebuilt from its lease and the alias of its host veth. Only DEL, and GC with the runtime's
// list of valid attachments, remove a running sandbox.
package pods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/keyedlock"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podflows"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/podinterface"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
)

// defaultCleanupTimeout bounds the cleanup after a failed ADD, whose own context may have ended.
const defaultCleanupTimeout = 10 * time.Second

// Manager attaches and detaches pods. It is a cniserver.Handler. Its methods are safe for concurrent use, except Recover.
type Manager struct {
	podinterface.Options

	pods     Pods
	ipam     IPAM
	links    Links
	macvlans Macvlans
	bridge   Switch
	flows    podFlows
	events   Events

	previousVNIDs PreviousVNIDs
	beforeRelease func(context.Context, sandbox.Attachment) error // nil: nothing depends on addresses

	cleanupTimeout time.Duration
	sandboxes      keyedlock.Locks    // held while a sandbox is changed
	releases       singleflight.Group // concurrent ADDs without a free address share a reconciliation
	recovered      atomic.Bool        // Recover has ended
	health         health
	pending        []pendingFlows // set by Recover, for Run

	mu       sync.RWMutex
	attached map[sandbox.Attachment]sandbox.Pod
	faults   map[sandbox.Attachment]error // known failures of attached pods

	rebuilt      []sandbox.Pod                 // pods whose deleted ports were rebuilt, until reportRepaired
	unidentified map[sandbox.Attachment]string // running sandboxes whose pods are unknown, with the reported cause

	outsideReported map[sandbox.Attachment]bool   // pods that rejectOutside has reported
	macvlanReported map[sandbox.Attachment]string // differences that reportMacvlan has reported
}

var _ cniserver.Handler = &Manager{}

// New returns a manager. It rejects requests until Recover has ended.
func New(o podinterface.Options, d Dependencies) (*Manager, error) {
	if err := errors.Join(o.Validate(), d.validate()); err != nil {
		return nil, fmt.Errorf("pod network: %w", err)
	}
	return &Manager{
		Options:  o,
		pods:     d.Pods,
		ipam:     d.IPAM,
		links:    d.Links,
		macvlans: d.Macvlans,
		bridge:   d.Switch,
		flows: podflows.New(podflows.Dependencies{
			Store: d.Store, Cache: d.Pods, Compile: d.Compile, Events: d.Events, Handlers: d.Handlers, FetchNamespace: d.FetchNamespace,
		}),
		events:         d.Events,
		previousVNIDs:  d.PreviousVNIDs,
		beforeRelease:  d.BeforeRelease,
		cleanupTimeout: defaultCleanupTimeout,
		sandboxes:      keyedlock.New(),
		attached:       map[sandbox.Attachment]sandbox.Pod{},
		faults:         map[sandbox.Attachment]error{},

		unidentified: map[sandbox.Attachment]string{},

		outsideReported: map[sandbox.Attachment]bool{},
		macvlanReported: map[sandbox.Attachment]string{},
	}, nil
}

// Pods returns the pods that are attached, ordered by namespace and name.
func (m *Manager) Pods() []sandbox.Pod {
	m.mu.RLock()
	defer m.mu.RUnlock()
	pods := make([]sandbox.Pod, 0, len(m.attached))
	for _, p := range m.attached {
		pods = append(pods, p)
	}
	slices.SortFunc(pods, sandbox.Pod.Compare)
	return pods
}

func (m *Manager) get(a sandbox.Attachment) (sandbox.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.attached[a]
	return p, ok
}

// setAttached stores an attached pod and its known failure, or nil.
func (m *Manager) setAttached(p sandbox.Pod, fault error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attached[p.Attachment] = p
	delete(m.unidentified, p.Attachment)
	if fault == nil {
		delete(m.faults, p.Attachment)
	} else {
		m.faults[p.Attachment] = fault
	}
}

func (m *Manager) deleteAttached(a sandbox.Attachment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attached, a)
	delete(m.faults, a)
	delete(m.unidentified, a)
	delete(m.outsideReported, a)
	delete(m.macvlanReported, a)
}

// Known returns the attached sandboxes, and those that run and whose pods are unknown.
func (m *Manager) Known() map[sandbox.Attachment]bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make(map[sandbox.Attachment]bool, len(m.attached)+len(m.unidentified))
	for a := range m.attached {
		all[a] = true
	}
	for a := range m.unidentified {
		all[a] = true
	}
	return all
}

// fault returns the known failure of an attached pod.
func (m *Manager) fault(a sandbox.Attachment) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.faults[a]
}

// otherPodWith returns another pod that has one of the addresses.
func (m *Manager) otherPodWith(a sandbox.Attachment, addrs []netip.Addr) (sandbox.Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, p := range m.attached {
		if p.Attachment != a && p.HasAnyAddr(addrs) {
			return p, true
		}
	}
	return sandbox.Pod{}, false
}
