package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/lab"
)

// pingInterval is how finely a gap in the traffic shows.
const pingInterval = 10 * time.Millisecond

// stream is pings from a pod to another.
type stream struct {
	name  string
	from  wire.NetNS
	to    netip.Addr
	every time.Duration
	nodes [2]string // of the pods
}

func streamOf(from, to pod) stream {
	return stream{name: "from " + from.Name + " to " + to.Name, from: from.NetNS, to: to.Addr, every: pingInterval, nodes: [2]string{from.Node, to.Node}}
}

// losesNothing runs the function while the streams flow, and fails when any ping is not answered, or answered twice. Beside each
// flows its control stream, of the same pace and through the same machines, but not through flows of br0: a loss beside one of the control stream
// is the machine's.
func (c *cluster) losesNothing(t *testing.T, do func(), streams ...stream) {
	t.Helper()
	c.unlessDropped(t, func() []string { return describe(c.measure(t, do, streams)) })
}

// losesNothingLasting is losesNothing for a number of changes of devices that remain, such as their MTU. On the userspace datapath each may cost a ping in
// two ways: ovs-vswitchd reads all routes again, as in losesNothingRerouted, and re-opens the socket of the device, which loses an unread packet without
// counting it. Most rounds lose none in the second way.
func (c *cluster) losesNothingLasting(t *testing.T, changes int, do func(), streams ...stream) {
	t.Helper()
	c.unlessExcused(t, changes, func() ([]string, int) {
		if c.Shape().Datapath != lab.Netdev {
			losses := c.measure(t, do, streams)
			return describe(losses), count(losses)
		}
		losses, passed := c.measureRerouted(t, do, streams)
		if passed > changes {
			t.Errorf("ovs-vswitchd passed %d pings to the kernel instead of decapsulating them, want at most 1 for each of %d changes", passed, changes)
		}
		return describe(losses), count(losses)
	})
}

// unlessDropped fails if the function reports a loss.
//
// A busy machine may itself drop packets. It counts them, and then a loss has no meaning: the function is run again.
func (c *cluster) unlessDropped(t *testing.T, losing func() (losses []string)) {
	t.Helper()
	c.unlessExcused(t, 0, func() ([]string, int) {
		losses := losing()
		return losses, len(losses)
	})
}

// unlessExcused is unlessDropped where the machine may also lose so many packets that it does not count.
func (c *cluster) unlessExcused(t *testing.T, uncounted int, losing func() (losses []string, packets int)) {
	t.Helper()
	all := rounds{uncounted: uncounted}
	for {
		before := c.machineDrops(t)
		losses, packets := losing()
		if t.Failed() {
			return
		}
		dropped := c.machineDrops(t) - before
		switch done, fault := all.add(packets, dropped); {
		case fault != "":
			t.Errorf("%s; in the last round the machine dropped %d packets, and %s", fault, dropped, strings.Join(losses, ", "))
			return
		case done:
			return
		}
		t.Logf("once more, the machine itself dropped %d packets: %s", dropped, strings.Join(losses, ", "))
	}
}

// loss is the pings of a stream that were not answered, but for those beside losses of the control stream.
type loss struct {
	name   string
	times  []time.Time
	beside int // losses of the control stream's
	pings  *wire.Pings
}

func (l loss) String() string {
	return fmt.Sprintf("%d pings %s were lost, from %v to %v, and %d beside losses of the control stream",
		len(l.times), l.name, l.times[0].Format(time.TimeOnly+".000"), l.times[len(l.times)-1].Format(time.TimeOnly+".000"), l.beside)
}

// describe returns a text for each stream that lost pings.
func describe(losses []loss) (texts []string) {
	for _, l := range losses {
		if len(l.times) > 0 {
			texts = append(texts, l.String())
		}
	}
	return texts
}

// count returns the number of lost pings of all streams.
func count(losses []loss) (sum int) {
	for _, l := range losses {
		sum += len(l.times)
	}
	return sum
}

// measure runs the function while the streams flow, and returns the loss of each. It fails the test if pings were answered twice, but for those beside
// pings of the control stream that were.
func (c *cluster) measure(t *testing.T, do func(), streams []stream) (losses []loss) {
	t.Helper()
	controls, all := make([]*wire.Pings, len(streams)), make([]*wire.Pings, len(streams))
	for i, s := range streams {
		controls[i] = c.control(t, s).begin(t)
	}
	for i, s := range streams {
		all[i] = s.begin(t)
	}
	began := time.Now()
	do()
	took := time.Since(began)
	missing := make([][]time.Time, len(streams))
	for i, pings := range all {
		sent, lost, err := pings.Stop()
		if err != nil {
			t.Errorf("pings %s: %v", streams[i].name, err)
		}
		t.Logf("%d pings %s in %.1fs, %d lost, %d answered twice", sent, streams[i].name, took.Seconds(), len(lost), len(pings.Duplicates()))
		missing[i] = lost
	}
	for i, s := range streams {
		sent, machines, err := controls[i].Stop()
		doubled := controls[i].Duplicates()
		if len(machines)+len(doubled) > 0 || err != nil {
			t.Logf("of %d pings beside those %s %d were lost and %d answered twice, error %v", sent, s.name, len(machines), len(doubled), err)
		}
		if twice := fixture.Unexcused(all[i].Duplicates(), doubled); len(twice) > 0 {
			t.Errorf("%d pings %s were answered twice, the first of %v", len(twice), s.name, twice[0].Format(time.TimeOnly+".000"))
		}
		left := fixture.Unexcused(missing[i], machines)
		losses = append(losses, loss{name: s.name, times: left, beside: len(missing[i]) - len(left), pings: all[i]})
	}
	return losses
}

// control is the stream beside another: between the nodes' own addresses or, beside one on a single node, from that node to the host outside.
func (c *cluster) control(t *testing.T, s stream) stream {
	t.Helper()
	to := lab.OutsideAddr()
	if s.nodes[0] != s.nodes[1] {
		to = c.Addr(t, s.nodes[1])
	}
	return stream{name: "beside those " + s.name, from: c.Machine(t, s.nodes[0]).NetNS, to: to, every: s.every}
}

func (s stream) begin(t *testing.T) *wire.Pings {
	t.Helper()
	pings, err := s.from.PingEvery(t.Context(), s.every, s.to)
	if err != nil {
		t.Fatal(err)
	}
	return pings
}

// machineDrops counts what was lost before Open vSwitch saw it: in the kernel's queue for each processor, which all on
// the machine share, and at the sockets by which the userspace datapath reads its interfaces.
func (c *cluster) machineDrops(t *testing.T) int64 {
	t.Helper()
	content, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for line := range strings.Lines(string(content)) {
		dropped, err := strconv.ParseInt(strings.Fields(line)[1], 16, 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += dropped
	}
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		var sockets string
		fixture.Within(t, fixture.SyncTime, "list the packet sockets of "+node, func(ctx context.Context) (err error) {
			sockets, err = c.TryOutput(ctx, node, "ss", "--packet", "--memory", "--numeric", "--no-header")
			return err
		})
		for _, match := range regexp.MustCompile(`skmem:\([^)]*,d([0-9]+)\)`).FindAllStringSubmatch(sockets, -1) {
			dropped, err := strconv.ParseInt(match[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			sum += dropped
		}
	}
	return sum
}
