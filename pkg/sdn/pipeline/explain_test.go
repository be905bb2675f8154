package pipeline

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func TestExplain(t *testing.T) {
	for _, tc := range []struct {
		name           string
		table          int
		match, actions string
		want           []string
	}{
		{"a pod's packets", 20, "ip,in_port=3,nw_src=10.128.0.5", "load:0x11->NXM_NX_REG0[],load:0xc0000209->NXM_NX_REG11[],goto_table:26",
			[]string{"from port 3", "source VNID 17", "egress IP 192.0.2.9"}},
		{"a pod without an egress IP that is hosted", 20, "in_port=3", "load:0xffffffff->NXM_NX_REG11[],goto_table:26", []string{"from port 3", "no egress IP that a node hosts"}},
		{"isolation", 80, "reg0=0x11,reg1=0", "goto_table:81", []string{"source VNID 17", "destination VNID 0 (global)"}},
		{"a local pod", 70, "ip,nw_dst=10.128.0.5", "load:0x1->NXM_NX_REG1[],load:0x2->NXM_NX_REG2[],goto_table:80",
			[]string{"destination VNID 1 (outside of the cluster network)", "to tun0"}},
		{"the tunnel", 10, "tun_id=0x11,tun_src=192.0.2.2", "output:1", []string{"tunnel VNID 17", "to vxlan0"}},
		{"an answer to ARP has parts of a MAC in registers", 51, "arp,reg1=0x11", "load:0x11->NXM_NX_REG2[]", nil},
		{"masks and other fields", 27, "reg0=0x10/0xff,tcp,tp_dst=80", "load:0x1->NXM_NX_REG4[3],load:0x1->NXM_OF_IN_PORT[],drop", nil},
		{"what is not of this version", 27, "reg0=,reg0=x,reg1=0x1ffffffff,reg6=0xc0000201", "load:,load:0x1,output:LOCAL,,", []string{"node address 192.0.2.1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, Explain(tc.table, tc.match, tc.actions), cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
		})
	}
}
