package pipeline

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// The two nodes of these tests: packets go from the sender to pods of the receiver.
const (
	senderVTEP   = "172.31.0.11"
	receiverVTEP = "172.31.0.12"
)

func senderNode(mode config.Mode) Node { return inMode(mode) }

func receiverNode(mode config.Mode) Node {
	n := inMode(mode)
	n.Subnets, n.VTEP = prefixes("10.129.0.0/23"), netip.MustParseAddr(receiverVTEP)
	return n
}

// podsOf compiles a node's pods; the last digit of an address is the port's number.
//
//	3  VNID 0x20, isolated: only nodes may reach it
//	4  VNID 0x20
//	5  VNID 0, isolated
//	6  VNID 0
func podsOf(t *testing.T, n Node) string {
	t.Helper()
	base := n.Subnets[0].Addr().As4()
	var s State
	for port, p := range map[int]Pod{
		3: {VNID: 0x20, Policies: PodPolicies{Evaluated: true, Ingress: true}}, 4: {VNID: 0x20},
		5: {Policies: PodPolicies{Evaluated: true, Ingress: true}}, 6: {},
	} {
		base[3] = byte(port)
		p.OFPort, p.Addrs = port, []netip.Addr{netip.AddrFrom4(base)}
		p.MAC = config.MAC(p.Addrs[0])
		s.Flows = append(s.Flows, n.Pod(p).Flows...)
	}
	return lines(t, s)
}

// nodesAllowed is the rule of pod 3.
const nodesAllowed = "table=81,priority=26026,ip,reg2=3,reg4=0x400/0x400,actions=goto_table:82\n"

// nodeFlows returns the flows of one of the two nodes, without pods, as this version compiles them, or as the previous one did.
func nodeFlows(t *testing.T, mode config.Mode, n Node, peer Peer, previous bool) string {
	t.Helper()
	if previous {
		role := "sender"
		if n.VTEP.String() == receiverVTEP {
			role = "receiver"
		}
		text, err := os.ReadFile(filepath.Join("testdata", "previous", mode.String()+"-"+role+".flows"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	s := static(t, n)
	s.Flows = append(s.Flows, n.Peer(peer).Flows...)
	return lines(t, s)
}

// load makes the flows in the text those of the switch, with meters of any rate.
func load(t *testing.T, sw *ovstest.Switch, text string) {
	t.Helper()
	sw.OFCtl(t, "del-meters", ovstest.Bridge)
	seen, unique := map[string]bool{}, ""
	for line := range strings.Lines(text) {
		if !seen[line] && !strings.HasPrefix(line, "#") {
			seen[line] = true
			unique += line
		}
		if m := regexp.MustCompile(`actions=meter:(\d+),`).FindStringSubmatch(line); m != nil && !seen[m[0]] {
			seen[m[0]] = true
			sw.OFCtl(t, "add-meter", ovstest.Bridge, "meter="+m[1]+",pktps,band=type=drop,rate=1")
		}
	}
	file := filepath.Join(t.TempDir(), "flows")
	if err := os.WriteFile(file, []byte(unique), 0o600); err != nil {
		t.Fatal(err)
	}
	sw.OFCtl(t, "replace-flows", ovstest.Bridge, file)
}

// onTheWire returns the packet at the end of a sender's trace, as the receiver's switch receives it; "" if it is not sent to the receiver.
func onTheWire(trace string) string {
	_, final, _ := strings.Cut(trace, "Final flow: ")
	final, _, _ = strings.Cut(final, "\n")
	if lastOutput(trace) != "1" || !strings.Contains(final, "tun_dst="+receiverVTEP) {
		return ""
	}
	// The final flow has no tun_id.
	packet := "in_port=1,ip,tun_src=" + senderVTEP + ",tun_id=" + regexp.MustCompile(`TUN_ID\[0\.\.31\] is now (\w+)`).FindStringSubmatch(trace)[1]
	for _, field := range []string{"dl_src", "nw_src", "nw_tos"} {
		packet += "," + field + "=" + regexp.MustCompile(`,` + field + `=([^,]+)`).FindStringSubmatch(final)[1]
	}
	return packet
}

// sentPackets are what the sender's host and pods send to the receiver's pods.
func sentPackets() map[string]string {
	fromHost := func(source string, tos int) string {
		return fmt.Sprintf("in_port=2,ip,dl_src=0a:58:0a:80:00:01,nw_src=%s,nw_tos=%d", source, tos)
	}
	fromPod := func(port int, mac, source string) string {
		return fmt.Sprintf("in_port=%d,ip,dl_src=%s,nw_src=%s", port, mac, source)
	}
	const routed, forwarded = RoutedDSCP << dscpShift, ForwardedDSCP << dscpShift
	return map[string]string{
		"node":                                fromHost("10.128.0.1", 0),
		"node, own IP":                        fromHost(senderVTEP, 0),
		"node, another of its addresses":      fromHost("192.0.2.77", 0),
		"pod":                                 fromPod(4, "0a:58:0a:80:00:04", "10.128.0.4"),
		"pod of VNID 0":                       fromPod(6, "0a:58:0a:80:00:06", "10.128.0.6"),
		"pod with the node's mark":            fromPod(6, "0e:58:0a:80:00:01", "10.128.0.6"),
		"pod with the node's address":         fromPod(6, "0a:58:0a:80:00:06", "10.128.0.1"),
		"pod with the node's mark and IP":     fromPod(6, "0e:58:0a:80:00:01", senderVTEP),
		"routed":                              fromHost("192.0.2.1", routed),
		"routed, masqueraded":                 fromHost("10.128.0.1", routed),
		"routed, with the sender's own IP":    fromHost(senderVTEP, routed),
		"routed, with the receiver's IP":      fromHost(receiverVTEP, routed),
		"routed, with the receiver's gateway": fromHost("10.129.0.1", routed),
		"node port, masqueraded":              fromHost("10.128.0.1", forwarded),
		"node port, with its own source":      fromHost("192.0.2.1", forwarded),
		"node port, SNAT to the node's IP":    fromHost(senderVTEP, forwarded),
	}
}

// TestNodeSource_upgrade sends packets from nodes of this version and of the previous one to nodes of both. No step of an upgrade opens more
// than the previous or this version does, and no step closes anything to a node.
func TestNodeSource_upgrade(t *testing.T) {
	tier.Parallel(t)
	same := func(pods string) [4]string { return [4]string{pods, pods, pods, pods} }
	// Receivers of the previous version drop these packets; receivers of this version classify them as from outside.
	foreign := func(pods string) [4]string { return [4]string{"", pods, "", pods} }
	// Receivers of this version drop sources of the cluster network that are not the sender's.
	spoofed := func(pods string) [4]string { return [4]string{pods, "", pods, ""} }
	for mode, want := range map[config.Mode]map[string][4]string{ // old to old, old to new, new to old, new to new
		config.ModeNetworkPolicy: {
			"node":                                {"4 6", "4 6", "4 6", "3 4 6"},
			"node, own IP":                        {"", "4 6", "", "3 4 6"},
			"node, another of its addresses":      foreign("4 6"),
			"pod":                                 same("4 6"),
			"pod of VNID 0":                       same("4 6"),
			"pod with the node's mark":            same(""),
			"pod with the node's address":         same(""),
			"pod with the node's mark and IP":     same(""),
			"routed":                              foreign("4 6"),
			"routed, masqueraded":                 same("4 6"),
			"routed, with the sender's own IP":    foreign("4 6"),
			"routed, with the receiver's IP":      foreign("4 6"),
			"routed, with the receiver's gateway": spoofed("4 6"),
			"node port, masqueraded":              same("4 6"),
			"node port, with its own source":      foreign("4 6"),
			"node port, SNAT to the node's IP":    foreign("4 6"),
		},
		config.ModeMultitenant: {
			"node":                                {"4 6", "4 6", "4 6", "3 4 6"},
			"node, own IP":                        {"", "6", "", "3 4 6"},
			"node, another of its addresses":      foreign("6"),
			"pod":                                 same("4 6"),
			"pod of VNID 0":                       same("4 6"),
			"pod with the node's mark":            same(""),
			"pod with the node's address":         same(""),
			"pod with the node's mark and IP":     same(""),
			"routed":                              foreign("6"),
			"routed, masqueraded":                 same("6"),
			"routed, with the sender's own IP":    foreign("6"),
			"routed, with the receiver's IP":      foreign("6"),
			"routed, with the receiver's gateway": spoofed("6"),
			"node port, masqueraded":              same("4 6"),
			"node port, with its own source":      foreign("6"),
			"node port, SNAT to the node's IP":    foreign("6"),
		},
	} {
		t.Run(mode.String(), func(t *testing.T) {
			sw, _ := realSwitch(t)
			tracer := sw.NewTracer(t)
			got := map[string][4]string{}
			for step := range 4 {
				sender := senderNode(mode)
				load(t, sw, nodeFlows(t, mode, sender, Peer{VTEP: netip.MustParseAddr(receiverVTEP), Subnets: prefixes("10.129.0.0/23"), IsNode: true}, step < 2)+podsOf(t, sender))
				wire := map[string]string{}
				for name, packet := range sentPackets() {
					wire[name] = onTheWire(traceOne(t, tracer, packet+",nw_dst=10.129.0.9"))
				}
				receiver, flows := receiverNode(mode), ""
				if step%2 == 1 {
					flows = nodesAllowed
				}
				load(t, sw, flows+nodeFlows(t, mode, receiver, Peer{VTEP: netip.MustParseAddr(senderVTEP), Subnets: prefixes("10.128.0.0/23"), IsNode: true}, step%2 == 0)+podsOf(t, receiver))
				for name, packet := range wire {
					row := got[name]
					row[step] = reaches(t, tracer, packet)
					got[name] = row
				}
			}
			for name := range sentPackets() {
				if got[name] != want[name] {
					t.Errorf("%s reaches %q, want %q (old to old, old to new, new to old, new to new)", name, got[name], want[name])
				}
			}
		})
	}
}

func traceOne(t *testing.T, tracer *ovstest.Tracer, packet string) string {
	t.Helper()
	reports, err := tracer.Trace(packet)
	if err != nil {
		t.Fatal(err)
	}
	return reports[0]
}

// reaches lists the receiver's pods that a packet from the tunnel reaches.
func reaches(t *testing.T, tracer *ovstest.Tracer, packet string) string {
	t.Helper()
	if packet == "" {
		return ""
	}
	var pods []string
	for port := 3; port <= 6; port++ {
		trace := traceOne(t, tracer, packet+fmt.Sprintf(",nw_dst=10.129.0.%d", port))
		if out := lastOutput(trace); out == fmt.Sprint(port) {
			pods = append(pods, out)
		} else if out != "" {
			t.Errorf("%s to pod %d is sent to port %s\n%s", packet, port, out, trace)
		}
	}
	return strings.Join(pods, " ")
}

// TestTraceNodeSource traces which packets get the bit of a node, the node's other address and which VNID.
func TestTraceNodeSource(t *testing.T) {
	tier.Parallel(t)
	const mark, vtep = "dl_src=0e:58:0a:80:00:01", senderVTEP
	type verdict struct{ vnid, node, other, mac string }
	node := func(other string) verdict { return verdict{"", "0x400", other, "0a:58:0a:80:00:01"} }
	tunnel := func(source, fields string) string {
		return "in_port=1,ip,tun_src=" + vtep + ",nw_src=" + source + ",nw_dst=10.129.0.4," + fields
	}
	const asGateway, asIP = "0xac1f000b", "0xa800001"
	for _, mode := range []config.Mode{config.ModeNetworkPolicy, config.ModeMultitenant} {
		t.Run(mode.String(), func(t *testing.T) {
			sw, _ := realSwitch(t)
			tracer := sw.NewTracer(t)
			n := receiverNode(mode)
			fixed := config.VNID(0x30)
			flows := nodeFlows(t, mode, n, Peer{VTEP: netip.MustParseAddr(vtep), Subnets: prefixes("10.128.0.0/23", "10.128.4.0/23"), IsNode: true}, false)
			for _, p := range []Peer{
				{VTEP: netip.MustParseAddr("172.31.0.13"), Subnets: prefixes("10.130.0.0/23"), IsNode: true},
				{VTEP: netip.MustParseAddr("172.31.0.98"), Subnets: prefixes("10.130.2.0/23")},
				{VTEP: netip.MustParseAddr("172.31.0.99"), Subnets: prefixes("10.131.0.0/23"), FixedVNID: &fixed},
			} {
				flows += lines(t, n.Peer(p))
			}
			load(t, sw, flows+podsOf(t, n))
			plain := verdict{"", "", "", "0e:58:0a:80:00:01"}
			outside := verdict{"0x1", "", "", "0e:58:0a:80:00:01"}
			for name, tc := range map[string]struct {
				packet string
				want   verdict
			}{
				"its gateway":                  {tunnel("10.128.0.1", mark), node(asGateway)},
				"its second gateway":           {tunnel("10.128.4.1", mark), node(asGateway)},
				"its IP":                       {tunnel(vtep, mark), node(asIP)},
				"its gateway, no mark":         {tunnel("10.128.0.1", "dl_src=0a:58:0a:80:00:01"), verdict{"", "", "", "0a:58:0a:80:00:01"}},
				"its gateway, another's mark":  {tunnel("10.128.0.1", "dl_src=0e:58:0a:82:00:01"), verdict{"", "", "", "0e:58:0a:82:00:01"}},
				"its gateway, a VNI":           {tunnel("10.128.0.1", mark+",tun_id=0x1"), outside},
				"its pod":                      {tunnel("10.128.0.7", mark), plain},
				"its IP, no mark":              {tunnel(vtep, "dl_src=0a:58:0a:80:00:01"), verdict{"0x1", "", "", "0a:58:0a:80:00:01"}},
				"its IP, a VNI":                {tunnel(vtep, mark+",tun_id=0x20"), outside},
				"another's IP":                 {tunnel("172.31.0.13", mark), outside},
				"the receiver's IP":            {tunnel(receiverVTEP, mark), outside},
				"an address outside, VNI 0":    {tunnel("192.0.2.1", mark), outside},
				"an address outside, VNI 0x20": {tunnel("192.0.2.1", mark+",tun_id=0x20"), outside},
				"a machine's gateway": {"in_port=1,ip,tun_src=172.31.0.98,nw_src=10.130.2.1,nw_dst=10.129.0.4,dl_src=0e:58:0a:82:02:01",
					verdict{"", "", "", "0e:58:0a:82:02:01"}},
				"a machine's IP": {"in_port=1,ip,tun_src=172.31.0.98,nw_src=172.31.0.98,nw_dst=10.129.0.4,dl_src=0e:58:0a:82:02:01",
					verdict{"0x1", "", "", "0e:58:0a:82:02:01"}},
				"a fixed VNID": {"in_port=1,ip,tun_src=172.31.0.99,nw_src=10.131.0.1,nw_dst=10.129.0.4,tun_id=0x20,dl_src=0e:58:0a:83:00:01",
					verdict{"0x30", "", "", "0e:58:0a:83:00:01"}},
				"a fixed VNID, an address outside": {"in_port=1,ip,tun_src=172.31.0.99,nw_src=192.0.2.1,nw_dst=10.129.0.4,tun_id=0x20,dl_src=0e:58:0a:83:00:01",
					verdict{"0x1", "", "", "0e:58:0a:83:00:01"}},
				"this node's gateway":      {"in_port=2,ip,nw_src=10.129.0.1,nw_dst=10.129.0.4,dl_src=0a:58:0a:81:00:01", verdict{"", "0x400", "0xac1f000c", "0a:58:0a:81:00:01"}},
				"this node's IP":           {"in_port=2,ip,nw_src=172.31.0.12,nw_dst=10.129.0.4,dl_src=0a:58:0a:81:00:01", verdict{"", "0x400", "0xa810001", "0a:58:0a:81:00:01"}},
				"this node's IP, routed":   {"in_port=2,ip,nw_src=172.31.0.12,nw_dst=10.129.0.4,nw_tos=252,dl_src=0a:58:0a:81:00:01", verdict{"0x1", "", "", "0a:58:0a:81:00:01"}},
				"this node's IP, returned": {"in_port=2,ip,nw_src=172.31.0.12,nw_dst=10.129.0.4,nw_tos=248,dl_src=0a:58:0a:81:00:01", verdict{"0x1", "", "", "0a:58:0a:81:00:01"}},
			} {
				trace := traceOne(t, tracer, tc.packet)
				// Before the first lookup of a connection; table 70 then loads the registers of the destination.
				first, _, _ := strings.Cut(trace, "\nMegaflow")
				_, final, _ := strings.Cut(first, "Final flow: ")
				field := func(name string) string {
					if m := regexp.MustCompile(`,` + name + `=([^,]+)`).FindStringSubmatch(final); m != nil {
						return m[1]
					}
					return ""
				}
				bits := field("reg4")
				switch bits { // only whether it is a node's counts here
				case "0x100", "0x800":
					bits = ""
				case "0xc00":
					bits = "0x400"
				}
				got := verdict{field("reg0"), bits, field("reg6"), field("dl_src")}
				if got != tc.want {
					t.Errorf("%s: got %v, want %v\n%s", name, got, tc.want, trace)
				}
			}
			for name, packet := range map[string]string{
				"an address outside to the host":        tunnel("192.0.2.1", "nw_dst=10.129.0.1"),
				"its IP to the host":                    tunnel(vtep, mark+",nw_dst=10.129.0.1"),
				"an address outside to a third node":    tunnel("192.0.2.1", "nw_dst=10.130.0.4"),
				"an address outside to the world":       tunnel("192.0.2.1", "nw_dst=192.0.2.9"),
				"an address outside to a service":       tunnel("192.0.2.1", "nw_dst=172.30.0.1"),
				"an address outside to a group":         tunnel("192.0.2.1", "nw_dst=239.1.1.1"),
				"an address outside from an unknown IP": "in_port=1,ip,tun_src=172.31.0.77,nw_src=192.0.2.1,nw_dst=10.129.0.6",
				"the IP of an unknown node":             "in_port=1,ip,tun_src=172.31.0.77,nw_src=172.31.0.77,nw_dst=10.129.0.6",
				"another's gateway":                     tunnel("10.130.0.1", mark+",nw_dst=10.129.0.6"),
				"another's pod":                         tunnel("10.130.0.9", "nw_dst=10.129.0.6"),
				"the receiver's gateway":                tunnel("10.129.0.1", "nw_dst=10.129.0.6"),
				"the receiver's pod":                    tunnel("10.129.0.4", "nw_dst=10.129.0.6"),
				"a pod of a subnet that no node has":    tunnel("10.128.2.9", "nw_dst=10.129.0.6"),
				"another's pod to a group":              tunnel("10.130.0.9", "nw_dst=239.1.1.1"),
				"another's pod from a machine":          "in_port=1,ip,tun_src=172.31.0.98,nw_src=10.130.0.9,nw_dst=10.129.0.6",
				"another's pod from a fixed VNID":       "in_port=1,ip,tun_src=172.31.0.99,nw_src=10.130.0.9,nw_dst=10.129.0.6",
				"ARP for another's pod":                 "in_port=1,arp,tun_src=" + vtep + ",arp_op=1,arp_spa=10.130.0.9,arp_tpa=10.129.0.6",
				"ARP for the receiver's gateway":        "in_port=1,arp,tun_src=" + vtep + ",arp_op=2,arp_spa=10.129.0.1,arp_tpa=10.129.0.6",
			} {
				packet = strings.Replace(packet, "nw_dst=10.129.0.4,", "", 1)
				if trace := traceOne(t, tracer, packet); lastOutput(trace) != "" {
					t.Errorf("%s is not dropped:\n%s", name, trace)
				}
			}
		})
	}
}

// Only packets to nodes have the mark: pods of this node and machines that are not nodes receive tun0's MAC.
func TestTraceNodeSource_markedOnlyForNodes(t *testing.T) {
	tier.Parallel(t)
	sw, _ := realSwitch(t)
	tracer := sw.NewTracer(t)
	fixed := config.VNID(0x30)
	for _, mode := range []config.Mode{config.ModeNetworkPolicy, config.ModeMultitenant, config.ModeSubnet} {
		n := senderNode(mode)
		flows := nodeFlows(t, mode, n, Peer{VTEP: netip.MustParseAddr(receiverVTEP), Subnets: prefixes("10.129.0.0/23"), IsNode: true}, false) +
			lines(t, n.Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.98"), Subnets: prefixes("10.130.0.0/23")})) +
			lines(t, n.Peer(Peer{VTEP: netip.MustParseAddr("172.31.0.99"), Subnets: prefixes("10.131.0.0/23"), FixedVNID: &fixed}))
		load(t, sw, flows+podsOf(t, n))
		const tun0 = "0a:58:0a:80:00:01"
		marked := "0e:58:0a:80:00:01"
		if mode == config.ModeSubnet {
			marked = tun0
		}
		for to, want := range map[string]string{"10.129.0.4": marked, "10.130.0.4": tun0, "10.131.0.4": tun0, "10.128.0.4": tun0} {
			trace := traceOne(t, tracer, "in_port=2,ip,dl_src="+tun0+",nw_src=10.128.0.1,nw_dst="+to)
			m := regexp.MustCompile(`dl_src=([^,]+)`).FindAllStringSubmatch(trace[strings.Index(trace, "Final flow"):], 1)
			if len(m) == 0 || m[0][1] != want || lastOutput(trace) == "" {
				t.Errorf("mode %s, to %s: got source %v, want %s\n%s", mode, to, m, want, trace)
			}
		}
	}
}
