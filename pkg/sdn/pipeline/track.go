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

// The first zones of allowed connections. The low zoneBits bits of a zone are those of the address of a pod of this node, or of tun0.
const (
	zoneLocal  = 0x6000 // connections that the address opened
	zoneTarget = 0x8000 // connections to the address that no address of this node's subnets opened

	zoneBits = 13
)

// The fields of a packet's addresses, by the names that move takes.
const (
	addressSource      = "NXM_OF_IP_SRC"
	addressDestination = "NXM_OF_IP_DST"
)

// The ct_marks of connections that a pod of this node opened to the cluster network. An entry gets its mark with the first packet and retains
// it: a connection through the host's proxy and a direct one to the same endpoint, from the same port, share one entry of the pod's zone.
const (
	markProxied = 1 // translated by the host's proxy
	markDirect  = 2
)

// localZones are the value and the mask of reg3 for zoneLocal's zones.
const (
	localZones    = zoneLocal
	localZoneMask = 0xffff &^ (1<<zoneBits - 1)
)

// localZone returns the zone of connections that a pod of this node opened.
func localZone(addr netip.Addr) uint16 {
	return zoneLocal | lowBits(addr)
}

// lowBits returns the bits of an address that zones have.
func lowBits(addr netip.Addr) uint16 {
	b := addr.AsSlice()
	return binary.BigEndian.Uint16(b[len(b)-2:]) & (1<<zoneBits - 1)
}

// loadZone returns the actions that load reg3 with a zone of the low bits of an address field. OVS installs a datapath flow for each value of
// the bits, so the field must be that of an address of this node's subnets.
func loadZone(first int, field string) []ovs.Action {
	return []ovs.Action{
		goovs.Move(fmt.Sprintf("%s[0..%d]", field, zoneBits-1), fmt.Sprintf("NXM_NX_REG3[0..%d]", zoneBits-1)),
		goovs.Load(fmt.Sprintf("%#x", first>>zoneBits), fmt.Sprintf("NXM_NX_REG3[%d..31]", zoneBits)),
	}
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
		s.add(tableEgressIP, 1, ip(), toHost...)
		if n.tenants() { // nobody outside has a VNID that lets answers in
			for _, subnet := range n.Subnets {
				s.add(tableEgressIP, 2, ip(ovs.IPSource(subnet)), append(loadZone(zoneLocal, addressSource), toHost...)...)
			}
		}
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

// commit compiles table 130, which commits connections after every verdict of this node.
func (n Node) commit(s *State) {
	if n.judges() {
		s.add(tableCommit, 300, ip(goovs.ConnectionTrackingState("+trk", "+rpl"), goovs.ConnectionTrackingMark(markProxied, 0)),
			goovs.SetField(config.MAC(config.Gateway(n.Subnets[0])).String(), "eth_dst"), goovs.Output(PortTun))
		s.add(tableCommit, 200, ip(ovs.Reg(3, 0)), goovs.OutputField(regOutput))
		for _, cluster := range n.ClusterNetworks {
			s.add(tableCommit, 170, ip(ovs.RegBits(3, localZones, localZoneMask), ovs.IPDestination(cluster)),
				goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=NXM_NX_REG3[0..15]", tableCollision)))
		}
		s.add(tableCommit, 160, isMidstream(), goovs.ConnectionTracking("zone=NXM_NX_REG3[0..15]"), goovs.OutputField(regOutput))
		s.add(tableCommit, 150, ip().from(PortTun), commitAs(markProxied)...)
		s.add(tableCommit, 100, ip(), goovs.ConnectionTracking("commit,zone=NXM_NX_REG3[0..15]"), goovs.OutputField(regOutput))
		n.collide(s)
	}
	s.add(tableCommit, 0, anything(), goovs.Drop())
	s.add(tableCollision, 0, anything(), goovs.Drop())
}

// collide compiles table 131. It passes packets of the connection that the pod's zone has an entry for, and drops those of a second
// connection with the same addresses and ports, since the replies to both are equal. An entry without a mark is new.
func (n Node) collide(s *State) {
	mark := func(m uint32) ovs.Match { return goovs.ConnectionTrackingMark(m, 0) }
	s.add(tableCollision, 300, ip(mark(markProxied)).from(PortTun), goovs.OutputField(regOutput))
	s.add(tableCollision, 300, ip(mark(markDirect)).from(PortTun), goovs.Drop())
	s.add(tableCollision, 200, ip(mark(markProxied)), goovs.Drop())
	s.add(tableCollision, 200, ip(mark(markDirect)), goovs.OutputField(regOutput))
	s.add(tableCollision, 160, isMidstream(), goovs.OutputField(regOutput))
	s.add(tableCollision, 150, ip().from(PortTun), commitAs(markProxied)...)
	s.add(tableCollision, 100, ip(), commitAs(markDirect)...)
}

// isMidstream matches TCP packets that open no connection.
func isMidstream() match {
	return match{protocol: goovs.ProtocolTCPv4, fields: []ovs.Match{ovs.RegBits(4, midstream, midstream)}}
}

// commitAs commits a connection with a mark, and sends the packet.
func commitAs(mark int) []ovs.Action {
	return []ovs.Action{
		goovs.ConnectionTracking(fmt.Sprintf("commit,zone=NXM_NX_REG3[0..15],exec(load:%d->NXM_NX_CT_MARK[])", mark)),
		goovs.OutputField(regOutput),
	}
}
