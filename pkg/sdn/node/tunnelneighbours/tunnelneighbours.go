// Package tunnelneighbours retains the next hops of all tunnels in the neighbour cache of Open vSwitch's userspace datapath, which drops a packet
// to a VTEP while it resolves the MAC. The kernel resolves them: the package copies the MACs from the host's neighbour table, follows its
// changes, and refreshes the cache's entries before they expire. The kernel's datapath does not need it: the kernel queues such packets.
package tunnelneighbours

import (
	"bytes"
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

const (
	// DefaultCheckInterval is the minimum interval of comparisons with the cache, which reports no flush.
	DefaultCheckInterval = time.Second
	// checkIntervalPerHop is the minimum for each next hop: a comparison of 5,000 takes vswitchd 4 ms, 0.2 % of 2 seconds.
	checkIntervalPerHop = 400 * time.Microsecond

	// commandRate limits the commands to vswitchd, whose main thread runs each in 0.3 ms, to 6 % of its time. 5,000 new nodes need two each: 50 s.
	commandRate, commandBurst = 200, 200

	// routeDelay batches changes of routes, and gives vswitchd time to read them.
	routeDelay = time.Second
	// routeInterval is the minimum interval between two passes over all VTEPs: the routes of some hosts change continuously.
	routeInterval = 30 * time.Second
	// retryInterval follows a failure that an event usually ends earlier.
	retryInterval = 30 * time.Second

	// defaultAging is how long unused entries of the cache remain by default.
	defaultAging = 15 * time.Minute
)

// allVTEPs is the key of a pass over all VTEPs. No VTEP has it.
const allVTEPs = "all"

// Switch is Open vSwitch (*native.Native).
type Switch interface {
	TunnelHop(ctx context.Context, vtep netip.Addr) (ovs.TunnelHop, error)
	ListTunnelNeighbours(ctx context.Context) ([]ovs.TunnelNeighbour, error)
	SetTunnelNeighbour(ctx context.Context, n ovs.TunnelNeighbour) error
	TunnelNeighbourAging(ctx context.Context) (time.Duration, error)
}

// Neighbours are the tunnels' neighbours of this node. Two loops do the work: one finds the next hop of each VTEP, one sets the hops' MACs.
type Neighbours struct {
	ovs     Switch
	kernel  *kernel // set by Run
	check   time.Duration
	limiter *rate.Limiter // of both loops
	routes  *reconcile.Loop
	setter  *reconcile.Loop

	mu         sync.Mutex
	vteps      map[string]netip.Addr        // by HostSubnet
	uses       map[netip.Addr]int           // number of HostSubnets of a VTEP
	hopOf      map[netip.Addr]ovs.TunnelHop // by VTEP
	hops       map[string]*hop
	kernelHops map[kernelNeighbour]string // keys of hops
	unroutable map[netip.Addr]int         // number of failures of a VTEP to which vswitchd has no route
	reported   bool                       // that at least one remains without a route
	aging      time.Duration
	lastPass   time.Time
	lost       bool // messages of the kernel, since the last pass
}

// hop is the state of a next hop.
type hop struct {
	ovs.TunnelHop

	vteps  int // that use it
	kernel kernelNeighbour
	mac    net.HardwareAddr // the last that was set in the cache; nil: none
	set    time.Time        // when mac was set
}

// isLost reports whether the cache has lost the MAC that was set. listed is its MAC in a list that was requested at the time began; the list may lack what was set since.
func (h *hop) isLost(listed net.HardwareAddr, began time.Time) bool {
	return h.mac != nil && h.set.Before(began) && !bytes.Equal(listed, h.mac)
}

func keyOf(h ovs.TunnelHop) string { return h.Bridge + " " + h.Device + " " + h.Addr.String() }

// New returns neighbours that are compared with the cache in the interval check.
func New(sw Switch, check time.Duration) *Neighbours {
	n := &Neighbours{
		ovs: sw, check: check, limiter: rate.NewLimiter(commandRate, commandBurst), aging: defaultAging,
		vteps: map[string]netip.Addr{}, uses: map[netip.Addr]int{}, hopOf: map[netip.Addr]ovs.TunnelHop{},
		hops: map[string]*hop{}, kernelHops: map[kernelNeighbour]string{}, unroutable: map[netip.Addr]int{},
	}
	n.routes = reconcile.New("tunnelroutes", n.route).WithMaxBackoff(retryInterval)
	n.setter = reconcile.New("tunnelneighbours", n.set).WithMaxBackoff(retryInterval)
	return n
}

// SetRemoteNode sets the VTEP of a remote node, or deletes it if it is nil.
func (n *Neighbours) SetRemoteNode(name string, peer *inputs.RemoteNode) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if before, existed := n.vteps[name]; existed {
		delete(n.vteps, name)
		if n.uses[before]--; n.uses[before] == 0 {
			delete(n.uses, before)
		}
		n.routes.Add(before.String())
	}
	if peer != nil {
		n.vteps[name] = peer.VTEP
		n.uses[peer.VTEP]++
		n.routes.Add(peer.VTEP.String())
	}
}

// Resync finds all next hops and sets all MACs again, after vswitchd was connected: a restarted vswitchd has none.
func (n *Neighbours) Resync() {
	n.routes.Add(allVTEPs)
	n.mu.Lock()
	defer n.mu.Unlock()
	n.setAll()
}

func (n *Neighbours) setAll() {
	for key := range n.hops {
		n.setter.Add(key)
	}
}

// Run retains the neighbours of the calling thread's network namespace until the context ends.
func (n *Neighbours) Run(ctx context.Context) {
	var err error
	for n.kernel, err = openKernel(); err != nil; n.kernel, err = openKernel() {
		klog.FromContext(ctx).Error(err, "Failed to read the host's neighbours; the first packets to other nodes may be lost", "retryAfter", retryInterval)
		if !pause.For(ctx, retryInterval) {
			return
		}
	}
	defer n.kernel.close()
	var parts sync.WaitGroup
	parts.Go(func() { n.kernel.watch(ctx, n.changed, n.messagesLost) })
	parts.Go(func() { n.routes.Run(ctx, 1) })
	parts.Go(func() { n.setter.Run(ctx, 1) })
	n.compareAll(ctx)
	parts.Wait()
}

// changed handles a change that the kernel reports. Neighbours without a MAC are probed by their own schedule: a probe causes such changes itself.
func (n *Neighbours) changed(c change) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.routes {
		n.schedulePass()
	}
	key, ok := n.kernelHops[c.neighbour]
	if ok && c.mac != nil && !bytes.Equal(c.mac, n.hops[key].mac) {
		n.setter.Add(key)
	}
}

// messagesLost requests a pass that sets all MACs, too. Hosts whose routes or neighbours change continuously lose messages again and again.
func (n *Neighbours) messagesLost() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.lost = true
	n.schedulePass()
}

func (n *Neighbours) schedulePass() {
	n.routes.AddAfter(allVTEPs, max(routeDelay, routeInterval-time.Since(n.lastPass)))
}

// compareAll compares the neighbours with the cache until the context ends.
func (n *Neighbours) compareAll(ctx context.Context) {
	for ctx.Err() == nil {
		hops, err := n.compare(ctx)
		next := max(n.check, time.Duration(hops)*checkIntervalPerHop)
		if err != nil && ctx.Err() == nil && !ovs.IsUnavailable(err) {
			next = retryInterval
			klog.FromContext(ctx).Error(err, "Failed to compare tunnel neighbours", "retryAfter", next)
		}
		pause.For(ctx, next)
	}
}

// compare sets the neighbours that the cache has lost, and all if their time to expiry changed. It returns the number of next hops.
func (n *Neighbours) compare(ctx context.Context) (hops int, err error) {
	aging, err := n.ovs.TunnelNeighbourAging(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	all, err := n.ovs.ListTunnelNeighbours(ctx)
	if err != nil {
		return 0, err
	}
	type key struct {
		bridge string
		addr   netip.Addr
	}
	have := make(map[key]net.HardwareAddr, len(all))
	for _, e := range all {
		have[key{e.Bridge, e.Addr}] = e.MAC
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.aging != aging {
		n.aging = aging
		n.setAll()
	}
	for name, h := range n.hops {
		if h.isLost(have[key{h.Bridge, h.Addr}], began) {
			n.setter.Add(name)
		}
	}
	return len(n.hops), nil
}
