package openflow

import (
	"go/ast"
	"go/parser"
	"go/token"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sampleMessages returns at least one message of each type, with a value in every field.
func sampleMessages(t testing.TB) []Message {
	t.Helper()
	flow := func(text string) *FlowMod {
		m, err := ParseFlow(text)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	f := flow("table=60,priority=200,cookie=0x5,idle_timeout=1,hard_timeout=2,importance=3,send_flow_rem,reset_counts,tcp,nw_dst=10.0.0.1,tp_dst=80," +
		"actions=ct(commit,table=27,zone=7,nat(dst=10.128.0.5:8080)),move:NXM_NX_REG0[]->NXM_NX_REG1[],set_field:0x5/0xff->reg2,goto_table:80")
	deletion := flow("delete table=5,cookie=0x1/0xff,arp")
	all := flow("actions=drop")
	match := f.Match
	part := Part{More: true}
	stats := FlowStats{
		Table: 60, Priority: 200, Cookie: 5, Duration: 77*time.Second + 5, IdleTimeout: 1, HardTimeout: 2, Flags: FlowSendRemoved, Importance: 9,
		Packets: 1 << 40, Bytes: 1 << 50, Match: match, Instructions: f.Instructions,
	}
	buckets := []Bucket{
		{Weight: 50, Actions: f.Instructions.Apply},
		{Weight: 1, WatchPort: 5, WatchGroup: 6, Actions: []Action{Output{Port: 5}}},
		{},
	}
	group := Group{ID: 7, Type: GroupSelect, Buckets: buckets}
	meter := Meter{ID: 3, Flags: MeterPktps | MeterBurst, Bands: []Band{{Type: BandDrop, Rate: 1000, Burst: 50}, {Type: BandDSCPRemark, Rate: 5, Burst: 6, PrecLevel: 1}}}
	filter := FlowFilter{Table: 5, Cookie: 1, CookieMask: 0xff, Match: match}
	addr := netip.MustParseAddr
	return []Message{
		&Hello{}, &Hello{Versions: Versions(Version14, Version15)},
		&EchoRequest{Data: []byte("ping")}, &EchoReply{},
		&Error{Type: ErrorBadMatch, Code: 9, Data: []byte{5, 14, 0, 80, 0, 0, 0, 7}},
		&Error{Type: ErrorExperimenter, Code: 42, Experimenter: experimenterNicira, Data: []byte{1}},
		&SetConfig{Flags: 2, MissSendLen: 129},
		&BarrierRequest{}, &BarrierReply{},
		f, deletion, all, &FlowMod{Command: FlowDeleteStrict, Table: 5, Priority: 6, Match: match},
		&GroupMod{Command: GroupAdd, Group: group}, &GroupMod{Command: GroupDelete, Group: Group{ID: AllGroups}},
		&GroupMod{Command: GroupModify, Group: Group{ID: 8, Type: GroupAll}},
		&MeterMod{Command: MeterModify, Meter: meter},
		&BundleControl{ID: 1, Step: BundleCommit, Flags: BundleAtomic | BundleOrdered},
		&BundleAdd{ID: 1, Flags: BundleAtomic, Message: f}, &BundleAdd{ID: 1, Flags: BundleAtomic, Message: &GroupMod{Group: group}},
		&PacketIn{
			Packet: []byte("a packet's begin"), FullLen: 1500, Table: 83, Cookie: 9, Reason: 1, Metadata: match, Userdata: []byte{1},
		},
		&PacketIn{Packet: []byte("a packet"), FullLen: 8, Cookie: NoCookie},
		&PacketOut{InPort: 3, Actions: []Action{Output{Port: PortTable}}, Packet: []byte("a packet")}, &PacketOut{InPort: PortController},
		&SetPacketInFormat{Format: PacketInNicira2}, &SetControllerID{ID: 7}, &SetAsync{PacketIn: 1, PortStatus: 2, FlowRemoved: 3, RequestForward: 1<<ReasonGroupMod | 1<<ReasonMeterMod},
		&CTFlushZone{Zone: 7},
		&CTFlush{Zone: 7, Protocol: 6, Original: CTTuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.2"), SrcPort: 5, DstPort: 6}, Reply: CTTuple{Src: addr("10.0.0.3")}},
		&CTFlush{AllZones: true, Protocol: 58, Original: CTTuple{Src: addr("fc00::1"), ICMP: ICMPTuple{ID: 5, Type: 128, Code: 1}}},
		&DescRequest{}, &DescReply{Part: part, Manufacturer: "Nicira, Inc.", Hardware: "Open vSwitch", Software: "3.1.0", Serial: "None", Datapath: "None"},
		&FlowStatsRequest{FlowFilter: filter}, &FlowStatsReply{Part: part, Flows: []FlowStats{stats, {}, stats}}, &FlowStatsReply{},
		&TableStatsRequest{}, &TableStatsReply{Part: part, Tables: []TableStats{{Table: 253, Active: 1, Lookups: 1 << 40, Matched: 1 << 39}, {}}},
		&PortStatsRequest{Port: PortAny}, &PortStatsReply{Part: part, Ports: []PortStats{{Port: 7, Seconds: 5, Nanoseconds: 6, ReceivedPackets: 1 << 40, SentBytes: 1 << 41, SentErrors: NoCounter}, {}}},
		&GroupDescRequest{}, &GroupDescReply{Part: part, Groups: []Group{group, {ID: 9}}},
		&MeterConfigRequest{Meter: AllMeters}, &MeterConfigReply{Part: part, Meters: []Meter{meter, {ID: 4, Flags: MeterKbps}}},
		&FlowMonitorRequest{ID: 1, Flags: MonitorAdded | MonitorRemoved | MonitorModified, Table: AllTables, Match: match},
		&FlowMonitorReply{Part: part, Updates: []FlowUpdate{
			{Event: FlowRemoved, Table: 60, Reason: 2, IdleTimeout: 1, HardTimeout: 2, Priority: 200, Cookie: 5, Match: match, Instructions: f.Instructions},
			{Event: FlowAbbreviated, XID: 7}, {Event: FlowAdded}, {Event: MonitorPaused},
		}},
		&RequestForward{Request: []byte{5, 29, 0, 16, 0, 0, 0, 7, 0, 2, 0, 1, 0, 0, 0, 3}},
		&Unknown{Type: 10, Body: []byte("a packet-in")},
	}
}

// TestEveryMessage encodes, decodes and encodes again a message of each type. It fails if a type has no sample.
func TestEveryMessage(t *testing.T) {
	seen := map[string]bool{}
	for _, m := range sampleMessages(t) {
		seen[reflect.TypeOf(m).Elem().Name()] = true
		prefix := []byte("previous data")
		b, err := Append(prefix, 0x12345678, m)
		if err != nil {
			t.Errorf("%T: encode: %v", m, err)
			continue
		}
		b = b[len(prefix):]
		h, got, err := Decode(b)
		if err != nil {
			t.Errorf("%T: decode: %v\n%x", m, err, b)
			continue
		}
		if want := (Header{Version: Version14, Type: m.messageType(), Length: uint16(len(b)), XID: 0x12345678}); h != want {
			t.Errorf("%T: got header %+v, want %+v", m, h, want)
		}
		if diff := cmp.Diff(m, got, deep()); diff != "" {
			t.Errorf("%T (-want +got):\n%s", m, diff)
		}
		again, err := Append(nil, 0x12345678, got)
		if err != nil || string(again) != string(b) {
			t.Errorf("%T, encoded again: error %v\ngot  %x\nwant %x", m, err, again, b)
		}
		truncate(t, b)
	}
	for _, name := range messageTypes(t) {
		if !seen[name] {
			t.Errorf("got no sample of %s, want one", name)
		}
	}
}

// truncate decodes every prefix of a message, with a valid length, as a message. An error is allowed, a panic is not.
func truncate(t *testing.T, b []byte) {
	t.Helper()
	for n := HeaderLen; n < len(b); n++ {
		short := append([]byte(nil), b[:n]...)
		short[2], short[3] = byte(n>>8), byte(n)
		if _, m, err := Decode(short); err == nil && m == nil {
			t.Errorf("first %d of %d bytes: got neither message nor error", n, len(b))
		}
	}
	if _, _, err := Decode(b[:len(b)-1]); err == nil {
		t.Error("message shorter than the length in its header: got no error, want one")
	}
}

// messageTypes returns the names of all message types, which it finds in the source of this package.
func messageTypes(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Name.Name != "appendBody" {
				continue
			}
			receiver, ok := f.Recv.List[0].Type.(*ast.StarExpr)
			if !ok {
				t.Fatalf("%s: got appendBody with a value receiver, want a pointer receiver", e.Name())
			}
			names = append(names, receiver.X.(*ast.Ident).Name)
		}
	}
	if len(names) < 25 {
		t.Fatalf("got %d message types, want at least 25", len(names))
	}
	return names
}

func TestAppendErrors(t *testing.T) {
	long := make([]Action, 5000)
	for i := range long {
		long[i] = Output{Port: 1}
	}
	for _, c := range []struct {
		m    Message
		want string
	}{
		{&FlowMod{Instructions: Instructions{Apply: long}}, "80008 bytes exceed a 16-bit length field"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Output{Port: 70000}}}}, "output: port 70000: Open vSwitch has ports below 65280"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{nil}}}, "nil action"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Load{To: Whole(Reg(0)), Value: 1 << 32}}}}, "load: 0x100000000 does not fit into NXM_NX_REG0[]"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Load{To: Whole(FieldXXReg0)}}}}, "load: NXM_NX_XXREG0[]: the action takes at most 64 bits"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Move{From: Whole(Reg(0)), To: Whole(FieldTunID)}}}}, "move: NXM_NX_REG0[] has 32 bits, NXM_NX_TUN_ID[] has 64"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Move{From: Subfield{Field: Reg(0), Offset: 31, Width: 2}}}}}, "move: reg0 has no bits 31 to 32"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{SetField{}}}}, "set_field: conj_id: value and mask must fit into 4 bytes, and the mask must not be 0"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{SetField{Field{ID: 200}}}}}, "set_field: field 200 does not exist"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{CT{Force: true}}}}, "ct: force needs commit"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{CT{Exec: []Action{CT{}}}}}}, "ct: ct is not allowed in ct(exec(…))"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{CT{ZoneFrom: Whole(Reg(0))}}}}, "ct: the zone is either a number or 16 bits of a field"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{NAT{PortMin: 5, Side: NATSource}}}}, "nat: ports need an address"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Conjunction{ID: 1, Clause: 3, Of: 2}}}}, "conjunction: conjunction(1,3/2): clauses are numbered 1 to n, and n is 2 to 64"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Learn{Specs: []LearnSpec{{}}}}}}, "learn: subfield of conj_id has a width of 0 bits"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{CheckPktLarger{To: Whole(Reg(0))}}}}, "check_pkt_larger: check_pkt_larger: NXM_NX_REG0[] is not 1 bit"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Sample{Point: 5}}}}, "sample: sample: the probability must be from 1 to 65535"},
		{&BundleAdd{Message: &BundleAdd{}}, "bundle add needs a message other than a bundle add"},
		{&BundleAdd{}, "bundle add needs a message other than a bundle add"},
	} {
		before := []byte{1, 2, 3}
		b, err := Append(before, 1, c.m)
		if err == nil || !strings.HasSuffix(err.Error(), c.want) || len(b) != len(before) {
			t.Errorf("got error %v and %d bytes appended, want …%s and 0", err, len(b)-len(before), c.want)
		}
	}
}

func TestHeader(t *testing.T) {
	for _, b := range [][]byte{nil, {5, 0, 0}, {5, 0, 0, 7, 0, 0, 0, 0}} {
		if h, err := ParseHeader(b); err == nil {
			t.Errorf("ParseHeader(%x): got %+v, want an error", b, h)
		}
		if _, _, err := Decode(b); err == nil {
			t.Errorf("Decode(%x): got no error, want one", b)
		}
	}
	if s := Version15.String() + ", " + Version(0x77).String(); s != "OpenFlow 1.5, OpenFlow version 0x77" {
		t.Errorf("got %s, want OpenFlow 1.5, OpenFlow version 0x77", s)
	}
	old := []byte{1, typeFlowMod, 0, 8, 0, 0, 0, 0}
	if _, m, err := Decode(old); err != nil || m.(*Unknown).Type != typeFlowMod {
		t.Errorf("flow mod of OpenFlow 1.0, which has another layout: got %v, error %v, want Unknown", m, err)
	}
}

func TestError(t *testing.T) {
	for _, c := range []struct {
		e    *Error
		want string
	}{
		{&Error{Type: ErrorBadMatch, Code: 9}, "switch rejected the request: OFPBMC_BAD_PREREQ (bad match)"},
		{&Error{Type: ErrorBundleFailed, Code: CodeBundleMessageFailed}, "switch rejected the request: OFPBFC_MSG_FAILED (bundle failed)"},
		{&Error{Type: ErrorExperimenter, Code: 15, Experimenter: experimenterNicira}, "switch rejected the request: NXBAC_BAD_CONJUNCTION (experimenter error)"},
		{&Error{Type: ErrorExperimenter, Code: 4250, Experimenter: experimenterONF}, "switch rejected the request: OFPBAC_BAD_SET_MASK (experimenter error)"},
		{&Error{Type: ErrorExperimenter, Code: 1, Experimenter: 5}, "switch rejected the request: experimenter 0x5, error 1 (experimenter error)"},
		{&Error{Type: 77, Code: 5}, "switch rejected the request: error type 77, code 5"},
		{&Error{Type: 13, Code: 2}, "switch rejected the request: error type 13, code 2"},
	} {
		if got := c.e.Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestDecodeBounded decodes messages full of elements of minimum length and checks that allocations are proportional to the message.
func TestDecodeBounded(t *testing.T) {
	const most = 48 // bytes allocated per byte of the message
	full := func(typ uint8, head []byte, element string) []byte {
		b := append([]byte{byte(Version14), typ, 0, 0, 0, 0, 0, 0}, head...)
		for e := unhex(t, element); len(b)+len(e) < maxMessage; {
			b = append(b, e...)
		}
		b[2], b[3] = byte(len(b)>>8), byte(len(b))
		return b
	}
	flow := make([]byte, 40+8+8)
	copy(flow[40:], unhex(t, "0001000400000000"))
	actions := func(element string) []byte {
		b := full(typeFlowMod, flow, element)
		b = b[:len(b)&^7]
		b[2], b[3] = byte(len(b)>>8), byte(len(b))
		n := len(b) - 8 - 40 - 8
		copy(b[8+40+8:], []byte{0, instructionApply, byte(n >> 8), byte(n)})
		return b
	}
	reply := func(typ byte) []byte { return []byte{0, typ, 0, 0, 0, 0, 0, 0} }
	for name, b := range map[string][]byte{
		"unknown actions":      actions("0063000800000000"),
		"known actions":        actions("0016000800000001"),
		"note":                 actions("ffff0010000023200008010203040506"),
		"ct":                   actions("ffff0018000023200023000000000000000000ff00000000"),
		"unknown instructions": full(typeFlowMod, flow[:48], "0063000800000000"),
		"unknown fields":       full(typeFlowMod, flow[:40], "0001000400000000"),
		"flows":                full(typeMultipartReply, reply(multipartFlow), "0038"+strings.Repeat("00", 46)+"0001000400000000"),
		"groups":               full(typeMultipartReply, reply(multipartGroupDesc), "0008000000000000"),
		"buckets":              full(typeGroupMod, []byte{0, 0, 1, 0, 0, 0, 0, 1}, "00100000000000000000000000000000"),
		"bands":                full(typeMeterMod, make([]byte, 8), "00010010000000000000000000000000"),
		"tables":               full(typeMultipartReply, reply(multipartTable), strings.Repeat("00", tableStatsLen)),
		"ports":                full(typeMultipartReply, reply(multipartPort), "0050"+strings.Repeat("00", portStatsLen-2)),
		"meters":               full(typeMultipartReply, reply(multipartMeterConfig), "0008000000000000"),
		"hello elements":       full(typeHello, nil, "00010008ffffffff"),
		"echo":                 full(typeEchoRequest, nil, "00"),
		"unknown message":      full(99, nil, "00"),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, _, err := Decode(b)
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; err != nil || n > uint64(most*len(b)) {
			t.Errorf("%s: got %d bytes allocated, error %v, want at most %d bytes", name, n, err, most*len(b))
		}
	}
}
