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
	c.unlessDropped(t, func() []string {
		losses, _ := c.measure(t, do, streams)
		return losses
	})
}

// losesNothingLasting is losesNothing for changes of devices' MTU. On the userspace datapath ovs-vswitchd re-opens the socket of such a device,
// and loses an unread packet without counting it: one in 3 of 100 changes, under a ping per millisecond, also if only `ip link set` changes the
// MTU. So each change may cost a ping, but not every time.
func (c *cluster) losesNothingLasting(t *testing.T, changes int, do func(), streams ...stream) {
	t.Helper()
	c.unlessExcused(t, changes, func() ([]string, int) { return c.measure(t, do, streams) })
}

// losesNothingRerouted is losesNothing for changes of a node's routes. On the userspace datapath ovs-vswitchd reads all routes again after each, and
// in the meantime passes VXLAN to the kernel instead of decapsulating it: one packet in 3 of 100 changes, under a ping per millisecond, also if only
// `ip route` changes any route, and with a route of OVS' own (ovs/route/add). The kernel counts each as UDP without a socket.
func (c *cluster) losesNothingRerouted(t *testing.T, do func(), streams ...stream) {
	t.Helper()
	c.unlessExcused(t, 0, func() ([]string, int) {
		before := c.withoutSocket(t)
		losses, packets := c.measure(t, do, streams)
		return losses, packets - (c.withoutSocket(t) - before)
	})
}

// withoutSocket returns the number of UDP packets that had no socket in the kernel of both nodes.
func (c *cluster) withoutSocket(t *testing.T) (sum int) {
	t.Helper()
	for _, node := range []string{fixture.Node1, fixture.Node2} {
		var counters string
		fixture.Within(t, fixture.SyncTime, "read the UDP counters of "+node, func(ctx context.Context) (err error) {
			counters, err = c.TryOutput(ctx, node, "awk", "/^Udp:/ && n++ {print $3}", "/proc/net/snmp") // NoPorts, in the line after that of the names
			return err
		})
		count, err := strconv.Atoi(strings.TrimSpace(counters))
		if err != nil {
			t.Fatalf("read the UDP counters of %s: %v", node, err)
		}
		sum += count
	}
	return sum
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

// unlessExcused is unlessDropped where the machine may also lose so many packets that it does not count. In one of the attempts nothing is lost.
func (c *cluster) unlessExcused(t *testing.T, uncounted int, losing func() (losses []string, packets int)) {
	t.Helper()
	const attempts = 10
	for attempt := 1; ; attempt++ {
		before := c.machineDrops(t)
		losses, packets := losing()
		dropped := c.machineDrops(t) - before
		switch {
		case t.Failed():
			return
		case len(losses) == 0:
			return
		case dropped <= 0 && packets > uncounted:
			t.Errorf("the machine dropped nothing, but %s", strings.Join(losses, ", "))
			return
		case attempt == attempts:
			t.Errorf("in none of %d attempts: the machine may be too busy, it dropped %d packets, and %s", attempts, dropped, strings.Join(losses, ", "))
			return
		}
		t.Logf("once more, the machine itself dropped %d packets: %s", dropped, strings.Join(losses, ", "))
	}
}

// measure returns the loss beyond that of the control streams, and the number of pings in that time.
func (c *cluster) measure(t *testing.T, do func(), streams []stream) (losses []string, count int) {
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
	lost := make([][]time.Time, len(streams))
	for i, pings := range all {
		sent, missing, err := pings.Stop()
		if err != nil {
			t.Errorf("pings %s: %v", streams[i].name, err)
		}
		t.Logf("%d pings %s in %.1fs, %d lost, %d answered twice", sent, streams[i].name, took.Seconds(), len(missing), pings.Duplicates())
		if n := pings.Duplicates(); n > 0 {
			t.Errorf("of %d pings %s %d were answered twice", sent, streams[i].name, n)
		}
		lost[i] = missing
	}
	for i, s := range streams {
		sent, machines, err := controls[i].Stop()
		if len(machines) > 0 || err != nil {
			t.Logf("of %d pings beside those %s %d were lost, error %v", sent, s.name, len(machines), err)
		}
		if left := fixture.Unexcused(lost[i], machines); len(left) > 0 {
			count += len(left)
			losses = append(losses, fmt.Sprintf("%d pings %s were lost, from %v to %v, and %d beside losses of the control stream",
				len(left), s.name, left[0].Format(time.TimeOnly+".000"), left[len(left)-1].Format(time.TimeOnly+".000"), len(lost[i])-len(left)))
		}
	}
	return losses, count
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
