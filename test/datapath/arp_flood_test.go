package datapath_test

import (
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// testARPFlood: a pod's requests are limited in the datapath, and others are answered in the meantime.
func testARPFlood(t *testing.T, n *arpNetwork) {
	if testing.Short() {
		t.Skip("complete tier: flood")
	}
	node := n.Nodes[0]
	flooder, other := podAsker(node.Pods[0]), podAsker(node.Pods[1])
	before, answers := translations(t, node), answered(t, node)
	start := time.Now()
	finish := n.floodRequests(t, flooder)
	var slowest time.Duration
	for i := range 20 {
		answer, took := other.ask(t, n.Nodes[i%2].Pods[0].Addr, nil, arpPatience)
		if answer == nil {
			t.Fatalf("request %d of another pod is not answered in %v", i, arpPatience)
		}
		slowest = max(slowest, took)
	}
	for time.Since(start) < 3*time.Second {
		if answer, _ := other.ask(t, node.Addr, nil, arpPatience); answer == nil {
			t.Fatal("another pod's request for its gateway is not answered")
		}
	}
	sent, took := finish(), time.Since(start)
	node.Revalidate(t)
	translated, rewritten := translations(t, node)-before, answered(t, node)-answers
	bound := 1000 + 100*int(took.Seconds()+1) + 1000 // the flooder's meter, and what the other pod and the test asked for
	t.Logf("sent %d requests in %v: %d rewritten, %d translations in ovs-vswitchd; another pod's slowest answer took %v", sent, took, rewritten, translated, slowest)
	if sent < 2*bound {
		t.Errorf("sent only %d requests: nothing was flooded", sent)
	}
	if rewritten > bound {
		t.Errorf("%d requests were rewritten, want at most %d", rewritten, bound)
	}
	most := 2 * bound
	if n.Type == ovstest.DatapathSystem {
		most *= 2 // the kernel queues packets for ovs-vswitchd until the flow of the first pass is installed
	}
	if translated > most {
		t.Errorf("ovs-vswitchd translated %d packets, want at most %d", translated, most)
	}
}

// floodRequests sends requests for changing addresses of the second node as fast as it can. finish ends that and returns their number.
func (n *arpNetwork) floodRequests(t *testing.T, flooder asker) (finish func() int) {
	t.Helper()
	injector, err := flooder.netns.Inject(flooder.iface)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan int, 1)
	go func() {
		sent := 0
		defer func() { stopped <- sent }()
		target := n.Nodes[1].Subnet.Addr()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if target = target.Next(); !n.Nodes[1].Subnet.Contains(target) {
				target = n.Nodes[1].Subnet.Addr()
			}
			p := wire.ARP{Operation: wire.ARPRequest, SenderMAC: config.MAC(flooder.addr), SenderIP: flooder.addr, TargetIP: target}.Packet(nil)
			if injector.Send(wire.Ethernet(wire.Broadcast(), config.MAC(flooder.addr), wire.TypeARP, p)) == nil {
				sent++
			}
		}
	}()
	finish = sync.OnceValue(func() int {
		close(stop)
		defer injector.Close()
		return <-stopped
	})
	t.Cleanup(func() { finish() })
	return finish
}

// answered returns how many requests table 51 has answered.
func answered(t *testing.T, node *datapath.Node) (packets int) {
	t.Helper()
	for line := range strings.Lines(node.Switch.OFCtl(t, "dump-flows", ovstest.Bridge, "table=51")) {
		m := regexp.MustCompile(`n_packets=(\d+),.*arp_op=1`).FindStringSubmatch(line)
		if m != nil {
			packets += number(t, m[1])
		}
	}
	return packets
}

// translations returns how often ovs-vswitchd has translated a packet: at least once for each upcall.
func translations(t *testing.T, node *datapath.Node) int {
	t.Helper()
	return number(t, node.AppCtl(t, "coverage/read-counter", "xlate_actions"))
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
