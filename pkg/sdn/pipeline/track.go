package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Where VNIDs judge, connections are kept for two reasons (docs/decisions/0001-conntrack.md):
//
// What a pod sends to the host, to the world and to services, lets answers in: nobody outside has a VNID that could.
//
// What the host's proxy translates finds back to it. The proxy changes the destination of a pod's packet and sends it back by tun0; its
// source is still the pod, by which table 25 gives it its VNID. The connection is marked, and what the endpoint answers goes to
// tun0, where the host changes it back. That answer is judged by its VNIDs as any packet: who was cut off is not heard either.

// zoneLocal is the first zone of allowed connections that were opened by pods of this node; the low bits are those of the pod's address.
const (
	zoneLocal     = 0x6000
	zoneLocalBits = 13

	zoneElsewhere     = 0x8000 // of all others, by more bits
	zoneElsewhereBits = 15
)

// markProxied is the ct_mark of connections that the host's proxy translates.
const markProxied = 1

// localZone returns the zone of connections that a pod of this node opened.
func localZone(addr netip.Addr) uint16 {
	b := addr.AsSlice()
	return zoneLocal | binary.BigEndian.Uint16(b[len(b)-2:])&(1<<zoneLocalBits-1)
}

// judges says whether a packet's source decides what becomes of it.
func (n Node) judges() bool { return n.Mode != config.ModeSubnet }

// fromHost begins with a packet from tun0, without what the host's own tracker says of it.
func (n Node) fromHost(actions ...ovs.Action) []ovs.Action {
	if n.judges() {
		return append([]ovs.Action{ovs.CTClear()}, actions...)
	}
	return actions
}

// keep has a connection kept that a pod of this node opens.
func (n Node) keep(client netip.Addr) []ovs.Action {
	if n.judges() {
		return []ovs.Action{goovs.Load(fmt.Sprintf("%#x", localZone(client)), regZone)}
	}
	return nil
}

// toIsolation leads a packet to a pod of this node to the verdict, with the knowledge whether it answers a connection that was kept.
func (n Node) toIsolation(pod netip.Addr) ovs.Action {
	if n.judges() {
		return goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=%d", tableIsolation, localZone(pod)))
	}
	return ovs.GotoTable(tableIsolation)
}

// toOutside compiles how packets go to the host, which routes them.
func (n Node) toOutside(s *State) {
	if n.judges() {
		toHost := []ovs.Action{loadPort(PortTun), ovs.GotoTable(tableCommit)}
		if n.tenants() { // nobody outside has a VNID that lets answers in
			toHost = append(loadZone("NXM_OF_IP_SRC", true), toHost...)
		}
		s.add(tableEgressIP, 1, ip(), toHost...)
	}
	s.add(tableEgressIP, 0, anything(), goovs.Output(PortTun))
}

// send is what happens to a packet that may go to the port in reg2.
func (n Node) send() ovs.Action {
	if n.judges() {
		return ovs.GotoTable(tableCommit)
	}
	return goovs.OutputField(regOutput)
}

// sendToNode is what happens to a tagged packet to another node's pod.
func (n Node) sendToNode(vtep netip.Addr) []ovs.Action {
	if n.judges() {
		return []ovs.Action{goovs.SetField(vtep.String(), "tun_dst"), loadPort(PortVXLAN), ovs.GotoTable(tableCommit)}
	}
	return toNode(vtep)
}

// commit compiles what keeps connections, when every verdict of this node is in.
func (n Node) commit(s *State) {
	if n.judges() {
		s.add(tableCommit, 300, ip(goovs.ConnectionTrackingState("+trk", "+rpl"), goovs.ConnectionTrackingMark(markProxied, 0)),
			goovs.SetField(config.MAC(config.Gateway(n.Subnets[0])).String(), "eth_dst"), goovs.Output(PortTun))
		s.add(tableCommit, 200, ip(ovs.Reg(3, 0)), goovs.OutputField(regOutput))
		s.add(tableCommit, 160, match{protocol: goovs.ProtocolTCPv4, fields: []ovs.Match{ovs.RegBits(4, midstream, midstream)}},
			goovs.ConnectionTracking("zone=NXM_NX_REG3[0..15]"), goovs.OutputField(regOutput))
		s.add(tableCommit, 150, ip().from(PortTun), goovs.ConnectionTracking(fmt.Sprintf(
			"commit,zone=NXM_NX_REG3[0..15],exec(load:%d->NXM_NX_CT_MARK[])", markProxied)), goovs.OutputField(regOutput))
		s.add(tableCommit, 100, ip(), goovs.ConnectionTracking("commit,zone=NXM_NX_REG3[0..15]"), goovs.OutputField(regOutput))
	}
	s.add(tableCommit, 0, anything(), goovs.Drop())
}
