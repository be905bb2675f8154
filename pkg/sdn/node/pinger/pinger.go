// Package pinger measures the latency and the loss of packets between this node and the others, through the overlay and through the underlay alone: an
// overlay that is broken while the underlay is not has another cause than a node that is down. It sends ICMP echo requests to the nodes' gateway addresses,
// by tun0 and the tunnel, and to their host addresses.
package pinger

import (
	"context"
	"crypto/rand"
	mathrand "math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pause"
)

const (
	// MaxRate is the maximum number of probes per second, whatever the number of nodes is.
	MaxRate = 50

	round   = 10 * time.Second // between two probes of a path, if MaxRate allows it
	timeout = 2 * time.Second  // after which a probe without an answer is lost

	retryInterval = time.Minute // after a failure to open a socket

	// failureThreshold is the number of consecutive lost probes after which a path counts as broken.
	failureThreshold = 3
	// startTime is how long the agent of a new node may take until its tun0 answers: it pulls images.
	startTime = 10 * time.Minute
)

// Path is a way to another node.
type Path string

// The paths.
const (
	Overlay    Path = "overlay"     // through the tunnel
	OverlayMTU Path = "overlay-mtu" // with packets as large as the MTU of tun0
	Underlay   Path = "underlay"    // to the host's address
)

// Paths returns all paths.
func Paths() []Path { return []Path{Overlay, OverlayMTU, Underlay} }

// smallProbe is the size of the IP packet of a probe in bytes: that of ping(8).
const smallProbe = 84

// Socket sends ICMP echo requests and receives the replies of this host.
type Socket interface {
	// Send sends a request in an IP packet of that size, which is not fragmented.
	Send(to netip.Addr, size int, number uint64) error
	// Receive returns the number of a reply that a request of this socket caused, and its source. It fails once the socket is closed.
	Receive() (from netip.Addr, number uint64, err error)
	Close() error
}

// Options configure a Pinger.
type Options struct {
	Rate    int // probes per second, at most MaxRate; 0: none
	MTU     int // bytes, of tun0
	Open    func() (Socket, error)
	Observe func(path Path, rtt time.Duration, answered bool)
}

// Pinger probes other nodes.
type Pinger struct {
	Options

	mu      sync.Mutex
	peers   map[string]*peer
	order   []*peer // in which they are probed
	next    int     // index of order
	path    int     // index of Paths, of the next probe
	pending map[uint64]request
	probing bool     // the socket is open
	sent    []uint64 // numbers of pending probes, the oldest first; some may have been answered
	number  uint64   // of the last probe
}

type peer struct {
	name  string
	added time.Time
	addrs map[Path]netip.Addr
	stats map[Path]*series
}

// request is one without an answer yet.
type request struct {
	peer *peer
	path Path
	to   netip.Addr
	at   time.Time
}

// New returns a pinger without peers.
func New(o Options) *Pinger {
	// Replies to probes of a previous agent must not match.
	var first [4]byte
	rand.Read(first[:]) // never fails (crypto/rand)
	p := &Pinger{Options: o, peers: map[string]*peer{}, pending: map[uint64]request{}}
	for _, b := range first {
		p.number = p.number<<8 | uint64(b)
	}
	p.number <<= 32
	return p
}

// SetRemoteNode sets a remote node, or deletes it if it is nil. Machines outside of the cluster are not probed.
func (p *Pinger) SetRemoteNode(name string, node *inputs.RemoteNode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := p.peers[name]
	if node == nil || !node.IsNode || node.IsRetained || !node.Gateway.IsValid() {
		if known != nil {
			p.remove(known)
		}
		return
	}
	if known != nil && known.addrs[Underlay] == node.VTEP && known.addrs[Overlay] == node.Gateway {
		return
	}
	if known != nil {
		p.remove(known)
	}
	fresh := &peer{
		name: name, added: time.Now(), addrs: map[Path]netip.Addr{Overlay: node.Gateway, OverlayMTU: node.Gateway, Underlay: node.VTEP},
		stats: map[Path]*series{Overlay: {}, OverlayMTU: {}, Underlay: {}},
	}
	p.peers[name] = fresh
	// In a random order, so that not all nodes probe a node at the same time.
	i := mathrand.IntN(len(p.order) + 1)
	p.order = append(p.order, fresh)
	p.order[i], p.order[len(p.order)-1] = p.order[len(p.order)-1], p.order[i]
}

// remove takes the last peer in place of the removed one: a cluster has thousands.
func (p *Pinger) remove(removed *peer) {
	delete(p.peers, removed.name)
	for i, candidate := range p.order {
		if candidate == removed {
			last := len(p.order) - 1
			p.order[i] = p.order[last]
			p.order[last] = nil
			p.order = p.order[:last]
			return
		}
	}
}

// Run probes until the context ends.
func (p *Pinger) Run(ctx context.Context) {
	if p.Rate == 0 {
		return
	}
	for ctx.Err() == nil {
		err := p.probe(ctx)
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "Failed to probe other nodes by ICMP", "retryAfter", retryInterval, "action", "give the agent CAP_NET_RAW, or set --peer-probe-rate=0")
		pause.For(ctx, retryInterval)
	}
}

// probe probes until the context ends or the socket fails.
func (p *Pinger) probe(ctx context.Context) error {
	socket, err := p.Open()
	if err != nil {
		return err
	}
	p.setProbing(true)
	defer p.setProbing(false)
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	defer context.AfterFunc(ctx, func() { _ = socket.Close() })()
	var receiving sync.WaitGroup
	defer receiving.Wait()
	defer socket.Close() // ends Receive
	receiving.Go(func() {
		for {
			from, number, err := socket.Receive()
			if err != nil {
				fail(err)
				return
			}
			p.answer(from, number, time.Now())
		}
	})
	for ctx.Err() == nil {
		p.expire(time.Now())
		if chosen, number, size, ok := p.choose(time.Now()); ok {
			// A request that can't be sent, such as one that is larger than the path's MTU, is lost.
			_ = socket.Send(chosen.to, size, number)
		}
		pause.For(ctx, p.interval())
	}
	return context.Cause(ctx)
}

func (p *Pinger) setProbing(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.probing = on
}

// interval returns the pause between two probes.
func (p *Pinger) interval() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	probes := max(1, len(p.order)*len(Paths()))
	return max(time.Second/time.Duration(p.Rate), round/time.Duration(probes))
}

// choose returns the next probe, with its number and the size of its packet.
func (p *Pinger) choose(now time.Time) (chosen request, number uint64, size int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.order) == 0 {
		return request{}, 0, 0, false
	}
	if p.next >= len(p.order) {
		p.next, p.path = 0, (p.path+1)%len(Paths())
	}
	to, path := p.order[p.next], Paths()[p.path]
	p.next++
	p.number++
	size = smallProbe
	if path == OverlayMTU {
		size = p.MTU
	}
	chosen = request{to, path, to.addrs[path], now}
	p.pending[p.number] = chosen
	p.sent = append(p.sent, p.number)
	return chosen, p.number, size, true
}

// answer records a reply. One of an unknown number, or of another address than the probed one, is ignored: anything may send it.
func (p *Pinger) answer(from netip.Addr, number uint64, now time.Time) {
	p.mu.Lock()
	known, ok := p.pending[number]
	if !ok || known.to != from {
		p.mu.Unlock()
		return
	}
	delete(p.pending, number)
	rtt := now.Sub(known.at)
	known.peer.stats[known.path].answered(rtt)
	p.mu.Unlock()
	p.Observe(known.path, rtt, true)
}

// expire records probes without an answer as lost.
func (p *Pinger) expire(now time.Time) {
	p.mu.Lock()
	var lost []Path
	for len(p.sent) > 0 {
		oldest, unanswered := p.pending[p.sent[0]]
		if unanswered && now.Sub(oldest.at) < timeout {
			break
		}
		if unanswered {
			delete(p.pending, p.sent[0])
			oldest.peer.stats[oldest.path].lost()
			lost = append(lost, oldest.path)
		}
		p.sent = p.sent[1:]
	}
	p.mu.Unlock()
	for _, path := range lost {
		p.Observe(path, 0, false)
	}
}
