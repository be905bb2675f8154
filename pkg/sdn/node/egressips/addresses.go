package egressips

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/diagnostics"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// flowsTimeout bounds how long the host retains an egress IP of another node, or of none, while the switch does not change its flows.
const flowsTimeout = 5 * time.Second

var errFlowsNotInstalled = errors.New("the switch has not installed the flows of egress IPs yet")

// addresses hands the egress IPs that this node hosts to the host after the change of their flows: the host announces an IP whose packets the switch passes, and packets
// with an IP's source have ended before the host removes it.
type addresses struct {
	host     Addresses
	warnNode func(reason, message string)
	loop     *reconcile.Loop

	mu       sync.Mutex
	timeout  time.Duration // flowsTimeout
	wanted   map[netip.Addr]bool
	pending  map[netip.Addr]*flowstore.Commit // of changes that the host may not have; the zero Addr stands for the first write
	set      []netip.Addr                     // the last ones of the host; nil: those of the previous agent
	problems map[netip.Addr]string            // the last Event
}

// addressesKey is the only key of the loop.
const addressesKey = "all"

func newAddresses(o Options) *addresses {
	a := &addresses{
		host: o.Addresses, warnNode: o.WarnNode, timeout: flowsTimeout,
		wanted: map[netip.Addr]bool{}, pending: map[netip.Addr]*flowstore.Commit{{}: o.Initial}, problems: map[netip.Addr]string{},
	}
	a.loop = reconcile.New("egress-ip-addresses", a.reconcile)
	return a
}

func (a *addresses) run(ctx context.Context) {
	a.loop.Add(addressesKey)
	a.loop.Run(ctx, 1)
}

// change records that this node hosts the egress IP, or that it no longer does, and the commit of its flows.
func (a *addresses) change(ip netip.Addr, hosted bool, flows *flowstore.Commit) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.wanted[ip] = true; !hosted {
		delete(a.wanted, ip)
		delete(a.problems, ip)
	}
	a.pending[ip] = flows
	a.loop.Add(addressesKey)
}

// reconcile waits for the flows, and hands the egress IPs to the host. Flows that the switch rejects count as installed: they drop the packets.
func (a *addresses) reconcile(ctx context.Context, _ string) error {
	a.mu.Lock()
	wanted, pending, timeout := maps.Clone(a.wanted), maps.Clone(a.pending), a.timeout
	a.mu.Unlock()
	waiting, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	err := flowstore.WaitAll(waiting, slices.Collect(maps.Values(pending)))
	a.mu.Lock()
	defer a.mu.Unlock()
	if waiting.Err() != nil {
		if a.set != nil && ctx.Err() == nil {
			a.hand(ctx, slices.DeleteFunc(slices.Clone(a.set), func(ip netip.Addr) bool { return !wanted[ip] }))
		}
		return errors.Join(errFlowsNotInstalled, ctx.Err())
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Switch rejected flows of egress IPs that this node hosts")
	}
	maps.DeleteFunc(a.pending, func(ip netip.Addr, c *flowstore.Commit) bool { return pending[ip] == c })
	a.hand(ctx, slices.SortedFunc(maps.Keys(wanted), netip.Addr.Compare))
	return nil
}

// hand hands the egress IPs to the host. The lock must be held.
func (a *addresses) hand(ctx context.Context, ips []netip.Addr) {
	if a.set != nil && slices.Equal(a.set, ips) {
		return
	}
	if len(ips)+len(a.set) > 0 {
		klog.FromContext(ctx).Info("Changed egress IPs of this node", "egressIPs", ips, "previous", a.set)
	}
	a.set = append([]netip.Addr{}, ips...)
	a.host.Set(ips)
}

func (a *addresses) report(ip netip.Addr, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil || !a.wanted[ip] {
		delete(a.problems, ip)
		return
	}
	if a.problems[ip] == err.Error() {
		return
	}
	a.problems[ip] = err.Error()
	a.warnNode(eventreason.EgressIPNotPlaced, fmt.Sprintf("egress IP %s, which this node hosts, is not placed: %v", ip, err))
}

// count returns the number of egress IPs that this node hosts, and of those that the host can't place.
func (a *addresses) count() (hosted, notPlaced int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.wanted), len(a.problems)
}

// notPlaced returns the egress IPs that the host can't place, sorted.
func (a *addresses) notPlaced() []diagnostics.EgressIPNotPlaced {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []diagnostics.EgressIPNotPlaced
	for _, ip := range slices.SortedFunc(maps.Keys(a.problems), netip.Addr.Compare) {
		all = append(all, diagnostics.EgressIPNotPlaced{IP: ip.String(), Problem: a.problems[ip]})
	}
	return all
}
