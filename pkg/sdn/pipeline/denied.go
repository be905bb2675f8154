package pipeline

import (
	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// What policies deny ends in tables 29 and 83, for the source's sake or for the destination's. There a pod of a namespace whose
// denied packets are logged has a copy sent to the agent, within a rate: a flood costs the switch a counter, and the agent nothing.

// deniedRate is how many denied packets a second a node tells of at most, and deniedBurst how many at once after a pause: more than
// anybody reads.
const (
	deniedRate  = 100
	deniedBurst = 100

	// meterDenied is above the numbers of ports, which are those of ARP's meters.
	meterDenied = 1 << 16
)

// Denied is a packet that policies have denied.
type Denied struct {
	Egress bool   // to its source, else to its destination
	Rule   uint32 // that denied it; 0: the pod may only talk as rules allow, and none did
}

// LogDenied compiles that the agent is told of packets that logged pods are denied. It goes with Static.
func (n Node) LogDenied() State {
	if !n.judges() {
		return State{}
	}
	var s State
	s.Meters = []ovs.Meter{{ID: meterDenied, Unit: ovs.Packets, Rate: deniedRate, Burst: deniedBurst}}
	tell := []ovs.Action{ovs.ThroughMeter(meterDenied), ovs.ToController()}
	s.add(tableEgressDenied, 100, ip(ovs.RegBits(4, sourceLogged, sourceLogged)), tell...)
	s.add(tableIngressDenied, 100, ip(ovs.RegBits(4, targetLogged, targetLogged)), tell...)
	return s
}

// ReadDenied says why a packet was denied; false if it was sent to the agent for another reason.
func ReadDenied(p ovs.PacketIn) (Denied, bool) {
	d := Denied{Egress: p.Table == tableEgressDenied, Rule: p.Registers[numberDenied]}
	return d, d.Egress || p.Table == tableIngressDenied
}
