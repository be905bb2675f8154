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

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestMain(m *testing.M) {
	await.VerifyTestMain(m)
}

// startSwitch starts an Open vSwitch with a bridge that supports OpenFlow 1.0, 1.3 and 1.4.
func startSwitch(t testing.TB) *ovstest.Switch {
	t.Helper()
	s := ovstest.Start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(s.Logs())
		}
	})
	s.VSCtl(t, "add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "fail-mode=secure",
		"protocols=OpenFlow10,OpenFlow13,OpenFlow14")
	return s
}

// conn is a minimal OpenFlow connection for use by one goroutine. It answers echo requests only while it waits for a message.
type conn struct {
	t   testing.TB
	c   net.Conn
	xid uint32
	buf []byte
	out chan []byte // to the writer goroutine: the switch may stop reading until its output is read
}

func dial(t testing.TB, s *ovstest.Switch) *conn {
	t.Helper()
	c, m := dialRaw(t, s)
	hello, ok := m.(*openflow.Hello)
	if !ok || !hello.Versions.Has(openflow.Version14) {
		t.Fatalf("got %#v, want a Hello with %s", m, openflow.Version14)
	}
	return c
}

// dialRaw returns the switch's answer to the hello.
func dialRaw(t testing.TB, s *ovstest.Switch) (*conn, openflow.Message) {
	t.Helper()
	nc, err := net.Dial("unix", filepath.Join(s.RunDir, ovstest.Bridge+".mgmt"))
	if err != nil {
		t.Fatal(err)
	}
	return greet(t, nc)
}

// greet exchanges hellos.
func greet(t testing.TB, nc net.Conn) (*conn, openflow.Message) {
	t.Helper()
	t.Cleanup(func() { nc.Close() })
	if err := nc.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	c := &conn{t: t, c: nc, out: make(chan []byte, 16)}
	t.Cleanup(func() { close(c.out) })
	go func() {
		for b := range c.out {
			if _, err := nc.Write(b); err != nil {
				return // reading fails too
			}
		}
	}()
	c.send(&openflow.Hello{Versions: openflow.Versions(openflow.Version14)})
	_, m := c.receive()
	return c, m
}

// send sends messages, each with its own XID, and returns the first XID.
func (c *conn) send(messages ...openflow.Message) uint32 {
	c.t.Helper()
	first := c.xid + 1
	var b []byte
	for _, m := range messages {
		c.xid++
		var err error
		if b, err = openflow.Append(b, c.xid, m); err != nil {
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
				c.t.Fatalf("decode: %v\n%x", err, c.buf[:h.Length])
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
				c.t.Fatalf("got no message, want one: %v", err)
			}
			c.t.Fatal(err)
		}
		c.buf = append(c.buf, chunk[:n]...)
	}
}

// answer is a message from the switch and its XID, which is that of the request.
type answer struct {
	xid uint32
	openflow.Message
}

// do sends messages and a barrier, and returns the answers up to the barrier's reply.
func (c *conn) do(messages ...openflow.Message) (first uint32, answers []answer) {
	c.t.Helper()
	first = c.send(append(messages, &openflow.BarrierRequest{})...)
	barrier := c.xid
	for {
		h, m := c.receive()
		if h.XID == barrier {
			if _, ok := m.(*openflow.BarrierReply); !ok {
				c.t.Fatalf("got %#v, want a barrier reply", m)
			}
			return first, answers
		}
		answers = append(answers, answer{h.XID, m})
	}
}

// must sends messages and fails the test if the switch answers one of them.
func (c *conn) must(messages ...openflow.Message) {
	c.t.Helper()
	if first, answers := c.do(messages...); len(answers) > 0 {
		a := answers[0]
		c.t.Fatalf("message %d, %+v: got answer %v, want none", a.xid-first, messages[a.xid-first], a.Message)
	}
}

// ask sends a request and returns its only answer.
func ask[M openflow.Message](c *conn, request openflow.Message) M {
	c.t.Helper()
	_, answers := c.do(request)
	if len(answers) != 1 {
		c.t.Fatalf("%#v: got %d answers, want 1: %v", request, len(answers), answers)
	}
	m, ok := answers[0].Message.(M)
	if !ok {
		c.t.Fatalf("%#v: got answer %v, want %T", request, answers[0].Message, m)
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
		if !ok || reply.More != (i < len(answers)-1) {
			c.t.Fatalf("answer %d of %d to a dump: got %v, want flows", i, len(answers), a.Message)
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

// ofctl runs ovs-ofctl in OpenFlow 1.4 and returns the lines of its output after the first, which is the name of the reply.
func (c *conn) ofctl(s *ovstest.Switch, args ...string) []string {
	c.t.Helper()
	args = append([]string{"--timeout=30", "-O", "OpenFlow14"}, args...)
	cmd := s.Command(c.t.Context(), "ovs-ofctl", args...)
	var stderr strings.Builder
	cmd.Stderr = &stderr // separate from the output, because ovs-ofctl may print warnings
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

// dump returns the flows as ovs-ofctl prints them, sorted.
func (c *conn) dump(s *ovstest.Switch) []string {
	c.t.Helper()
	lines := c.ofctl(s, "--no-stats", "--no-names", "dump-flows", ovstest.Bridge)
	slices.Sort(lines)
	return lines
}
