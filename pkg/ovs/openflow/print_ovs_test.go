package openflow_test

import (
	"encoding/hex"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Open vSwitch decodes messages as they were meant.
func TestMessages_asOpenVSwitchPrints(t *testing.T) {
	program, err := exec.LookPath("ovs-ofctl")
	if err != nil && os.Geteuid() != 0 {
		t.Skip("needs root: make bootstrap installs ovs-ofctl")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		message openflow.Message
		want    []string
	}{
		{
			&openflow.FlowMonitorRequest{ID: 1, Flags: openflow.MonitorAdded | openflow.MonitorRemoved | openflow.MonitorModified, Table: openflow.AllTables},
			[]string{"OFPST_FLOW_MONITOR request (OF1.4)", "id=1 flags=add,delete,modify"},
		},
		{
			&openflow.FlowMonitorReply{Updates: []openflow.FlowUpdate{
				{Event: openflow.FlowRemoved, Table: 60, Reason: 2, IdleTimeout: 1, HardTimeout: 2, Priority: 200, Cookie: 5},
				{Event: openflow.FlowAbbreviated, XID: 7}, {Event: openflow.FlowModified, Table: 3, Cookie: 6}, {Event: openflow.MonitorPaused},
			}},
			[]string{
				"OFPST_FLOW_MONITOR reply (OF1.4)", "event=DELETED reason=delete table=60 idle_timeout=1 hard_timeout=2 cookie=0x5",
				"event=ABBREV xid=0x7", "event=MODIFIED table=3 cookie=0x6", "event=PAUSED",
			},
		},
		{
			&openflow.SetAsync{RequestForward: 1<<openflow.ReasonGroupMod | 1<<openflow.ReasonMeterMod},
			[]string{"OFPT_SET_ASYNC (OF1.4)", "PACKET_IN: (off)", "REQUESTFORWARD: group_mod_request meter_mod_request"},
		},
		{
			&openflow.RequestForward{Request: encode(t, &openflow.MeterMod{Command: openflow.MeterDelete, Meter: openflow.Meter{ID: 3}})},
			[]string{"OFPT_REQUESTFORWARD (OF1.4)", "reason=meter_mod DEL meter=3"},
		},
		{
			&openflow.PacketOut{InPort: 5, Actions: []openflow.Action{openflow.Output{Port: openflow.PortTable}}, Packet: sentPacket()},
			[]string{"OFPT_PACKET_OUT (OF1.4)", "in_port=5 actions=TABLE data_len=42", "udp", "nw_src=10.0.0.1,nw_dst=10.0.0.9"},
		},
	} {
		out, err := exec.CommandContext(t.Context(), program, "ofp-print", hex.EncodeToString(encode(t, tc.message)), "5").CombinedOutput()
		if err != nil {
			t.Fatalf("%T: %v: %s", tc.message, err, out)
		}
		for _, want := range tc.want {
			if !strings.Contains(string(out), want) {
				t.Errorf("%T: got\n%s\nwant %q", tc.message, out, want)
			}
		}
	}
}

func encode(t *testing.T, m openflow.Message) []byte {
	t.Helper()
	b, err := openflow.Append(nil, 0, m)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
