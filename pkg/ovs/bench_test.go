package ovs

import (
	"net/netip"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// benchFlows returns n flows like those of pods, services and policies.
func benchFlows(n int) []*Flow {
	flows := make([]*Flow, 0, n)
	for i := range n {
		ip := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 128, byte(i >> 8), byte(i)}), 32)
		f := &Flow{Table: 70, Priority: 100, Protocol: goovs.ProtocolIPv4, Cookie: 7, Actions: []Action{goovs.Load("0x64", "NXM_NX_REG1[]"), GotoTable(80)}}
		switch i % 4 {
		case 0:
			f.Protocol, f.Matches = goovs.ProtocolARP, []Match{ARPTargetIP(ip)}
		case 1:
			f.Matches = []Match{Reg(1, uint32(i)), IPDestination(ip)}
		case 2:
			f.Protocol, f.Matches = goovs.ProtocolTCPv4, []Match{Reg(0, uint32(i)), IPSource(ip), goovs.TransportDestinationPort(uint16(i))}
		case 3:
			f.InPort, f.Matches = i, []Match{goovs.ConnectionTrackingState("+est", "+trk"), IPSource(ip)}
		}
		flows = append(flows, f)
	}
	return flows
}

func BenchmarkFlowKey(b *testing.B) {
	flows := benchFlows(1000)
	b.ReportAllocs()
	for b.Loop() {
		for _, f := range flows {
			if _, err := FlowKey(f); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(flows)), "ns/flow")
}

func BenchmarkFlowText(b *testing.B) {
	flows := benchFlows(1000)
	b.ReportAllocs()
	for b.Loop() {
		for _, f := range flows {
			if _, err := FlowText(f); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(flows)), "ns/flow")
}

func BenchmarkEachFlowMod(b *testing.B) {
	flows := benchFlows(1000)
	b.ReportAllocs()
	for b.Loop() {
		if err := (State{Flows: flows}).EachFlowMod(func(int, *openflow.FlowMod) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(flows)), "ns/flow")
}
