package openflow_test

import (
	"bytes"
	"encoding/hex"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

// recorded is a packet-in of Open vSwitch 3.1.0: it sends the whole packet, whatever max_len says.
const recorded = "0504008000000000000023200000001e" +
	"0000002e00000000000000000000000008004500001c00000000401166c80a0000010a00000903e8003500080000" + "0000" +
	"0003000553000000" + "00040010000000000000000000000009" + "0005000501000000" +
	"0006001c80000004fffffffe000104040000000300010a04deadbeef" + "00000000"

func sentPacket() []byte {
	return packet(netip.MustParseAddrPort("10.0.0.1:1000"), netip.MustParseAddrPort("10.0.0.9:53"))
}

func wantPacketIn(t *testing.T, m openflow.Message) {
	t.Helper()
	metadata, err := openflow.NewMatch(
		openflow.Num(openflow.FieldInPort, uint64(openflow.PortLocal)),
		openflow.Num(openflow.Reg(2), 3), openflow.Num(openflow.Reg(5), 0xdeadbeef))
	if err != nil {
		t.Fatal(err)
	}
	want := &openflow.PacketIn{
		Packet: sentPacket(), FullLen: uint32(len(sentPacket())), Table: 83, Cookie: 0x9, Reason: 1, Metadata: metadata,
	}
	if diff := cmp.Diff(want, m, cmp.AllowUnexported(openflow.Match{})); diff != "" {
		t.Error(diff)
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
	if again, err := openflow.Append(nil, h.Version, h.XID, m); err != nil || !bytes.Equal(again, b) {
		t.Errorf("encoded again it is %x (%v)", again, err)
	}
}

// A connection gets the packets that flows send to its id, in Nicira's form, with the registers as they are in that table.
func TestPacketIn(t *testing.T) {
	s := startSwitch(t)
	for _, version := range []openflow.Version{openflow.Version14, openflow.Version15} {
		t.Run(version.String(), func(t *testing.T) {
			c := dial(t, s, version)
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
			for _, table := range []string{"84", "82"} { // the first is for another's id
				s.OFCtl(t, "packet-out", ovstest.Bridge, "in_port=LOCAL packet="+hex.EncodeToString(sentPacket())+" actions=resubmit(,"+table+")")
			}
			_, m := c.receive()
			wantPacketIn(t, m)
		})
	}
}
