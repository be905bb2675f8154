package policy

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// packetTo is about a packet of a pod of this node.
type packetTo struct {
	direction Direction
	target    PodKey
	peer      netip.Addr
	vnid      uint32 // of the peer
	port      uint16
}

func drawPacketTo(t *rapid.T) packetTo {
	return packetTo{
		direction: rapid.SampledFrom([]Direction{Ingress, Egress}).Draw(t, "direction"), target: drawPod(t), peer: drawAddr(t),
		vnid: rapid.SampledFrom([]uint32{0, 10, 11}).Draw(t, "VNID of the peer"), port: rapid.Uint16Range(80, 83).Draw(t, "number"),
	}
}

func (c *compiled) allows(q packetTo) bool {
	return c.verdict(q.direction, q.target, c.between(q.direction, q.target, q.peer, q.vnid), corev1.ProtocolTCP, q.port)
}

// parted is a switch that gets small changes at once, and large ones when all their parts are compiled.
type parted struct {
	*history
	packets  []packetTo
	before   map[packetTo]bool // allowed at some time since the switch had all
	pieces   map[Piece]struct{}
	compiled map[Piece]func()
	urgent   bool // nothing else is sent before the large change
}

// live returns which of the packets policies allow now.
func (s *parted) live() map[packetTo]bool {
	now := s.anew()
	now.drain()
	allowed := map[packetTo]bool{}
	for _, q := range s.packets {
		if now.allows(q) {
			allowed[q] = true
		}
	}
	return allowed
}

func (s *parted) send(t *rapid.T) {
	pieces := s.engine.Drain()
	pending := len(s.pieces)+len(s.compiled) > 0 || s.engine.veil != nil
	large := rapid.Bool().Draw(t, "large") || pending && (s.urgent || s.engine.Joins())
	if large && !s.engine.Hide() {
		large, s.urgent = pending, pending
	}
	if large || pending {
		for _, p := range pieces {
			s.pieces[p] = struct{}{}
		}
	}
	if large {
		return
	}
	s.compile(pieces)
	for _, p := range pieces {
		if p.Kind == Target && !s.engine.Hides(p.Pod.Namespace) {
			s.isolate(p.Pod)
		}
	}
	if !pending {
		s.before = s.live()
	}
}

// isolate has the pod's flows say whether it is isolated, as policies do now.
func (s *parted) isolate(key PodKey) {
	var now [2]bool
	now[Ingress], now[Egress] = s.engine.Isolated(key)
	s.isolated[key] = now
}

func (s *parted) isPending(p Piece) bool {
	_, to := s.pieces[p]
	_, was := s.compiled[p]
	return to || was
}

// isAwake reports whether a pod sends from the address. One that waits for the large change does not.
func (s *parted) isAwake(addr netip.Addr) bool {
	pod, known := s.engine.Who(addr)
	return known && !s.isPending(Piece{Kind: Target, Pod: pod})
}

// part compiles a piece of the large change.
func (s *parted) part(t *rapid.T) {
	pieces := slices.Collect(maps.Keys(s.pieces))
	if len(pieces) == 0 {
		return
	}
	slices.SortFunc(pieces, func(a, b Piece) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	p := rapid.SampledFrom(pieces).Draw(t, "piece")
	delete(s.pieces, p)
	s.engine.Preview(func() { s.compiled[p] = s.compilePiece(p) })
}

func (s *parted) complete(*rapid.T) {
	s.engine.Reveal()
	for p := range s.pieces {
		s.compiled[p] = s.compilePiece(p)
	}
	for _, put := range s.compiled {
		put()
	}
	clear(s.pieces)
	clear(s.compiled)
	s.urgent = false
	s.drain()
	clear(s.isolated)
	for key := range s.engine.pods {
		s.isolate(key)
	}
	s.before = s.live()
}

// While a large change is compiled in parts, and small ones are on the switch before it, nothing is allowed that no state of the policies has allowed since. A
// pod that no large change is about has its latest policies.
func TestPartsOfLargeChangesNeverAllowMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &parted{history: newHistory(), before: map[packetTo]bool{}, pieces: map[Piece]struct{}{}, compiled: map[Piece]func(){}}
		s.isolated = map[PodKey][2]bool{}
		s.packets = rapid.SliceOfN(rapid.Custom(drawPacketTo), 20, 20).Draw(t, "packets")
		s.complete(t)
		events := map[string]func(*rapid.T){"part": s.part, "another part": s.part, "complete": s.complete}
		for name, event := range s.events() {
			events[name] = func(t *rapid.T) {
				event(t)
				now := s.live()
				maps.Copy(s.before, now)
				s.send(t)
				for _, q := range s.packets {
					switch {
					case !s.allows(q) || now[q]:
					case !s.before[q]:
						t.Fatalf("%+v is allowed, and never was", q)
					case s.urgent, s.engine.Hides(q.target.Namespace), s.isPending(Piece{Kind: Target, Pod: q.target}), !s.isAwake(q.peer):
					default:
						t.Fatalf("%+v is allowed, and no large change is about the pod", q)
					}
				}
			}
		}
		t.Repeat(events)
		s.complete(t)
		for _, q := range s.packets {
			if got, want := s.allows(q), s.before[q]; got != want {
				t.Fatalf("%+v: allowed is %v in the end, want %v", q, got, want)
			}
		}
	})
}
