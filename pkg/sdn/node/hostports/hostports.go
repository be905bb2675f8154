// Package hostports maps ports of the node to pods, by portmap of containernetworking/plugins. A Handler executes CNI requests as a chain of the pod
// manager and portmap would: ADD and CHECK call portmap after the pod manager; the pod manager calls Release before it releases an address. Requests for pods
// without host ports pass through.
//
// What ADD was asked for is stored in a file for each attachment, with which rules are written again after a flush and removed after a crash
// (docs/decisions/0016-host-ports.md).
package hostports

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostconntrack"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
)

// Options are the dependencies and properties of Ports. All functions are required.
type Options struct {
	Plugin    Plugin
	Dir       string // of the stored host ports
	VXLANPort uint16 // UDP

	// Attached returns the sandboxes that the pod manager has not detached.
	Attached func() map[Attachment]bool

	// Holder returns an object of the cluster that declares the host port on one of the addresses, such as a Service; "": none.
	Holder func(m Mapping, addrs []netip.Addr) (string, error)

	// SyncFirewall updates the rules of the agent's firewall about Targets.
	SyncFirewall func(context.Context) error

	// RouteLoopback permits packets from and to 127.0.0.0/8 on the interface to the pod network, or forbids them.
	RouteLoopback func(permit bool) error

	WarnPod  func(namespace, name, uid, reason, message string)
	WarnNode func(reason, message string)
}

// Ports are the host ports of this node's pods. Its methods are safe for concurrent use.
type Ports struct {
	Options
	records records

	// Replaced in tests.
	listeners       func(protocol string) ([]listeners.Listener, error)
	localAddrs      func() ([]netip.Addr, error)
	flushPod        func(r record) error
	flushNotMapped  func(r record, local []netip.Addr) error
	period          time.Duration
	attachmentLimit int
	nodeLimit       int

	mu           sync.Mutex
	known        map[Attachment]*claim
	suspectUntil time.Time // rules without a record may appear until then

	selected   Backend // of new records; "": not found yet
	backendErr error   // of the last attempt to find it

	loopback sync.Mutex // held while RouteLoopback runs
	closed   bool       // guarded by loopback
}

// New reads the host ports that a previous agent stored.
func New(o Options) (*Ports, error) {
	p := &Ports{
		Options: o, records: records(o.Dir), known: map[Attachment]*claim{}, listeners: hostListeners, localAddrs: hostconntrack.LocalAddrs,
		flushPod: flushPod, flushNotMapped: flushNotMapped, period: checkPeriod, attachmentLimit: maxMappings, nodeLimit: maxNodeMappings,
	}
	stored, err := p.records.list()
	for _, r := range stored {
		p.known[r.Attachment] = newClaim(r)
	}
	return p, err
}

// Close forbids packets of 127.0.0.0/8 to pods: an agent without host ports, which may follow, has no rule that protects the node's loopback.
func (p *Ports) Close() error {
	p.loopback.Lock()
	defer p.loopback.Unlock()
	p.closed = true
	return p.RouteLoopback(false)
}

// Has reports whether the attachment has host ports, or is getting some.
func (p *Ports) Has(a Attachment) bool { return p.get(a) != nil }

// Target is a port of a pod to which a host port leads.
type Target struct {
	Addr           netip.Addr
	Protocol       string
	HostPort, Port uint16
}

// Targets returns the targets of all host ports, in a stable order.
func (p *Ports) Targets() []Target {
	var all []Target
	for _, c := range p.claims() {
		r := p.recordOf(c)
		for _, addr := range r.addrs() {
			for _, m := range r.Mappings {
				if addr.BitLen() == m.addr().BitLen() {
					all = append(all, Target{addr, m.Protocol, uint16(m.HostPort), uint16(m.ContainerPort)})
				}
			}
		}
	}
	return all
}

// install stores the record with the pod's addresses and writes its rules. After an error the caller detaches the pod, which calls Release.
func (p *Ports) install(ctx context.Context, c *claim, result *current.Result) error {
	unlock, ok, err := p.lock(ctx, c)
	if err != nil {
		return err
	}
	if !ok {
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("sandbox %s was deleted or replaced during ADD", c.attachment.Sandbox), "")
	}
	defer unlock()
	r := p.setResult(c, result)
	if err := p.records.write(r); err != nil {
		return err
	}
	p.routeLoopback(ctx)
	if err := p.syncFirewall(ctx); err != nil {
		return err
	}
	return p.writeRules(ctx, r)
}

// syncFirewall precedes the translation, without which the firewall's rules match nothing: a connection that was not masqueraded would remain so.
func (p *Ports) syncFirewall(ctx context.Context) error {
	if err := p.SyncFirewall(ctx); err != nil {
		return fmt.Errorf("update the firewall for host ports: %w", err)
	}
	return nil
}

// writeRules writes the rules of a record. UDP connections that were opened without them follow them then.
func (p *Ports) writeRules(ctx context.Context, r record) error {
	if err := p.Plugin.Add(ctx, r); err != nil {
		return err
	}
	local, err := p.localAddrs()
	if err == nil {
		err = p.flushNotMapped(r, local)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Failed to flush UDP connections of host ports", "pod", klog.KRef(r.Namespace, r.Name), "effect", "clients that go on sending do not reach the pod")
	}
	return nil
}

// Release deletes the host ports of an attachment. The pod manager calls it before it releases the address, which another pod may get.
func (p *Ports) Release(ctx context.Context, a Attachment) error {
	c := p.get(a)
	if c == nil {
		return nil
	}
	return p.release(ctx, c, func() bool { return true })
}

// release deletes the host ports of the claim if the condition holds while no other goroutine changes them.
func (p *Ports) release(ctx context.Context, c *claim, condition func() bool) error {
	unlock, ok, err := p.lock(ctx, c)
	if err != nil || !ok {
		return err
	}
	defer unlock()
	if !condition() {
		return nil
	}
	r := p.recordOf(c)
	if r.Result == nil { // no rules were written
		p.drop(c)
		return nil
	}
	if err := p.Plugin.Del(ctx, r); err != nil {
		return err
	}
	if err := p.flushPod(r); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to flush connections of deleted host ports", "pod", klog.KRef(r.Namespace, r.Name))
	}
	if err := p.records.remove(r.Attachment); err != nil {
		return err
	}
	p.drop(c)
	if err := p.SyncFirewall(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to update the firewall for deleted host ports", "retryAfter", p.period)
	}
	return nil
}

// routeLoopback permits packets of 127.0.0.0/8 to pods while there are host ports. Without them, host ports work from all addresses but those.
func (p *Ports) routeLoopback(ctx context.Context) {
	p.loopback.Lock()
	defer p.loopback.Unlock()
	if p.closed {
		return
	}
	if err := p.RouteLoopback(len(p.claims()) > 0); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to set route_localnet", "effect", "host ports do not answer on 127.0.0.1", "retryAfter", p.period)
	}
}

// backend returns the backend for new records, or why there is none. Run repeats the search.
func (p *Ports) backend(ctx context.Context) (Backend, error) {
	p.mu.Lock()
	b, err := p.selected, p.backendErr
	p.mu.Unlock()
	if b != "" || err != nil {
		return b, err
	}
	return p.findBackend(ctx)
}

func (p *Ports) findBackend(ctx context.Context) (Backend, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	b, err := p.Plugin.Backend(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.selected, p.backendErr = b, err
	return b, err
}

// failed reports a failed ADD on the pod.
func (p *Ports) failed(r record, err error) {
	p.WarnPod(r.Namespace, r.Name, r.UID, eventreason.NetworkAttachFailed, err.Error())
}

func (p *Ports) recordedBackend() Backend {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.selected
}
