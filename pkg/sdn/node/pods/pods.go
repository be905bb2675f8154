// Package pods sets pods up and takes them down: address, veth pair, OVS port and flows of one attachment of a sandbox to the
// pod network, when the container runtime calls the CNI plugin.
//
// The order of steps makes every crash recoverable. ADD takes the address first and DEL frees it last, so that whatever a
// dead ADD or DEL left behind has an address file that names its container, and from the container's id and interface
// name follow all other names. Undoing a failed ADD, DEL, GC and the sweep at start are therefore one function, remove.
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

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/cniserver"
	"github.com/ovsdn/ovsdn/pkg/ovs"
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

	undoTime  time.Duration
	sandboxes keyedLock   // held by whatever changes a sandbox
	recovered atomic.Bool // what OVSDB remembers is known

	mu       sync.RWMutex
	attached map[Attachment]Pod
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
		flows:     compiledFlows{s.Flows, s.Compile},
		undoTime:  defaultUndoTime,
		sandboxes: newKeyedLock(),
		attached:  map[Attachment]Pod{},
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

// Status tells whether ADD can be served.
func (m *Manager) Status(context.Context) error {
	if !m.recovered.Load() {
		return types.NewError(types.ErrPluginNotAvailable, "the node agent is starting", "")
	}
	return nil
}

// Del detaches the interface. It succeeds when there is nothing to detach, and it needs neither the netns nor CNI_ARGS.
func (m *Manager) Del(ctx context.Context, req *cniserver.Request) error {
	a := Attachment{req.ContainerID, req.IfName}
	logger := klog.FromContext(ctx).WithValues("sandbox", a.Sandbox, "interface", a.IfName)
	start := time.Now()
	err := m.del(ctx, a)
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
	if err := flowsGone(ctx); err != nil {
		errs = append(errs, fmt.Errorf("remove the flows of sandbox %s: %w", a.Sandbox, err))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	if err := m.ipam.Release(ctx, a.Sandbox, a.IfName); err != nil {
		return fmt.Errorf("free the address of sandbox %s: %w", a.Sandbox, err)
	}
	m.forget(a)
	return nil
}

// asCNIError tells the runtime to come again while Open vSwitch is away. Other errors go as they are.
func asCNIError(err error) error {
	if ovs.IsUnavailable(err) {
		return types.NewError(types.ErrTryAgainLater, err.Error(), "")
	}
	return err
}

// starting refuses what must not run before Recover: it could take a living pod's address.
func (m *Manager) starting() error {
	if !m.recovered.Load() {
		return types.NewError(types.ErrTryAgainLater, "the node agent is starting", "")
	}
	return nil
}

func (m *Manager) get(a Attachment) (Pod, bool) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	p, ok := m.attached[a]
	return p, ok
}

func (m *Manager) remember(p Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.attached[p.Attachment] = p
}

func (m *Manager) forget(a Attachment) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.attached, a)
}
