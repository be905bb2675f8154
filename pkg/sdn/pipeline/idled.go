package pipeline

import (
	"fmt"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// A service that is idled has no endpoints until its controller scales its workload. Table 69 sends the packet that opens a connection to the agent, which holds it
// until there is an endpoint, and then injects it into table 0 (package idling).

// The meter of these packets, which all idled services of the node share: in packets per second, and the burst in packets. Senders repeat what it drops.
const (
	meterIdled = 1 << 20 // above the bits of pods' meters
	idledRate  = 100
	idledBurst = 200
)

// Priorities in table 69 of packets to idled frontends, relative to Frontend.priority: flows for hosts outside precede those of the cluster IP.
const (
	idledOpening = 100
	idledOther   = 50
)

// isIdled reports whether the agent gets the packets that open connections to the frontend.
func (f Frontend) isIdled() bool { return f.Idled && len(f.Endpoints) == 0 && !f.Closed }

// idled compiles what table 69 does with packets to an idled frontend.
func (n Node) idled(s *State, f Frontend) {
	toAgent := []ovs.Action{ovs.ThroughMeter(meterIdled)}
	if f.Kind == FromOutside { // which table 0 has removed
		toAgent = append(toAgent, goovs.SetField(fmt.Sprint(ForwardedDSCP<<dscpShift), "nw_tos"))
	}
	opening := f.packets()
	if f.Protocol == goovs.ProtocolTCPv4 {
		opening.fields = append(opening.fields, goovs.TCPFlags("+syn", "-ack"))
		// table=69,priority=150,tcp,nw_dst=172.30.0.10,tp_dst=80,actions=drop
		s.add(tableReject, idledOther+f.priority(), f.packets(), goovs.Drop())
	}
	// table=69,priority=200,tcp,nw_dst=172.30.0.10,tp_dst=80,tcp_flags=+syn-ack,actions=meter:1048576,controller(id=1)
	// table=69,priority=200,udp,nw_dst=172.30.0.10,tp_dst=53,actions=meter:1048576,controller(id=1)
	// table=69,priority=205,udp,reg4=0x80000/0x80000,nw_dst=172.30.0.10,tp_dst=53,actions=meter:1048576,set_field:248->nw_tos,controller(id=1)
	s.add(tableReject, idledOpening+f.priority(), opening, append(toAgent, ovs.ToController())...)
}

// limitIdled compiles the meter of packets to idled services. All of them have it, and the flow store installs it once.
func limitIdled(s *State) {
	// meter=1048576,pktps,burst,band=type=drop,rate=100,burst_size=200
	s.Meters = append(s.Meters, ovs.Meter{ID: meterIdled, Unit: ovs.Packets, Rate: idledRate, Burst: idledBurst})
}

// Idled is a packet that opens a connection to an idled service.
type Idled struct {
	Cookie  uint64 // of the service: Owner.Cookie
	Outside bool   // from a host outside, which may have forged its address
}

// ReadIdled returns false if the packet was sent to the agent for another reason.
func ReadIdled(p ovs.PacketIn) (Idled, bool) {
	return Idled{Cookie: p.Cookie, Outside: p.Registers[4]&fromOutside != 0}, p.Table == tableReject
}
