package verification

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"iter"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sort"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

// firstUnnamed is the first port that is tried as one that nothing names: below the ports of clients, which flows distinguish for packets in the middle of
// connections, so that agents trace fewer packets.
const firstUnnamed = 27_123

// question is a connection between two pods of a snapshot.
type question struct {
	from, to int
	port     oracle.Port
}

// portsOf has the ports of pods, which it computes once.
type portsOf struct {
	*Snapshot
	services map[string][]Service // by namespace
	in, out  map[int][]oracle.Port
}

func newPortsOf(s *Snapshot) *portsOf {
	p := &portsOf{Snapshot: s, services: map[string][]Service{}, in: map[int][]oracle.Port{}, out: map[int][]oracle.Port{}}
	for _, svc := range s.Services {
		p.services[svc.Namespace] = append(p.services[svc.Namespace], svc)
	}
	return p
}

// of returns the ports of a pair: those that policies of both pods, the containers and the services of the destination name, and for TCP and each protocol among
// them one that nothing names.
func (p *portsOf) of(from, to int) []oracle.Port {
	all := slices.Concat(p.toPod(to), p.fromPod(from), []oracle.Port{{Protocol: corev1.ProtocolTCP}})
	slices.SortFunc(all, comparePorts)
	all = slices.Compact(all)
	named := all
	var ports []oracle.Port
	for i, port := range named {
		if i == 0 || port.Protocol != named[i-1].Protocol {
			other := oracle.Port{Protocol: port.Protocol, Number: firstUnnamed}
			for slices.Contains(named, other) {
				other.Number++
			}
			ports = append(ports, other)
		}
		if port.Number > 0 {
			ports = append(ports, port)
		}
	}
	return ports
}

func comparePorts(a, b oracle.Port) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Number, b.Number))
}

func (p *portsOf) toPod(i int) []oracle.Port {
	ports, ok := p.in[i]
	if !ok {
		pod := p.Pods[i]
		ports = p.Ports(pod, networkingv1.PolicyTypeIngress)
		for _, svc := range p.services[pod.Namespace] {
			if labels.SelectorFromSet(svc.Selector).Matches(labels.Set(pod.Labels)) {
				ports = append(ports, svc.Targets...)
			}
		}
		p.in[i] = ports
	}
	return ports
}

func (p *portsOf) fromPod(i int) []oracle.Port {
	ports, ok := p.out[i]
	if !ok {
		ports = p.Ports(p.Pods[i], networkingv1.PolicyTypeEgress)
		p.out[i] = ports
	}
	return ports
}

// isAsked reports whether the request has the pair.
func (r *run) isAsked(from, to int) bool {
	isOwn := func(i int) bool {
		return r.request.Namespace == "" || r.snapshot.Pods[i].Namespace == r.request.Namespace
	}
	if r.request.WithOthers {
		return from != to && (isOwn(from) || isOwn(to))
	}
	return from != to && isOwn(from) && isOwn(to)
}

// pairs returns the number of pairs of the request.
func (r *run) pairs() int {
	all, own := len(r.snapshot.Pods), 0
	for _, p := range r.snapshot.Pods {
		if r.request.Namespace == "" || p.Namespace == r.request.Namespace {
			own++
		}
	}
	if r.request.WithOthers {
		return 2*own*(all-1) - own*(own-1)
	}
	return own * (own - 1)
}

// source returns questions in the order of their pairs' positions. A request continues where the previous one ended, also if pods were created or deleted in
// the meantime.
type source struct {
	*run
	sample []question // nil: all
	keys   []uint64   // of the pods
	window []pair     // the next pairs, sorted
	after  position   // the window after it begins behind it
	isLast bool       // there is none after it
	token  string     // of the position of the last pair; "" if none is left
}

// pair is two pods at a position.
type pair struct {
	position
	from, to int
}

// windowPairs is the number of pairs that are sorted at a time.
const windowPairs = 20_000

// position orders pairs by the keys of their pods: high has their high bits, interleaved (Z-order), and low the others. So consecutive pairs are those of some
// sources with some destinations, and many of their packets are on one path. Keys begin with bits of the namespace's hash, since pods of a namespace often have the
// same flows, and continue with those of the name's: sources and destinations are on all nodes, which answer in parallel.
type position struct{ high, low uint64 }

// compare compares two positions.
func (p position) compare(q position) int {
	return cmp.Or(cmp.Compare(p.high, q.high), cmp.Compare(p.low, q.low))
}

const (
	keyBits       = 62
	namespaceBits = 15 // of them
	halfKey       = keyBits / 2
)

func positionOf(from, to uint64) position {
	const low = 1<<halfKey - 1
	return position{high: spread(from>>halfKey)<<1 | spread(to>>halfKey), low: from&low<<halfKey | to&low}
}

// spread returns the low 32 bits of x, with a zero before each.
func spread(x uint64) uint64 {
	x = (x | x<<16) & 0x0000ffff0000ffff
	x = (x | x<<8) & 0x00ff00ff00ff00ff
	x = (x | x<<4) & 0x0f0f0f0f0f0f0f0f
	x = (x | x<<2) & 0x3333333333333333
	return (x | x<<1) & 0x5555555555555555
}

// ValidToken reports whether a request can continue with the token.
func ValidToken(token string) bool {
	_, err := parseToken(token)
	return err == nil || token == ""
}

func (p position) token() string { return fmt.Sprintf("%016x%016x", p.high, p.low) }

func parseToken(token string) (p position, err error) {
	if len(token) != 32 {
		return position{}, errors.New("a token has 32 digits")
	}
	if p.high, err = strconv.ParseUint(token[:16], 16, 64); err == nil {
		p.low, err = strconv.ParseUint(token[16:], 16, 64)
	}
	return p, err
}

// questions returns those of the request. An invalid token starts from the first pair.
func (r *run) questions() *source {
	s := &source{run: r}
	if r.request.Sample > 0 {
		s.sample = append([]question{}, r.draw()...)
		return s
	}
	s.after, _ = parseToken(r.request.Continue)
	return s
}

// take returns the questions of the next pairs, at least so many if there are.
func (s *source) take(least int) (group []question) {
	if s.sample != nil {
		least = min(least, len(s.sample))
		group, s.sample = s.sample[:least:least], s.sample[least:]
		return group
	}
	for len(group) < least {
		if len(s.window) == 0 {
			if s.isLast {
				s.token = ""
				return group
			}
			s.fill()
			continue
		}
		p := s.window[0]
		s.window = s.window[1:]
		for _, port := range s.ports.of(p.from, p.to) {
			group = append(group, question{p.from, p.to, port})
		}
		s.token = p.token()
	}
	return group
}

// fill sets the next window: the pairs with the least positions after the previous one.
func (s *source) fill() {
	s.isLast = true
	for from := range s.snapshot.Pods {
		for to := range s.partners(from) {
			at := s.position(from, to)
			if at.compare(s.after) <= 0 || !s.isLast && at.compare(s.window[windowPairs-1].position) >= 0 {
				continue
			}
			if s.window = append(s.window, pair{at, from, to}); len(s.window) == 2*windowPairs {
				s.sortWindow()
			}
		}
	}
	s.sortWindow()
	if len(s.window) > 0 {
		s.after = s.window[len(s.window)-1].position
	}
}

// sortWindow sorts the window, and removes the pairs that belong to the next one. While pairs are added, those before index windowPairs are sorted.
func (s *source) sortWindow() {
	slices.SortFunc(s.window, func(a, b pair) int { return a.compare(b.position) })
	if len(s.window) > windowPairs {
		s.window, s.isLast = s.window[:windowPairs], false
	}
}

// partners returns the destinations of pairs with the source.
func (r *run) partners(from int) iter.Seq[int] {
	first, end := 0, len(r.snapshot.Pods)
	if namespace := r.request.Namespace; namespace != "" && (!r.request.WithOthers || r.snapshot.Pods[from].Namespace != namespace) {
		if !r.request.WithOthers && r.snapshot.Pods[from].Namespace != namespace {
			end = 0
		} else {
			first, end = r.indexOf(namespace+"/"), r.indexOf(namespace+"0") // "0" follows "/"
		}
	}
	return func(yield func(int) bool) {
		for to := first; to < end; to++ {
			if to != from && !yield(to) {
				return
			}
		}
	}
}

func (s *source) position(from, to int) position {
	if s.keys == nil {
		for _, p := range s.snapshot.Pods {
			s.keys = append(s.keys, podKey(p))
		}
	}
	return positionOf(s.keys[from], s.keys[to])
}

// podKey returns keyBits bits.
func podKey(p *corev1.Pod) uint64 {
	const nameBits = keyBits - namespaceBits
	return hash(p.Namespace)>>(64-namespaceBits)<<nameBits | hash(keyOf(p))>>(64-nameBits)
}

// hash returns one whose bits all depend on the whole text: that of FNV-1a, mixed as SplitMix64 does.
func hash(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// tokenOf returns the token of the pair of a question; "" of a sample, which does not continue.
func (s *source) tokenOf(q question) string {
	if s.sample != nil {
		return ""
	}
	return s.position(q.from, q.to).token()
}

func isSamePair(a, b question) bool { return a.from == b.from && a.to == b.to }

// fewPairs is the largest number of pairs of which a sample is drawn from all questions.
const fewPairs = 10_000

// draw returns the questions of a sample, without repetitions.
func (r *run) draw() []question {
	if r.pairs() <= fewPairs {
		all := (&source{run: r}).take(math.MaxInt)
		rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return all[:min(len(all), r.request.Sample):len(all)]
	}
	own := []int{}
	for i, p := range r.snapshot.Pods {
		if r.request.Namespace == "" || p.Namespace == r.request.Namespace {
			own = append(own, i)
		}
	}
	drawn := map[question]bool{}
	for len(drawn) < r.request.Sample { // of many more
		from, to := own[rand.IntN(len(own))], rand.IntN(len(r.snapshot.Pods)) //nolint:gosec // a sample is no secret
		if rand.IntN(2) == 0 {                                                //nolint:gosec // as above
			from, to = to, from
		}
		if r.isAsked(from, to) {
			ports := r.ports.of(from, to)
			drawn[question{from, to, ports[rand.IntN(len(ports))]}] = true //nolint:gosec // as above
		}
	}
	return slices.Collect(maps.Keys(drawn))
}

// indexOf returns the index of the first pod whose key is not less.
func (r *run) indexOf(key string) int {
	return sort.Search(len(r.snapshot.Pods), func(i int) bool { return keyOf(r.snapshot.Pods[i]) >= key })
}

func keyOf(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

// Sort sorts pods as a Snapshot has them.
func Sort(pods []*corev1.Pod) {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(keyOf(a), keyOf(b)) })
}

// addrOf returns the address of a pod of a snapshot.
func addrOf(p *corev1.Pod) netip.Addr {
	addr, _ := netip.ParseAddr(p.Status.PodIP) // valid in a snapshot
	return addr
}
