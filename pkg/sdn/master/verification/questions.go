package verification

import (
	"cmp"
	"hash/fnv"
	"iter"
	"maps"
	"math"
	"math/bits"
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

// firstUnnamed is the first port that is tried as one that nothing names: below the ports of clients, which flows distinguish, so that agents trace fewer packets.
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

// source returns questions in the order of their pairs' positions. Positions are hashes of the names: so the pairs of a group have sources and destinations on all
// nodes, which answer in parallel, and a request continues where the previous one ended, also if pods were created or deleted in the meantime.
type source struct {
	*run
	sample []question // nil: all
	hashes []uint64   // of the pods' names
	window []pair     // the next pairs, sorted
	next   uint64     // the position at which the window after it begins
	isLast bool       // there is none after it
	token  string     // of the position after the last pair; "" if none is left
}

// pair is two pods at a position.
type pair struct {
	position uint64
	from, to int
}

// windowPairs is the number of pairs that are sorted at a time, roughly.
const windowPairs = 20_000

// ValidToken reports whether a request can continue with the token.
func ValidToken(token string) bool {
	_, err := strconv.ParseUint(token, 16, 64)
	return err == nil || token == ""
}

// questions returns those of the request. An invalid token starts from the first pair.
func (r *run) questions() *source {
	s := &source{run: r}
	if r.request.Sample > 0 {
		s.sample = append([]question{}, r.draw()...)
		return s
	}
	s.next, _ = strconv.ParseUint(r.request.Continue, 16, 64)
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
		s.token = tokenAfter(p.position)
	}
	return group
}

// maxPosition is that of a hash without its last bit: the position after it exists, too.
const maxPosition = math.MaxUint64 >> 1

// fill sets the next window.
func (s *source) fill() {
	begin, width := s.next, maxPosition/uint64(s.pairs()/windowPairs+1) //nolint:gosec // not negative
	s.next = begin + width
	s.isLast = begin > maxPosition-width
	for from := range s.snapshot.Pods {
		for to := range s.partners(from) {
			if at := s.position(from, to); at >= begin && (at < s.next || s.isLast) {
				s.window = append(s.window, pair{at, from, to})
			}
		}
	}
	slices.SortFunc(s.window, func(a, b pair) int {
		return cmp.Or(cmp.Compare(a.position, b.position), cmp.Compare(a.from, b.from), cmp.Compare(a.to, b.to))
	})
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

// position returns the position of a pair: a hash (SplitMix64) of those of its names.
func (s *source) position(from, to int) uint64 {
	if s.hashes == nil {
		for _, p := range s.snapshot.Pods {
			h := fnv.New64a()
			_, _ = h.Write([]byte(keyOf(p))) // never fails
			s.hashes = append(s.hashes, h.Sum64())
		}
	}
	x := s.hashes[from] + bits.RotateLeft64(s.hashes[to], 32)*0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return (x ^ x>>31) >> 1
}

func tokenAfter(position uint64) string { return strconv.FormatUint(position+1, 16) }

// tokenOf returns the token after the pair of a question; "" of a sample, which does not continue.
func (s *source) tokenOf(q question) string {
	if s.sample != nil {
		return ""
	}
	return tokenAfter(s.position(q.from, q.to))
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
