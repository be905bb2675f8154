package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// What the host's proxy translates, where VNIDs judge (docs/decisions/0001-conntrack.md). The proxy changes the destination of a pod's packet
// and sends it back by tun0; its source is still the pod, by which table 25 gives it its VNID. The connection is kept in the pod's zone with
// markProxied, once the endpoint's node, or this one, has it; and what the endpoint answers goes to tun0, where the host changes it
// back. The answer is judged by its VNIDs as any packet: who was cut off is not heard either.

// zoneLocal is the first zone of allowed connections that were opened by pods of this node; the low bits are those of the pod's address.
const (
	zoneLocal     = 0x6000
	zoneLocalBits = 13
)

// markProxied is the ct_mark of connections that the host's proxy translates.
const markProxied = 1

// proxied tells whether the host's proxy is told apart from pods' own connections. In the other modes the host masquerades.
func (n Node) proxied() bool { return n.ExternalProxy && n.tenants() }

// localZone returns the zone of connections that a pod of this node opened.
func localZone(addr netip.Addr) uint16 {
	b := addr.AsSlice()
	return zoneLocal | binary.BigEndian.Uint16(b[len(b)-2:])&(1<<zoneLocalBits-1)
}

// fromHost goes on with a packet from tun0, without what the host's own tracker says of it.
func (n Node) fromHost(table int) []ovs.Action {
	if n.proxied() {
		return []ovs.Action{ovs.CTClear(), ovs.GotoTable(table)}
	}
	return []ovs.Action{ovs.GotoTable(table)}
}

// keep has the connection kept, which the host's proxy has translated for a pod of this node.
func (n Node) keep(client netip.Addr) []ovs.Action {
	if n.proxied() {
		return []ovs.Action{goovs.Load(fmt.Sprintf("%#x", localZone(client)), regZone)}
	}
	return nil
}

// toIsolation leads a packet to a pod of this node to the verdict, and finds out if it answers a connection that was kept.
func (n Node) toIsolation(pod netip.Addr) ovs.Action {
	if n.proxied() {
		return goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=%d", tableIsolation, localZone(pod)))
	}
	return ovs.GotoTable(tableIsolation)
}

// send is what happens to a packet that may go to the port in reg2.
func (n Node) send() ovs.Action {
	if n.proxied() {
		return ovs.GotoTable(tableCommit)
	}
	return goovs.OutputField(regOutput)
}

// sendToNode is what happens to a tagged packet to another node's pod.
func (n Node) sendToNode(vtep netip.Addr) []ovs.Action {
	if n.proxied() {
		return []ovs.Action{goovs.SetField(vtep.String(), "tun_dst"), loadPort(PortVXLAN), ovs.GotoTable(tableCommit)}
	}
	return toNode(vtep)
}

// commit compiles what keeps connections, when every verdict of this node is in.
func (n Node) commit(s *State) {
	if n.proxied() {
		s.add(tableCommit, 300, ip(goovs.ConnectionTrackingState("+trk", "+rpl"), goovs.ConnectionTrackingMark(markProxied, 0)),
			goovs.SetField(config.MAC(config.Gateway(n.Subnets[0])).String(), "eth_dst"), goovs.Output(PortTun))
		s.add(tableCommit, 200, ip(ovs.Reg(3, 0)), goovs.OutputField(regOutput))
		s.add(tableCommit, 100, ip(), goovs.ConnectionTracking(fmt.Sprintf(
			"commit,zone=NXM_NX_REG3[0..15],exec(load:%d->NXM_NX_CT_MARK[])", markProxied)), goovs.OutputField(regOutput))
	}
	s.add(tableCommit, 0, anything(), goovs.Drop())
}
