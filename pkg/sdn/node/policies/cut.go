package policies

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// Flows judge what comes from who opened a connection, always by the policies of now. What comes back is let through because the
// connection was allowed once: so when something that was allowed is forbidden, or an address loses its pod, the connections are judged
// here, and the switch forgets those that are not to go on.

// The tracked connections are gone through at most once an interval, and for no more than one part in restShare of the time, unless the rest
// would get too long: 100,000 cost vswitchd a quarter of a second.
const (
	cutInterval = time.Second
	restShare   = 10
	restLast    = 10 * time.Second

	// forgetInterval is how long the tracker may know of pods elsewhere that have gone. A node's allocator gives an address again when it has
	// given all others.
	forgetInterval = time.Minute
)

// Tracker is the switch as it knows connections (*ovs.Native).
type Tracker interface {
	AwaitDatapath(ctx context.Context) error
	ListConnections(ctx context.Context, zones ovs.Zones, each func(ovs.Connection)) error
	NewTransaction() *ovs.Transaction
	Run(ctx context.Context, tx *ovs.Transaction) error
}

// Cuts has the switch forget connections.
type Cuts struct {
	tracker Tracker
	judge   func() *judge
	lock    sync.Locker // is held while a judge is made, and while one is asked
	runner  *reconcile.Runner

	mu      sync.Mutex
	gone    map[netip.Addr]struct{} // since the last run
	pending []*store.Commit         // of what was lost since
}

func newCuts(tracker Tracker, lock sync.Locker, judge func() *judge) *Cuts {
	c := &Cuts{tracker: tracker, lock: lock, judge: judge}
	c.runner = reconcile.NewRunner("connections", cutInterval, c.serve)
	return c
}

// Run cuts when it is due, until the context ends.
func (c *Cuts) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { c.runner.Run(ctx) })
	parts.Go(func() { c.hurry(ctx) })
	parts.Wait()
}

// hurry sees to it that addresses don't wait for ever.
func (c *Cuts) hurry(ctx context.Context) {
	tick := time.NewTicker(forgetInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if c.owes() {
			c.runner.Poke()
		}
	}
}

// Heed does what has to be done about a loss: at once about permissions, once the switch has the flows or has refused them, or what is cut
// would be allowed anew. Addresses, of pods anywhere in the cluster, wait for a run that is due, or a while: pods go all the time, and an address is given
// again late.
func (c *Cuts) Heed(lost policy.Loss, flows ...*store.Commit) {
	if !lost.Permission && len(lost.Addrs) == 0 {
		return
	}
	c.owe(lost.Addrs, flows...)
	if lost.Permission {
		c.runner.Poke()
	}
}

// Forget says that the addresses have lost their pod, whoever gets them next: what it opened, and what was opened to it, is not theirs.
func (c *Cuts) Forget(addrs ...netip.Addr) {
	c.owe(addrs)
	c.runner.Poke()
}

func (c *Cuts) owe(addrs []netip.Addr, flows ...*store.Commit) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pending = append(c.pending, flows...)
	if c.gone == nil {
		c.gone = map[netip.Addr]struct{}{}
	}
	for _, a := range addrs {
		c.gone[a] = struct{}{}
	}
}

func (c *Cuts) owes() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.gone) > 0
}

// takeGone returns the addresses, which are to be given back when they could not be served.
func (c *Cuts) takeGone() map[netip.Addr]struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	gone := c.gone
	c.gone = nil
	return gone
}

// serve cuts, and rests as long as is due. To wait for the datapath costs nobody anything.
func (c *Cuts) serve(ctx context.Context) error {
	// What is cut while the switch goes on by former flows, it would keep anew.
	if err := c.awaitFlows(ctx); err != nil {
		return err
	}
	if err := c.tracker.AwaitDatapath(ctx); err != nil {
		return err
	}
	began := time.Now()
	err := c.cut(ctx)
	rest := time.NewTimer(min(restShare*time.Since(began), restLast))
	defer rest.Stop()
	select {
	case <-rest.C:
	case <-ctx.Done():
	}
	return err
}

// awaitFlows waits until what was lost is off the switch, or can't be taken off.
func (c *Cuts) awaitFlows(ctx context.Context) error {
	c.mu.Lock()
	pending := c.pending
	c.pending = nil
	c.mu.Unlock()
	for _, flows := range pending {
		_ = flows.Wait(ctx) // who waits for it is told
	}
	return ctx.Err()
}

// cut goes through what the switch tracks once. The datapath must follow the policies already.
func (c *Cuts) cut(ctx context.Context) error {
	gone := c.takeGone()
	c.lock.Lock()
	j := c.judge()
	c.lock.Unlock()
	j.gone = gone
	if len(j.homes) == 0 && len(gone) == 0 {
		return nil
	}
	count, err := c.forget(ctx, j)
	if count > 0 {
		klog.FromContext(ctx).Info("Connections are cut", "connections", count)
	}
	if err != nil || j.more {
		c.Forget(slices.Collect(maps.Keys(gone))...)
	}
	return err
}

// flushes is how many connections are forgotten by one transaction.
const flushes = 10_000

// forget has the switch forget what the judge says, and returns how many connections that were.
func (c *Cuts) forget(ctx context.Context, j *judge) (int, error) {
	err := c.tracker.ListConnections(ctx, pipeline.Zones(), func(conn ovs.Connection) {
		c.lock.Lock()
		defer c.lock.Unlock()
		j.look(conn)
	})
	count := 0
	for some := range slices.Chunk(j.cut, flushes) {
		tx := c.tracker.NewTransaction()
		for _, conn := range some {
			tx.Forget(conn)
		}
		if failed := c.tracker.Run(ctx, tx); failed != nil {
			return count, errors.Join(err, failed)
		}
		count += len(some)
	}
	return count, err
}

// judge says which connections are not to go on. It is for one run: which pods are here it knows from its beginning.
type judge struct {
	node   pipeline.Node
	engine *policy.Engine
	homes  map[netip.Addr]policy.PodKey // pods of this node that rules are about
	// outside returns the endpoints by which packets to a service's address are evaluated
	outside func(netip.Addr, goovs.Protocol, uint16) pipeline.OutsideEndpoints
	gone    map[netip.Addr]struct{}

	cut   []ovs.Connections   // that are to be forgotten
	zones map[uint16]struct{} // that are to be forgotten whole
	more  bool                // is to be done in another run
}

// What is cut in one run: so much as is held in memory, and of zones, for each of which the switch goes through all that it tracks, a few.
const (
	maxCut   = 100_000
	maxZones = 64
)

// judge knows the pods that are here now. The lock must be held.
func (p *Policies) judge() *judge {
	j := &judge{
		node: p.compiler.node, engine: p.compiler.engine, outside: p.cluster.OutsideEndpoints,
		homes: map[netip.Addr]policy.PodKey{}, zones: map[uint16]struct{}{},
	}
	for key, pods := range p.compiler.local {
		if !p.compiler.podPolicies(key).Judged {
			continue
		}
		for _, pod := range pods {
			for _, a := range pod.Addrs {
				j.homes[a] = key
			}
		}
	}
	return j
}

// look takes note of a connection that is not to go on. One without ports, or of SCTP, can't be named alone to the kernel's tracker: with it go
// the others of its zone, whose openers have to send a packet again before they are answered.
func (j *judge) look(c ovs.Connection) {
	if !j.orphaned(c) && !j.forbidden(c) {
		return
	}
	_, going := j.zones[c.Zone]
	switch {
	case going:
	case c.IsFound() && len(j.cut) < maxCut:
		j.cut = append(j.cut, c.Whole())
	case !c.IsFound() && len(j.zones) < maxZones:
		j.zones[c.Zone] = struct{}{}
		j.cut = append(j.cut, ovs.Connections{Zone: c.Zone})
	default:
		j.more = true
	}
}

// orphaned says whether an end of the connection has lost its pod.
func (j *judge) orphaned(c ovs.Connection) bool {
	if len(j.gone) == 0 {
		return false
	}
	for _, t := range []ovs.Tuple{c.Original, c.Reply} { // they differ where there is NAT
		for _, a := range []netip.Addr{t.Src, t.Dst} {
			if _, gone := j.gone[a]; gone {
				return true
			}
		}
	}
	return false
}

// forbidden judges who opened the connection, as the flows do at each end that is here.
func (j *judge) forbidden(c ovs.Connection) bool {
	src, dst := c.Original.Src, c.Original.Dst
	switch {
	case !pipeline.AllowedZones().Contain(c.Zone):
		return false // what a connection is translated to says nothing of permission
	case j.forbiddenService(c):
		return true // the way to the host's proxy, which lets its answers in
	case j.node.ServiceNetwork.IsValid() && j.node.ServiceNetwork.Contains(dst):
		return false
	case c.Protocol == protoSCTP && j.node.StatelessSCTP:
		return false // both directions are judged
	}
	p := policy.Packet{Peer: dst, Protocol: policyProtocol(c.Protocol), Port: c.Original.DstPort, FromPod: j.isPodAddr(src)}
	if key, here := j.homes[src]; here && !j.engine.Allows(policy.Egress, key, p) {
		return true
	}
	if j.isOwnNode(src) {
		return false
	}
	p.Peer = src
	key, here := j.homes[dst]
	return here && !j.engine.Allows(policy.Ingress, key, p)
}

// forbiddenService reports whether the connection of a pod here to a service is forbidden by the outside endpoints of the service. For the other
// endpoints, the connection that the proxy makes of it is evaluated.
func (j *judge) forbiddenService(c ovs.Connection) bool {
	key, here := j.homes[c.Original.Src]
	if proto := policyProtocol(c.Protocol); here && proto != "" {
		dst := c.Original.Dst
		if who, known := j.engine.Who(dst); known && who.Namespace == "" { // a node
			dst = netip.Addr{}
		}
		outside := j.outside(dst, protocol(proto), c.Original.DstPort)
		return outside.Closed || slices.ContainsFunc(outside.Addrs, func(e netip.AddrPort) bool {
			return !j.engine.Allows(policy.Egress, key, policy.Packet{Peer: e.Addr(), Protocol: proto, Port: e.Port()})
		})
	}
	return false
}

func (j *judge) isPodAddr(addr netip.Addr) bool {
	return slices.ContainsFunc(j.node.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(addr) })
}

func (j *judge) isOwnNode(addr netip.Addr) bool {
	return addr == j.node.VTEP || slices.ContainsFunc(j.node.Subnets, func(s netip.Prefix) bool { return config.Gateway(s) == addr })
}

// Numbers of IP protocols (IANA).
const (
	protoTCP  = 6
	protoUDP  = 17
	protoSCTP = 132
)

// policyProtocol is "" for what policies have no word for.
func policyProtocol(number uint8) corev1.Protocol {
	switch number {
	case protoTCP:
		return corev1.ProtocolTCP
	case protoUDP:
		return corev1.ProtocolUDP
	case protoSCTP:
		return corev1.ProtocolSCTP
	}
	return ""
}
