// Package idling holds the packets that open connections to idled services until the services have endpoints, and reports that a client needs them
// (docs/decisions/0011-services.md).
package idling

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	// holdTime is for how long a packet is held. Clients of TCP repeat theirs; those of UDP have given up by then.
	holdTime = 30 * time.Second
	// maxHeld is the number of packets that are held, one of each client to each service.
	maxHeld = 256
	// The numbers of these by port, so that no client uses up the room of others: a pod's, and that of the node and of hosts outside, which can forge their addresses.
	maxOfPort, maxOfHost = 8, maxHeld / 2
	// maxOfService is the number of these to a service.
	maxOfService = maxHeld / 4
	// maxDue is the number of packets that wait to be sent.
	maxDue = 2 * maxHeld

	// afterRelease is for how long packets of a service with endpoints may still arrive: until the datapath has revalidated its megaflows, and from the switch's queue.
	afterRelease = 5 * time.Second

	// awaitInterval is the time between two waits for the datapath, each of which occupies vswitchd's main thread.
	awaitInterval = time.Second

	reportInterval = 10 * time.Second // between two Events about a service
	reportRate     = 10               // Events per second, and the burst

	frameOverhead = 14 + 2*4 // an Ethernet header with two tags, in bytes
)

// Bridge sends packets to the agent, and processes those that were held (*native.Native).
type Bridge interface {
	ovs.Injector
	WatchPackets(ctx context.Context, handle func(ovs.PacketIn))
	AwaitDatapath(ctx context.Context) error
}

// Events reports services that clients need (*nodestatus.Reporter).
type Events interface {
	EventService(namespace, name string, uid types.UID, reason, message string)
}

// Options are the dependencies of a Holder.
type Options struct {
	Bridge Bridge
	Events Events
	MTU    int // of pods, in bytes: larger packets are not held
}

// Statistics are the numbers of packets. A repeated packet of a client, of which another to the service is held, is in none.
type Statistics struct {
	Held    int    // now
	Sent    uint64 // through the flows, since their service had endpoints
	Expired uint64 // their service had no endpoints in time
	Full    uint64 // not held: as many as allowed were
	Dropped uint64 // they are to no idled service, or to several; it has no endpoints and is no longer idled; they are too large; or the switch did not accept them
}

// Holder holds packets. Its methods are safe for concurrent use.
type Holder struct {
	bridge   Bridge
	events   Events
	maxBytes int
	wake     chan struct{} // there is something to expire or to report
	wakeSend chan struct{} // there is something to send
	awaits   *rate.Limiter // of AwaitDatapath

	mu         sync.Mutex
	services   map[string]*service // idled, and released ones for afterRelease
	at         map[pipeline.IdledTarget][]*service
	releasing  []*service // in the order of their release
	releases   uint64     // since New
	held       map[entry]*packet
	ofPort     map[int]int // of held, by port; none is 0
	due        []*packet   // to be sent
	queue      queue
	budget     *rate.Limiter // of Events
	statistics Statistics    // without Held
}

// service is an idled service.
type service struct {
	key, namespace, name string
	uid                  types.UID
	targets              []pipeline.IdledTarget // its keys in Holder.at
	held                 int                    // packets
	released             time.Time              // zero: it is idled
	release              uint64                 // the number of the release
	reported             time.Time              // the last Event
	queued               bool                   // for an Event
}

// entry is the key of a held packet.
type entry struct {
	service *service
	client  netip.Addr
}

// packet is one that opens a connection.
type packet struct {
	entry
	inPort  int
	frame   []byte
	expires time.Time
	release uint64 // of its service, once it is due
}

// New returns a Holder without services.
func New(o Options) *Holder {
	return &Holder{
		bridge: o.Bridge, events: o.Events, maxBytes: o.MTU + frameOverhead, wake: make(chan struct{}, 1), wakeSend: make(chan struct{}, 1),
		awaits:   rate.NewLimiter(rate.Every(awaitInterval), 1),
		services: map[string]*service{}, at: map[pipeline.IdledTarget][]*service{}, held: map[entry]*packet{}, ofPort: map[int]int{},
		queue: queue{of: map[string][]*service{}}, budget: rate.NewLimiter(reportRate, reportRate),
	}
}

// Hold begins to hold packets to an idled service, or replaces its frontends.
func (h *Holder) Hold(key string, svc *endpoints.Service, frontends []pipeline.Frontend) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uid, s := svc.GetObjectMeta().GetUID(), h.services[key]
	if s == nil {
		s = &service{key: key, namespace: svc.GetNamespace(), name: svc.GetName(), uid: uid}
		h.services[key] = s
	}
	if s.released = (time.Time{}); s.uid != uid {
		s.uid, s.reported = uid, time.Time{}
	}
	h.removeTargets(s)
	for _, f := range frontends {
		if target, ok := f.IdledTarget(); ok && !slices.Contains(h.at[target], s) {
			s.targets = append(s.targets, target)
			h.at[target] = append(h.at[target], s)
		}
	}
}

// removeTargets removes a service from the index. h.mu is held.
func (h *Holder) removeTargets(s *service) {
	for _, target := range s.targets {
		if h.at[target] = slices.DeleteFunc(h.at[target], func(other *service) bool { return other == s }); len(h.at[target]) == 0 {
			delete(h.at, target)
		}
	}
	s.targets = nil
}

// Release ends it. The packets that are held are sent, as are those that still arrive; otherwise they are dropped.
func (h *Holder) Release(key string, send bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.services[key]
	if s == nil || send && !s.released.IsZero() {
		return
	}
	if send {
		h.releases++
		s.released, s.release = time.Now(), h.releases
		h.releasing = append(h.releasing, s)
	}
	for _, p := range h.held {
		if p.service != s {
			continue
		}
		h.remove(p)
		if send {
			h.sendLater(p)
		} else {
			h.statistics.Dropped++
		}
	}
	if !send {
		h.delete(s)
		return
	}
	signal(h.wake)
}

// delete deletes a service. h.mu is held.
func (h *Holder) delete(s *service) {
	delete(h.services, s.key)
	h.releasing = slices.DeleteFunc(h.releasing, func(other *service) bool { return other == s })
	h.removeTargets(s)
}

// add adds a packet to those that are held. h.mu is held.
func (h *Holder) add(p *packet) {
	h.held[p.entry] = p
	h.ofPort[p.inPort]++
	p.service.held++
}

// remove removes a held packet. h.mu is held.
func (h *Holder) remove(p *packet) {
	delete(h.held, p.entry)
	p.service.held--
	if h.ofPort[p.inPort]--; h.ofPort[p.inPort] == 0 {
		delete(h.ofPort, p.inPort)
	}
}

// hasRoom reports whether a packet may be held. h.mu is held.
func (h *Holder) hasRoom(p *packet) bool {
	limit := maxOfPort
	if p.inPort == pipeline.PortTun {
		limit = maxOfHost
	}
	return len(h.held) < maxHeld && h.ofPort[p.inPort] < limit && p.service.held < maxOfService
}

func signal(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// handle holds a packet, or sends it if its service was released in the meantime. It does not block: the caller reads the packets of the switch.
func (h *Holder) handle(in ovs.PacketIn) {
	idled, ok := pipeline.ReadIdled(in)
	if !ok {
		return
	}
	from, ok := parse(in.Packet)
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.serviceOf(idled.Targets(from.protocol, from.to))
	if !ok || s == nil || in.InPort == 0 || len(in.Packet) > h.maxBytes {
		h.statistics.Dropped++
		return
	}
	p := &packet{entry: entry{s, from.client}, inPort: in.InPort, frame: in.Packet, expires: time.Now().Add(holdTime)}
	if !s.released.IsZero() {
		h.sendLater(p)
		return
	}
	h.hold(p)
	if !s.queued && time.Since(s.reported) >= reportInterval {
		h.queue.add(s)
	}
	signal(h.wake)
}

// serviceOf returns the only service with one of the targets; nil: there is none, or there are several. h.mu is held.
func (h *Holder) serviceOf(targets []pipeline.IdledTarget) (found *service) {
	for _, target := range targets {
		for _, s := range h.at[target] {
			if found != nil && s != found {
				return nil
			}
			found = s
		}
	}
	return found
}

// hold holds a packet if there is room. The first of a client to a service stays. h.mu is held.
func (h *Holder) hold(p *packet) {
	switch {
	case h.held[p.entry] != nil:
	case h.hasRoom(p):
		h.add(p)
	default:
		h.statistics.Full++
	}
}

// sendLater makes Run send a packet that is not held, whose service was released. h.mu is held.
func (h *Holder) sendLater(p *packet) {
	if len(h.due) >= maxDue {
		h.statistics.Full++
		return
	}
	p.release = p.service.release
	h.due = append(h.due, p)
	signal(h.wakeSend)
}

// Statistics returns the numbers of packets since New.
func (h *Holder) Statistics() Statistics {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := h.statistics
	out.Held = len(h.held)
	return out
}

// Run receives, sends and drops packets until the context ends.
func (h *Holder) Run(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	running.Go(func() { h.bridge.WatchPackets(ctx, h.handle) })
	running.Go(func() { h.runSend(ctx) })
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-h.wake:
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		timer.Reset(min(h.expire(), h.report()))
	}
}

// expire drops the packets whose time has ended, and deletes services that were released long enough ago. It returns the time until the next call is due.
func (h *Holder) expire() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	now, next := time.Now(), holdTime
	for _, p := range h.held {
		if left := p.expires.Sub(now); left > 0 {
			next = min(next, left)
			continue
		}
		h.remove(p)
		h.statistics.Expired++
	}
	for _, s := range slices.Clone(h.releasing) {
		switch left := s.released.Add(afterRelease).Sub(now); {
		case s.released.IsZero(): // idled again
			h.releasing = slices.DeleteFunc(h.releasing, func(other *service) bool { return other == s })
		case left > 0:
			next = min(next, left)
		default:
			h.delete(s)
		}
	}
	return next
}
