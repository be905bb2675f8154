// Package idling holds the packets that open connections to idled services until the services have endpoints, and reports that a client needs them
// (docs/decisions/0011-services.md).
package idling

import (
	"context"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/endpoints"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

const (
	// holdTime is for how long a packet is held. Clients of TCP repeat theirs; those of UDP have given up by then.
	holdTime = 30 * time.Second
	// maxHeld is the number of packets that are held, one of each client, and as many wait to be sent.
	maxHeld = 256
	// maxOutside is the number of these from hosts outside, which can forge their addresses.
	maxOutside = maxHeld / 2
	// afterRelease is for how long packets of a service with endpoints may still arrive: until the datapath has revalidated its megaflows, and from the switch's queue.
	afterRelease = 5 * time.Second

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

// Statistics are the numbers of packets. A repeated packet of a client, of which another is held, is in none.
type Statistics struct {
	Held    int    // now
	Sent    uint64 // through the flows, since their service had endpoints
	Expired uint64 // their service had no endpoints in time
	Full    uint64 // not held: as many as allowed were
	Dropped uint64 // their service is no longer idled and has no endpoints; they are too large; or the switch did not accept them
}

// Holder holds packets. Its methods are safe for concurrent use.
type Holder struct {
	bridge   Bridge
	events   Events
	maxBytes int
	wake     chan struct{}

	mu         sync.Mutex
	services   map[string]*service // idled, and released ones for afterRelease
	byCookie   map[uint64][]*service
	releasing  []*service             // in the order of their release
	held       map[netip.Addr]*packet // by client
	outside    int                    // of held, those from hosts outside
	due        []*packet              // to be sent
	queue      queue
	budget     *rate.Limiter // of Events
	statistics Statistics    // without Held
}

// service is an idled service. Two may have the same cookie, a hash of their names: packets are then of both.
type service struct {
	key, namespace, name string
	uid                  types.UID
	cookie               uint64
	released             time.Time // zero: it is idled
	reported             time.Time // the last Event
	queued               bool      // for an Event
}

// packet is one that opens a connection.
type packet struct {
	client  netip.Addr
	cookie  uint64 // of its service
	outside bool
	inPort  int
	frame   []byte
	expires time.Time
}

// New returns a Holder without services.
func New(o Options) *Holder {
	return &Holder{
		bridge: o.Bridge, events: o.Events, maxBytes: o.MTU + frameOverhead, wake: make(chan struct{}, 1),
		services: map[string]*service{}, byCookie: map[uint64][]*service{}, held: map[netip.Addr]*packet{},
		queue: queue{of: map[string][]*service{}}, budget: rate.NewLimiter(reportRate, reportRate),
	}
}

// Hold begins to hold packets to an idled service.
func (h *Holder) Hold(key string, svc *endpoints.Service) {
	h.mu.Lock()
	defer h.mu.Unlock()
	uid := svc.GetObjectMeta().GetUID()
	if s := h.services[key]; s != nil {
		if s.released = (time.Time{}); s.uid != uid {
			s.uid, s.reported = uid, time.Time{}
		}
		return
	}
	s := &service{
		key: key, namespace: svc.GetNamespace(), name: svc.GetName(), uid: uid, cookie: pipeline.Owner{Kind: pipeline.KindService, Key: key}.Cookie(),
	}
	h.services[key] = s
	h.byCookie[s.cookie] = append(h.byCookie[s.cookie], s)
}

// Release ends it. The packets that are held are sent, as are those that still arrive; otherwise they are dropped.
func (h *Holder) Release(key string, send bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	s := h.services[key]
	if s == nil || send && !s.released.IsZero() {
		return
	}
	for _, p := range h.held {
		if p.cookie != s.cookie {
			continue
		}
		h.remove(p)
		if send {
			h.due = append(h.due, p)
		} else {
			h.statistics.Dropped++
		}
	}
	if !send {
		h.delete(s)
		return
	}
	s.released = time.Now()
	h.releasing = append(h.releasing, s)
	h.signal()
}

// delete deletes a service. h.mu is held.
func (h *Holder) delete(s *service) {
	delete(h.services, s.key)
	h.releasing = slices.DeleteFunc(h.releasing, func(other *service) bool { return other == s })
	h.byCookie[s.cookie] = slices.DeleteFunc(h.byCookie[s.cookie], func(other *service) bool { return other == s })
	if len(h.byCookie[s.cookie]) == 0 {
		delete(h.byCookie, s.cookie)
	}
}

// remove removes a held packet. h.mu is held.
func (h *Holder) remove(p *packet) {
	delete(h.held, p.client)
	if p.outside {
		h.outside--
	}
}

func (h *Holder) signal() {
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// handle holds a packet, or sends it if its service was released in the meantime. It does not block: the caller reads the packets of the switch.
func (h *Holder) handle(in ovs.PacketIn) {
	idled, ok := pipeline.ReadIdled(in)
	if !ok {
		return
	}
	client, ok := sourceOf(in.Packet)
	h.mu.Lock()
	defer h.mu.Unlock()
	services := h.byCookie[idled.Cookie]
	if !ok || len(services) == 0 || in.InPort == 0 {
		h.statistics.Dropped++
		return
	}
	p := &packet{client: client, cookie: idled.Cookie, outside: idled.Outside, inPort: in.InPort, frame: in.Packet, expires: time.Now().Add(holdTime)}
	if slices.ContainsFunc(services, func(s *service) bool { return !s.released.IsZero() }) {
		h.sendLater(p)
		return
	}
	h.hold(p)
	for _, s := range services {
		if !s.queued && time.Since(s.reported) >= reportInterval {
			h.queue.add(s)
		}
	}
	h.signal()
}

// hold holds a packet if there is room. The first of a client stays. h.mu is held.
func (h *Holder) hold(p *packet) {
	switch {
	case len(p.frame) > h.maxBytes:
		h.statistics.Dropped++
	case h.held[p.client] != nil:
	case len(h.held) == maxHeld, p.outside && h.outside == maxOutside:
		h.statistics.Full++
	default:
		h.held[p.client] = p
		if p.outside {
			h.outside++
		}
	}
}

// sendLater makes Run send a packet that is not held. h.mu is held.
func (h *Holder) sendLater(p *packet) {
	switch {
	case len(p.frame) > h.maxBytes:
		h.statistics.Dropped++
	case len(h.due) >= maxHeld:
		h.statistics.Full++
	default:
		h.due = append(h.due, p)
		h.signal()
	}
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
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { h.bridge.WatchPackets(ctx, h.handle) })
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
		h.send(ctx)
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

// send sends the due packets through the flows, from the first table on: they are evaluated as any packet. The datapath uses the flows of endpoints then.
func (h *Holder) send(ctx context.Context) {
	h.mu.Lock()
	due := h.due
	h.due = nil
	h.mu.Unlock()
	if len(due) == 0 {
		return
	}
	sent, err := 0, h.bridge.AwaitDatapath(ctx)
	for _, p := range due {
		if err != nil {
			break
		}
		if err = h.bridge.Inject(ctx, p.inPort, p.frame); err == nil {
			sent++
		}
	}
	h.mu.Lock()
	h.statistics.Sent += uint64(sent)               //nolint:gosec // not negative
	h.statistics.Dropped += uint64(len(due) - sent) //nolint:gosec // not negative
	h.mu.Unlock()
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Info("Failed to send packets that were held for idled services", "packets", len(due)-sent, "err", err,
			"action", "none, clients of TCP repeat them")
	}
}

// EtherTypes (IEEE 802 Numbers).
const (
	typeIPv4       = 0x0800
	typeVLAN       = 0x8100 // IEEE 802.1Q
	typeServiceTag = 0x88a8 // IEEE 802.1ad
)

// sourceOf returns the source of the IPv4 packet in an Ethernet frame with at most two tags.
func sourceOf(frame []byte) (netip.Addr, bool) {
	const addresses, tag, source = 12, 4, 12 // bytes
	if len(frame) < addresses+2 {
		return netip.Addr{}, false
	}
	rest := frame[addresses:]
	for range 2 {
		if t := binary.BigEndian.Uint16(rest); (t == typeVLAN || t == typeServiceTag) && len(rest) >= tag+2 {
			rest = rest[tag:]
		}
	}
	if binary.BigEndian.Uint16(rest) != typeIPv4 || len(rest) < 2+source+4 {
		return netip.Addr{}, false
	}
	return netip.AddrFrom4([4]byte(rest[2+source:])), true
}
