package datapath_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	sdn "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// arpNetwork is two nodes in mode multitenant with two pods each, and a machine of VNID 0x20 that is no node: the host outside.
type arpNetwork struct {
	*datapath.Network
	machine datapath.Host
}

const arpTenant = config.VNID(0x20)

func newARPNetwork(t *testing.T) *arpNetwork {
	n := &arpNetwork{Network: datapath.New(t, 2)}
	for _, node := range n.Nodes {
		for range 2 {
			node.AddPod(t)
		}
	}
	n.machine = datapath.Host{NS: n.Outside.NS, Addr: netip.MustParseAddr("10.131.0.5")}
	n.Outside.Sh(t, fmt.Sprintf("ip link add vx0 mtu 1450 type vxlan id %d local %s remote %s dstport %d", arpTenant, n.Outside.Addr, n.Nodes[0].VTEP, config.DefaultVXLANPort),
		fmt.Sprintf("ip addr add %s/24 dev vx0", n.machine.Addr), "ip link set vx0 up", "ip route add "+datapath.ClusterNetwork+" dev vx0")
	if n.Type == ovstest.DatapathNetdev {
		n.Outside.Sh(t, "ethtool -K vx0 tx off")
	}
	return n
}

// vnids gives the first pod of each node the machine's VNID, the second another.
func vnids(i int) config.VNID { return arpTenant + config.VNID(i) }

// apply installs the node's flows. All pods have the VNID that the function gives by their number on the node.
func (n *arpNetwork) apply(t *testing.T, node *datapath.Node, vnid func(int) config.VNID) {
	t.Helper()
	compiler := sdn.Node{
		Mode:            config.ModeMultitenant,
		ClusterNetworks: []netip.Prefix{netip.MustParsePrefix(datapath.ClusterNetwork)},
		ServiceNetwork:  netip.MustParsePrefix(datapath.ServiceNetwork),
		Subnets:         []netip.Prefix{node.Subnet},
		VTEP:            node.VTEP,
		VXLANPort:       config.DefaultVXLANPort,
		Userspace:       n.Type == ovstest.DatapathNetdev,
	}
	s, err := compiler.Static()
	if err != nil {
		t.Fatal(err)
	}
	fixed := arpTenant
	states := []sdn.State{s, compiler.Peer(sdn.Peer{VTEP: n.Outside.Addr, Subnets: []netip.Prefix{netip.PrefixFrom(n.machine.Addr, 24).Masked()}, FixedVNID: &fixed})}
	for _, peer := range n.Nodes {
		if peer != node {
			states = append(states, compiler.Peer(sdn.Peer{VTEP: peer.VTEP, Subnets: []netip.Prefix{peer.Subnet}, IsNode: true}))
		}
	}
	for i, pod := range node.Pods {
		states = append(states, compiler.Pod(sdn.Pod{OFPort: pod.OFPort, MAC: pod.MAC, Addrs: []netip.Addr{pod.Addr}, VNID: vnid(i)}))
	}
	node.SetFlows(t, stateText(t, states...))
}

// stateText returns meters and flows for SetFlows.
func stateText(t *testing.T, states ...sdn.State) string {
	t.Helper()
	var text strings.Builder
	for _, s := range states {
		for _, m := range s.Meters {
			line, err := ovs.MeterText(m)
			if err != nil {
				t.Fatal(err)
			}
			text.WriteString(line + "\n")
		}
		for _, f := range s.Flows {
			line, err := ovs.FlowText(f)
			if err != nil {
				t.Fatal(err)
			}
			text.WriteString(line + "\n")
		}
	}
	return text.String()
}

func global(int) config.VNID { return config.GlobalVNID }

// asker is an interface that asks by ARP.
type asker struct {
	name  string
	netns wire.NetNS
	iface string
	addr  netip.Addr
}

// netnsOf returns the host's network namespace by the file that is open here: the path that the host has may lead to another one by now.
func netnsOf(h *datapath.Host) wire.NetNS {
	return wire.NetNS(fmt.Sprintf("/proc/self/fd/%d", h.NS.Fd()))
}

func podAsker(p *datapath.Pod) asker {
	return asker{"pod " + p.Addr.String(), netnsOf(&p.Host), "eth0", p.Addr}
}

func nodeAsker(n *datapath.Node) asker {
	return asker{"node " + n.Addr.String(), netnsOf(&n.Host), "tun0", n.Addr}
}

// ask sends requests for an address, with data behind them, until it is answered as by the address' interface, and returns the answer and the time that it took.
func (a asker) ask(t *testing.T, target netip.Addr, data []byte, wait time.Duration) ([]byte, time.Duration) {
	t.Helper()
	answer := wire.ARP{Operation: wire.ARPReply, SenderMAC: config.MAC(target), SenderIP: target, TargetMAC: config.MAC(a.addr), TargetIP: a.addr}.Packet(nil)
	capture, err := a.netns.Capture(a.iface, answer)
	if err != nil {
		t.Fatal(err)
	}
	defer capture.Close()
	request := wire.ARP{Operation: wire.ARPRequest, SenderMAC: config.MAC(a.addr), SenderIP: a.addr, TargetIP: target}.Packet(data)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	start := time.Now()
	for next := start; time.Since(start) < wait; <-tick.C {
		if time.Now().After(next) {
			a.send(t, wire.Broadcast(), request)
			next = next.Add(time.Second)
		}
		if frames := capture.Frames(answer); len(frames) > 0 {
			return frames[0], time.Since(start)
		}
	}
	return nil, wait
}

func (a asker) send(t *testing.T, to net.HardwareAddr, packet []byte) {
	t.Helper()
	injector, err := a.netns.Inject(a.iface)
	if err != nil {
		t.Fatal(err)
	}
	defer injector.Close()
	if err := injector.Send(wire.Ethernet(to, config.MAC(a.addr), wire.TypeARP, packet)); err != nil {
		t.Fatal(err)
	}
}

const arpPatience = 30 * time.Second

// TestARP shows that the switch answers ARP, and that no data in a pod's ARP reaches another pod, a host or a machine of another VNID.
func TestARP(t *testing.T) {
	tier.Parallel(t)
	n := newARPNetwork(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *arpNetwork)
	}{
		{"answers", testARPAnswers},
		{"data", testARPData},
		{"a machine that is no node", testARPMachine},
		{"a flood", testARPFlood},
		{"upgrade", testARPUpgrade},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, node := range n.Nodes {
				n.apply(t, node, vnids)
			}
			test.run(t, n)
		})
	}
}

func testARPAnswers(t *testing.T, n *arpNetwork) {
	a, b, far := n.Nodes[0].Pods[0], n.Nodes[0].Pods[1], n.Nodes[1].Pods[0]
	for _, tc := range []struct {
		from   asker
		target netip.Addr
	}{
		{podAsker(a), b.Addr},
		{podAsker(a), far.Addr},
		{podAsker(a), n.Nodes[0].Addr},
		{podAsker(a), n.Nodes[1].Addr},
		{nodeAsker(n.Nodes[0]), a.Addr},
		{nodeAsker(n.Nodes[0]), far.Addr},
		{nodeAsker(n.Nodes[0]), n.Nodes[1].Addr},
	} {
		answer, took := tc.from.ask(t, tc.target, nil, arpPatience)
		if answer == nil {
			t.Errorf("%s is not answered for %s", tc.from.name, tc.target)
			continue
		}
		if dst, src := net.HardwareAddr(answer[:6]), net.HardwareAddr(answer[6:12]); dst.String() != config.MAC(tc.from.addr).String() || src.String() != config.MAC(tc.target).String() {
			t.Errorf("%s is answered for %s with a frame from %s to %s", tc.from.name, tc.target, src, dst)
		}
		t.Logf("%s is answered for %s after %v", tc.from.name, tc.target, took)
	}
	for _, silent := range []netip.Addr{a.Addr, netip.MustParseAddr("10.128.1.77"), netip.MustParseAddr("10.130.0.9"), netip.MustParseAddr("192.0.2.1")} {
		if answer, _ := podAsker(a).ask(t, silent, nil, 300*time.Millisecond); answer != nil {
			t.Errorf("a pod is answered for %s: %x", silent, answer)
		}
	}
	// With the kernels' own ARP.
	for _, node := range n.Nodes {
		n.apply(t, node, global)
	}
	n.talk(t)
}

// talk has all pods and nodes talk to each other with empty neighbour tables.
func (n *arpNetwork) talk(t *testing.T) {
	t.Helper()
	var all []*datapath.Socket
	for _, node := range n.Nodes {
		node.Sh(t, "ip neigh flush dev tun0")
		all = append(all, node.UDP(t, 0))
		for _, pod := range node.Pods {
			pod.Sh(t, "ip neigh flush dev eth0")
			all = append(all, pod.UDP(t, 0))
		}
	}
	for i, a := range all {
		for _, b := range all[:i] {
			a.MustReach(t, b.Addr(), b)
			b.MustReach(t, a.Addr(), a)
		}
	}
}

// watched is a capture of what holds a word.
type watched struct {
	where   string
	capture *wire.Capture
}

func watch(t *testing.T, where string, netns wire.NetNS, iface string, word string) watched {
	t.Helper()
	capture, err := netns.Capture(iface, []byte(word))
	if err != nil {
		t.Fatal(err)
	}
	return watched{where, capture}
}

// arrived ends the captures and returns how many frames they have.
func arrived(t *testing.T, all []watched, word string) (frames int) {
	t.Helper()
	for _, w := range all {
		if err := w.capture.Close(); err != nil {
			t.Errorf("capture at %s: %v", w.where, err)
		}
		for _, f := range w.capture.Frames([]byte(word)) {
			t.Logf("%s received %x", w.where, f)
			frames++
		}
	}
	return frames
}

const (
	arpData  = "data-in-arp"
	arpOther = "after-the-data"
)

// sneak sends ARP with data from the pod in all forms to every other pod, node and machine, and returns how many frames arrive elsewhere than at the pod.
func (n *arpNetwork) sneak(t *testing.T, from *datapath.Pod) int {
	t.Helper()
	self := podAsker(from)
	all := []watched{watch(t, "the machine", netnsOf(&n.machine), "vx0", arpData)}
	targets := []netip.Addr{from.Addr, n.machine.Addr}
	for _, node := range n.Nodes {
		all = append(all, watch(t, "node "+node.Addr.String(), netnsOf(&node.Host), "tun0", arpData))
		targets = append(targets, node.Addr)
		for _, pod := range node.Pods {
			if pod != from {
				all = append(all, watch(t, "pod "+pod.Addr.String(), netnsOf(&pod.Host), "eth0", arpData))
				targets = append(targets, pod.Addr)
			}
		}
	}
	sent := 0
	for _, target := range targets {
		for operation := range uint16(5) {
			for _, source := range []netip.Addr{from.Addr, target} {
				packet := wire.ARP{Operation: operation, SenderMAC: from.MAC, SenderIP: source, TargetMAC: net.HardwareAddr(arpData[:6]), TargetIP: target}.Packet([]byte(arpData))
				for _, to := range []net.HardwareAddr{wire.Broadcast(), config.MAC(target)} {
					self.send(t, to, packet)
					sent++
				}
			}
		}
	}
	// An allowed packet takes the same path afterwards.
	own := watch(t, self.name, self.netns, self.iface, arpOther)
	answer, _ := self.ask(t, n.Nodes[0].Addr, []byte(arpOther), arpPatience)
	if answer == nil {
		t.Error("the pod's last request is not answered")
	}
	own.capture.Close()
	time.Sleep(quietARP) //nolint:forbidigo // the absence of a frame has no event
	got := arrived(t, all, arpData)
	t.Logf("position: a pod; sent: %d ARP packets with data; arrived: %d; its own data in the answer to it: %v", sent, got, strings.Contains(string(answer), arpOther))
	return got
}

const quietARP = 400 * time.Millisecond

func testARPData(t *testing.T, n *arpNetwork) {
	pods := []*datapath.Pod{n.Nodes[0].Pods[1], n.Nodes[1].Pods[1]}
	for _, pod := range pods[:tier.Size(t, 1, len(pods), "the pods are on different nodes with the same flows")] {
		if got := n.sneak(t, pod); got != 0 {
			t.Errorf("%d frames with data arrived from %s, want 0", got, pod.Addr)
		}
	}
}

// testARPMachine: an external machine sends and answers requests itself, in its VNID.
func testARPMachine(t *testing.T, n *arpNetwork) {
	pod, stranger := n.Nodes[0].Pods[0], n.Nodes[0].Pods[1]
	pod.Sh(t, "ip neigh flush dev eth0")
	n.Outside.Sh(t, "ip neigh flush dev vx0")
	here, there := pod.UDP(t, 0), n.machine.UDP(t, 0)
	here.MustReach(t, there.Addr(), there)
	there.MustReach(t, here.Addr(), here)
	n.Nodes[0].Sh(t, "ip neigh flush dev tun0")
	node := n.Nodes[0].UDP(t, 0)
	node.MustReach(t, there.Addr(), there)
	n.Outside.Sh(t, "ip neigh flush dev vx0")
	there.MustReach(t, here.Addr(), here)
	stranger.UDP(t, 0).MustNotReach(t, there.Addr(), there)
	if answer, _ := podAsker(stranger).ask(t, n.machine.Addr, nil, 300*time.Millisecond); answer != nil {
		t.Errorf("the machine answers a pod of another VNID: %x", answer)
	}
}

// testARPUpgrade: the second node has the flows of the version that delivered ARP to pods.
func testARPUpgrade(t *testing.T, n *arpNetwork) {
	previous, err := os.ReadFile("testdata/previous-arp.flows")
	if err != nil {
		t.Fatal(err)
	}
	n.apply(t, n.Nodes[0], global)
	n.Nodes[1].SetFlows(t, string(previous))
	n.talk(t)
	old := n.Nodes[1]
	for _, from := range []asker{podAsker(old.Pods[0]), nodeAsker(old)} {
		for _, target := range []netip.Addr{n.Nodes[0].Pods[0].Addr, n.Nodes[0].Addr} {
			if answer, _ := from.ask(t, target, nil, arpPatience); answer == nil {
				t.Errorf("%s of the previous version is not answered for %s", from.name, target)
			}
		}
	}
	all := []watched{watch(t, "the other node", netnsOf(&n.Nodes[0].Host), "tun0", arpData)}
	for _, pod := range n.Nodes[0].Pods {
		all = append(all, watch(t, "pod "+pod.Addr.String(), netnsOf(&pod.Host), "eth0", arpData))
	}
	for _, pod := range n.Nodes[0].Pods {
		for _, operation := range []uint16{wire.ARPRequest, wire.ARPReply} {
			podAsker(old.Pods[0]).send(t, wire.Broadcast(), wire.ARP{Operation: operation, SenderMAC: old.Pods[0].MAC, SenderIP: old.Pods[0].Addr, TargetIP: pod.Addr}.Packet([]byte(arpData)))
		}
	}
	if answer, _ := podAsker(old.Pods[0]).ask(t, n.Nodes[0].Addr, nil, arpPatience); answer == nil {
		t.Error("the last request is not answered")
	}
	time.Sleep(quietARP) //nolint:forbidigo // as above
	if got := arrived(t, all, arpData); got != 0 {
		t.Errorf("%d frames with data arrived from a node of the previous version, want 0", got)
	}
	var to []watched
	for _, pod := range old.Pods {
		to = append(to, watch(t, "pod "+pod.Addr.String(), netnsOf(&pod.Host), "eth0", arpData))
	}
	for _, pod := range old.Pods {
		podAsker(n.Nodes[0].Pods[0]).send(t, wire.Broadcast(), wire.ARP{Operation: wire.ARPRequest, SenderMAC: n.Nodes[0].Pods[0].MAC, SenderIP: n.Nodes[0].Pods[0].Addr, TargetIP: pod.Addr}.Packet([]byte(arpData)))
	}
	if answer, _ := podAsker(n.Nodes[0].Pods[0]).ask(t, old.Pods[0].Addr, nil, arpPatience); answer == nil {
		t.Error("the last request is not answered")
	}
	if got := arrived(t, to, arpData); got != 0 {
		t.Errorf("%d frames with data arrived at a node of the previous version, want 0", got)
	}
}
