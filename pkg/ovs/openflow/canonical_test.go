package openflow

import (
	"testing"
)

// TestCanonicalEqual checks that the texts of one line have equal canonical bytes, and those of different lines do not.
func TestCanonicalEqual(t *testing.T) {
	lines := [][]string{
		{"load:5->NXM_NX_REG0[]", "set_field:5->reg0", "set_field:5/0xffffffff->reg0", "load:0x5->NXM_NX_REG0[0..31]"},
		{"load:5->NXM_NX_REG0[4..7]", "set_field:0x50/0xf0->reg0"},
		{"load:0->NXM_NX_REG0[]"},
		{"load:5->NXM_NX_REG1[]"},
		{"set_field:5->xreg0"},
		{"output:5"},
		{"output:5,output:6"},
		{"output:6,output:5"},
		{"controller", "CONTROLLER:65535", "output:CONTROLLER", "controller(max_len=65535)"},
		{"controller:5"},
		{"controller(id=5)"},
		{"note:01", "note:01.00", "note:01.00.00.00.00.00"},
		{"note:01.00.00.00.00.00.00"},
		{"ct(commit,nat(src=10.0.0.1))", "ct(commit,nat(src=10.0.0.1-10.0.0.1))"},
		{"ct(commit,nat(src=10.0.0.1:80))", "ct(commit,nat(src=10.0.0.1:80-80))", "ct(commit,nat(src=10.0.0.1-10.0.0.1:80-80))"},
		{"ct(commit,nat(src=10.0.0.1-10.0.0.2))"},
		{"ct(commit,nat(dst=10.0.0.1))"},
		{"ct(commit,zone=5,table=7)", "ct(table=7,zone=5,commit)"},
		{"ct(commit,exec(set_field:5->ct_mark))", "ct(commit,exec(load:5->NXM_NX_CT_MARK[]))"},
		{"ct(commit,exec(set_field:5->ct_mark)),output:5"},
		{"ct(commit,zone=5)"},
		{"ct(zone=5)"},
		{"resubmit(,5)"},
		{"resubmit(,5,ct)"},
		{"resubmit:5", "resubmit(5,)"},
		{"strip_vlan", "pop_vlan"},
		{"mod_nw_ttl:5"},
		{"set_field:5->nw_ttl"},
		{"write_metadata:0x15/0xf", "write_metadata:0x5/0xf"},
		{"write_metadata:0x5"},
		{"goto_table:5"},
		{"meter:5"},
		{"meter:5,goto_table:5"},
		{"write_actions(output:5)"},
		{"clear_actions"},
		{"output:5,clear_actions"},
		{"output:5,write_actions(output:6)"},
		{"drop"},
	}
	seen := map[string]string{}
	for _, texts := range lines {
		var first string
		for i, text := range texts {
			in, err := ParseInstructions(Match{}, text)
			if err != nil {
				t.Fatal(err)
			}
			c, err := in.Canonical()
			if err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				first = c
				if other, ok := seen[c]; ok {
					t.Errorf("got equal canonical forms of %q and %q, want different ones", text, other)
				}
				seen[c] = text
			} else if c != first {
				t.Errorf("got different canonical forms of %q and %q, want equal ones", texts[0], text)
			}
			b, err := in.append(nil)
			if err != nil {
				t.Fatal(err)
			}
			if got, err := decodeInstructions(b).Canonical(); err != nil || got != c {
				t.Errorf("%q: canonical form differs after encoding and decoding (error %v)", text, err)
			}
		}
	}
}

// TestMatchEqual checks that the texts of one line are equal matches, and those of different lines are not.
func TestMatchEqual(t *testing.T) {
	lines := [][]string{
		{"", "reg0=0/0", "metadata=5/0"},
		{"ip,nw_src=10.1.2.3/8", "dl_type=0x0800,nw_src=10.0.0.0/255.0.0.0", "ip_src=10.0.0.0/8,ip"},
		{"ip,nw_src=10.1.2.3", "ip,nw_src=10.1.2.3/32", "ip,nw_src=10.1.2.3/255.255.255.255"},
		{"tcp,tp_dst=80", "ip,nw_proto=6,tcp_dst=80", "tcp,tp_dst=0x50/0xffff"},
		{"udp,tp_dst=80"},
		{"arp,nw_dst=10.0.0.1", "arp,arp_tpa=10.0.0.1"},
		{"arp,nw_proto=1", "arp,arp_op=1"},
		{"dl_vlan=5", "vlan_vid=0x1005", "vlan_tci=0x1005/0x1fff", "vlan_vid=0x1005/0x1fff"},
		{"dl_vlan=5,dl_vlan_pcp=1", "vlan_tci=0x3005", "vlan_vid=4101,vlan_pcp=1"},
		{"dl_vlan=0xffff", "vlan_tci=0", "vlan_vid=0"},
		{"xreg0=0x100000002", "reg0=1,reg1=2"},
		{"xxreg0=5/0xff", "reg3=5/0xff", "xreg1=5/0xff"},
		{"in_port=LOCAL", "in_port=65534", "in_port=local"},
		{"ip,nw_tos=8", "ip,ip_dscp=2"},
		{"ct_state=+trk", "ct_state=0x20/0x20", "ct_state=0xff/0x20"},
		{"ct_state=trk", "ct_state=0x20", "ct_state=0x20/0xff", "ct_state=+trk-new-est-rel-rpl-inv-snat-dnat"},
		{"icmp6,icmp_type=1", "icmp6,icmpv6_type=1"},
		{"ipv6,ipv6_label=5", "ipv6,ipv6_label=5/0xfffff", "ipv6,ipv6_label=5/0xffffffff"},
		{"ip,nw_frag=later", "ip,ip_frag=3/3"},
	}
	seen := map[Match]string{}
	for _, texts := range lines {
		first, err := parseFlowMatch(texts[0])
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[first]; ok {
			t.Errorf("got equal canonical forms of %q and %q, want different ones", texts[0], other)
		}
		seen[first] = texts[0]
		for _, text := range texts[1:] {
			m, err := parseFlowMatch(text)
			if err != nil {
				t.Error(err)
			} else if m != first {
				t.Errorf("%q: got %s, want %s, equal to %q", text, m, first, texts[0])
			}
		}
	}
}

func TestGroupCanonical(t *testing.T) {
	lines := [][]string{
		{"group_id=1,type=select,bucket=load:5->NXM_NX_REG0[]", "group_id=1,type=select,bucket=weight=1,set_field:5->reg0"},
		{"group_id=1,type=select,bucket=weight=2,load:5->NXM_NX_REG0[]"},
		{"group_id=2,type=select,bucket=load:5->NXM_NX_REG0[]"},
		{"group_id=1,type=all,bucket=load:5->NXM_NX_REG0[]"},
		{"group_id=1,type=select,bucket=load:5->NXM_NX_REG0[],bucket=drop"},
		{"group_id=1,type=select,bucket=watch_port=5,load:5->NXM_NX_REG0[]"},
	}
	seen := map[string]string{}
	for _, texts := range lines {
		for i, text := range texts {
			g, err := ParseGroup(text)
			if err != nil {
				t.Fatal(err)
			}
			c, err := g.Canonical()
			if err != nil {
				t.Fatal(err)
			}
			if other, ok := seen[c]; ok != (i > 0) {
				t.Errorf("%q: got the canonical form of %q, want one of its own line only", text, other)
			}
			seen[c] = text
		}
	}
	if _, err := (&Group{Buckets: []Bucket{{Actions: []Action{nil}}}}).Canonical(); err == nil {
		t.Error("canonical form of a nil action: got no error, want one")
	}
}

// newMatch returns a match of the fields.
func newMatch(fields ...Field) (Match, error) {
	var s fieldSet
	for _, f := range fields {
		if err := s.add(f); err != nil {
			return Match{}, err
		}
	}
	if err := s.checkPrerequisites(); err != nil {
		return Match{}, err
	}
	return s.match(), nil
}

func TestMatchOfFields(t *testing.T) {
	m, err := newMatch(Num(FieldIPProto, ipTCP), Num(FieldEthType, ethIPv4), Num(FieldTCPDst, 80), Num(Reg(3), 7))
	if err != nil {
		t.Fatal(err)
	}
	if want, err := ParseMatch("tcp,tp_dst=80,reg3=7"); err != nil || m != want {
		t.Errorf("got %s, want %s", m, want)
	}
	for _, fields := range [][]Field{
		{Num(FieldTCPDst, 80)},
		{Num(FieldEthType, ethIPv4), Num(FieldEthType, ethIPv6)},
		{Num(FieldEthType, 1<<16)},
		{{ID: numFields}},
		{{ID: FieldEthType, Mask: Value{Lo: 1}}},
		{{ID: Reg(0), Mask: Value{Lo: 1 << 32}}},
	} {
		if m, err := newMatch(fields...); err == nil {
			t.Errorf("%+v: got %s, want an error", fields, m)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("Reg(16): got no panic, want one")
		}
	}()
	Reg(16)
}
