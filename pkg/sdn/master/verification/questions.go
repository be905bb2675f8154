package verification

import (
	"cmp"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sort"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
)

// firstUnnamed is the first port that is tried as one that nothing names.
const firstUnnamed = 47_123

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

// source returns questions, sorted by pair.
type source struct {
	*run
	sample   []question // nil: all
	from, to int        // the next pair
	token    string     // of the last pair; "" if none is left
}

// questions returns those of the request.
func (r *run) questions() *source {
	s := &source{run: r}
	if r.request.Sample > 0 {
		s.sample = append([]question{}, r.draw()...)
		return s
	}
	first, second, ok := strings.Cut(r.request.Continue, " ")
	if !ok {
		return s
	}
	s.from = r.indexOf(first)
	if s.from < len(r.snapshot.Pods) && keyOf(r.snapshot.Pods[s.from]) == first {
		s.to = r.indexOf(second)
		if s.to < len(r.snapshot.Pods) && keyOf(r.snapshot.Pods[s.to]) == second {
			s.to++
		}
	}
	return s
}

// take returns the questions of the next pairs, at least so many if there are.
func (s *source) take(least int) (group []question) {
	if s.sample != nil {
		group, s.sample = s.sample, []question{}
		return group
	}
	pods := s.snapshot.Pods
	for ; s.from < len(pods); s.from, s.to = s.from+1, 0 {
		for ; s.to < len(pods); s.to++ {
			if len(group) >= least {
				return group
			}
			if !s.isAsked(s.from, s.to) {
				continue
			}
			for _, port := range s.ports.of(s.from, s.to) {
				group = append(group, question{s.from, s.to, port})
			}
			s.token = s.tokenOf(question{from: s.from, to: s.to})
		}
	}
	s.token = ""
	return group
}

// tokenOf returns the token after the pair of a question; "" of a sample, which does not continue.
func (s *source) tokenOf(q question) string {
	if s.sample != nil {
		return ""
	}
	return keyOf(s.snapshot.Pods[q.from]) + " " + keyOf(s.snapshot.Pods[q.to])
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
