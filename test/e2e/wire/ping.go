package wire

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// The two ICMP messages in use (RFC 792).
const (
	icmpEchoReply   = 0
	icmpEchoRequest = 8
)

// Echo describes a ping.
type Echo struct {
	Bytes        int // of the whole IP packet; 0: 84, as ping(8) sends
	DontFragment bool
}

// defaultEchoBytes is ping(8)'s: 56 bytes of data.
const defaultEchoBytes = 84

// echoSocket sends and receives echoes of one identifier.
type echoSocket struct {
	*net.IPConn
	to    netip.Addr
	nonce [8]byte // identifies this process' echoes, since every raw socket receives all
}

func (n NetNS) openEcho(to netip.Addr, e Echo) (*echoSocket, error) {
	conn, err := n.ListenPacket("ip4:icmp", "0.0.0.0")
	if err != nil {
		return nil, fmt.Errorf("open an ICMP socket: %w", err)
	}
	s := &echoSocket{IPConn: conn.(*net.IPConn), to: to}
	rand.Read(s.nonce[:]) // never fails (crypto/rand)
	discover := unix.IP_PMTUDISC_DONT
	if e.DontFragment {
		discover = unix.IP_PMTUDISC_DO
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = errors.Join(
			unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover),
			// A reply that waits for a busy processor is not lost.
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer))
	})
	if err := errors.Join(err, optErr); err != nil {
		return nil, errors.Join(fmt.Errorf("set an ICMP socket up: %w", err), s.Close())
	}
	return s, nil
}

// An echo's payload is the nonce, its number, and padding.
func (s *echoSocket) send(number uint64, size int) error {
	const headers = 20 + 8 // IP and ICMP
	payload := binary.BigEndian.AppendUint64(bytes.Clone(s.nonce[:]), number)
	for len(payload) < size-headers {
		payload = append(payload, byte(len(payload)))
	}
	message := icmpEcho(icmpEchoRequest, binary.BigEndian.Uint16(s.nonce[:]), uint16(number), payload)
	_, err := s.WriteToIP(message, &net.IPAddr{IP: s.to.AsSlice()})
	return err
}

// receive returns the number and the payload of the next answer.
func (s *echoSocket) receive(buffer []byte) (number uint64, payload []byte, err error) {
	for {
		length, from, err := s.ReadFromIP(buffer)
		if err != nil {
			return 0, nil, err
		}
		message := buffer[:length]
		if addr, ok := netip.AddrFromSlice(from.IP); !ok || addr.Unmap() != s.to {
			continue
		}
		if len(message) < 24 || message[0] != icmpEchoReply || !bytes.Equal(message[8:16], s.nonce[:]) {
			continue
		}
		return binary.BigEndian.Uint64(message[16:24]), message[8:], nil
	}
}

// Ping sends one echo request and returns when its complete answer has arrived. The context must have a deadline.
func (n NetNS) Ping(ctx context.Context, to netip.Addr, e Echo) error {
	if e.Bytes == 0 {
		e.Bytes = defaultEchoBytes
	}
	s, err := n.openEcho(to, e)
	if err != nil {
		return err
	}
	defer s.Close()
	deadline, ok := ctx.Deadline()
	if !ok {
		return errors.New("a ping needs a deadline")
	}
	if err := s.SetDeadline(deadline); err != nil {
		return err
	}
	if err := s.send(1, e.Bytes); err != nil {
		return fmt.Errorf("send %d bytes to %s: %w", e.Bytes, to, err)
	}
	_, payload, err := s.receive(make([]byte, 1<<16))
	if err != nil {
		return fmt.Errorf("no answer to %d bytes from %s: %w", e.Bytes, to, err)
	}
	if got := len(payload) + 28; got != e.Bytes {
		return fmt.Errorf("%d bytes went to %s, %d came back", e.Bytes, to, got)
	}
	return nil
}

// Pings is a row of echo requests under way.
type Pings struct {
	socket *echoSocket
	stop   context.CancelFunc
	sender sync.WaitGroup

	mu       sync.Mutex
	sent     []time.Time
	answered map[uint64]bool
	twice    []time.Time // when the requests were sent whose answers came again
	err      error
	received chan struct{} // closed when the receiver has ended
	progress chan struct{} // an answer came since it was read
}

// PingEvery sends an echo request at every interval until Stop.
func (n NetNS) PingEvery(ctx context.Context, interval time.Duration, to netip.Addr) (*Pings, error) {
	s, err := n.openEcho(to, Echo{})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &Pings{
		socket: s, stop: cancel, answered: map[uint64]bool{},
		received: make(chan struct{}), progress: make(chan struct{}, 1),
	}
	go p.receive()
	p.sender.Go(func() { p.send(ctx, interval) })
	return p, nil
}

func (p *Pings) send(ctx context.Context, interval time.Duration) {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for number := uint64(0); ; number++ {
		p.mu.Lock()
		p.sent = append(p.sent, time.Now())
		p.mu.Unlock()
		if err := p.socket.send(number, defaultEchoBytes); err != nil {
			p.fail(fmt.Errorf("send ping %d: %w", number, err))
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (p *Pings) receive() {
	defer close(p.received)
	buffer := make([]byte, 1<<16)
	for {
		number, _, err := p.socket.receive(buffer)
		if err != nil {
			if !errors.Is(err, net.ErrClosed) && !errors.Is(err, os.ErrDeadlineExceeded) {
				p.fail(fmt.Errorf("receive: %w", err))
			}
			return
		}
		p.mu.Lock()
		if p.answered[number] && number < uint64(len(p.sent)) {
			p.twice = append(p.twice, p.sent[number])
		}
		p.answered[number] = true
		p.mu.Unlock()
		select {
		case p.progress <- struct{}{}:
		default:
		}
	}
}

func (p *Pings) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.err = errors.Join(p.err, err)
}

func (p *Pings) missing() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lost []time.Time
	for number, at := range p.sent {
		if !p.answered[uint64(number)] {
			lost = append(lost, at)
		}
	}
	return lost
}

func (p *Pings) answers() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.answered)
}

// Duplicates returns when the requests were sent that were answered again, once for each answer beyond the first.
func (p *Pings) Duplicates() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.twice)
}

// In returns when the requests were sent that are in the frames, or whose answers are. It ignores frames of others.
func (p *Pings) In(frames [][]byte) (times []time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, f := range frames {
		_, number, found := bytes.Cut(f, p.socket.nonce[:])
		if !found || len(number) < 8 {
			continue
		}
		if n := binary.BigEndian.Uint64(number); n < uint64(len(p.sent)) {
			times = append(times, p.sent[n])
		}
	}
	return times
}

// lateAnswer is how long an answer may take before it counts as lost.
const lateAnswer = 5 * time.Second

// Stop ends the row. It returns the number of requests, and the times of those without an answer.
func (p *Pings) Stop() (sent int, lost []time.Time, err error) {
	p.stop()
	p.sender.Wait()
	late := time.NewTimer(lateAnswer)
	defer late.Stop()
wait:
	for len(p.missing()) > 0 {
		select {
		case <-p.progress:
		case <-p.received:
			break wait
		case <-late.C:
			break wait
		}
	}
	closeErr := p.socket.Close()
	<-p.received
	lost = p.missing()
	return len(p.sent), lost, errors.Join(p.err, closeErr)
}
