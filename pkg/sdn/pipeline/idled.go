package pipeline

import (
	"fmt"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// A service that is idled has no endpoints until its controller scales its workload. Table 69 sends the packet that opens a connection to table 71, which sends it to the
// agent. The agent holds it until there is an endpoint, and then injects it into table 0 (package idling).

// meterIdled is the bit of the meters of packets to idled services, which have the number of the port by which the packets came: a flood of one pod hides no packet of
// others. denied.go and bandwidth.go have the bits of other meters.
const meterIdled = 1 << 20

// Rates of packets to idled services, in packets per second, and bursts, in packets. Senders repeat what the meters drop.
const (
	idledPodRate   = 10
	idledPodBurst  = 20
	idledHostRate  = 100 // of tun0: of the node itself, and of all hosts outside
	idledHostBurst = 200
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
	var toAgent []ovs.Action
	if f.Kind == FromOutside { // which table 0 has removed
		toAgent = append(toAgent, goovs.SetField(fmt.Sprint(ForwardedDSCP<<dscpShift), "nw_tos"))
	}
	opening := f.packets()
	if f.Protocol == goovs.ProtocolTCPv4 {
		opening.fields = append(opening.fields, goovs.TCPFlags("+syn", "-ack"))
		// table=69,priority=150,tcp,nw_dst=172.30.0.10,tp_dst=80,actions=drop
		s.add(tableReject, idledOther+f.priority(), f.packets(), goovs.Drop())
	}
	// table=69,priority=200,tcp,nw_dst=172.30.0.10,tp_dst=80,tcp_flags=+syn-ack,actions=goto_table:71
	// table=69,priority=200,udp,nw_dst=172.30.0.10,tp_dst=53,actions=goto_table:71
	// table=69,priority=205,udp,reg4=0x80000/0x80000,nw_dst=172.30.0.10,tp_dst=53,actions=set_field:248->nw_tos,goto_table:71
	s.add(tableReject, idledOpening+f.priority(), opening, append(toAgent, ovs.GotoTable(tableIdled))...)
}

// idledFrom compiles that packets to idled services that came by a port are sent to the agent at the port's rate.
func (n Node) idledFrom(s *State, port, rate, burst int) {
	if !n.HoldsIdled {
		return
	}
	m := ovs.Meter{ID: meterIdled | uint32(port), Unit: ovs.Packets, Rate: uint32(rate), Burst: uint32(burst)} //nolint:gosec // of 16 bits, and constants
	// meter=1048578,pktps,burst,band=type=drop,rate=100,burst_size=200
	// meter=1048579,pktps,burst,band=type=drop,rate=10,burst_size=20
	s.Meters = append(s.Meters, m)
	// table=71,priority=100,ip,in_port=2,actions=meter:1048578,controller(id=1)
	// table=71,priority=100,ip,in_port=3,actions=meter:1048579,controller(id=1)
	s.add(tableIdled, 100, ip().from(port), ovs.ThroughMeter(m.ID), ovs.ToController())
}

// IdledTarget is the destination of packets to an idled frontend. Cookies, hashes of names that tenants choose, identify no service.
type IdledTarget struct {
	Protocol goovs.Protocol
	At       netip.AddrPort // without an address: a node port
}

// IdledTarget returns the destination of the packets to a frontend that the agent gets; false: it gets none. Packets from outside have the same as those to the
// cluster IP.
func (f Frontend) IdledTarget() (IdledTarget, bool) {
	t := IdledTarget{Protocol: f.Protocol, At: netip.AddrPortFrom(f.Addr, f.Port)}
	if f.Kind == NodePort {
		t.At = netip.AddrPortFrom(netip.Addr{}, f.Port)
	}
	return t, f.isIdled()
}

// Idled is a packet that opens a connection to an idled service.
type Idled struct {
	OwnAddress bool // of a pod to an address of this node: a node port, or an external address that is the node's own
}

// ReadIdled returns false if the packet was sent to the agent for another reason.
func ReadIdled(p ovs.PacketIn) (Idled, bool) {
	return Idled{OwnAddress: p.Registers[4]&toNodePort != 0}, p.Table == tableIdled
}

// Targets returns the destinations of frontends that a packet to an idled service may be to.
func (p Idled) Targets(protocol goovs.Protocol, to netip.AddrPort) []IdledTarget {
	targets := []IdledTarget{{protocol, to}}
	if p.OwnAddress {
		targets = append(targets, IdledTarget{protocol, netip.AddrPortFrom(netip.Addr{}, to.Port())})
	}
	return targets
}
