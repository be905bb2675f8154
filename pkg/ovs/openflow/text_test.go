package openflow

import (
	"strings"
	"testing"
)

func TestParseFlow(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		// As ovs-ofctl prints flows, with statistics and without.
		{
			" cookie=0x5, duration=0.754s, table=5, n_packets=7, n_bytes=8, idle_timeout=10, idle_age=3, hard_age=4, send_flow_rem check_overlap importance=7, ip,nw_src=10.0.0.0/8 actions=drop",
			"add table=5,priority=32768,ip,nw_src=10.0.0.0/8,cookie=0x5,idle_timeout=10,importance=7,send_flow_rem,check_overlap,actions=drop",
		},
		{" priority=100,arp actions=NORMAL", "add table=0,priority=100,arp,actions=NORMAL"},
		{" table=9, priority=0 actions=drop", "add table=9,priority=0,actions=drop"},
		{" actions=drop", "add table=0,priority=32768,actions=drop"},
		// As go-openvswitch formats flows.
		{"priority=10,tcp,in_port=1,nw_dst=10.0.0.1,ct_state=+trk+new,table=5,idle_timeout=0,cookie=0x00000000000000ff,actions=mod_dl_dst:00:11:22:33:44:55,resubmit(,6)",
			"add table=5,priority=10,ct_state=+new+trk,tcp,in_port=1,nw_dst=10.0.0.1,cookie=0xff,actions=set_field:00:11:22:33:44:55->eth_dst,resubmit(,6)"},
		{"priority=1,ip,ct_mark=0x00000005/0x000000ff,ipv6_label=0x00005/0x000ff,actions=all", ""},
		{"priority=1,udp,tp_dst=0x0035/0xffff,vlan_tci=0x1000/0x1000,actions=local,flood", "add table=0,priority=1,udp,vlan_tci=0x1000/0x1000,tp_dst=53,actions=LOCAL,FLOOD"},
		// Commands, as in a file for --bundle add-flows.
		{"add table=1,actions=drop", "add table=1,priority=32768,actions=drop"},
		{"modify table=1,ip,actions=output:5", "modify table=1,ip,actions=output:5"},
		{"modify_strict table=1,priority=5,ip,actions=output:5", "modify_strict table=1,priority=5,ip,actions=output:5"},
		{"delete", "delete"},
		{"delete table=5,ip,cookie=0x5/-1", "delete table=5,ip,cookie=0x5/0xffffffffffffffff"},
		{"delete cookie=0x500/0xff00", "delete cookie=0x500/0xff00"},
		{"delete_strict table=5,priority=7,arp", "delete_strict table=5,priority=7,arp"},
		{"delete_strict table=5,priority=7", "delete_strict table=5,priority=7"},
		// Other forms of the same flow.
		{"actions=drop,", "add table=0,priority=32768,actions=drop"},
		{"dl_type=0x0800,nw_proto=6,tp_dst=80,actions=drop", "add table=0,priority=32768,tcp,tp_dst=80,actions=drop"},
		{"tp_dst=80,tcp,tcp_dst=80,actions=drop", "add table=0,priority=32768,tcp,tp_dst=80,actions=drop"},
		{"in_port=65534,actions=output:65533", "add table=0,priority=32768,in_port=LOCAL,actions=CONTROLLER:65535"},
		{"ipv6,ipv6_src=FC00:0:0::1/ffff::,actions=drop", "add table=0,priority=32768,ipv6,ipv6_src=fc00::/16,actions=drop"},
		{"udp,actions=mod_tp_src:5", "add table=0,priority=32768,udp,actions=set_field:5->udp_src"},
		{"sctp6,actions=mod_tp_dst:5", "add table=0,priority=32768,sctp6,actions=set_field:5->sctp_dst"},
		{"actions=pop_vlan,mod_vlan_vid:5,mod_vlan_pcp:1", "add table=0,priority=32768,actions=pop_vlan,push_vlan:0x8100,set_field:4101->vlan_vid,set_field:1->vlan_pcp"},
		{"ip,actions=ct( commit , zone=5 , nat( src=10.0.0.1 ) )", "add table=0,priority=32768,ip,actions=ct(commit,zone=5,nat(src=10.0.0.1))"},
	} {
		m, err := ParseFlow(c.text)
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: got %s, want an error", c.text, m)
			}
			continue
		}
		if err != nil {
			t.Error(err)
			continue
		}
		if got := m.String(); got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.text, got, c.want)
		}
		again, err := ParseFlow(m.String())
		if err != nil || again.String() != m.String() {
			t.Errorf("%s: printed and parsed: got %v, error %v, want no change", m, again, err)
		}
	}
}

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"table=5,ip", "actions= is missing"},
		{"", "actions= is missing"},
		{"actions=", "no actions; write drop to drop packets"},
		{"table=256,actions=drop", "table: 256 does not fit into 8 bits"},
		{"priority=0x,actions=drop", `priority: "0x" is not a number`},
		{"priority=007,actions=drop", "write a number in decimal or with 0x"},
		{"nw_src=10.0.0.1,actions=drop", "ip_src needs ip in the match"},
		{"ipv6,nw_src=10.0.0.1,actions=drop", "ip_src needs ip in the match"},
		{"ip,tp_dst=80,actions=drop", "tp_dst needs tcp, udp or sctp in the match"},
		{"udp,tcp_dst=80,actions=drop", "tcp_dst needs tcp or tcp6 in the match"},
		{"nw_proto=6,actions=drop", "nw_proto needs ip or ipv6 in the match"},
		{"vlan_pcp=3,actions=drop", "vlan_pcp needs a VLAN tag"},
		{"icmp6,nd_target=fe80::1,actions=drop", "nd_target needs icmp6 with icmp_type 135 or 136"},
		{"icmp6,icmp_type=136,icmp_code=0,nd_sll=00:00:00:00:00:01,actions=drop", "nd_sll needs icmp6 with icmp_type 135"},
		{"icmp6,icmp_type=135,icmp_code=0,nd_tll=00:00:00:00:00:01,actions=drop", "nd_tll needs icmp6 with icmp_type 136"},
		{"ip,arp_op=1,actions=drop", "arp_op needs arp in the match"},
		{"ip,ipv6_src=::1,actions=drop", "ipv6_src needs ipv6 in the match"},
		{"tcp,icmp_type=1,actions=drop", "icmp_type needs icmp in the match"},
		{"ipv6,icmp_type=1,actions=drop", "icmpv6_type needs icmp6 in the match"},
		{"tcp,udp_src=1,actions=drop", "udp_src needs udp or udp6 in the match"},
		{"tcp,sctp_src=1,actions=drop", "sctp_src needs sctp or sctp6 in the match"},
		{"ip,ct_state=+trk,ct_nw_src=10.0.0.1,actions=drop", "ct_nw_src needs a ct_state that only tracked, valid packets have"},
		{"ip,arp,actions=drop", "eth_type is specified twice with different values"},
		{"in_port=1,in_port=2,actions=drop", "in_port_oxm is specified twice with different values"},
		{"ip,nw_src=10.0.0.0/8,nw_src=10.0.0.0/16,actions=drop", "ip_src is specified twice with different values"},
		{"reg0=5,xreg0=0x700000000,actions=drop", "reg0 is specified twice with contradicting values"},
		{"dl_vlan=5,dl_vlan=6,actions=drop", "vlan_vid is specified twice with contradicting values"},
		{"vlan_tci=0x3000/0x3000,actions=drop", "the mask 0x3000 covers a part of the priority"},
		{"dl_vlan=4096,actions=drop", "a VLAN ID has 12 bits"},
		{"reg16=5,actions=drop", `unknown field "reg16"`},
		{"igmp,actions=drop", `"igmp": not a known protocol or a field with a value`},
		{"reg0=0x100000000,actions=drop", "0x100000000 does not fit into 32 bits"},
		{"reg0=4294967296,actions=drop", "4294967296 does not fit into 32 bits"},
		{"ct_label=0x123456789abcdef0123456789abcdef01,actions=drop", "does not fit into 128 bits"},
		{"ct_zone=5/7,actions=drop", "ct_zone takes no mask"},
		{"reg0=0x5g,actions=drop", `"0x5g" is not a number`},
		{"ip,nw_src=10.0.0.300,actions=drop", "IPv4 field has value >255"},
		{"ip,nw_src=::1,actions=drop", "::1 has the wrong address family or an IPv6 zone"},
		{"ipv6,ipv6_src=fe80::1%eth0,actions=drop", "fe80::1%eth0 has the wrong address family or an IPv6 zone"},
		{"ip,nw_src=10.0.0.0/33,actions=drop", `unable to parse IP`},
		{"dl_src=00:11:22:33:44,actions=drop", "invalid MAC address"},
		{"dl_src=00:11:22:33:44:55:66:77,actions=drop", "is not an Ethernet address"},
		{"ct_state=+trk+foo,actions=drop", `"foo" is not one of new, est`},
		{"ct_state=+trk-trk,actions=drop", "trk is both set and unset"},
		{"ct_state=foo,actions=drop", `"foo" is not one of new, est`},
		{"ct_state=,actions=drop", "write flags as +set-unset"},
		{"ip,nw_frag=maybe,actions=drop", `"maybe" is not a number`},
		{"ip,nw_tos=5,actions=drop", "the lower two bits belong to nw_ecn"},
		{"ip,nw_ecn=4,actions=drop", "4 does not fit into 2 bits"},
		{"in_port=65280,actions=drop", "Open vSwitch has ports below 65280"},
		{"in_port=eth0,actions=drop", `"eth0" is not a port`},
		{"reg0:5,actions=drop", `"reg0": not a field with a value`},
		{"unknown(zz),actions=drop", "write the bytes as 0x"},
		{"=5,actions=drop", `a name is missing before '='`},
		{"actions=output:5,drop", "drop cannot be combined with other actions"},
		{"actions=goto_table:5,output:1", "output follows goto_table; the order is meter, actions"},
		{"actions=output:1,meter:5", "meter follows output"},
		{"actions=meter:5,meter:6", "meter follows meter"},
		{"actions=goto_table:0", "the table must be 1 to 254"},
		{"actions=goto_table:255", "the table must be 1 to 254"},
		{"actions=meter:0", "meters are numbered from 1"},
		{"actions=frobnicate:5", `unknown action "frobnicate"`},
		{"actions=clone(output:5)", `unknown action "clone"`},
		{"actions=output(port=5,max_len=100)", "unsupported form of output"},
		{"actions=output:nowhere", "output:nowhere: not a port or a field"},
		{"actions=load:5", "write load:VALUE->FIELD"},
		{"actions=load:0x100->NXM_NX_REG0[0..7]", "0x100 does not fit into 8 bits"},
		{"actions=load:5->NXM_NX_REG0[0..32]", "reg0 has no bits 0 to 32"},
		{"actions=load:5->NXM_NX_REG0[7..0]", "write bits as [], [bit] or [first..last]"},
		{"actions=load:5->NXM_NX_REG0[", "write bits as [], [bit] or [first..last]"},
		{"actions=load:5->NXM_NX_REG16[]", `unknown field "NXM_NX_REG16"`},
		{"actions=set_field:5", "write set_field:VALUE->FIELD"},
		{"actions=set_field:5/0->reg0", "the mask must not be 0"},
		{"actions=set_field:5->nothing", `unknown field "nothing"`},
		{"actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[]", "NXM_NX_REG0[] has 32 bits, NXM_NX_TUN_ID[] has 64"},
		{"actions=move:NXM_NX_REG0[]", "write move:FIELD"},
		{"actions=resubmit(,)", "resubmit needs a port or a table"},
		{"actions=resubmit(1,2,3)", `third argument "3", want ct`},
		{"actions=resubmit(1,2,ct,4)", "write resubmit([PORT],[TABLE][,ct])"},
		{"actions=resubmit(,256)", "256 does not fit into 8 bits"},
		{"actions=conjunction(5,3/2)", "clauses are numbered 1 to n"},
		{"actions=conjunction(5)", "write conjunction(ID,CLAUSE/CLAUSES)"},
		{"actions=note:0", "write the bytes as 00.0a.ff"},
		{"actions=ct(zone=70000)", "zone: 70000 does not fit into 16 bits"},
		{"actions=ct(frob)", `"frob" is not an argument of ct`},
		{"actions=ct(force)", "force needs commit"},
		{"actions=ct(table=255)", "table 255 does not exist"},
		{"actions=ct(commit,zone=NXM_NX_REG0[])", "the zone is either a number or 16 bits of a field"},
		{"actions=ct(commit,exec(output:5))", "output is not allowed in ct(exec(…))"},
		{"actions=ct(commit,exec(ct(commit)))", "ct is not allowed in ct(exec(…))"},
		{"actions=ct(commit,alg=sip)", `alg: "sip" is not a number`},
		{"actions=ct(commit,nat(src=10.0.0.9-10.0.0.1))", "10.0.0.9-10.0.0.1 is not a range of addresses"},
		{"actions=ct(commit,nat(src=10.0.0.1:80-70))", "80-70 is not a range of ports"},
		{"actions=ct(commit,nat(src=10.0.0.1:0))", "0 is not a port"},
		{"actions=ct(commit,nat(src=10.0.0.1,dst=10.0.0.2))", "src and dst exclude each other"},
		{"actions=ct(commit,nat(random))", "addresses and flags need src or dst"},
		{"actions=ct(commit,nat(src=10.0.0.1,hash,random))", "hash and random exclude each other"},
		{"actions=ct(commit,nat(src=[fc00::1))", "a closing bracket is missing"},
		{"actions=ct(commit,nat(frob))", `"frob" is not an argument of nat`},
		{"actions=ct(commit", "a closing parenthesis is missing"},
		{"actions=ct(commit)garbage", `"garbage" follows ct(…)`},
		{"actions=output:5)", "an opening parenthesis is missing"},
		{"actions=learn(table=255)", "learn cannot add flows to table 255"},
		{"actions=learn(frob)", `unknown field "frob"`},
		{"actions=learn(NXM_NX_REG0[]=NXM_NX_TUN_ID[])", "NXM_NX_TUN_ID[] has 64 bits, NXM_NX_REG0[] has 32"},
		{"actions=learn(reg0=5/7)", "learn accepts no mask"},
		{"actions=learn(load:5)", "write load:VALUE->FIELD"},
		{"actions=learn(result_dst=reg0)", "result_dst: NXM_NX_REG0[] is not 1 bit"},
		{"actions=check_pkt_larger(1500)", "write check_pkt_larger(BYTES)->FIELD[bit]"},
		{"actions=check_pkt_larger(1500)->reg0", "NXM_NX_REG0[] is not 1 bit"},
		{"actions=sample(probability=0)", "the probability must be from 1 to 65535"},
		{"actions=sample(collector_set_id=1)", "the probability must be from 1 to 65535"},
		{"actions=sample(probability=65536)", "probability: "},
		{"actions=sample(probability=1,obs_point_id=NXM_NX_REG5[])", "obs_point_id: "},
		{"actions=sample(probability=1,sampling_port=2)", `unsupported argument "sampling_port"`},
		{"actions=controller(userdata=01)", `unknown argument "userdata"`},
		{"actions=mod_tp_dst:5", "mod_tp_dst needs tcp, udp or sctp in the match"},
		{"actions=mod_nw_tos:5", "the lower two bits belong to mod_nw_ecn"},
		{"actions=mod_vlan_vid:4096", "does not fit into 12 bits"},
		{"actions=dec_ttl(1,2)", "dec_ttl takes no argument"},
		{"actions=write_actions(goto_table:5)", `unknown action "goto_table"`},
		{"actions=unknown(0x00)", "the length of an action must be a positive multiple of 8 bytes"},
		{"actions=instructions:unknown(0x00)", "the length of instructions must be a multiple of 8 bytes"},
		{"check table=5,actions=drop", `"check": not a known protocol`},
	} {
		m, err := ParseFlow(c.text)
		if err == nil {
			t.Errorf("%s: got %s, want an error", c.text, m)
		} else if !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want …%s…", c.text, err, c.want)
		}
	}
}

func TestParseGroup(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"group_id=1,type=all", "group_id=1,type=all"},
		{"group_id=1,type=select,bucket=output:5,bucket=weight:7,actions=output:6,load:5->NXM_NX_REG0[]",
			"group_id=1,type=select,bucket=actions=output:5,bucket=weight:7,actions=output:6,load:0x5->NXM_NX_REG0[]"},
		{"group_id=1,type=select,bucket=watch_port=LOCAL,watch_group=3,actions=drop",
			"group_id=1,type=select,bucket=watch_port:LOCAL,watch_group:3,actions=drop"},
		{"type=fast_failover,group_id=1,bucket=ct(commit,nat(dst=10.0.0.1:80),table=5),output:7",
			"group_id=1,type=ff,bucket=actions=ct(commit,table=5,nat(dst=10.0.0.1:80)),output:7"},
	} {
		g, err := ParseGroup(c.text)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := g.String(); got != c.want {
			t.Errorf("%s\ngot  %s\nwant %s", c.text, got, c.want)
		}
	}
	for _, c := range []struct{ text, want string }{
		{"type=all", "group_id= is missing"},
		{"group_id=1", "type= is missing"},
		{"group_id=4294967292,type=all", "group_id=4294967292 is reserved"},
		{"group_id=1,type=some", "type=some is not one of all, select, indirect, ff"},
		{"group_id=1,type=all,frob=5", `"frob" is not a property of a group`},
		{"group_id=1,type=all,bucket=weight=5", "bucket 0: actions= is missing"},
		{"group_id=1,type=all,bucket=actions=goto_table:5", `unknown action "goto_table"`},
		{"group_id=1,type=all,bucket=weight=70000,actions=drop", "70000 does not fit into 16 bits"},
		{"group_id=1,type=all,bucket=actions=output:5,bucket=frob", `bucket 1: actions "frob": unknown action "frob"`},
	} {
		g, err := ParseGroup(c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, error %v, want error …%s…", c.text, g, err, c.want)
		}
	}
}

func TestGroupModText(t *testing.T) {
	for _, c := range []struct {
		m    GroupMod
		want string
	}{
		{GroupMod{Command: GroupAdd, Group: Group{ID: 1}}, "add group_id=1,type=all"},
		{GroupMod{Command: GroupModify, Group: Group{ID: 1, Type: GroupSelect}}, "modify group_id=1,type=select"},
		{GroupMod{Command: GroupAddOrModify, Group: Group{ID: 1, Type: 77}}, "add_or_mod group_id=1,type=type(77)"},
		{GroupMod{Command: GroupDelete, Group: Group{ID: 1}}, "delete group_id=1"},
		{GroupMod{Command: GroupDelete, Group: Group{ID: AllGroups}}, "delete group_id=all"},
		{GroupMod{Command: 77}, "command(77) group_id=0,type=all"},
	} {
		if got := c.m.String(); got != c.want {
			t.Errorf("got %s, want %s", got, c.want)
		}
	}
}
