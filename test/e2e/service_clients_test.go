package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
)

// clientKind is how sources of a client are translated.
type clientKind int

const (
	podClient clientKind = iota
	itselfClient
	programClient
	hostClient
)

// addressKind is how sources of clients of an address are translated.
type addressKind int

const (
	internalKind addressKind = iota
	externalKind
	externalLocalKind // with externalTrafficPolicy: Local
	directKind        // no address of a Service
)

// source is an address that an endpoint sees.
type source string

// Sources that depend on the client. Others are addresses.
const (
	seenClient source = "client"
	seenTun0   source = "tun0" // of the node that translates
	seenNode   source = "node" // that translates
)

// Places of endpoints, seen from the node that translates.
const (
	podHere = iota
	podElsewhere
	hostHere
	hostElsewhere
	placeCount
)

// serviceClient asks services.
type serviceClient struct {
	name  string
	kind  clientKind
	netNS wire.NetNS
	addr  netip.Addr
	node  string // its node, whose services it uses; for hosts outside the node to which they send
}

// outcome is what a client got.
type outcome struct {
	answer answer // an endpoint's name, a status, rejected or dropped
	source netip.Addr
}

func (o outcome) String() string {
	if o.source.IsValid() {
		return fmt.Sprintf("%s, which sees %s", o.answer, o.source)
	}
	return string(o.answer)
}

// Ports of Services, and of their endpoints.
const (
	servicePort80 = 80
	answersPort   = 18090
	directPort    = 18091 // of no endpoint: a client's direct connection to an endpoint fails from a port by which it has used a service of it
)

// serveName answers each connection and datagram with a name and the client's address, until the test ends.
func serveName(t *testing.T, name string, in wire.NetNS, at netip.AddrPort) {
	t.Helper()
	tcp, err := in.Listen("tcp4", at.String())
	if err != nil {
		t.Fatal(err)
	}
	udp, err := in.ListenPacket("udp4", at.String())
	if err != nil {
		t.Fatal(err, tcp.Close())
	}
	done := make(chan struct{}, 2)
	go func() {
		defer func() { done <- struct{}{} }()
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			from := conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr()
			_, _ = fmt.Fprintf(conn, "%s %s", name, from) // the client reports a lost answer
			_ = conn.Close()
		}
	}()
	go func() {
		defer func() { done <- struct{}{} }()
		buffer := make([]byte, 16)
		for {
			_, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			_, _ = udp.WriteTo(fmt.Appendf(nil, "%s %s", name, from.(*net.UDPAddr).AddrPort().Addr()), from) // the client sends again
		}
	}()
	t.Cleanup(func() {
		if err := errors.Join(tcp.Close(), udp.Close()); err != nil {
			t.Error(err)
		}
		<-done
		<-done
	})
}

// attemptTime is for an attempt, in which TCP and fixture.Resending send twice.
const attemptTime = 1500 * time.Millisecond

// ask opens a connection, or sends a datagram.
func (c serviceClient) ask(ctx context.Context, protocol corev1.Protocol, to netip.AddrPort) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	text, err := c.read(ctx, strings.ToLower(string(protocol))+"4", to)
	var timeout net.Error
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return outcome{answer: rejected}, nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return outcome{answer: dropped}, nil
	case err != nil:
		return outcome{}, err
	}
	name, from, _ := strings.Cut(text, " ")
	addr, err := netip.ParseAddr(from)
	return outcome{answer: answer(name), source: addr}, err
}

func (c serviceClient) read(ctx context.Context, network string, to netip.AddrPort) (string, error) {
	conn, err := c.netNS.DialContext(ctx, network, to.String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if network == "tcp4" {
		deadline, _ := ctx.Deadline()
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
		text, err := io.ReadAll(conn)
		return string(text), err
	}
	buffer, n := make([]byte, 64), 0
	err = fixture.Resending(ctx, conn, func() error {
		// The firewall of the client's own machine has dropped or rejected the datagram: the latter is what is read.
		if _, err := conn.Write([]byte("?")); !errors.Is(err, syscall.EPERM) {
			return err
		}
		return nil
	}, func() (err error) {
		n, err = conn.Read(buffer)
		return err
	})
	return string(buffer[:n]), err
}

// health asks as load balancers do.
func (c serviceClient) health(ctx context.Context, to netip.AddrPort) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+to.String()+"/", nil)
	if err != nil {
		return outcome{}, err
	}
	response, err := c.netNS.HTTP().Do(request)
	if err != nil {
		return outcome{}, err
	}
	return outcome{answer: answer("status " + strconv.Itoa(response.StatusCode))}, response.Body.Close()
}

// cell is what a client asks, and the answers that it expects.
type cell struct {
	client   serviceClient
	protocol corev1.Protocol
	at       address
	to       netip.AddrPort
	want     answer
	sources  map[answer]netip.Addr // of endpoints
	got      map[string]int        // how often it got which answer, or error
	err      error
}

func (c *cell) ask(ctx context.Context) (got outcome, err error) {
	if c.at == healthOfNode1 || c.at == healthOfNode2 {
		got, err = c.client.health(ctx, c.to)
	} else {
		got, err = c.client.ask(ctx, c.protocol, c.to)
	}
	var op *net.OpError
	switch {
	case errors.As(err, &op):
		c.got[op.Err.Error()]++ // without ports, so that equal ones count as one
	case err != nil:
		c.got[err.Error()]++
	default:
		c.got[got.String()]++
	}
	return got, err
}

// refuses is whether no endpoint may answer.
func (c *cell) refuses() bool {
	return !slices.ContainsFunc(c.endpoints(), func(a answer) bool { return a != dropped && a != rejected })
}

// expects returns an error if an outcome is none of a cell.
func (c *cell) expects(got outcome, err error) error {
	if err != nil {
		return err
	}
	if !slices.Contains(c.endpoints(), got.answer) {
		return fmt.Errorf("got %s, want %s", got, c.want)
	}
	if want, ok := c.sources[got.answer]; ok && got.source != want {
		return fmt.Errorf("got %s, want source %s", got, want)
	}
	return nil
}

// endpoints are the answers that are right.
func (c *cell) endpoints() (all []answer) {
	if c.want == status200 || c.want == status503 {
		return []answer{c.want}
	}
	for name := range strings.FieldsFuncSeq(string(c.want), func(r rune) bool { return r == ' ' || r == '|' }) {
		all = append(all, answer(name))
	}
	return all
}

// Questions of a cell.
const (
	rightCount = 3  // that have to be right after the first right one
	wrongCount = 8  // that are asked after a wrong one, for the report
	sameCount  = 12 // that reach one endpoint with session affinity
	maxCount   = 60 // until all endpoints of two have answered
)

// check returns the first failure, with all answers that the cell got.
func (c *cell) check(ctx context.Context) error {
	if err := c.checkAnswers(ctx); err != nil {
		return fmt.Errorf("%w; all answers: %v", err, c.got)
	}
	return nil
}

// checkAnswers waits for the first right answer, since proxies are asynchronous. All later ones have to be right. One is enough if no endpoint may answer: Linux sends
// a client one ICMP error per second (net.ipv4.icmp_ratelimit), and no endpoint could answer later.
func (c *cell) checkAnswers(ctx context.Context) error {
	if err := untilNil(ctx, func(ctx context.Context) error { return c.expects(c.ask(ctx)) }); err != nil {
		return err
	}
	if c.refuses() {
		return nil
	}
	if strings.Contains(string(c.want), "|") {
		return untilNil(ctx, c.same)
	}
	ctx = context.WithoutCancel(ctx)
	seen := map[answer]bool{}
	for i := range maxCount {
		// The userspace datapath selects one endpoint of UDP for a client (docs/decisions/0011-services.md).
		found := len(seen) == len(c.endpoints()) || c.protocol == corev1.ProtocolUDP
		if found && i >= rightCount {
			return nil
		}
		got, err := c.ask(ctx)
		if err := c.expects(got, err); err != nil {
			for range wrongCount {
				_, _ = c.ask(ctx) // counts what it gets
			}
			return fmt.Errorf("after a right answer: %w", err)
		}
		seen[got.answer] = true
	}
	return fmt.Errorf("got answers of %d endpoints, want %s", len(seen), c.want)
}

// same asks sameCount times. All have to be answered by one endpoint.
func (c *cell) same(ctx context.Context) error {
	var first answer
	for i := range sameCount {
		got, err := c.ask(ctx)
		if err := c.expects(got, err); err != nil {
			return err
		}
		if i == 0 {
			first = got.answer
		}
		if got.answer != first {
			return fmt.Errorf("got answers of %s and %s, want one endpoint", first, got.answer)
		}
	}
	return nil
}

// minCount is how often a cell asks at least for the first right answer.
const minCount = 3

// retryPause is between two questions of a cell, so that many wrong cells do not delay right ones.
const retryPause = time.Second

// untilNil repeats until there is no error. The proxy has all Services at the deadline of the context, and the last cells begin after it.
func untilNil(ctx context.Context, do func(context.Context) error) (err error) {
	tick := time.NewTicker(retryPause)
	defer tick.Stop()
	for i := 0; i < minCount || ctx.Err() == nil; i++ {
		if err = do(context.WithoutCancel(ctx)); err == nil {
			return nil
		}
		<-tick.C
	}
	return err
}

// describe names a cell in failures.
func (c *cell) describe() string {
	return fmt.Sprintf("%s by %s to %s (%s)", c.client.name, c.protocol, c.at, c.to)
}

// source returns the source that an endpoint sees.
func (s *servicesUnderTest) source(proxy config.ServiceProxy, from serviceClient, kind addressKind, e namedEndpoint) (netip.Addr, error) {
	if from.kind == podClient && e.addr == from.addr {
		from.kind = itselfClient
	}
	for _, rule := range sourceRules() {
		if !slices.Contains(rule.proxies, proxy) || !slices.Contains(rule.clients, from.kind) || !slices.Contains(rule.at, kind) {
			continue
		}
		switch seen := rule.seen[e.placeFrom(from.node)]; seen {
		case seenClient:
			return from.addr, nil
		case seenTun0:
			return s.gateways[from.node], nil
		case seenNode:
			return s.endpoints[answer(from.node)].addr, nil
		default:
			return netip.ParseAddr(string(seen))
		}
	}
	return netip.Addr{}, fmt.Errorf("no rule for the source of %s", from.name)
}
