package openflow

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzDecode checks that any message that can be decoded is the same after encoding and decoding.
func FuzzDecode(f *testing.F) {
	for _, m := range sampleMessages(f) {
		b, err := Append(nil, 1, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, c := range readTable(f, "actions.txt", 4) {
		m, err := ParseFlow(c[0] + " actions=" + c[1])
		if err != nil {
			f.Fatal(err)
		}
		b, err := Append(nil, 1, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, c := range readTable(f, "matches.txt", 3) {
		m, err := ParseFlow(c[0] + " actions=drop")
		if err != nil {
			f.Fatal(err)
		}
		b, err := Append(nil, 1, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= HeaderLen && len(data) <= maxMessage { // write a valid length, which random input rarely has
			data = append([]byte(nil), data...)
			data[2], data[3] = byte(len(data)>>8), byte(len(data))
		}
		h, m, err := Decode(data)
		if err != nil || h.Version != Version14 {
			return
		}
		again, err := Append(nil, h.XID, m)
		if err != nil {
			return // for example a string without a terminating zero, or a command of another version
		}
		_, m2, err := Decode(again)
		if err != nil {
			t.Fatalf("%x\nencoded again:\n%x\ndecode: %v", data, again, err)
		}
		if !reflect.DeepEqual(m, m2) { // much faster than cmp
			t.Fatalf("%x\nencoded again:\n%x\ndecoded (-want +got):\n%s", data, again, cmp.Diff(m, m2, deep()))
		}
		texts(t, m)
	})
}

// texts prints the parts of a message and computes their canonical forms.
func texts(t *testing.T, m Message) {
	t.Helper()
	instructions := func(in Instructions) {
		if _, err := in.Canonical(); err != nil {
			t.Errorf("%s: canonical form: %v", in, err)
		}
		if _, err := ParseInstructions(Match{}, in.String()); err != nil && len(in.String()) < 1000 {
			t.Logf("text of decoded instructions is not parsable: %v", err)
		}
	}
	switch m := m.(type) {
	case *FlowMod:
		_ = m.String()
		instructions(m.Instructions)
	case *FlowStatsReply:
		for i := range m.Flows {
			_ = m.Flows[i].String()
			instructions(m.Flows[i].Instructions)
		}
	case *GroupMod:
		_ = m.String()
		if _, err := m.Group.Canonical(); err != nil {
			t.Errorf("%s: canonical form: %v", m, err)
		}
	case *MeterMod:
		_ = m.Meter.String()
	case *BundleAdd:
		texts(t, m.Message)
	}
}

// FuzzParseFlow checks that any flow that can be parsed is the same after printing and parsing, and after encoding and decoding.
func FuzzParseFlow(f *testing.F) {
	for _, c := range readTable(f, "matches.txt", 3) {
		f.Add("table=5,priority=7," + c[0] + " actions=drop")
	}
	for _, c := range readTable(f, "actions.txt", 4) {
		f.Add(c[0] + " actions=" + c[1])
	}
	f.Add(" cookie=0x5, duration=0.754s, table=5, n_packets=7, n_bytes=8, idle_timeout=10, send_flow_rem importance=7, ip,nw_src=10.0.0.0/8 actions=drop")
	f.Add("delete table=5,cookie=0x5/-1,arp")
	f.Fuzz(func(t *testing.T, text string) {
		m, err := ParseFlow(text)
		if err != nil {
			return
		}
		again, err := ParseFlow(m.String())
		if err != nil {
			t.Fatalf("%q: parse its text %q: %v", text, m, err)
		}
		if m.String() != again.String() {
			t.Fatalf("%q: printed and parsed: got %q, want %q", text, again, m)
		}
		canonical, err := m.Instructions.Canonical()
		if err != nil {
			t.Fatalf("%q: canonical form: %v", text, err)
		}
		b, err := Append(nil, 1, m)
		if err != nil {
			return // too long
		}
		_, decoded, err := Decode(b)
		if err != nil {
			t.Fatalf("%q: decode: %v", m, err)
		}
		got := decoded.(*FlowMod)
		if c, err := got.Instructions.Canonical(); err != nil || c != canonical || got.String() != m.String() || got.Key() != m.Key() {
			t.Fatalf("%q: encoded and decoded: got %q, error %v", m, got, err)
		}
	})
}

func FuzzParseGroup(f *testing.F) {
	f.Add("group_id=1,type=select,bucket=weight=9,watch_port=LOCAL,watch_group=3,actions=drop")
	f.Add("group_id=1,type=ff,bucket=ct(commit,nat(dst=10.0.0.1:80),table=5),output:7,bucket=weight:5,actions=load:5->NXM_NX_REG0[],resubmit(,5)")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ParseGroup(text)
		if err != nil {
			return
		}
		again, err := ParseGroup(g.String())
		if err != nil {
			t.Fatalf("%q: parse its text %q: %v", text, g, err)
		}
		if g.String() != again.String() {
			t.Fatalf("%q: printed and parsed: got %q, want %q", text, again, g)
		}
		b, err := Append(nil, 1, &GroupMod{Group: *g})
		if err != nil {
			return // too long
		}
		if _, _, err := Decode(b); err != nil {
			t.Fatalf("%q: decode: %v", g, err)
		}
	})
}
