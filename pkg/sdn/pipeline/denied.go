package pipeline

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// What policies deny ends in tables 29 and 83, for the source's sake or for the destination's. There a pod of a namespace whose
// denied packets are logged has a copy sent to the agent, within a rate for each pod and direction: a flood costs the switch a counter, and hides
// nothing of other pods.

// deniedRate is how many denied packets a second a pod has reported in each direction, and deniedBurst how many at once after a pause.
const (
	deniedRate  = 10
	deniedBurst = 20
)

// A pod's meters of denied packets have its port's number and one of these bits; that of ARP has the port's number alone.
const (
	meterEgressDenied  = 1 << 16
	meterIngressDenied = 1 << 17
)

// Denied is a packet that policies have denied.
type Denied struct {
	Egress bool   // to its source, else to its destination
	Rule   uint32 // that denied it; 0: the pod may only talk as rules allow, and none did
}

// logDenied compiles that the agent is told of packets that the pod is denied, if its namespace is logged.
func (n Node) logDenied(s *State, p Pod) {
	if !n.judges() || !p.Policies.Judged || !p.Policies.Logged {
		return
	}
	for _, direction := range []struct {
		table  int
		meter  uint32
		denied func(netip.Prefix) ovs.Match
	}{{tableEgressDenied, meterEgressDenied, ovs.IPSource}, {tableIngressDenied, meterIngressDenied, ovs.IPDestination}} {
		m := ovs.Meter{ID: direction.meter | uint32(p.OFPort), Unit: ovs.Packets, Rate: deniedRate, Burst: deniedBurst} //nolint:gosec // of 16 bits
		s.Meters = append(s.Meters, m)
		for _, addr := range p.Addrs {
			s.add(direction.table, 100, ip(direction.denied(single(addr))), ovs.ThroughMeter(m.ID), ovs.ToController())
		}
	}
}

// ReadDenied says why a packet was denied; false if it was sent to the agent for another reason.
func ReadDenied(p ovs.PacketIn) (Denied, bool) {
	d := Denied{Egress: p.Table == tableEgressDenied, Rule: p.Registers[numberDenied]}
	return d, d.Egress || p.Table == tableIngressDenied
}
