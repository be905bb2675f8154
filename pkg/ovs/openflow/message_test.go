package openflow

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"net"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// sampleMessages have every type of message at least once, with something in every field that both versions have.
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
		{ID: 0, Weight: 50, Actions: f.Instructions.Apply},
		{ID: 1, Weight: 1, WatchPort: 5, WatchGroup: 6, Actions: []Action{Output{Port: 5}}},
		{ID: 2},
	}
	group := Group{ID: 7, Type: GroupSelect, Buckets: buckets}
	meter := Meter{ID: 3, Flags: MeterPktps | MeterBurst, Bands: []Band{{Type: BandDrop, Rate: 1000, Burst: 50}, {Type: BandDSCPRemark, Rate: 5, Burst: 6, PrecLevel: 1}}}
	filter := FlowFilter{Table: 5, Cookie: 1, CookieMask: 0xff, Match: match}
	addr := netip.MustParseAddr
	counters := []Counters{{1, 2}, {3, 4}}
	return []Message{
		&Hello{}, &Hello{Versions: Versions(Version14, Version15)},
		&EchoRequest{Data: []byte("ping")}, &EchoReply{},
		&Error{Type: ErrorBadMatch, Code: 9, Data: []byte{5, 14, 0, 80, 0, 0, 0, 7}},
		&Error{Type: ErrorExperimenter, Code: 42, Experimenter: experimenterNicira, Data: []byte{1}},
		&FeaturesRequest{}, &FeaturesReply{DatapathID: 1 << 60, Buffers: 2, Tables: 254, AuxiliaryID: 1, Capabilities: 0x4f},
		&GetConfigRequest{}, &GetConfigReply{Flags: 1, MissSendLen: 128}, &SetConfig{Flags: 2, MissSendLen: 129},
		&BarrierRequest{}, &BarrierReply{},
		&RoleRequest{Role: RolePrimary, Generation: 1 << 40}, &RoleReply{Role: RoleEqual, Generation: 5},
		f, deletion, all, &FlowMod{Command: FlowDeleteStrict, Table: 5, Priority: 6, Match: match},
		&FlowRemoved{
			Table: 5, Priority: 6, Cookie: 7, Reason: RemovedIdle, Duration: 5*time.Second + 1, IdleTimeout: 8, HardTimeout: 9, Packets: 10, Bytes: 11, Match: match,
		},
		&GroupMod{Command: GroupAdd, Group: group}, &GroupMod{Command: GroupDelete, Group: Group{ID: AllGroups}},
		&GroupMod{Command: GroupModify, Group: Group{ID: 8, Type: GroupAll}},
		&MeterMod{Command: MeterModify, Meter: meter},
		&BundleControl{ID: 1, Step: BundleCommit, Flags: BundleAtomic | BundleOrdered},
		&BundleAdd{ID: 1, Flags: BundleAtomic, Message: f}, &BundleAdd{ID: 1, Flags: BundleAtomic, Message: &GroupMod{Group: group}},
		&PacketIn{
			Packet: []byte("a packet's begin"), FullLen: 1500, Table: 83, Cookie: 9, Reason: 1, Metadata: match, Userdata: []byte{1},
		},
		&PacketIn{Packet: []byte("a packet"), FullLen: 8, Cookie: NoCookie},
		&SetPacketInFormat{Format: PacketInNicira2}, &SetControllerID{ID: 7}, &SetAsync{PacketIn: 1, PortStatus: 2, FlowRemoved: 3},
		&CTFlushZone{Zone: 7},
		&CTFlush{Zone: 7, Protocol: 6, Original: CTTuple{Src: addr("10.0.0.1"), Dst: addr("10.0.0.2"), SrcPort: 5, DstPort: 6}, Reply: CTTuple{Src: addr("10.0.0.3")}},
		&CTFlush{AllZones: true, Protocol: 58, Original: CTTuple{Src: addr("fc00::1"), ICMP: ICMPTuple{ID: 5, Type: 128, Code: 1}}},
		&DescRequest{}, &DescReply{Part: part, Manufacturer: "Nicira, Inc.", Hardware: "Open vSwitch", Software: "3.1.0", Serial: "None", Datapath: "None"},
		&FlowStatsRequest{FlowFilter: filter}, &FlowStatsReply{Part: part, Flows: []FlowStats{stats, {}, stats}}, &FlowStatsReply{},
		&AggregateRequest{FlowFilter: filter}, &AggregateReply{Part: part, Packets: 5, Bytes: 6, Flows: 7},
		&GroupDescRequest{Group: AllGroups}, &GroupDescReply{Part: part, Groups: []Group{group, {ID: 9}}},
		&GroupStatsRequest{Group: 5},
		&GroupStatsReply{Part: part, Groups: []GroupStats{{ID: 5, References: 6, Packets: 7, Bytes: 8, Duration: time.Second, Buckets: counters}, {ID: 6}}},
		&MeterConfigRequest{Meter: AllMeters}, &MeterConfigReply{Part: part, Meters: []Meter{meter, {ID: 4, Flags: MeterKbps}}},
		&MeterStatsRequest{Meter: 5},
		&MeterStatsReply{Part: part, Meters: []MeterStats{{ID: 5, Flows: 6, Packets: 7, Bytes: 8, Duration: time.Second, Bands: counters}, {ID: 6}}},
		&PortDescRequest{},
		&PortDescReply{Part: part, Ports: []PortDesc{{Port: PortLocal, Name: "br0", MAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}, Config: 1, State: 4}}},
		&FlowMonitorRequest{ID: 5, Command: MonitorStart, Flags: MonitorInitial | MonitorInstructions, Table: AllTables, Match: match},
		&FlowMonitorReply{Part: part, Updates: []FlowUpdate{
			{Event: EventModified, Table: 5, Reason: RemovedDelete, IdleTimeout: 1, HardTimeout: 2, Priority: 3, Cookie: 4, Match: match, Instructions: f.Instructions},
			{Event: EventAbbrev, XID: 77}, {Event: EventPaused},
		}},
		&Unknown{Type: 10, Body: []byte("a packet-in")},
	}
}

// messages15 need OpenFlow 1.5.
func messages15() []Message {
	selection := &Selection{Method: "hash", Param: 5, Fields: []Field{Num(FieldIPDst, 0xffffff00), Num(FieldTCPDst, 0xffff)}}
	return []Message{
		&GroupMod{Command: GroupInsertBucket, Bucket: LastBucket, Group: Group{ID: 5, Type: GroupSelect, Buckets: []Bucket{{ID: 77, Weight: 3}}}},
		&GroupMod{Command: GroupRemoveBucket, Bucket: 77, Group: Group{ID: 5, Type: GroupSelect}},
		&GroupMod{Command: GroupAdd, Group: Group{ID: 5, Type: GroupSelect, Selection: selection, Buckets: []Bucket{{ID: 9, Weight: 3}}}},
		&GroupDescReply{Groups: []Group{{ID: 5, Type: GroupSelect, Selection: selection}, {ID: 6, Type: GroupSelect, Selection: &Selection{Method: "dp_hash"}}}},
		&GroupDescRequest{Group: 5},
	}
}

// normalise takes off what decoding can't tell: nil from empty, and OpenFlow 1.5's forms of actions.
func normalise(t *testing.T, m Message, v Version) Message {
	t.Helper()
	if v < Version15 {
		return m
	}
	b, err := Append(nil, Version15, 1, m)
	if err != nil {
		t.Fatal(err)
	}
	_, again, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	return again
}

// TestEveryMessage encodes, decodes and encodes again, and fails when a type of message has no sample.
func TestEveryMessage(t *testing.T) {
	seen := map[string]bool{}
	check := func(m Message, v Version) {
		seen[reflect.TypeOf(m).Elem().Name()] = true
		prefix := []byte("what was there")
		b, err := Append(prefix, v, 0x12345678, m)
		if err != nil {
			t.Errorf("%s: %v", v, err)
			return
		}
		b = b[len(prefix):]
		h, got, err := Decode(b)
		if err != nil {
			t.Errorf("%T in %s: %v\n%x", m, v, err, b)
			return
		}
		if want := (Header{Version: v, Type: m.messageType(), Length: uint16(len(b)), XID: 0x12345678}); h != want {
			t.Errorf("%T: header %+v, want %+v", m, h, want)
		}
		if diff := cmp.Diff(normalise(t, m, v), got, deep()); diff != "" {
			t.Errorf("%T in %s:\n%s", m, v, diff)
		}
		again, err := Append(nil, v, 0x12345678, got)
		if err != nil || string(again) != string(b) {
			t.Errorf("%T in %s, encoded again: %v\n%x\n%x", m, v, err, b, again)
		}
		truncate(t, b)
	}
	for _, m := range sampleMessages(t) {
		check(m, Version14)
		check(m, Version15)
	}
	for _, m := range messages15() {
		check(m, Version15)
		if _, err := Append(nil, Version14, 1, m); err == nil && !strings.Contains(fmt.Sprintf("%T", m), "Desc") {
			t.Errorf("%T: OpenFlow 1.4 can't say this", m)
		}
	}
	for _, name := range messageTypes(t) {
		if !seen[name] {
			t.Errorf("no sample of %s", name)
		}
	}
}

// truncate decodes all beginnings of a message as messages of their own. They may be errors, and must not panic.
func truncate(t *testing.T, b []byte) {
	t.Helper()
	for n := HeaderLen; n < len(b); n++ {
		short := append([]byte(nil), b[:n]...)
		short[2], short[3] = byte(n>>8), byte(n)
		if _, m, err := Decode(short); err == nil && m == nil {
			t.Errorf("the first %d of %d bytes: neither message nor error", n, len(b))
		}
	}
	if _, _, err := Decode(b[:len(b)-1]); err == nil {
		t.Error("a message shorter than its header says is decoded")
	}
}

// messageTypes reads the names of all types of message from this package's source.
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
				t.Fatalf("%s: appendBody of a value", e.Name())
			}
			names = append(names, receiver.X.(*ast.Ident).Name)
		}
	}
	if len(names) < 40 {
		t.Fatalf("only %d types of message found", len(names))
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
		{&FlowMod{Instructions: Instructions{Apply: long}}, "80008 bytes are more than a length of 16 bits can state"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Output{Port: 70000}}}}, "output: port 70000: Open vSwitch has ports below 65280"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{nil}}}, "a nil action"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Load{To: Whole(Reg(0)), Value: 1 << 32}}}}, "load: 0x100000000 does not fit into NXM_NX_REG0[]"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Load{To: Whole(FieldXXReg0)}}}}, "load: NXM_NX_XXREG0[]: the action takes at most 64 bits"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Move{From: Whole(Reg(0)), To: Whole(FieldTunID)}}}}, "move: NXM_NX_REG0[] has 32 bits, NXM_NX_TUN_ID[] 64"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Move{From: Subfield{Field: Reg(0), Offset: 31, Width: 2}}}}}, "move: reg0 has no bits 31 to 32"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{SetField{}}}}, "set_field: conj_id: value and mask have to fit into 4 bytes, and the mask can't be 0"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{SetField{Field{ID: 200}}}}}, "set_field: field 200 does not exist"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{CT{Force: true}}}}, "ct: force needs commit"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{CT{Exec: []Action{CT{}}}}}}, "ct: ct can't be executed in it"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{CT{ZoneFrom: Whole(Reg(0))}}}}, "ct: the zone is either a number or 16 bits of a field"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{NAT{PortMin: 5, Side: NATSource}}}}, "nat: ports need an address"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Conjunction{ID: 1, Clause: 3, Of: 2}}}}, "conjunction: conjunction(1,3/2): clauses are numbered 1 to n, and n is 2 to 64"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{Learn{Specs: []LearnSpec{{}}}}}}, "learn: no bits of conj_id are named"},
		{&FlowMod{Instructions: Instructions{Apply: []Action{CheckPktLarger{To: Whole(Reg(0))}}}}, "check_pkt_larger: check_pkt_larger: NXM_NX_REG0[] is not 1 bit"},
		{&BundleAdd{Message: &BundleAdd{}}, "a bundle holds messages, not bundles"},
		{&BundleAdd{}, "a bundle holds messages, not bundles"},
		{&GroupMod{Command: GroupInsertBucket}, "insert_bucket needs OpenFlow 1.5"},
		{&GroupMod{Group: Group{Selection: &Selection{Method: "hash"}}}, "a selection method needs OpenFlow 1.5"},
		{&GroupDescRequest{Group: 5}, "OpenFlow 1.4 describes all groups or none; ask for AllGroups"},
	} {
		before := []byte{1, 2, 3}
		b, err := Append(before, Version14, 1, c.m)
		if err == nil || !strings.HasSuffix(err.Error(), c.want) || len(b) != len(before) {
			t.Errorf("%v\nwant …%s; %d bytes appended", err, c.want, len(b)-len(before))
		}
	}
}

func TestHeader(t *testing.T) {
	for _, b := range [][]byte{nil, {5, 0, 0}, {5, 0, 0, 7, 0, 0, 0, 0}} {
		if h, err := ParseHeader(b); err == nil {
			t.Errorf("%x is taken for a header: %+v", b, h)
		}
		if _, _, err := Decode(b); err == nil {
			t.Errorf("%x is taken for a message", b)
		}
	}
	if s := Version15.String() + ", " + Version(0x77).String(); s != "OpenFlow 1.5, OpenFlow version 0x77" {
		t.Error(s)
	}
	old := []byte{1, typeFlowMod, 0, 8, 0, 0, 0, 0}
	if _, m, err := Decode(old); err != nil || m.(*Unknown).Type != typeFlowMod {
		t.Errorf("a flow mod of OpenFlow 1.0 has another layout, and is decoded as %v %v", m, err)
	}
}

func TestError(t *testing.T) {
	for _, c := range []struct {
		e    *Error
		want string
	}{
		{&Error{Type: ErrorBadMatch, Code: 9}, "the switch refused: OFPBMC_BAD_PREREQ (bad match)"},
		{&Error{Type: ErrorBundleFailed, Code: CodeBundleMessageFailed}, "the switch refused: OFPBFC_MSG_FAILED (bundle failed)"},
		{&Error{Type: ErrorExperimenter, Code: 15, Experimenter: experimenterNicira}, "the switch refused: NXBAC_BAD_CONJUNCTION (experimenter error)"},
		{&Error{Type: ErrorExperimenter, Code: 4250, Experimenter: experimenterONF}, "the switch refused: OFPBAC_BAD_SET_MASK (experimenter error)"},
		{&Error{Type: ErrorExperimenter, Code: 1, Experimenter: 5}, "the switch refused: experimenter 0x5, error 1 (experimenter error)"},
		{&Error{Type: 77, Code: 5}, "the switch refused: error type 77, code 5"},
		{&Error{Type: 13, Code: 2}, "the switch refused: error type 13, code 2 (table features failed)"},
	} {
		if got := c.e.Error(); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	e := &Error{Data: []byte{5, 14, 0, 80, 0, 0, 0, 7, 1, 2}}
	if h, ok := e.Request(); !ok || h != (Header{Version14, typeFlowMod, 80, 7}) {
		t.Errorf("%+v %t", h, ok)
	}
	if m, ok := e.Message(); ok {
		t.Errorf("10 of 80 bytes are taken for %v", m)
	}
	if m, ok := (&Error{Data: []byte{5, typeBarrierRequest, 0, 8, 0, 0, 0, 7}}).Message(); !ok || m.messageType() != typeBarrierRequest {
		t.Errorf("%v %t", m, ok)
	}
	if _, ok := (&Error{Data: []byte{5}}).Request(); ok {
		t.Error("one byte is taken for a header")
	}
}

// TestDecodeBounded fills messages with the smallest elements that there can be. What decoding allocates stays in proportion to the message.
func TestDecodeBounded(t *testing.T) {
	const most = 48 // bytes for one of the message
	full := func(typ uint8, head []byte, element string) []byte {
		b := append([]byte{byte(Version15), typ, 0, 0, 0, 0, 0, 0}, head...)
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
		"flows":                full(typeMultipartReply, reply(multipartFlow), "00280000000000000000000000000000000000000000000000010004000000000000000400000000"),
		"updates":              full(typeMultipartReply, reply(multipartFlowMonitor), "0008000500000000"),
		"groups":               full(typeMultipartReply, reply(multipartGroupDesc), "00100000000000000000000000000000"),
		"buckets":              full(typeGroupMod, []byte{0, 0, 1, 0, 0, 0, 0, 1, 0xff, 0xe0, 0, 0, 0xff, 0xff, 0xff, 0xff}, "0008000000000000"),
		"bands":                full(typeMeterMod, make([]byte, 8), "00010010000000000000000000000000"),
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
			t.Errorf("%s: %d bytes allocated for a message of %d (%v)", name, n, len(b), err)
		}
	}
}
