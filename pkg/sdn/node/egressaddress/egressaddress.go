// Package egressaddress makes the host forward packets from and to the egress IPs that the node hosts.
//
// The switch translates the source of pods' packets to an egress IP and sends them out of tun0; replies to an egress IP must reach tun0. An egress IP is not an
// address of an interface of the host, which would deliver its packets locally. For each one the package maintains:
//
//   - an entry in the firewall's set (hostnet.EgressSet): packets are forwarded, and neither tracked nor translated;
//   - a route to tun0, with a protocol of its own: replies go to tun0, and a strict rp_filter passes packets from it;
//   - a permanent neighbour of tun0 with config.MAC: the host sends no ARP requests into the bridge;
//   - a proxy neighbour of the uplink, the interface whose network contains the egress IP: the kernel answers ARP requests for it;
//   - gratuitous ARP on the uplink, when the egress IP is placed and when the uplink's MAC or link state changes.
//
// They are added in this order. They are removed in the order proxy, neighbour, route, set: as long as an entry remains, a later process finds it by the
// route's protocol, and no rule of the host translates the last packets. The switch must stop to send packets with the source before an egress IP is removed.
package egressaddress

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/hostnet"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	// defaultInterval is that of the host's other settings: the kernel does not report changes of proxy neighbours, sets and some sysctls.
	defaultInterval = 10 * time.Second

	// debounce is the wait after an event for further ones.
	debounce = 20 * time.Millisecond

	// Reconciliations are limited, since another program may revert each of them.
	minReconcileInterval = time.Second
	reconcileBurst       = 5
)

// Options are the configuration of Addresses.
type Options struct {
	// Tun0 is the name of the bridge's internal port; "": hostnet.Tun0Name, which the firewall's rules have.
	Tun0 string

	// Uplink is the interface with the node's address. It precedes other interfaces with the same network; "": none does.
	Uplink string

	// Reserved are the networks that contain no egress IP: the cluster's and the service network.
	Reserved []netip.Prefix

	// RouteMTU is the MTU of the routes, as that of tun0's other routes, in bytes; 0: tun0's.
	RouteMTU int

	// Set is the set of the host's firewall (hostnet.Firewall); the zero value: that for iptables.
	Set hostnet.EgressSet

	// SetUplink sets the sysctls of an uplink, and returns the changes, for logging: (*hostnet.Tun0).SetEgressUplink.
	SetUplink func(device string) (changes []string, err error)

	// Report is called when the problem of an egress IP changes, and with nil when it is placed; nil: not called. A *RefusedError remains until the host's
	// interfaces, addresses or routes change. It is called by Run, and not for an egress IP that is no longer desired.
	Report func(ip netip.Addr, err error)

	// Interval is that of reconciliations without an event; 0: 10 s.
	Interval time.Duration
}

// RefusedError reports that this host can't host the egress IP.
type RefusedError struct{ reason string }

func (e *RefusedError) Error() string { return e.reason }

// Addresses makes the host forward packets from and to the egress IPs that this node hosts. Its methods are safe for concurrent use.
type Addresses struct {
	options Options
	wake    chan struct{} // of capacity 1
	silent  silentLinks
	watched watched
	state   state // of Run's goroutine

	announceInterval time.Duration

	mu      sync.Mutex
	desired map[netip.Addr]bool // replaced, not changed; nil: before the first Set
	failed  time.Time           // since when all reconciliations have failed; zero: the last one succeeded
	err     error               // of the last reconciliation
}

// New returns an Addresses without egress IPs. Until the first Set, Run retains those of a previous process.
func New(o Options) *Addresses {
	if o.Tun0 == "" {
		o.Tun0 = hostnet.Tun0Name
	}
	if o.Interval == 0 {
		o.Interval = defaultInterval
	}
	if o.SetUplink == nil {
		o.SetUplink = func(string) ([]string, error) { return nil, nil }
	}
	if o.Report == nil {
		o.Report = func(netip.Addr, error) {}
	}
	return &Addresses{options: o, wake: make(chan struct{}, 1), state: newState(), announceInterval: defaultAnnounceInterval}
}

// Set replaces the egress IPs that the node hosts. It returns at once; Run applies them.
func (a *Addresses) Set(ips []netip.Addr) {
	desired := make(map[netip.Addr]bool, len(ips))
	for _, ip := range ips {
		desired[ip.Unmap()] = true
	}
	a.mu.Lock()
	same := a.desired != nil && maps.Equal(a.desired, desired)
	a.desired = desired
	a.mu.Unlock()
	if !same {
		a.signal()
	}
}

func (a *Addresses) signal() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}

// Run reconciles the host until the context ends: at once, after Set, after relevant events of the kernel, and every interval. It acts on the network namespace of
// the calling goroutine's thread. The egress IPs remain when it returns.
func (a *Addresses) Run(ctx context.Context) {
	logger := klog.FromContext(ctx)
	if events, err := subscribe(); err != nil {
		logger.Error(err, "Failed to watch the host's interfaces and routes; polling", "interval", a.options.Interval)
	} else {
		done := make(chan struct{})
		stop := make(chan struct{})
		go func() {
			defer close(done)
			a.watch(events, stop)
		}()
		defer func() {
			close(stop)
			events.Close()
			<-done
		}()
	}
	limiter := rate.NewLimiter(rate.Every(minReconcileInterval), reconcileBurst)
	ticker := time.NewTicker(a.options.Interval)
	defer ticker.Stop()
	for limiter.Wait(ctx) == nil { // it fails only when the context ends
		select { // this reconciliation handles events until now
		case <-a.wake:
		default:
		}
		err := a.reconcile(ctx)
		if ctx.Err() != nil {
			return
		}
		if a.record(err) {
			logger.Error(err, "Failed to reconcile egress IPs of the host", "retryAfter", a.options.Interval)
		}
		if !a.wait(ctx, ticker.C) {
			return
		}
	}
}

// wait returns when a reconciliation is due, and false when the context ends. It sends the announcements that are due in the meantime.
func (a *Addresses) wait(ctx context.Context, tick <-chan time.Time) bool {
	for {
		announce := a.state.nextAnnouncement(time.Now())
		var due <-chan time.Time // nil: never
		if announce >= 0 {
			due = time.After(announce)
		}
		select {
		case <-ctx.Done():
			return false
		case <-due:
			a.announce(ctx, time.Now())
			continue
		case <-tick:
			return true
		case <-a.wake:
		}
		return pause.For(ctx, debounce)
	}
}

// record stores the result of a reconciliation, and reports whether it is another error than that of the previous one.
func (a *Addresses) record(err error) (isNew bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	isNew = err != nil && (a.err == nil || a.err.Error() != err.Error())
	switch {
	case err == nil:
		a.failed = time.Time{}
	case a.failed.IsZero():
		a.failed = time.Now()
	}
	a.err = err
	return isNew
}

// Healthy returns the failure of the reconciliations if they have failed for an interval, or nil. Refused egress IPs are no failure.
func (a *Addresses) Healthy() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.failed.IsZero() || time.Since(a.failed) < a.options.Interval/2 {
		return nil
	}
	return a.err
}

// Remove removes the routes, neighbours and proxy neighbours of all egress IPs, for an uninstallation; the firewall removes the set. It continues after errors
// and joins them.
func Remove(ctx context.Context) error {
	h, err := readHost(ctx, hostnet.Tun0Name, hostnet.EgressSet{})
	if err != nil {
		return err
	}
	var errs []error
	for addr := range h.leftovers() {
		if err := ctx.Err(); err != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, h.remove(ctx, addr, hostnet.EgressSet{}))
	}
	return errors.Join(errs...)
}
