package pipeline

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/test/seed"
)

func TestPeerIsReadBack(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.Custom(func(t *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")))
		})
		subnet := rapid.Custom(func(t *rapid.T) netip.Prefix {
			return netip.PrefixFrom(addr.Draw(t, "subnet"), rapid.IntRange(1, 30).Draw(t, "bits")).Masked()
		})
		peer := Peer{VTEP: addr.Draw(t, "VTEP"), Subnets: rapid.SliceOfNDistinct(subnet, 1, 3, rapid.ID).Draw(t, "subnets")}
		slices.SortFunc(peer.Subnets, netip.Prefix.Compare)
		mode := rapid.SampledFrom([]config.Mode{config.ModeSubnet, config.ModeMultitenant, config.ModeNetworkPolicy}).Draw(t, "mode")
		switch rapid.IntRange(0, 2).Draw(t, "kind") {
		case 0:
			vnid := rapid.OneOf(rapid.Just(config.GlobalVNID), rapid.Map(rapid.Uint32Range(uint32(config.MinVNID), uint32(config.MaxVNID)),
				func(n uint32) config.VNID { return config.VNID(n) })).Draw(t, "VNID")
			peer.FixedVNID = &vnid
		case 1:
			peer.IsNode = mode != config.ModeSubnet // whose flows don't show it
		}
		flows := dumped(t, Owner{}, inMode(mode).Peer(peer))
		got, ok := PeerOf(rapid.Permutation(flows).Draw(t, "flows"))
		if diff := cmp.Diff(peer, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" || !ok {
			t.Errorf("%v %s", ok, diff)
		}
	})
}

func TestPeerIsNotReadBack(t *testing.T) {
	flow := func(table, priority int, match, actions string) ovs.DumpedFlow {
		key := ovs.Key{Table: table, Priority: priority, Match: match}
		return ovs.DumpedFlow{Key: key, Text: key.String() + ",actions=" + actions}
	}
	enter := func(match, actions string) ovs.DumpedFlow { return flow(tableTunnelIngress, 100, match, actions) }
	source := enter("tun_src=172.31.0.12", "goto_table:30")
	byIP := enter("ip,tun_src=172.31.0.12,nw_src=10.129.0.0/23", "goto_table:30")
	remote := flow(tableRemote, 100, "ip,nw_dst=10.129.0.0/23", "output:1")
	itself := flow(tableTunnelIngress, 130, "ip,tun_id=0,tun_src=172.31.0.12,dl_src=0e:58:ac:1f:00:0c,nw_src=10.129.0.1", "goto_table:30")
	fixed := enter("tun_src=172.31.0.12", "load:0x30->NXM_NX_REG0[],goto_table:30")
	if p, ok := PeerOf([]ovs.DumpedFlow{fixed, remote}); !ok || p.FixedVNID == nil || *p.FixedVNID != 0x30 {
		t.Fatalf("got %v, %v, want VNID 48", p, ok)
	}
	for name, flows := range map[string][]ovs.DumpedFlow{
		"nothing":                   nil,
		"no subnet":                 {source},
		"its address is shared":     {remote},
		"another match of a source": {enter("tun_id=0x7", "goto_table:30"), remote},
		"another match of a subnet": {source, flow(tableRemote, 100, "ip,nw_src=10.129.0.0/23", "output:1")},
		"two sources":               {source, enter("tun_src=172.31.0.13", "goto_table:30"), remote},
		"a VNID that is none":       {enter("tun_src=172.31.0.12", "load:0x1->NXM_NX_REG0[],goto_table:30"), remote},
		"a VNID that is no number":  {enter("tun_src=172.31.0.12", "load:x->NXM_NX_REG0[],goto_table:30"), remote},
		"other actions":             {enter("tun_src=172.31.0.12", "set_field:0x30->reg0,goto_table:30"), remote},
		"more actions":              {enter("tun_src=172.31.0.12", "load:0x30->NXM_NX_REG0[],load:0x1->NXM_NX_REG4[8],goto_table:30"), remote},
		"another table":             {enter("tun_src=172.31.0.12", "goto_table:70"), remote},
		"no actions":                {enter("tun_src=172.31.0.12", ""), remote},
		"a later version's flow":    {source, flow(tableTunnelIngress, 140, "ip,tun_src=172.31.0.12", "drop"), remote},
		"both a node and a machine": {fixed, itself, remote},
		"two VTEPs by source":       {byIP, enter("arp,tun_src=172.31.0.13,arp_spa=10.129.0.0/23", "goto_table:30"), remote},
		"two VNIDs by source":       {byIP, enter("arp,tun_src=172.31.0.12,arp_spa=10.129.0.0/23", "load:0x30->NXM_NX_REG0[],goto_table:30"), remote},
		"only what is dropped":      {flow(tableTunnelIngress, 50, "tun_src=172.31.0.12", "drop"), remote},
	} {
		t.Run(name, func(t *testing.T) {
			if p, ok := PeerOf(flows); ok {
				t.Errorf("got %v, want none", p)
			}
		})
	}
}

// The flows are those that previous versions installed.
func TestPreviousVersionsPeerIsReadBack(t *testing.T) {
	vnid := config.VNID(0x30)
	machine := Peer{VTEP: netip.MustParseAddr("172.31.0.99"), Subnets: prefixes("10.131.0.0/23"), FixedVNID: &vnid}
	const machineSource = "\ntable=10,priority=100,tun_src=172.31.0.99,actions=load:0x30->NXM_NX_REG0[],goto_table:30"
	for text, want := range map[string]Peer{
		"table=90,priority=100,ip,reg0=0,nw_dst=10.131.0.0/23,actions=load:0x30->NXM_NX_TUN_ID[0..31],set_field:172.31.0.99->tun_dst,load:1->NXM_NX_REG2[],goto_table:130\n" +
			"table=90,priority=100,ip,reg0=0x30,nw_dst=10.131.0.0/23,actions=load:0x30->NXM_NX_TUN_ID[0..31],set_field:172.31.0.99->tun_dst,load:1->NXM_NX_REG2[],goto_table:130" +
			machineSource: machine,
		"table=90,priority=100,ip,nw_dst=10.131.0.0/23,actions=load:0x30->NXM_NX_TUN_ID[0..31],set_field:172.31.0.99->tun_dst,load:1->NXM_NX_REG2[],goto_table:130" +
			"\ntable=10,priority=110,ip,reg4=0x800/0x800,tun_src=172.31.0.99,actions=goto_table:30" +
			machineSource: machine,
		"table=10,priority=100,tun_src=172.31.0.12,actions=goto_table:30\n" +
			"table=10,priority=130,ip,tun_id=0,tun_src=172.31.0.12,dl_src=0e:58:0a:81:00:01,nw_src=10.129.0.1,actions=load:0x1->NXM_NX_REG4[10],goto_table:30\n" +
			"table=90,priority=100,ip,nw_dst=10.129.0.0/23,actions=move:NXM_NX_REG0[]->NXM_NX_TUN_ID[0..31],set_field:172.31.0.12->tun_dst,load:1->NXM_NX_REG2[],goto_table:130": {
			VTEP: netip.MustParseAddr("172.31.0.12"), Subnets: prefixes("10.129.0.0/23"), IsNode: true},
	} {
		var flows []ovs.DumpedFlow
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			head, _, _ := strings.Cut(line, ",actions=")
			var key ovs.Key
			if n, err := fmt.Sscanf(head, "table=%d,priority=%d,%s", &key.Table, &key.Priority, &key.Match); n != 3 {
				t.Fatal(line, err)
			}
			flows = append(flows, ovs.DumpedFlow{Key: key, Text: line})
		}
		got, ok := PeerOf(flows)
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" || !ok {
			t.Errorf("%v %s", ok, diff)
		}
	}
}
