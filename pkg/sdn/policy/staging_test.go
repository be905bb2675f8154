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

	"github.com/ovsdn/ovsdn/test/seed"
)

// packetTo is a packet from or to a pod of this node.
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

// stagedSwitch is the model of a switch that receives small changes at once, and large ones when all their parts are compiled.
type stagedSwitch struct {
	*history
	packets  []packetTo
	before   map[packetTo]bool // allowed by some state of the policies since the switch had all changes
	clauses  map[Clause]struct{}
	compiled map[Clause]func()
	urgent   bool // no other change is sent before the large one
}

// live returns the packets that the current policies allow.
func (s *stagedSwitch) live() map[packetTo]bool {
	now := s.rebuilt()
	now.drain()
	allowed := map[packetTo]bool{}
	for _, q := range s.packets {
		if now.allows(q) {
			allowed[q] = true
		}
	}
	return allowed
}

func (s *stagedSwitch) send(t *rapid.T) {
	clauses := s.engine.Drain()
	pending := len(s.clauses)+len(s.compiled) > 0 || s.engine.staging != nil
	large := rapid.Bool().Draw(t, "large") || pending && (s.urgent || s.engine.JoinsStaged())
	if large && !s.engine.Stage() {
		large, s.urgent = pending, pending
	}
	if large || pending {
		for _, p := range clauses {
			s.clauses[p] = struct{}{}
		}
	}
	if large {
		return
	}
	s.compile(clauses)
	for _, p := range clauses {
		if p.Kind == Target && !s.engine.IsStaged(p.Pod.Namespace) {
			s.isolate(p.Pod)
		}
	}
	if !pending {
		s.before = s.live()
	}
}

// isolate updates the isolation in the pod's flows to that of the current policies.
func (s *stagedSwitch) isolate(key PodKey) {
	var now [2]bool
	now[Ingress], now[Egress] = s.engine.Isolated(key)
	s.isolated[key] = now
}

func (s *stagedSwitch) isPending(p Clause) bool {
	_, to := s.clauses[p]
	_, was := s.compiled[p]
	return to || was
}

// isAwake reports whether a pod sends from the address. A pod that waits for the large change does not send.
func (s *stagedSwitch) isAwake(addr netip.Addr) bool {
	pod, known := s.engine.PodByAddr(addr)
	return known && !s.isPending(Clause{Kind: Target, Pod: pod})
}

// part compiles a clause of the large change.
func (s *stagedSwitch) part(t *rapid.T) {
	clauses := slices.Collect(maps.Keys(s.clauses))
	if len(clauses) == 0 {
		return
	}
	slices.SortFunc(clauses, func(a, b Clause) int { return cmp.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
	p := rapid.SampledFrom(clauses).Draw(t, "clause")
	delete(s.clauses, p)
	s.engine.WithStaged(func() { s.compiled[p] = s.compileClause(p) })
}

func (s *stagedSwitch) complete(*rapid.T) {
	s.engine.EndStaging()
	for p := range s.clauses {
		s.compiled[p] = s.compileClause(p)
	}
	for _, put := range s.compiled {
		put()
	}
	clear(s.clauses)
	clear(s.compiled)
	s.urgent = false
	s.drain()
	clear(s.isolated)
	for key := range s.engine.pods {
		s.isolate(key)
	}
	s.before = s.live()
}

// While a large change is compiled in parts, and small ones reach the switch before it, every allowed packet was allowed by some state of the policies
// since the last complete one. A pod that no large change concerns has its latest policies.
func TestPartsOfLargeChangesNeverAllowMore(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		s := &stagedSwitch{history: newHistory(), before: map[packetTo]bool{}, clauses: map[Clause]struct{}{}, compiled: map[Clause]func(){}}
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
						t.Fatalf("%+v: got allowed, want denied: no state of the policies allowed it", q)
					case s.urgent, s.engine.IsStaged(q.target.Namespace), s.isPending(Clause{Kind: Target, Pod: q.target}), !s.isAwake(q.peer):
					default:
						t.Fatalf("%+v: got allowed, want denied: no large change concerns the pod", q)
					}
				}
			}
		}
		t.Repeat(events)
		s.complete(t)
		for _, q := range s.packets {
			if got, want := s.allows(q), s.before[q]; got != want {
				t.Fatalf("%+v: allowed in the end: got %v, want %v", q, got, want)
			}
		}
	})
}
