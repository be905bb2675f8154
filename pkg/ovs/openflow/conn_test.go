package openflow_test

import (
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m)
}

// startSwitch starts an Open vSwitch with a bridge that speaks every version in use.
func startSwitch(t testing.TB) *ovstest.Switch {
	t.Helper()
	s := ovstest.Start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Logs())
		}
	})
	s.VSCtl(t, "add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "fail-mode=secure",
		"protocols=OpenFlow10,OpenFlow13,OpenFlow14,OpenFlow15")
	return s
}

// conn is a connection just good enough for tests: one goroutine, no echo before it is asked for something.
type conn struct {
	t       testing.TB
	c       net.Conn
	version openflow.Version
	xid     uint32
	buf     []byte
	out     chan []byte // what the writer is to write: the switch may have to be read from before it reads on
}

func dial(t testing.TB, s *ovstest.Switch, v openflow.Version) *conn {
	t.Helper()
	c, m := dialRaw(t, s, v)
	hello, ok := m.(*openflow.Hello)
	if !ok || !hello.Versions.Has(v) {
		t.Fatalf("the switch says %#v instead of a Hello with %s", m, v)
	}
	return c
}

// dialRaw returns the switch's answer to the hello.
func dialRaw(t testing.TB, s *ovstest.Switch, v openflow.Version) (*conn, openflow.Message) {
	t.Helper()
	nc, err := net.Dial("unix", filepath.Join(s.RunDir, ovstest.Bridge+".mgmt"))
	if err != nil {
		t.Fatal(err)
	}
	return greet(t, nc, v)
}

// greet exchanges hellos.
func greet(t testing.TB, nc net.Conn, v openflow.Version) (*conn, openflow.Message) {
	t.Helper()
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	c := &conn{t: t, c: nc, version: v, out: make(chan []byte, 16)}
	t.Cleanup(func() { close(c.out) })
	go func() {
		for b := range c.out {
			if _, err := nc.Write(b); err != nil {
				return // the reader sees it too
			}
		}
	}()
	c.send(&openflow.Hello{Versions: openflow.Versions(v)})
	_, m := c.receive()
	return c, m
}

// send sends messages, each with an XID of its own, and returns the first one's.
func (c *conn) send(messages ...openflow.Message) uint32 {
	c.t.Helper()
	first := c.xid + 1
	var b []byte
	for _, m := range messages {
		c.xid++
		var err error
		if b, err = openflow.Append(b, c.version, c.xid, m); err != nil {
			c.t.Fatal(err)
		}
	}
	c.out <- b
	return first
}

func (c *conn) receive() (openflow.Header, openflow.Message) {
	c.t.Helper()
	for {
		if h, err := openflow.ParseHeader(c.buf); err == nil && len(c.buf) >= int(h.Length) {
			h, m, err := openflow.Decode(c.buf[:h.Length])
			if err != nil {
				c.t.Fatalf("%v\n%x", err, c.buf[:h.Length])
			}
			c.buf = c.buf[h.Length:]
			if echo, ok := m.(*openflow.EchoRequest); ok {
				c.send(&openflow.EchoReply{Data: echo.Data})
				continue
			}
			return h, m
		}
		chunk := make([]byte, 1<<16)
		n, err := c.c.Read(chunk)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrDeadlineExceeded) {
				c.t.Fatalf("no answer: %v", err)
			}
			c.t.Fatal(err)
		}
		c.buf = append(c.buf, chunk[:n]...)
	}
}

// answer is a message that came back, and the XID that says to what.
type answer struct {
	xid uint32
	openflow.Message
}

// do sends messages and a barrier, and returns what comes back before the barrier's reply.
func (c *conn) do(messages ...openflow.Message) (first uint32, answers []answer) {
	c.t.Helper()
	first = c.send(append(messages, &openflow.BarrierRequest{})...)
	barrier := c.xid
	for {
		h, m := c.receive()
		if h.XID == barrier {
			if _, ok := m.(*openflow.BarrierReply); !ok {
				c.t.Fatalf("the barrier's answer is %#v", m)
			}
			return first, answers
		}
		answers = append(answers, answer{h.XID, m})
	}
}

// must is do for messages that are not answered.
func (c *conn) must(messages ...openflow.Message) {
	c.t.Helper()
	if first, answers := c.do(messages...); len(answers) > 0 {
		a := answers[0]
		c.t.Fatalf("message %d, %+v, is answered by %v", a.xid-first, messages[a.xid-first], a.Message)
	}
}

// ask sends a request with one answer.
func ask[M openflow.Message](c *conn, request openflow.Message) M {
	c.t.Helper()
	_, answers := c.do(request)
	if len(answers) != 1 {
		c.t.Fatalf("%d answers to %#v: %v", len(answers), request, answers)
	}
	m, ok := answers[0].Message.(M)
	if !ok {
		c.t.Fatalf("the answer to %#v is %v", request, answers[0].Message)
	}
	return m
}

// flows dumps all tables.
func (c *conn) flows() []openflow.FlowStats {
	c.t.Helper()
	_, answers := c.do(&openflow.FlowStatsRequest{FlowFilter: openflow.FlowFilter{Table: openflow.AllTables}})
	var flows []openflow.FlowStats
	for i, a := range answers {
		reply, ok := a.Message.(*openflow.FlowStatsReply)
		if !ok || reply.HasMore() != (i < len(answers)-1) {
			c.t.Fatalf("answer %d of %d to a dump is %v", i, len(answers), a.Message)
		}
		flows = append(flows, reply.Flows...)
	}
	return flows
}

// flowTexts dumps all tables as text, sorted.
func (c *conn) flowTexts() []string {
	c.t.Helper()
	var texts []string
	for _, f := range c.flows() {
		texts = append(texts, f.String())
	}
	slices.Sort(texts)
	return texts
}

// ofctl runs ovs-ofctl in the connection's version; it returns the lines but the first, which is the name of the reply.
func (c *conn) ofctl(s *ovstest.Switch, args ...string) []string {
	c.t.Helper()
	args = append([]string{"--timeout=30", "-O", map[openflow.Version]string{
		openflow.Version14: "OpenFlow14", openflow.Version15: "OpenFlow15",
	}[c.version]}, args...)
	cmd := s.Command(c.t.Context(), "ovs-ofctl", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr // warnings of a slow machine, for one
	out, err := cmd.Output()
	if err != nil {
		c.t.Fatalf("ovs-ofctl %q: %v\n%s", args, err, stderr.String())
	}
	var lines []string
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimSpace(line); !strings.Contains(line, " reply (OF1.") {
			lines = append(lines, line)
		}
	}
	return lines
}

// dump is what ovs-ofctl prints of the flows, sorted.
func (c *conn) dump(s *ovstest.Switch) []string {
	c.t.Helper()
	lines := c.ofctl(s, "--no-stats", "--no-names", "dump-flows", ovstest.Bridge)
	slices.Sort(lines)
	return lines
}
