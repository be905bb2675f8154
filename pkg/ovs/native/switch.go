package native

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

const (
	// flowVersion is the OpenFlow version of the session, see package openflow.
	flowVersion = openflow.Version14
	// chunk is the number of bytes per write.
	chunk = 64 << 10
)

// switchConn is a session with vswitchd: OpenFlow on the bridge's management socket.
type switchConn struct {
	conn   net.Conn
	number int64 // of the session, see Native.Session

	ctx     context.Context // ends the session
	end     context.CancelFunc
	lost    chan struct{} // closed after the connection has ended
	workers sync.WaitGroup

	// Complete messages to the switch. A separate goroutine writes them, because vswitchd stops reading while its output is not read.
	out  chan []byte
	pong chan []byte // answer to an echo request

	mu         sync.Mutex
	lastXID    uint32
	lastBundle uint32
	exchanges  map[*exchange]bool
	onPacket   func(ovs.PacketIn) // nil unless packets were requested
	onChange   func(table int)    // nil unless changes by others were requested
}

// dialSwitch connects, negotiates the version and checks that the switch is recent enough.
func dialSwitch(ctx context.Context, socket string) (*switchConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, ovs.NewUnavailable(fmt.Errorf("connect to the bridge: %w", err))
	}
	c := &switchConn{
		conn: conn, lost: make(chan struct{}),
		out: make(chan []byte, 4), pong: make(chan []byte, 1),
		exchanges: map[*exchange]bool{},
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	input := bufio.NewReaderSize(conn, chunk)
	if err := c.greet(ctx, input); err != nil {
		conn.Close()
		c.end()
		return nil, fmt.Errorf("connect to the bridge at %s: %w", socket, err)
	}
	c.workers.Go(c.attend)
	c.workers.Go(func() { c.read(input) })
	c.workers.Go(c.write)
	if err := c.checkVersion(ctx); err != nil {
		c.close()
		return nil, err
	}
	c.workers.Go(c.probe)
	return c, nil
}

// greet exchanges hello messages.
func (c *switchConn) greet(ctx context.Context, input *bufio.Reader) error {
	defer context.AfterFunc(ctx, func() { c.conn.Close() })()
	hello, err := openflow.Append(nil, 0, &openflow.Hello{Versions: openflow.Versions(flowVersion)})
	if err != nil {
		return err
	}
	if _, err := c.conn.Write(hello); err != nil {
		return ovs.NewUnavailable(cmp.Or(ctx.Err(), err))
	}
	header, m, err := receive(input, nil)
	if err != nil {
		return ovs.NewUnavailable(cmp.Or(ctx.Err(), err)) // the end of ctx closes the connection
	}
	switch m := m.(type) {
	case *openflow.Hello:
		if !m.Offer(header.Version).Has(flowVersion) {
			return fmt.Errorf("the bridge does not support %s; add it to the bridge's column protocols", flowVersion)
		}
		return nil
	case *openflow.Error:
		return fmt.Errorf("the bridge does not support %s; add it to the bridge's column protocols: %w", flowVersion, m)
	}
	return fmt.Errorf("got %T from the bridge, want a hello", m)
}

// receive reads one message. It reuses the buffer if it is large enough.
func receive(input *bufio.Reader, buffer []byte) (openflow.Header, openflow.Message, error) {
	start, err := input.Peek(openflow.HeaderLen)
	if err != nil {
		return openflow.Header{}, nil, err
	}
	header, err := openflow.ParseHeader(start)
	if err != nil {
		return header, nil, err
	}
	if cap(buffer) < int(header.Length) {
		buffer = make([]byte, header.Length)
	}
	buffer = buffer[:header.Length]
	if _, err := io.ReadFull(input, buffer); err != nil {
		return header, nil, err
	}
	return openflow.Decode(buffer)
}

// checkVersion returns an error if the switch is too old. A version that cannot be parsed is accepted.
func (c *switchConn) checkVersion(ctx context.Context) error {
	answers, err := c.do(ctx, 1, func(int) openflow.Message { return &openflow.DescRequest{} })
	if err != nil {
		return err
	}
	for _, a := range answers {
		desc, ok := a.message.(*openflow.DescReply)
		if !ok {
			continue
		}
		need := ovs.NeededVersion()
		if is, ok := parseVersion(desc.Software); ok && (is[0] < need[0] || is[0] == need[0] && is[1] < need[1]) {
			return ovs.NewTooOld(desc.Software)
		}
	}
	return nil
}

// matchFragments makes first fragments match by their ports and later ones without ports (`ovs-ofctl set-frags br0 nx-match`). vswitchd loses
// this setting of the bridge when it ends, so each session sets it before any flow; other programs may change it, so each comparison does too.
func (c *switchConn) matchFragments(ctx context.Context) error {
	_, err := c.do(ctx, 1, func(int) openflow.Message { return fragmentConfig() })
	return err
}

// fragmentConfig requests asynchronous messages too: the switch sends them only if the length is not 0.
func fragmentConfig() openflow.Message {
	return &openflow.SetConfig{Flags: openflow.FragNXMatch, MissSendLen: 1}
}

// parseVersion parses the first two numbers of a version.
func parseVersion(s string) (v [2]int, ok bool) {
	parts := strings.SplitN(s, ".", 3)
	if len(parts) < 2 {
		return v, false
	}
	for i := range v {
		var err error
		if v[i], err = strconv.Atoi(parts[i]); err != nil {
			return v, false
		}
	}
	return v, true
}

// attend closes the connection at the end of the session.
func (c *switchConn) attend() {
	<-c.ctx.Done()
	c.conn.Close()
	close(c.lost)
}

// read passes the messages of the switch to their receivers.
func (c *switchConn) read(input *bufio.Reader) {
	defer c.end()
	buffer := make([]byte, 1<<16) // maximum length of a message
	for {
		header, m, err := receive(input, buffer)
		if err != nil {
			return // the connection has ended, or the stream is invalid
		}
		switch m := m.(type) {
		case *openflow.EchoRequest:
			c.answerEcho(header, m)
		case *openflow.PacketIn: // not an answer
			c.takePacket(m)
		case *openflow.FlowMonitorReply:
			c.takeUpdates(m)
		case *openflow.RequestForward:
			c.reportChange(NoTable)
		default:
			c.deliver(header.XID, m)
		}
	}
}

func (c *switchConn) answerEcho(header openflow.Header, echo *openflow.EchoRequest) {
	reply, err := openflow.Append(nil, header.XID, &openflow.EchoReply{Data: echo.Data})
	if err != nil {
		return // cannot happen: the reply is as long as the request
	}
	select {
	case c.pong <- reply:
	default: // a reply is pending already
	}
}

// write sends all messages after the hello.
func (c *switchConn) write() {
	defer c.end()
	for {
		var b []byte
		select {
		case b = <-c.out:
		case b = <-c.pong:
		case <-c.ctx.Done():
			return
		}
		if _, err := c.conn.Write(b); err != nil {
			return
		}
	}
}

// probe ends the session if the switch does not answer.
func (c *switchConn) probe() {
	tick := time.NewTicker(probeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.ctx.Done():
			return
		}
		ctx, cancel := context.WithTimeout(c.ctx, probeTimeout)
		if _, err := c.do(ctx, 0, nil); err != nil {
			c.end()
		}
		cancel()
	}
}

func (c *switchConn) ended() <-chan struct{} { return c.lost }

func (c *switchConn) close() {
	c.end()
	c.workers.Wait()
}
