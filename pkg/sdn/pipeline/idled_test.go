package pipeline

import (
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Of the packets that the switch sends to the agent, those of table 71 are to idled services; bit 18 of reg4 marks those to addresses of the node.
func TestReadIdled(t *testing.T) {
	packet := func(table int, reg4 uint32) ovs.PacketIn {
		p := ovs.PacketIn{Table: table, Cookie: 7}
		p.Registers[4] = reg4
		return p
	}
	for name, tc := range map[string]struct {
		packet ovs.PacketIn
		want   Idled
		ok     bool
	}{
		"to the node":  {packet(tableIdled, 1<<18), Idled{OwnAddress: true}, true},
		"from outside": {packet(tableIdled, 1<<19), Idled{}, true},
		"denied":       {packet(tableIngressDenied, 0), Idled{}, false},
	} {
		if got, ok := ReadIdled(tc.packet); got != tc.want || ok != tc.ok {
			t.Errorf("%s: got %+v, %v, want %+v, %v", name, got, ok, tc.want, tc.ok)
		}
		if _, denied := ReadDenied(tc.packet); denied == tc.ok {
			t.Errorf("%s: got denied %v, want %v", name, denied, !tc.ok)
		}
	}
}

// The destination of a packet leads to each idled frontend of its kind, and to no other.
func TestIdledTarget(t *testing.T) {
	to := netip.MustParseAddrPort("172.30.0.10:80")
	node := netip.AddrPortFrom(netip.Addr{}, 80)
	for name, tc := range map[string]struct {
		packet Idled
		want   []netip.AddrPort
	}{
		"cluster IP": {Idled{}, []netip.AddrPort{to}}, "address of the node": {Idled{OwnAddress: true}, []netip.AddrPort{to, node}},
	} {
		var got []netip.AddrPort
		for _, target := range tc.packet.Targets(goovs.ProtocolTCPv4, to) {
			got = append(got, target.At)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: got targets %v, want %v", name, got, tc.want)
		}
	}
	for _, f := range idledService().Frontends {
		want := netip.AddrPortFrom(f.Addr, f.Port)
		if got, ok := f.IdledTarget(); got != (IdledTarget{f.Protocol, want}) || ok == f.Closed {
			t.Errorf("%s: got target %v, %v, want %v, %v", f, got, ok, want, !f.Closed)
		}
	}
}

// A frontend with endpoints has the same flows whether it is idled or not, and flows of an idled one that end in table 69 have an explanation of their own.
func TestIdledFlows(t *testing.T) {
	n := balancing(inMode(config.ModeNetworkPolicy))
	svc := balancedService()
	want := lines(t, n.BalancedService(svc))
	for i := range svc.Frontends {
		svc.Frontends[i].Idled = len(svc.Frontends[i].Endpoints) > 0
	}
	if got := lines(t, n.BalancedService(svc)); got != want {
		t.Errorf("idled service with endpoints: got flows\n%s\nwant\n%s", got, want)
	}
	explained := 0
	for _, f := range n.BalancedService(idledService()).Flows {
		if f.Table != tableReject || f.Priority >= idledOpening+servicePort {
			continue
		}
		explained++
		if got := ExplainDrop(f.Table, f.Priority); !strings.Contains(got, "idled") {
			t.Errorf("priority %d: got explanation %q, want one of an idled service", f.Priority, got)
		}
	}
	if explained == 0 {
		t.Error("got no flow in table 69, want some")
	}
}

// Each pod has a meter of its own, and tun0 another: no client uses up the rate of others. Without --unidle there are none.
func TestIdledMeters(t *testing.T) {
	n := balancing(inMode(config.ModeNetworkPolicy))
	flows := func(n Node) string {
		all := lines(t, static(t, n))
		for _, port := range []int{3, 4} {
			all += lines(t, n.Pod(Pod{OFPort: port, MAC: net.HardwareAddr{0x0a, 0x58, 10, 128, 0, byte(port)}, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 128, 0, byte(port)})}}))
		}
		return all
	}
	if got := flows(n); strings.Contains(got, "controller(") || strings.Contains(got, "meter=104857") {
		t.Errorf("without --unidle: got flows to the agent, or their meters, in\n%s", got)
	}
	n.HoldsIdled = true
	got := flows(n)
	for _, want := range []string{
		"meter=1048578,pktps,burst,band=type=drop,rate=100,burst_size=200", "in_port=2,actions=meter:1048578,controller(id=1)",
		"meter=1048579,pktps,burst,band=type=drop,rate=10,burst_size=20", "in_port=3,actions=meter:1048579,controller(id=1)",
		"meter=1048580,pktps,burst,band=type=drop,rate=10,burst_size=20", "in_port=4,actions=meter:1048580,controller(id=1)",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("got no %q in\n%s", want, got)
		}
	}
}
