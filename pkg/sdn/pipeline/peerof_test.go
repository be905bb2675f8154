package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

func TestPeerIsReadBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		addr := rapid.Custom(func(t *rapid.T) netip.Addr {
			return netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "address")))
		})
		subnet := rapid.Custom(func(t *rapid.T) netip.Prefix {
			return netip.PrefixFrom(addr.Draw(t, "subnet"), rapid.IntRange(1, 30).Draw(t, "bits")).Masked()
		})
		peer := Peer{VTEP: addr.Draw(t, "VTEP"), Subnets: rapid.SliceOfNDistinct(subnet, 1, 3, rapid.ID).Draw(t, "subnets")}
		slices.SortFunc(peer.Subnets, netip.Prefix.Compare)

		var keys []ovs.Key
		for _, f := range subnetNode().Peer(peer).Flows {
			key, err := ovs.FlowKey(f)
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key)
		}
		got, ok := PeerOf(rapid.Permutation(keys).Draw(t, "flows"))
		if diff := cmp.Diff(peer, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); diff != "" || !ok {
			t.Errorf("%v %s", ok, diff)
		}
	})
}

func TestPeerIsNotReadBack(t *testing.T) {
	source, remote := ovs.Key{Table: tableTunnelIngress, Match: "tun_src=172.31.0.12"}, ovs.Key{Table: tableRemote, Match: "ip,nw_dst=10.129.0.0/23"}
	for name, keys := range map[string][]ovs.Key{
		"nothing":                   nil,
		"no subnet":                 {source},
		"its address is shared":     {remote},
		"another match of a source": {{Table: tableTunnelIngress, Match: "tun_id=0x7"}, remote},
		"another match of a subnet": {source, {Table: tableRemote, Match: "ip,nw_src=10.129.0.0/23"}},
	} {
		t.Run(name, func(t *testing.T) {
			if p, ok := PeerOf(keys); ok {
				t.Errorf("read as %v", p)
			}
		})
	}
}
