package pipeline

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Packets that policies deny end in table 29 (egress of the source) or 83 (ingress of the destination). If the pod's namespace logs denied
// packets, these tables send copies to the agent, at a limited rate for each pod and direction, so that a flood of one pod hides no packet of others.

// deniedRate is the number of denied packets per second that are sent to the agent for a pod and direction, and deniedBurst the burst in packets.
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
	Egress bool   // denied by the egress policies of its source, else by the ingress policies of its destination
	Rule   uint32 // the rule that denied it; 0: the pod is isolated, and no rule allowed the packet
}

// logDenied compiles the copies of denied packets to the agent, if the pod's namespace logs them.
func (n Node) logDenied(s *State, p Pod) {
	if !n.evaluates() || !p.Policies.Evaluated || !p.Policies.Logged {
		return
	}
	for _, direction := range []struct {
		table  int
		meter  uint32
		denied func(netip.Prefix) ovs.Match
	}{{tableEgressDenied, meterEgressDenied, ovs.IPSource}, {tableIngressDenied, meterIngressDenied, ovs.IPDestination}} {
		m := ovs.Meter{ID: direction.meter | uint32(p.OFPort), Unit: ovs.Packets, Rate: deniedRate, Burst: deniedBurst} //nolint:gosec // of 16 bits
		// meter=65539,pktps,burst,band=type=drop,rate=10,burst_size=20
		// meter=131075,pktps,burst,band=type=drop,rate=10,burst_size=20
		s.Meters = append(s.Meters, m)
		for _, addr := range p.Addrs {
			// table=29,priority=100,ip,nw_src=10.128.0.5,actions=meter:65539,controller(id=1)
			// table=83,priority=100,ip,nw_dst=10.128.0.5,actions=meter:131075,controller(id=1)
			s.add(direction.table, 100, ip(direction.denied(single(addr))), ovs.ThroughMeter(m.ID), ovs.ToController())
		}
	}
}

// ReadDenied returns the rule and the direction that denied a packet. It returns false if the packet was sent to the agent for another reason.
func ReadDenied(p ovs.PacketIn) (Denied, bool) {
	d := Denied{Egress: p.Table == tableEgressDenied, Rule: p.Registers[numberDenied]}
	return d, d.Egress || p.Table == tableIngressDenied
}
