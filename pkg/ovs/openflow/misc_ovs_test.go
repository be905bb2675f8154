package openflow_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func TestSwitchOnSwitch(t *testing.T) {
	s := startSwitch(t)
	for _, version := range []openflow.Version{openflow.Version14, openflow.Version15} {
		t.Run(version.String(), func(t *testing.T) {
			c := dial(t, s, version)
			if m := ask[*openflow.EchoReply](c, &openflow.EchoRequest{Data: []byte("ping")}); string(m.Data) != "ping" {
				t.Errorf("%+v", m)
			}
			if m := ask[*openflow.FeaturesReply](c, &openflow.FeaturesRequest{}); m.Tables != 254 || m.DatapathID == 0 {
				t.Errorf("%+v", m)
			}
			if m := ask[*openflow.DescReply](c, &openflow.DescRequest{}); m.Hardware != "Open vSwitch" || m.Software == "" {
				t.Errorf("%+v", m)
			}
			m := ask[*openflow.PortDescReply](c, &openflow.PortDescRequest{})
			if len(m.Ports) != 1 || m.Ports[0].Port != openflow.PortLocal || m.Ports[0].Name != ovstest.Bridge {
				t.Errorf("%+v", m)
			}
			c.must(&openflow.SetConfig{MissSendLen: 77})
			if m := ask[*openflow.GetConfigReply](c, &openflow.GetConfigRequest{}); m.MissSendLen != 77 {
				t.Errorf("%+v", m)
			}
			if m := ask[*openflow.RoleReply](c, &openflow.RoleRequest{Role: openflow.RoleSecondary, Generation: 5}); m.Role != openflow.RoleSecondary || m.Generation != 5 {
				t.Errorf("%+v", m)
			}
			first, answers := c.do(parseFlows(t, []string{"actions=drop"})[0])
			c.checkRefusal(refusal{name: "flow of a secondary", want: "OFPBRC_IS_SECONDARY"}, first, answers)
		})
	}
}

// TestUnknownVersion is about the hello of a switch that speaks OpenFlow 1.0 alone: it names no versions.
func TestUnknownVersion(t *testing.T) {
	s := ovstest.Start(t)
	s.VSCtl(t, "add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "protocols=OpenFlow10")
	_, m := dialRaw(t, s, openflow.Version14)
	hello, ok := m.(*openflow.Hello)
	if !ok {
		t.Fatalf("%#v", m)
	}
	offer := hello.Offer(openflow.Version10)
	if v, ok := offer.Highest(openflow.Versions(openflow.Version14, openflow.Version15)); ok {
		t.Errorf("both speak %s", v)
	}
	if v, ok := offer.Highest(openflow.Versions(openflow.Version10, openflow.Version14)); !ok || v != openflow.Version10 {
		t.Errorf("%s", v)
	}
}

func TestFlowMonitor(t *testing.T) {
	s := startSwitch(t)
	for _, version := range []openflow.Version{openflow.Version14, openflow.Version15} {
		t.Run(version.String(), func(t *testing.T) {
			c, other := dial(t, s, version), dial(t, s, version)
			other.must(parseFlows(t, []string{"table=5,priority=7,cookie=0x9,ip,nw_src=10.0.0.1,actions=load:5->NXM_NX_REG0[],output:1"})[0])
			reply := ask[*openflow.FlowMonitorReply](c, &openflow.FlowMonitorRequest{
				ID: 3, Table: openflow.AllTables,
				Flags: openflow.MonitorInitial | openflow.MonitorAdd | openflow.MonitorRemoved | openflow.MonitorModify | openflow.MonitorInstructions,
			})
			expect := func(updates []openflow.FlowUpdate, event openflow.FlowEvent, flow string) {
				t.Helper()
				if len(updates) != 1 || updates[0].Event != event {
					t.Fatalf("%+v, want one %s", updates, event)
				}
				want := parseFlows(t, []string{flow})[0]
				if got := updates[0]; got.Key() != want.Key() || got.Cookie != want.Cookie {
					t.Errorf("%s of %s, cookie %#x; want %s", event, got.Key(), got.Cookie, want)
				}
				if event == openflow.EventRemoved {
					return // without instructions
				}
				sent, err := want.Instructions.Canonical()
				if err != nil {
					t.Error(err)
				}
				if got, err := updates[0].Instructions.Canonical(); err != nil || got != sent {
					t.Errorf("%v: actions=%s; want %s", err, updates[0].Instructions, want)
				}
			}
			next := func() []openflow.FlowUpdate {
				t.Helper()
				h, m := c.receive()
				update, ok := m.(*openflow.FlowMonitorReply)
				if !ok || h.XID != 0 {
					t.Fatalf("%+v %v", h, m)
				}
				return update.Updates
			}
			expect(reply.Updates, openflow.EventInitial, "table=5,priority=7,cookie=0x9,ip,nw_src=10.0.0.1,actions=load:5->NXM_NX_REG0[],output:1")
			added := "table=6,priority=8,cookie=0x8,udp,tp_dst=53,actions=ct(commit,zone=5),goto_table:9"
			other.must(parseFlows(t, []string{added})[0])
			expect(next(), openflow.EventAdded, added)
			modified := "modify_strict table=6,priority=8,udp,tp_dst=53,actions=drop"
			other.must(parseFlows(t, []string{modified})[0])
			expect(next(), openflow.EventModified, "table=6,priority=8,cookie=0x8,udp,tp_dst=53,actions=drop")
			other.must(parseFlows(t, []string{"delete_strict table=6,priority=8,udp,tp_dst=53"})[0])
			expect(next(), openflow.EventRemoved, "table=6,priority=8,cookie=0x8,udp,tp_dst=53,actions=drop")

			xid, answers := c.do(parseFlows(t, []string{"table=7,actions=drop"})[0])
			if own, ok := answers[0].Message.(*openflow.FlowMonitorReply); !ok || own.Updates[0].Event != openflow.EventAbbrev || own.Updates[0].XID != xid {
				t.Errorf("of the connection's own change: %+v", answers[0].Message)
			}
			c.do(&openflow.FlowMonitorRequest{ID: 3, Command: openflow.MonitorStop})
			other.must(parseFlows(t, []string{"delete"})[0])
			c.must()
		})
	}
}

// TestFlowRemoved is the bridge's controller, since a connection to .mgmt is told of nothing.
func TestFlowRemoved(t *testing.T) {
	s := startSwitch(t)
	for _, version := range []openflow.Version{openflow.Version14, openflow.Version15} {
		t.Run(version.String(), func(t *testing.T) {
			socket := filepath.Join(s.RunDir, fmt.Sprintf("controller%d", version))
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			s.VSCtl(t, "set-controller", ovstest.Bridge, "unix:"+socket)
			defer s.VSCtl(t, "del-controller", ovstest.Bridge)
			nc, err := listener.Accept()
			if err != nil {
				t.Fatal(err)
			}
			c, _ := greet(t, nc, version)
			flow := parseFlows(t, []string{"table=5,priority=7,cookie=0x9,idle_timeout=600,hard_timeout=700,send_flow_rem,ip,nw_src=10.0.0.1,actions=drop"})[0]
			c.must(flow)
			c.must(parseFlows(t, []string{"delete table=5"})[0])
			_, removed := c.receive() // it is not ordered with barriers
			want := &openflow.FlowRemoved{
				Table: 5, Priority: 7, Cookie: 9, IdleTimeout: 600, HardTimeout: 700, Match: flow.Match, Reason: openflow.RemovedDelete,
			}
			got, ok := removed.(*openflow.FlowRemoved)
			if !ok || got.Duration < 0 || got.Duration > time.Minute {
				t.Fatalf("%+v", removed)
			}
			got.Duration = 0
			if diff := cmp.Diff(want, got, cmp.AllowUnexported(openflow.Match{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// packet is a UDP packet.
func packet(src, dst netip.AddrPort) []byte {
	b := append(make([]byte, 12), 0x08, 0x00)
	ip := append([]byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0}, src.Addr().AsSlice()...)
	ip = append(ip, dst.Addr().AsSlice()...)
	var sum uint32
	for i := 0; i < len(ip); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(ip[10:], ^uint16(sum+sum>>16))
	b = append(b, ip...)
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	return append(b, 0, 8, 0, 0)
}

func TestCTFlush(t *testing.T) {
	s := startSwitch(t)
	for _, version := range []openflow.Version{openflow.Version14, openflow.Version15} {
		t.Run(version.String(), func(t *testing.T) {
			c := dial(t, s, version)
			for i := range 4 {
				for _, zone := range []int{5, 6} {
					src := netip.AddrPortFrom(netip.MustParseAddr(fmt.Sprintf("10.0.0.%d", 1+i%2)), uint16(1000+i))
					p := hex.EncodeToString(packet(src, netip.MustParseAddrPort("10.0.0.9:53")))
					s.OFCtl(t, "packet-out", ovstest.Bridge, fmt.Sprintf("in_port=LOCAL packet=%s actions=ct(commit,zone=%d)", p, zone))
				}
			}
			count := func() (zone5, zone6 int) {
				t.Helper()
				out, err := s.Command(t.Context(), "ovs-appctl", "--target="+s.RunDir+"/ovs-vswitchd.ctl", "dpctl/dump-conntrack").CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				return strings.Count(string(out), "zone=5"), strings.Count(string(out), "zone=6")
			}
			expect := func(zone5, zone6 int) {
				t.Helper()
				if a, b := count(); a != zone5 || b != zone6 {
					t.Errorf("%d connections in zone 5, %d in zone 6; want %d, %d", a, b, zone5, zone6)
				}
			}
			expect(4, 4)
			addr := netip.MustParseAddr
			c.must(&openflow.CTFlush{Zone: 5, Protocol: 17, Original: openflow.CTTuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.9"), SrcPort: 1000, DstPort: 53}})
			expect(3, 4)
			c.must(&openflow.CTFlush{Zone: 5, Protocol: 17, Reply: openflow.CTTuple{Dst: addr("10.0.0.2"), DstPort: 1001}})
			expect(2, 4)
			c.must(&openflow.CTFlush{Zone: 6, Original: openflow.CTTuple{Src: addr("10.0.0.2")}})
			expect(2, 2)
			c.must(&openflow.CTFlush{AllZones: true, Original: openflow.CTTuple{Src: addr("10.0.0.1")}})
			expect(1, 0)
			c.must(&openflow.CTFlush{Zone: 6, Protocol: 6, Original: openflow.CTTuple{Src: addr("10.0.0.2"), SrcPort: 7}})
			c.must(&openflow.CTFlushZone{Zone: 6})
			expect(1, 0)
			c.must(&openflow.CTFlushZone{Zone: 5})
			expect(0, 0)
			// A connection that is not there is no error.
			c.must(&openflow.CTFlush{Zone: 5, Protocol: 17, Original: openflow.CTTuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.9"), SrcPort: 1, DstPort: 2}})
		})
	}
}

// TestLargeDump reads a dump of many messages and says how long that takes.
func TestLargeDump(t *testing.T) {
	s := startSwitch(t)
	c := dial(t, s, openflow.Version14)
	const n = 50_000
	var texts []string
	var messages []openflow.Message
	for i := range n {
		text := fmt.Sprintf("table=50,priority=100,cookie=0x%x,arp,arp_tpa=10.%d.%d.%d,actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:192.0.2.9->tun_dst,output:1", i+1, 128+i>>16, i>>8&0xff, i&0xff)
		texts = append(texts, text)
	}
	start := time.Now()
	for _, text := range texts {
		m, err := openflow.ParseFlow(text)
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, m)
	}
	parsed := time.Now()
	if _, ok, answers := c.bundle(1, messages...); !ok {
		t.Fatal(answers)
	}
	sent := time.Now()
	flows := c.flows()
	t.Logf("%d flows: parsed in %v, sent in one bundle in %v, dumped in %v", n, parsed.Sub(start), sent.Sub(parsed), time.Since(sent))
	if len(flows) != n {
		t.Fatalf("%d flows in the dump", len(flows))
	}
	if want, got := c.dump(s), c.flowTexts(); !slices.Equal(want, got) { // cmp would take seconds
		t.Errorf("ovs-ofctl and this package print differently: %q…, %q…", want[:3], got[:3])
	}
}
