package openflow_test

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

// recorded is a packet-in of Open vSwitch 3.1.0, which ignores max_len and sends the whole packet.
const recorded = "0504008000000000000023200000001e" +
	"0000002e00000000000000000000000008004500001c00000000401166c80a0000010a00000903e8003500080000" + "0000" +
	"0003000553000000" + "00040010000000000000000000000009" + "0005000501000000" +
	"0006001c80000004fffffffe000104040000000300010a04deadbeef" + "00000000"

func sentPacket() []byte {
	return packet(netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("10.0.0.9:53"))
}

func wantPacketIn(t *testing.T, m openflow.Message) {
	t.Helper()
	metadata, err := openflow.ParseMatch("in_port=LOCAL,reg2=3,reg5=0xdeadbeef")
	if err != nil {
		t.Fatal(err)
	}
	want := &openflow.PacketIn{
		Packet: sentPacket(), FullLen: uint32(len(sentPacket())), Table: 83, Cookie: 0x9, Reason: 1, Metadata: metadata,
	}
	if diff := cmp.Diff(want, m, cmp.AllowUnexported(openflow.Match{})); diff != "" {
		t.Errorf("packet-in (-want +got):\n%s", diff)
	}
}

func TestRecordedPacketIn(t *testing.T) {
	b, err := hex.DecodeString(recorded)
	if err != nil {
		t.Fatal(err)
	}
	h, m, err := openflow.Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	wantPacketIn(t, m)
	if again, err := openflow.Append(nil, h.XID, m); err != nil || !bytes.Equal(again, b) {
		t.Errorf("encoded again: error %v\ngot  %x\nwant %x", err, again, b)
	}
}

// A connection receives the packets that flows send to its controller ID, in the Nicira format, with the registers of that table.
func TestPacketIn(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	c := dial(t, s)
	c.must(
		&openflow.SetControllerID{ID: 7}, &openflow.SetPacketInFormat{Format: openflow.PacketInNicira2},
		&openflow.SetAsync{PacketIn: 1 << openflow.ReasonAction}, &openflow.SetConfig{MissSendLen: 1},
	)
	for _, flow := range parseFlows(t, []string{
		"table=82,actions=load:3->NXM_NX_REG2[],load:0xdeadbeef->NXM_NX_REG5[],goto_table:83",
		"table=83,cookie=0x9,actions=controller(id=7,max_len=20)",
		"table=84,actions=controller(id=8)",
	}) {
		c.must(flow)
	}
	for _, table := range []string{"84", "82"} { // the first sends to another controller ID
		s.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=LOCAL packet="+hex.EncodeToString(sentPacket())+" actions=resubmit(,"+table+")")
	}
	_, m := c.receive()
	wantPacketIn(t, m)
}

// The switch decodes a PacketOut as that of ovs-ofctl: the packet passes table 0 with its port of entry.
func TestPacketOut(t *testing.T) {
	tier.Parallel(t)
	s := startSwitch(t)
	c := dial(t, s)
	c.must(
		&openflow.SetControllerID{ID: 7}, &openflow.SetPacketInFormat{Format: openflow.PacketInNicira2},
		&openflow.SetAsync{PacketIn: 1 << openflow.ReasonAction}, &openflow.SetConfig{MissSendLen: 1},
	)
	for _, flow := range parseFlows(t, []string{"table=0,cookie=0x9,in_port=5,actions=controller(id=7)", "table=0,priority=1,cookie=0xa,actions=controller(id=7)"}) {
		c.must(flow)
	}
	var got [2]*openflow.PacketIn
	for i, send := range []func(){
		func() {
			c.send(&openflow.PacketOut{InPort: 5, Actions: []openflow.Action{openflow.Output{Port: openflow.PortTable}}, Packet: sentPacket()})
		},
		func() {
			s.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=5 packet="+hex.EncodeToString(sentPacket())+" actions=table")
		},
	} {
		send()
		_, m := c.receive()
		p, ok := m.(*openflow.PacketIn)
		if !ok {
			t.Fatalf("got %#v, want a packet-in", m)
		}
		got[i] = p
	}
	if diff := cmp.Diff(got[1], got[0], cmp.AllowUnexported(openflow.Match{})); diff != "" {
		t.Errorf("packet-in (-that of ovs-ofctl +that of the message):\n%s", diff)
	}
	if got[0].Cookie != 9 || !bytes.Equal(got[0].Packet, sentPacket()) {
		t.Errorf("got %+v, want the packet by the flow of port 5", got[0])
	}
}
