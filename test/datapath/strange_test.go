package datapath_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	sdn "github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/await"
	"github.com/ovsdn/ovsdn/test/datapath"
	"github.com/ovsdn/ovsdn/test/e2e/wire"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// Flags of TCP that only these tests send (RFC 9293).
const (
	tcpFIN = 0x01
	tcpRST = 0x04
)

// Options of IPv4 (RFC 791, RFC 2113).
const (
	optionNOP         = 1
	optionRecordRoute = 7
	optionTimestamp   = 68
	optionLooseRoute  = 131
	optionStrictRoute = 137
	optionRouterAlert = 148
)

// typeQinQ is IEEE 802.1ad's outer tag.
const typeQinQ = 0x88a8

// strangers are the pods of TestStrangePackets. On the first node: one of another tenant, one that the victim's policy admits to podPort only, and one that it
// admits. On the second node: the victim, and a pod of its tenant without policies, to which a node port of all nodes leads.
type strangers struct {
	*product
	attacker, enemy, friend, victim, open *datapath.Pod
}

// forbiddenPort is a port of the victim that only the friend may reach.
const forbiddenPort = 54

func newStrangers(t *testing.T) *strangers {
	t.Helper()
	s := &strangers{product: &product{Network: datapath.New(t, 2), mode: config.ModeMultitenant}}
	first, second := s.Nodes[0], s.Nodes[1]
	s.attacker, s.enemy, s.friend = first.AddPod(t), first.AddPod(t), first.AddPod(t)
	s.victim, s.open = second.AddPod(t), second.AddPod(t)
	const tenant, other = 0x20, 0x30
	service := sdn.Service{VNID: tenant, NodePorts: []sdn.ServicePort{
		{Protocol: "tcp", Port: freePort}, {Protocol: "udp", Port: freePort}, {Protocol: sdn.ProtocolSCTP, Port: freePort},
	}}
	for _, node := range s.Nodes {
		n := s.compiler(node)
		states := []sdn.State{n.Service(service)}
		var rules []string
		for _, pod := range node.Pods {
			compiled := sdn.Pod{OFPort: pod.OFPort, MAC: pod.MAC, Addrs: []netip.Addr{pod.Addr}, VNID: tenant}
			switch pod {
			case s.attacker:
				compiled.VNID = other
			case s.victim:
				compiled.Policies = sdn.PodPolicies{Evaluated: true, Ingress: true}
				admit := fmt.Sprintf("table=81,priority=26026,%%s,reg2=%d,nw_src=%%s%%s actions=goto_table:82", pod.OFPort)
				rules = append(rules, fmt.Sprintf(admit, "ip", s.friend.Addr, ""))
				for _, protocol := range []string{"tcp", "udp", "sctp"} {
					rules = append(rules, fmt.Sprintf(admit, protocol, s.enemy.Addr, fmt.Sprintf(",tp_dst=%d", podPort)))
				}
			}
			states = append(states, n.Pod(compiled))
		}
		s.install(t, node, states, rules)
		s.protect(t, node)
		for _, protocol := range []string{"tcp", "udp", "sctp"} {
			nodePort(t, node, protocol, freePort, s.open)
		}
	}
	return s
}

// strange is a kind of packet that no ordinary program sends.
type strange struct {
	name    string
	packets func(src, dst netip.AddrPort, tag []byte) [][]byte // of IPv4
	frame   func(packet []byte) (etherType uint16, payload []byte)
	usable  bool // the friend's must arrive

	admitted func(frame []byte) bool // frames that may arrive from anyone, since they are others than those that were sent; nil: none
}

// send sends the packets of the kind, which has this number, to an address.
func (kind strange) send(t *testing.T, number int, from *datapath.Pod, to netip.AddrPort) {
	t.Helper()
	src := netip.AddrPortFrom(from.Addr, uint16(40000+number))
	for _, packet := range kind.packets(src, to, tagOf(number)) {
		etherType, payload := uint16(wire.TypeIPv4), packet
		if kind.frame != nil {
			etherType, payload = kind.frame(packet)
		}
		send(t, from, nextHop(from, to.Addr()), etherType, payload)
	}
}

// TestStrangePackets sends unusual packets, none of which evades VNIDs, policies, or the VNIDs of node ports.
func TestStrangePackets(t *testing.T) {
	tier.Parallel(t)
	s := newStrangers(t)
	// Live connections, that others' ICMP errors quote: the friend opens one, and the victim the other.
	for port, ends := range map[uint16][2]*datapath.Pod{friendsPort: {s.friend, s.victim}, victimsPort: {s.victim, s.friend}} {
		asking, serving := ends[0].UDP(t, port), ends[1].UDP(t, port)
		asking.MustReach(t, serving.Addr(), serving)
		serving.MustReach(t, asking.Addr(), asking)
	}
	// Routers that obey source routes: hosts need not have the default of Linux.
	for _, node := range s.Nodes {
		node.Sh(t, "sysctl -qw net.ipv4.conf.all.accept_source_route=1 net.ipv4.conf.tun0.accept_source_route=1")
	}
	node := netip.AddrPortFrom(s.Nodes[1].VTEP, freePort)
	ways := []struct {
		name     string
		from     *datapath.Pod
		to       netip.AddrPort
		receiver *datapath.Pod
	}{
		{"policy", s.enemy, netip.AddrPortFrom(s.victim.Addr, forbiddenPort), s.victim},
		{"VNID", s.attacker, netip.AddrPortFrom(s.open.Addr, podPort), s.open},
		{"node port of another VNID", s.attacker, node, s.open},
		{"friend", s.friend, netip.AddrPortFrom(s.victim.Addr, forbiddenPort), s.victim},
		{"friend by node port", s.friend, node, s.open},
	}
	for _, way := range ways {
		t.Run(way.name, func(t *testing.T) { s.testWay(t, way.from, way.to, way.receiver) })
	}
	s.Nodes[0].Revalidate(t)
	// TCP in fragments of 8 and 16 bytes, and SCTP in fragments of 8.
	if got, want := dropped(t, s.Nodes[0], "table=0,", "nw_frag=first"), 3*len(ways); got < want {
		t.Errorf("%d first fragments without ports were dropped, want %d or more", got, want)
	}
	if got, want := dropped(t, s.Nodes[0], "table=0,", "priority=0"), 2*len(ways); got < want {
		t.Errorf("%d frames with two tags were dropped, want %d or more", got, want)
	}
	t.Run("simultaneous open", s.testSimultaneousOpen)
}

// testWay sends all kinds of packets from a pod, and then an allowed packet from another. Only the allowed one may arrive.
func (s *strangers) testWay(t *testing.T, from *datapath.Pod, to netip.AddrPort, receiver *datapath.Pod) {
	arrivals, err := wireOf(receiver).Capture("eth0", nil)
	if err != nil {
		t.Fatal(err)
	}
	kinds := s.kinds(from, receiver)
	for i, kind := range kinds {
		kind.send(t, i, from, to)
	}
	control, end := s.friend.UDP(t, 0), receiver.UDP(t, podPort)
	defer control.Close()
	defer end.Close()
	open := to
	if to.Addr() == receiver.Addr {
		open = end.Addr()
	}
	var last []byte
	control.MustReachWith(t, open, end, func() []byte { last = control.Message(); return last })
	awaitFrame(t, arrivals, last, "the control's packet") // the capture has all earlier ones
	for i, kind := range kinds {
		if from == s.friend && kind.usable {
			awaitFrame(t, arrivals, tagOf(i), kind.name+" from the friend") // sent once; the host may forward packets in another order
		}
		frames := arrivals.Frames(tagOf(i))
		if kind.admitted != nil && from != s.friend {
			frames = slices.DeleteFunc(frames, kind.admitted)
		}
		got := len(frames)
		t.Logf("%-40s arrived: %d", kind.name, got)
		if from != s.friend && got > 0 {
			t.Errorf("%s: %d frames arrived, want 0", kind.name, got)
		}
	}
	if err := arrivals.Close(); err != nil {
		t.Error(err)
	}
}

// awaitFrame waits until the capture has a frame with the text.
func awaitFrame(t *testing.T, arrivals *wire.Capture, text []byte, what string) {
	t.Helper()
	await.OK(t, soon, func(context.Context) error {
		if len(arrivals.Frames(text)) == 0 {
			return fmt.Errorf("got no frame of %s, want at least one", what)
		}
		return nil
	})
}

// The ports of the live connections, by the pod that opened them, and of the packet that follows the others.
const (
	friendsPort = 33003
	victimsPort = 33004
	endPort     = 55
)

// tagOf returns 4 bytes by which a capture recognizes packets of a kind, in any fragment of 8 bytes.
func tagOf(kind int) []byte { return []byte{0xa7, 0x5c, byte(kind), 0xe3} }

// wireOf returns the pod's network namespace, which has no file.
func wireOf(p *datapath.Pod) wire.NetNS {
	return wire.NetNS(fmt.Sprintf("/proc/self/fd/%d", p.NS.Fd()))
}

// send sends a frame from a pod's own MAC.
func send(t *testing.T, from *datapath.Pod, to net.HardwareAddr, etherType uint16, payload []byte) {
	t.Helper()
	i, err := wireOf(from).Inject("eth0")
	if err != nil {
		t.Fatal(err)
	}
	defer i.Close()
	if err := i.Send(wire.Ethernet(to, from.MAC, etherType, payload)); err != nil {
		t.Fatalf("send %d bytes: %v", len(payload), err)
	}
}

// nextHop returns the MAC to which a pod sends packets for an address.
func nextHop(from *datapath.Pod, to netip.Addr) net.HardwareAddr {
	if netip.MustParsePrefix(datapath.ClusterNetwork).Contains(to) {
		return datapath.MAC(to)
	}
	subnet := netip.PrefixFrom(from.Addr, 24).Masked()
	return datapath.MAC(subnet.Addr().Next())
}

func (s *strangers) kinds(from, receiver *datapath.Pod) []strange {
	return slices.Concat(fragmentKinds(), invalidKinds(), tagKinds(), optionKinds(s.Nodes[0].Addr, receiver.Addr), s.errorKinds())
}

// header is that of a packet.
func header(src, dst netip.AddrPort, protocol byte) wire.IPv4 {
	return wire.IPv4{Src: src.Addr(), Dst: dst.Addr(), Protocol: protocol, ID: src.Port()}
}

// text is a payload of tags.
func text(tag []byte) []byte { return bytes.Repeat(tag, 12) }

// testSimultaneousOpen: a SYN before that of the victim, between the same ports, is no reply. A SYN after it is a reply, if the VNIDs allow the
// victim's SYN.
func (s *strangers) testSimultaneousOpen(t *testing.T) {
	const own, others = 41000, 42000
	syn := func(from, to *datapath.Pod, src, dst uint16, tag []byte) {
		t.Helper()
		a, b := netip.AddrPortFrom(from.Addr, src), netip.AddrPortFrom(to.Addr, dst)
		packet := header(a, b, wire.ProtocolTCP).Packet(wire.TCPSegment(a, b, wire.TCPSYN, text(tag)))
		send(t, from, datapath.MAC(to.Addr), wire.TypeIPv4, packet)
	}
	arrivals, err := wireOf(s.victim).Capture("eth0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer arrivals.Close()
	end, control := s.victim.UDP(t, endPort), s.friend.UDP(t, 0)
	for _, pod := range []*datapath.Pod{s.enemy, s.attacker} { // whose kernels must not end the victim's connection
		pod.Sh(t, "iptables -A OUTPUT -p tcp --tcp-flags RST RST -j DROP")
	}
	first, opens, second := []byte("first SYN"), []byte("victim's SYN"), []byte("second SYN")
	for name, from := range map[string]*datapath.Pod{"not admitted": s.enemy, "another VNID": s.attacker} {
		of := func(tag []byte) []byte { return slices.Concat([]byte(name), []byte(": "), tag, []byte{'.'}) }
		syn(from, s.victim, own, others, of(first))
		control.MustReach(t, end.Addr(), end)
		syn(s.victim, from, others, own, of(opens))
		end.MustReach(t, control.Addr(), control)
		syn(from, s.victim, own, others, of(second))
		control.MustReach(t, end.Addr(), end)
		if n := len(arrivals.Frames(of(first))); n != 0 {
			t.Errorf("%s: the first SYN arrived %x", name, arrivals.Frames(of(first)))
		}
		n := len(arrivals.Frames(of(second)))
		t.Logf("%s: %d SYNs arrived after the victim's own", name, n)
		if from == s.attacker && n > 0 {
			t.Errorf("%s: %d SYNs arrived after the victim's own, want 0", name, n)
		}
	}
}

// dropped returns how many packets the node's flows dropped whose text contains all words.
func dropped(t *testing.T, node *datapath.Node, words ...string) (packets int) {
	t.Helper()
	for line := range strings.Lines(node.Switch.OFCtl(t, "dump-flows", ovstest.Bridge)) {
		_, counted, ok := strings.Cut(line, "n_packets=")
		if !ok || !strings.Contains(line, "actions=drop") || slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			continue
		}
		var n int
		if _, err := fmt.Sscan(strings.TrimSuffix(strings.Fields(counted)[0], ","), &n); err != nil {
			t.Fatal(err)
		}
		packets += n
	}
	return packets
}
