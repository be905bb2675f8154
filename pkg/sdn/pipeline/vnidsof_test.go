package pipeline

import (
	"net/netip"
	"slices"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// dumped returns the flows as a switch would.
func dumped(t rapid.TB, owner Owner, s State) (flows []ovs.DumpedFlow) {
	t.Helper()
	for _, f := range s.Flows {
		key, err := ovs.FlowKey(f)
		if err != nil {
			t.Fatal(err)
		}
		text, err := ovs.FlowText(f)
		if err != nil {
			t.Fatal(err)
		}
		flows = append(flows, ovs.DumpedFlow{Key: key, Text: text, Cookie: owner.Cookie()})
	}
	return flows
}

func TestVNIDsAreReadBack(t *testing.T) {
	node, pod, service := Owner{KindNode, "node1"}, Owner{KindPod, "p"}, Owner{KindService, "ns/s"}
	addr := netip.MustParseAddr("10.128.0.3")
	for _, mode := range []config.Mode{config.ModeSubnet, config.ModeMultitenant, config.ModeNetworkPolicy} {
		for _, vnid := range []config.VNID{config.GlobalVNID, config.MinVNID, config.MaxVNID} {
			n := inMode(mode)
			version := dumped(t, node, static(t, n))
			p := dumped(t, pod, n.Pod(Pod{OFPort: 3, MAC: config.MAC(addr), Addrs: []netip.Addr{addr}, VNID: vnid}))
			s := dumped(t, service, n.Service(Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("172.30.0.9")}, VNID: vnid,
				Ports: []ServicePort{{Protocol: goovs.ProtocolTCPv4, Port: 80}}}))
			var want map[uint64]config.VNID
			if mode != config.ModeSubnet {
				want = map[uint64]config.VNID{pod.Cookie(): vnid, service.Cookie(): vnid}
			}
			if diff := cmp.Diff(want, VNIDsOf(slices.Concat(p, s, version))); diff != "" {
				t.Errorf("mode %s, VNID %s (-want +got):\n%s", mode, vnid, diff)
			}
			if got := VNIDsOf(slices.Concat(p, s)); len(got) > 0 {
				t.Errorf("mode %s, no version: got %v, want none", mode, got)
			}
		}
	}
}

func TestVNIDsAreNotReadBack(t *testing.T) {
	version := ovs.DumpedFlow{Key: ovs.Key{Table: tableVersion}, Text: "table=253,actions=note:01.00.00.00.00.00", Cookie: Owner{KindNode, "node1"}.Cookie()}
	pod := Owner{KindPod, "p"}.Cookie()
	flow := func(actions string) ovs.DumpedFlow {
		return ovs.DumpedFlow{Key: ovs.Key{Table: tablePodIngress}, Text: "table=20,priority=100,ip,in_port=3,actions=" + actions, Cookie: pod}
	}
	for name, flows := range map[string][]ovs.DumpedFlow{
		"no load":          {flow("goto_table:27")},
		"another register": {flow("load:0x20->NXM_NX_REG1[],goto_table:27")},
		"reserved":         {flow("load:0x5->NXM_NX_REG0[],goto_table:27")},
		"too large":        {flow("load:0x1000000->NXM_NX_REG0[],goto_table:27")},
		"no number":        {flow("load:x->NXM_NX_REG0[],goto_table:27")},
		"they disagree":    {flow("load:0x20->NXM_NX_REG0[],goto_table:27"), flow("load:0x30->NXM_NX_REG0[],goto_table:27")},
		"one has none":     {flow("load:0x20->NXM_NX_REG0[],goto_table:27"), flow("goto_table:27")},
	} {
		if got := VNIDsOf(append(flows, version)); len(got) > 0 {
			t.Errorf("%s: got %v, want none", name, got)
		}
	}
	foreign := flow("load:0x20->NXM_NX_REG0[],goto_table:27")
	foreign.Cookie = 0
	if got := VNIDsOf([]ovs.DumpedFlow{foreign, version}); len(got) > 0 {
		t.Errorf("flow of another program: got %v, want none", got)
	}
}
