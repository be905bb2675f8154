package openflow_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func TestSwitchOnSwitch(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	c := dial(t, s)
	if m := ask[*openflow.EchoReply](c, &openflow.EchoRequest{Data: []byte("ping")}); string(m.Data) != "ping" {
		t.Errorf("got echo reply %+v, want data ping", m)
	}
	if m := ask[*openflow.DescReply](c, &openflow.DescRequest{}); m.Hardware != "Open vSwitch" || m.Software == "" {
		t.Errorf("got %+v, want the description of an Open vSwitch", m)
	}
	c.must(&openflow.SetConfig{MissSendLen: 77})
}

// The numbers are those that `ovs-ofctl dump-tables` prints.
func TestTableStats(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	c := dial(t, s)
	for _, flow := range []string{"table=0,priority=1,udp,tp_dst=53,actions=goto_table:7", "table=7,priority=1,tcp,actions=drop", "table=7,priority=2,sctp,actions=drop"} {
		s.OFCtl(t, "add-flow", "-OOpenFlow14", ovstest.Bridge, flow)
	}
	p := hex.EncodeToString(packet(netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("10.0.0.9:53")))
	for range 3 {
		s.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=LOCAL packet="+p+" actions=table")
	}
	reply := ask[*openflow.TableStatsReply](c, &openflow.TableStatsRequest{})
	for _, want := range []openflow.TableStats{{Table: 0, Active: 1, Lookups: 3, Matched: 3}, {Table: 7, Active: 2, Lookups: 3}, {Table: 8}} {
		if !slices.Contains(reply.Tables, want) {
			t.Errorf("got tables %+v, want %+v", reply.Tables[:min(9, len(reply.Tables))], want)
		}
	}
}

// TestUnknownVersion connects to a switch that supports OpenFlow 1.0 only; its hello has no version bitmap.
func TestUnknownVersion(t *testing.T) {
	tier.Parallel(t)
	s := ovstest.Start(t)
	s.VSCtl(t, "add-br", ovstest.Bridge, "--", "set", "bridge", ovstest.Bridge, "datapath_type=netdev", "protocols=OpenFlow10")
	_, m := dialRaw(t, s)
	hello, ok := m.(*openflow.Hello)
	if !ok {
		t.Fatalf("got %#v, want a Hello", m)
	}
	offer := hello.Offer(openflow.Version10)
	for _, c := range []struct {
		version openflow.Version
		want    bool
	}{{openflow.Version10, true}, {openflow.Version14, false}} {
		if got := offer.Has(c.version); got != c.want {
			t.Errorf("offers %s: got %t, want %t", c.version, got, c.want)
		}
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
	tier.Parallel(t)
	s := startSwitch(t)
	c := dial(t, s)
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
			t.Fatalf("dpctl/dump-conntrack: %v\n%s", err, out)
		}
		return strings.Count(string(out), "zone=5"), strings.Count(string(out), "zone=6")
	}
	expect := func(zone5, zone6 int) {
		t.Helper()
		if a, b := count(); a != zone5 || b != zone6 {
			t.Errorf("got %d connections in zone 5 and %d in zone 6, want %d and %d", a, b, zone5, zone6)
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
	// Flushing a connection that does not exist is not an error.
	c.must(&openflow.CTFlush{Zone: 5, Protocol: 17, Original: openflow.CTTuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.9"), SrcPort: 1, DstPort: 2}})
}

// TestLargeDump adds and dumps many flows and logs the durations.
func TestLargeDump(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	c := dial(t, s)
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
		t.Fatalf("got answers %v, want a committed bundle", answers)
	}
	sent := time.Now()
	flows := c.flows()
	t.Logf("%d flows: parsed in %v, sent in one bundle in %v, dumped in %v", n, parsed.Sub(start), sent.Sub(parsed), time.Since(sent))
	if len(flows) != n {
		t.Fatalf("got %d flows in the dump, want %d", len(flows), n)
	}
	if want, got := c.dump(s), c.flowTexts(); !slices.Equal(want, got) { // cmp.Diff takes seconds
		t.Errorf("text differs from ovs-ofctl: got %q…, want %q…", got[:3], want[:3])
	}
}
