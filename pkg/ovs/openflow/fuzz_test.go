package openflow

import (
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzDecode decodes anything. What it makes of it has to be encoded again, and then be the same.
func FuzzDecode(f *testing.F) {
	for _, v := range []Version{Version14, Version15} {
		for _, m := range append(sampleMessages(f), messages15()...) {
			if b, err := Append(nil, v, 1, m); err == nil {
				f.Add(b)
			}
		}
	}
	for _, c := range readTable(f, "actions.txt", 4) {
		m, err := ParseFlow(c[0] + " actions=" + c[1])
		if err != nil {
			f.Fatal(err)
		}
		b, err := Append(nil, Version15, 1, m)
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
		b, err := Append(nil, Version14, 1, m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) >= HeaderLen && len(data) <= maxMessage { // so that the length is right more often than by chance
			data = append([]byte(nil), data...)
			data[2], data[3] = byte(len(data)>>8), byte(len(data))
		}
		h, m, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Append(nil, h.Version, h.XID, m)
		if err != nil {
			return // strings without an end, commands of another version
		}
		_, m2, err := Decode(again)
		if err != nil {
			t.Fatalf("%x\nencoded again is\n%x\nwhich is %v", data, again, err)
		}
		if h.Version == Version15 { // a load, if one came in, has become a set_field
			m = m2
			if again, err = Append(nil, h.Version, h.XID, m); err == nil {
				_, m2, err = Decode(again)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if !reflect.DeepEqual(m, m2) { // much faster than cmp
			t.Fatalf("%x\nencoded again\n%x\n%s", data, again, cmp.Diff(m, m2, deep()))
		}
		texts(t, m)
	})
}

// texts prints what a message holds, and looks for its canonical form.
func texts(t *testing.T, m Message) {
	t.Helper()
	instructions := func(in Instructions) {
		if _, err := in.Canonical(); err != nil {
			t.Errorf("%s: %v", in, err)
		}
		if _, err := ParseInstructions(in.String()); err != nil && len(in.String()) < 1000 {
			t.Logf("printed and not read: %v", err)
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
	case *FlowMonitorReply:
		for i := range m.Updates {
			_ = m.Updates[i].Key().String()
			instructions(m.Updates[i].Instructions)
		}
	case *GroupMod:
		_ = m.String()
		if _, err := m.Group.Canonical(); err != nil && m.Group.Selection == nil {
			t.Errorf("%s: %v", m, err)
		}
	case *MeterMod:
		_ = m.Meter.String()
	case *BundleAdd:
		texts(t, m.Message)
	}
}

// FuzzParseFlow reads any text. What it reads has to be printed, read, encoded and decoded without change.
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
			t.Fatalf("%q is printed as %q: %v", text, m, err)
		}
		if m.String() != again.String() {
			t.Fatalf("%q is printed as %q, and that as %q", text, m, again)
		}
		canonical, err := m.Instructions.Canonical()
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		for _, v := range []Version{Version14, Version15} {
			b, err := Append(nil, v, 1, m)
			if err != nil {
				continue // too long
			}
			_, decoded, err := Decode(b)
			if err != nil {
				t.Fatalf("%q: %v", m, err)
			}
			got := decoded.(*FlowMod)
			if c, err := got.Instructions.Canonical(); err != nil || c != canonical || got.Key() != m.Key() {
				t.Fatalf("%q by way of %s is %q (%v)", m, v, got, err)
			}
			if v == Version14 && got.String() != m.String() {
				t.Fatalf("%q by way of %s is %q", m, v, got)
			}
		}
	})
}

func FuzzParseGroup(f *testing.F) {
	f.Add("group_id=1,type=select,selection_method=hash,selection_method_param=7,fields(ip_src,tcp_dst=0xff),bucket=bucket_id=9,watch_port=LOCAL,watch_group=3,actions=drop")
	f.Add("group_id=1,type=ff,bucket=ct(commit,nat(dst=10.0.0.1:80),table=5),output:7,bucket=weight:5,actions=load:5->NXM_NX_REG0[],resubmit(,5)")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := ParseGroup(text)
		if err != nil {
			return
		}
		again, err := ParseGroup(g.String())
		if err != nil {
			t.Fatalf("%q is printed as %q: %v", text, g, err)
		}
		if g.String() != again.String() {
			t.Fatalf("%q is printed as %q, and that as %q", text, g, again)
		}
		b, err := Append(nil, Version15, 1, &GroupMod{Group: *g})
		if err != nil {
			return // too long, or a selection method of more than 15 bytes
		}
		if _, _, err := Decode(b); err != nil {
			t.Fatalf("%q: %v", g, err)
		}
	})
}
