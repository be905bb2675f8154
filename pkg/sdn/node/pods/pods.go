// Package pods sets pods up and takes them down: address, veth pair, OVS port and flows of one attachment of a sandbox to the
// pod network, when the container runtime calls the CNI plugin.
//
// The order of steps makes every crash recoverable. ADD takes the address first and DEL frees it last, so that whatever a
// dead ADD or DEL left behind has an address file that names its container, and from the container's id and interface
// name follow all other names. Undoing a failed ADD, DEL, and the sweep are therefore one function, remove.
//
// A sandbox is alive while its host veth exists. If a living sandbox has no port, because the bridge or OVSDB was lost or an ADD or DEL was
// interrupted, its port and flows are rebuilt from its lease and the alias of its host veth. Only DEL, and GC with the runtime's
// list of valid attachments, remove a living sandbox.
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
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
)

// defaultUndoTime bounds the cleaning after a failed ADD, whose own context may be over.
const defaultUndoTime = 10 * time.Second

// Datapath types of the bridge (ovs.Bridge.DatapathType).
const (
	DatapathSystem = "system"
	DatapathNetdev = "netdev"
)

// Options is what the node and the cluster are like.
type Options struct {
	NodeName        string         // for messages
	Subnets         []netip.Prefix // the node's
	ClusterNetworks []netip.Prefix
	ServiceNetwork  netip.Prefix
	MTU             int    // bytes, of the pods' interfaces
	RouteMTU        int    // bytes, of the pods' routes, at most MTU; 0: theirs is MTU
	Datapath        string // DatapathSystem or DatapathNetdev
}

// The smallest MTU of IPv4 (RFC 791) and the largest of a veth.
const (
	minMTU = 68
	maxMTU = 65535
)

// Validate returns every fault of the options.
func (o Options) Validate() error {
	var errs []error
	if o.MTU < minMTU || o.MTU > maxMTU {
		errs = append(errs, fmt.Errorf("MTU %d is not between %d and %d", o.MTU, minMTU, maxMTU))
	}
	if o.RouteMTU != 0 && (o.RouteMTU < minMTU || o.RouteMTU > o.MTU) {
		errs = append(errs, fmt.Errorf("the routes' MTU %d is not between %d and the interfaces' %d", o.RouteMTU, minMTU, o.MTU))
	}
	if o.Datapath != DatapathSystem && o.Datapath != DatapathNetdev {
		errs = append(errs, fmt.Errorf("datapath %q is neither %q nor %q", o.Datapath, DatapathSystem, DatapathNetdev))
	}
	if len(o.Subnets) == 0 {
		errs = append(errs, errors.New("the node has no subnet"))
	}
	if !o.ServiceNetwork.IsValid() {
		errs = append(errs, errors.New("the service network is missing"))
	}
	for _, s := range o.Subnets {
		// Else the gateway can't be reached: pods have no route to their subnet but the cluster network's.
		if !slices.ContainsFunc(o.ClusterNetworks, func(c netip.Prefix) bool {
			return c.Bits() <= s.Bits() && c.Contains(s.Addr())
		}) {
			errs = append(errs, fmt.Errorf("the node's subnet %s is in none of the cluster networks %v", s, o.ClusterNetworks))
		}
	}
	return errors.Join(errs...)
}

// Manager sets pods up and takes them down. It is a cniserver.Handler.
type Manager struct {
	Options

	pods   Pods
	ipam   IPAM
	links  Links
	bridge Switch
	flows  podFlows
	events Events

	undoTime  time.Duration
	sandboxes keyedLock          // held by whatever changes a sandbox
	sweeps    singleflight.Group // requests that find no address share a sweep
	recovered atomic.Bool        // what OVSDB remembers is known
	health    health
	proposed  []proposal // by Recover, for Run

	mu       sync.RWMutex
	attached map[Attachment]Pod
	faults   map[Attachment]error // of those attached that should not be as they are

	rebuilt      []Pod                 // pods whose deleted ports were rebuilt, until reportRepaired
	unidentified map[Attachment]string // living sandboxes whose pods are unknown, with the reported cause
}

var _ cniserver.Handler = &Manager{}

// New returns a manager that answers no request before Recover has been called.
func New(o Options, s Seams) (*Manager, error) {
	if err := errors.Join(o.Validate(), s.validate()); err != nil {
		return nil, fmt.Errorf("pod network: %w", err)
	}
	return &Manager{
		Options:   o,
		pods:      s.Pods,
		ipam:      s.IPAM,
		links:     s.Links,
		bridge:    s.Switch,
		flows:     compiledFlows{s.Flows, s.Policies, s.Compile},
		events:    s.Events,
		undoTime:  defaultUndoTime,
		sandboxes: newKeyedLock(),
		attached:  map[Attachment]Pod{},
		faults:    map[Attachment]error{},

		unidentified: map[Attachment]string{},
	}, nil
}

// Pods returns the pods that are attached, ordered by namespace and name.
func (m *Manager) Pods() []Pod {
	m.mu.RLock()
	defer m.mu.RUnlock()
	pods := make([]Pod, 0, len(m.attached))
	for _, p := range m.attached {
		pods = append(pods, p)
	}
	slices.SortFunc(pods, Pod.compare)
	return pods
}

// Del detaches the interface. It succeeds when there is nothing to detach, and it needs neither the netns nor CNI_ARGS.
func (m *Manager) Del(ctx context.Context, req *cniserver.Request) error {
	a := Attachment{req.ContainerID, req.IfName}
	logger := klog.FromContext(ctx).WithValues("sandbox", a.Sandbox, "interface", a.IfName)
	start, asked := time.Now(), m.health.asking()
	_, attached := m.get(a)
	err := m.del(ctx, a)
	if attached || err != nil { // with nothing to detach, Open vSwitch is not asked
		m.learn(asked, err, false)
	}
	if err != nil {
		logger.Error(err, "Could not detach the pod, the runtime will repeat DEL")
		return asCNIError(err)
	}
	logger.V(1).Info("Pod detached", "duration", time.Since(start))
	return nil
}

func (m *Manager) del(ctx context.Context, a Attachment) error {
	if err := m.starting(); err != nil {
		return err
	}
	unlock, err := m.sandboxes.lock(ctx, a.Sandbox)
	if err != nil {
		return fmt.Errorf("wait for another request of sandbox %s: %w", a.Sandbox, err)
	}
	defer unlock()
	return m.remove(ctx, a)
}

// remove takes away whatever there is of the attachment. The caller holds the sandbox's lock. Steps after a failed one are
// still taken, but the address is freed only when no flow, port or device has it any more. What is not there is no error.
func (m *Manager) remove(ctx context.Context, a Attachment) error {
	var errs []error
	flowsGone := m.flows.remove(a)
	if err := m.bridge.DeletePort(ctx, a.HostVeth()); err != nil {
		errs = append(errs, fmt.Errorf("remove the port of sandbox %s: %w", a.Sandbox, err))
	}
	if err := m.links.Delete(ctx, a.HostVeth()); err != nil {
		errs = append(errs, fmt.Errorf("remove the veth pair of sandbox %s: %w", a.Sandbox, err))
	}
	// Waited for last: while Open vSwitch is away this takes all the time there is, and port and device can go meanwhile.
	// Not while the manager recovers: the store's first replacement, without which nobody gets the address, takes them off.
	if m.recovered.Load() {
		if err := flowsGone(ctx); err != nil {
			errs = append(errs, fmt.Errorf("remove the flows of sandbox %s: %w", a.Sandbox, err))
		}
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := m.ipam.Release(ctx, a.Sandbox, a.IfName); err != nil {
		if ctx.Err() != nil {
			return err
		}
		return &diskError{fmt.Errorf("free the address of sandbox %s: %w", a.Sandbox, err)}
	}
	m.forget(a)
	return nil
}

func (m *Manager) get(a Attachment) (Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.attached[a]
	return p, ok
}

// remember takes note of an attached pod, and of what is wrong with it; nil: nothing.
func (m *Manager) remember(p Pod, fault error) {
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

func (m *Manager) forget(a Attachment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attached, a)
	delete(m.faults, a)
	delete(m.unidentified, a)
}

// known returns the attachments that are attached, and those of living sandboxes whose pods are unknown.
func (m *Manager) known() map[Attachment]bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	all := make(map[Attachment]bool, len(m.attached)+len(m.unidentified))
	for a := range m.attached {
		all[a] = true
	}
	for a := range m.unidentified {
		all[a] = true
	}
	return all
}

// fault returns what is known to be wrong with an attached pod.
func (m *Manager) fault(a Attachment) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.faults[a]
}

// userOf returns another pod that has one of the addresses.
func (m *Manager) userOf(a Attachment, addrs []netip.Addr) (Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for _, p := range m.attached {
		if p.Attachment != a && p.hasAny(addrs) {
			return p, true
		}
	}
	return Pod{}, false
}
