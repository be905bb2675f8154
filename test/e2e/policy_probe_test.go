package e2e

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/oracle"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// firstRound is the first port from which is asked. Each round has its own, so that no connection is known from another.
const firstRound = 20000

// Queues of a busy machine are short: questions come in small crowds, and what is allowed and has not arrived is asked again.
const (
	crowd     = 40
	crowdTime = 4 * time.Millisecond
	quietTime = 100 * time.Millisecond // without an arrival
	attempts  = 4
)

// station can ask, and be asked. All is made of single packets: what policies make of a connection's first is what counts.
type station struct {
	end
	pod     bool   // what is not, is not asked
	node    string // on which the pod is; else which it is, "" for none
	through string // the node by which a host outside comes: replies of other nodes' pods leave by those nodes, so it asks only pods there
	sockets map[int]net.PacketConn
}

// question is a first packet.
type question struct {
	protocol int // of IP
	round    uint16
	from, to int // stations
	port     uint16
}

// arrival is a question that has reached its receiver, or its answer that has returned.
type arrival struct {
	question
	answer bool
}

// prober has stations ask each other, and hears what arrives.
type prober struct {
	stations      []*station
	byAddr        map[netip.Addr]int
	statelessSCTP bool // answers are evaluated like questions (docs/decisions/0001-conntrack.md)

	mu      sync.Mutex
	round   uint16
	arrived map[arrival]bool
	missing map[arrival]bool    // of the round
	refused map[question]string // why, of the rounds that found no fault
	news    chan bool           // something of the round has arrived; true: nothing is missing
}

// apiProtocol is what the API calls an IP protocol. It has no word for those without ports.
func apiProtocol(protocol int) corev1.Protocol {
	return map[int]corev1.Protocol{
		wire.ProtocolTCP: corev1.ProtocolTCP, wire.ProtocolUDP: corev1.ProtocolUDP, wire.ProtocolSCTP: corev1.ProtocolSCTP,
	}[protocol]
}

// portsOf are those that are asked. TCP and UDP of pods listen there.
func portsOf(protocol int) []uint16 {
	if protocol == wire.ProtocolICMP {
		return []uint16{0}
	}
	return []uint16{80, 81}
}

func newProber(t *testing.T, stations ...*station) *prober {
	t.Helper()
	p := &prober{
		stations: stations, byAddr: map[netip.Addr]int{}, round: firstRound,
		arrived: map[arrival]bool{}, refused: map[question]string{}, news: make(chan bool, 1),
	}
	for i, s := range stations {
		p.byAddr[s.Addr] = i
		s.sockets = map[int]net.PacketConn{}
	}
	for i, s := range stations {
		for _, protocol := range []int{wire.ProtocolICMP, wire.ProtocolTCP, wire.ProtocolUDP, wire.ProtocolSCTP} {
			conn := hearRaw(t, s.end, protocol, func(from netip.Addr, packet []byte) { p.hear(i, protocol, from, packet) })
			s.sockets[protocol] = conn
		}
		if s.pod {
			s.listen(t)
		}
	}
	return p
}

// listen makes the kernel answer SYNs, and discards datagrams without an ICMP error.
func (s *station) listen(t *testing.T) {
	t.Helper()
	for _, port := range portsOf(wire.ProtocolTCP) {
		at := netip.AddrPortFrom(s.Addr, port).String()
		tcp, err := s.NetNS.Listen("tcp4", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { tcp.Close() })
		udp, err := s.NetNS.ListenPacket("udp4", at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { udp.Close() })
	}
}

// hear notes what a station hears, and answers what the kernel does not.
func (p *prober) hear(at, protocol int, sender netip.Addr, packet []byte) {
	other, known := p.byAddr[sender]
	if !known {
		return
	}
	source, destination, asks, ok := readSegment(protocol, packet)
	if !ok {
		return
	}
	if !asks {
		p.note(arrival{question{protocol, destination, at, other, source}, true})
		return
	}
	p.note(arrival{question{protocol, source, other, at, destination}, false})
	from, to := netip.AddrPortFrom(p.stations[at].Addr, destination), netip.AddrPortFrom(sender, source)
	var answer []byte
	switch protocol {
	case wire.ProtocolUDP:
		answer = wire.UDP(from, to, nil)
	case wire.ProtocolSCTP:
		answer = wire.SCTP(destination, source, sctpInitACK, make([]byte, 16))
	default:
		return
	}
	_, _ = p.stations[at].sockets[protocol].WriteTo(answer, &net.IPAddr{IP: sender.AsSlice()}) // its receiver reports it missing
}

func (p *prober) note(a arrival) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrived[a] = true
	if !p.missing[a] {
		return
	}
	delete(p.missing, a)
	select {
	case <-p.news:
	default:
	}
	p.news <- len(p.missing) == 0
}

func (p *prober) send(q question) error {
	from, to := p.stations[q.from], p.stations[q.to]
	source, destination := netip.AddrPortFrom(from.Addr, q.round), netip.AddrPortFrom(to.Addr, q.port)
	var packet []byte
	switch q.protocol {
	case wire.ProtocolICMP:
		packet = wire.ICMPEcho(binary.BigEndian.AppendUint16(nil, q.round))
	case wire.ProtocolTCP:
		packet = wire.TCP(source, destination, wire.TCPSYN)
	case wire.ProtocolUDP:
		packet = wire.UDP(source, destination, nil)
	case wire.ProtocolSCTP:
		packet = wire.SCTP(q.round, q.port, sctpInit, make([]byte, 16))
	}
	if _, err := from.sockets[q.protocol].WriteTo(packet, &net.IPAddr{IP: to.Addr.AsSlice()}); err != nil {
		return fmt.Errorf("%s: %w", p.describe(q), err)
	}
	return nil
}

// evaluated is a question with the oracle's verdict.
type evaluated struct {
	question
	oracle.Verdict
	silent bool // no answer may come
}

// evaluate returns the oracle's verdicts on the questions of all senders to all pods.
func (p *prober) evaluate(cluster *oracle.Cluster) []evaluated {
	pods := map[string]*corev1.Pod{}
	for _, pod := range cluster.Pods {
		pods[pod.Status.PodIP] = pod
	}
	endpoint := func(s *station) oracle.Endpoint {
		if s.pod {
			return oracle.Endpoint{Addr: s.Addr, Pod: pods[s.Addr.String()]}
		}
		return oracle.Endpoint{Addr: s.Addr, Node: s.node}
	}
	var all []evaluated
	for i, from := range p.stations {
		for j, to := range p.stations {
			if i == j || !to.pod || from.through != "" && from.through != to.node {
				continue
			}
			for protocol := range from.sockets {
				for _, port := range portsOf(protocol) {
					there := oracle.Connection{From: endpoint(from), To: endpoint(to), Protocol: apiProtocol(protocol), Port: int32(port)}
					back := oracle.Connection{From: there.To, To: there.From, Protocol: there.Protocol, Port: firstRound}
					q := evaluated{question{protocol, 0, i, j, port}, cluster.Evaluate(there), false}
					q.silent = !q.Allowed || protocol == wire.ProtocolSCTP && p.statelessSCTP && !cluster.Evaluate(back).Allowed
					all = append(all, q)
				}
			}
		}
	}
	return all
}

// ask has everything asked in a new round, what is forbidden first, and finds fault unless exactly what is allowed arrives, and the
// answers to it.
func (p *prober) ask(ctx context.Context, all []evaluated) error {
	all = p.next(all)
	var forbidden, allowed []question
	for _, q := range all {
		if q.Allowed {
			allowed = append(allowed, q.question)
		} else {
			forbidden = append(forbidden, q.question)
		}
	}
	if err := p.sendAll(forbidden); err != nil {
		return err
	}
	for n := 0; n < attempts && len(allowed) > 0; n++ {
		if err := p.sendAll(allowed); err != nil {
			return err
		}
		p.await(ctx)
		allowed = p.unanswered(allowed)
	}
	if err := p.fault(all); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, q := range all {
		if !q.Allowed {
			p.refused[q.question] = q.Why
		}
	}
	return nil
}

func (p *prober) sendAll(all []question) error {
	tick := time.NewTicker(crowdTime)
	defer tick.Stop()
	for together := range slices.Chunk(all, crowd) {
		for _, q := range together {
			if err := p.send(q); err != nil {
				return err
			}
		}
		<-tick.C
	}
	return nil
}

func (p *prober) unanswered(all []question) []question {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.DeleteFunc(all, func(q question) bool { return !p.missing[arrival{q, false}] && !p.missing[arrival{q, true}] })
}

// await returns when nothing is missing, or no more packets arrive.
func (p *prober) await(ctx context.Context) {
	quiet := time.NewTimer(quietTime)
	defer quiet.Stop()
	for {
		select {
		case all := <-p.news:
			if all {
				return
			}
			quiet.Reset(quietTime)
		case <-quiet.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// next begins a round, with its questions.
func (p *prober) next(all []evaluated) []evaluated {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.round++
	p.missing, p.news = map[arrival]bool{}, make(chan bool, 1)
	all = slices.Clone(all)
	for i := range all {
		q := &all[i]
		q.round = p.round
		if q.Allowed {
			p.missing[arrival{q.question, false}] = true
		}
		if !q.silent {
			p.missing[arrival{q.question, true}] = true
		}
	}
	return all
}

// errArrives is in the error of a round in which something forbidden has arrived.
var errArrives = errors.New("arrives")

// fault names the differences of a round, first what arrived.
func (p *prober) fault(all []evaluated) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var faults, arrivals []error
	for _, q := range all {
		switch {
		case p.missing[arrival{q.question, false}]:
			faults = append(faults, fmt.Errorf("%s does not arrive, though: %s", p.describe(q.question), q.Why))
		case p.missing[arrival{q.question, true}]:
			faults = append(faults, fmt.Errorf("the answer to %s does not arrive", p.describe(q.question)))
		case !q.Allowed && p.arrived[arrival{q.question, false}]:
			arrivals = append(arrivals, fmt.Errorf("%s %w, though: %s", p.describe(q.question), errArrives, q.Why))
		case q.silent && p.arrived[arrival{q.question, true}]:
			arrivals = append(arrivals, fmt.Errorf("the answer to %s %w, which is evaluated too", p.describe(q.question), errArrives))
		}
	}
	return summary(append(arrivals, faults...))
}

// late finds fault with what was forbidden and has arrived after all.
func (p *prober) late() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var faults []error
	for q, why := range p.refused {
		if p.arrived[arrival{q, false}] {
			faults = append(faults, fmt.Errorf("%s of round %d has arrived, though: %s", p.describe(q), q.round, why))
		}
	}
	return summary(faults)
}

// summary returns the number of faults, and the first ones.
func summary(faults []error) error {
	const shown = 8
	if len(faults) <= shown {
		return errors.Join(faults...)
	}
	return errors.Join(append(faults[:shown:shown], fmt.Errorf("and %d more", len(faults)-shown))...)
}

func (p *prober) describe(q question) string {
	protocol := string(apiProtocol(q.protocol))
	if protocol == "" {
		protocol = "ICMP"
	}
	return fmt.Sprintf("%s %d from %s to %s", strings.ToUpper(protocol), q.port, p.stations[q.from].Name, p.stations[q.to].Name)
}
