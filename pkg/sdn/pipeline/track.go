package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// In the modes that evaluate sources, connections are committed for two reasons (docs/decisions/0001-conntrack.md):
//
//   - Replies to a pod from hosts outside and from services pass: no VNID of a host outside would allow them.
//   - Replies to connections through the host's proxy return to the proxy. The proxy changes the destination of a pod's packet and sends it back
//     through tun0; its source is still the pod's address, by which table 25 loads the pod's VNID. The entry has a mark, by which replies of the endpoint
//     are output to tun0, where the host reverses the translation. Replies are evaluated by their VNIDs like all packets, so that isolating a
//     namespace also blocks its replies.

// The first zones of allowed connections. The low zoneBits bits of a zone are those of the address of a pod of this node, or of tun0.
const (
	zoneLocal  = 0x6000 // connections that the address opened
	zoneTarget = 0x8000 // connections to the address that no address of this node's subnets opened

	zoneBits = 13 // low bits of an address in a zone
)

// The fields of a packet's addresses, by the names that move takes.
const (
	addressSource      = "NXM_OF_IP_SRC"
	addressDestination = "NXM_OF_IP_DST"
)

// The ct_marks of connections that a pod of this node opened to the cluster network. An entry gets its mark with the first packet and retains
// it: a connection through the host and a direct one to the same endpoint, from the same port, share one entry of the pod's zone. Only a packet
// that opens a connection through a service in the switch replaces a mark. After a change of the service proxy, entries with a mark of the previous one count as new.
const (
	markProxied = 1 // ct_mark of a connection of a pod through the host's proxy
	markDirect  = 2 // ct_mark of a direct connection of a pod

	markHostPort = 3 // with --service-proxy=ovs, ct_mark of a connection of a pod through a host port, or of the node from tun0's address
	markBalanced = 4 // with --service-proxy=ovs, ct_mark of a connection of a pod that is direct, or that the switch translates
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

// viaHost is the mark of connections whose destination the host translates.
func (n Node) viaHost() int {
	if n.BalancesServices {
		return markHostPort
	}
	return markProxied
}

// direct is the mark of other connections.
func (n Node) direct() int {
	if n.BalancesServices {
		return markBalanced
	}
	return markDirect
}

// evaluates reports whether the mode evaluates packets by their source.
func (n Node) evaluates() bool { return n.Mode != config.ModeSubnet }

// fromHost returns the actions for a packet from tun0, without the connection state of the host.
func (n Node) fromHost(actions ...ovs.Action) []ovs.Action {
	if n.evaluates() {
		return append([]ovs.Action{ovs.CTClear()}, actions...)
	}
	return actions
}

// loadLocalZone returns the actions that load the zone of connections that a pod of this node opens.
func (n Node) loadLocalZone(client netip.Addr) []ovs.Action {
	if n.evaluates() {
		return []ovs.Action{goovs.Load(fmt.Sprintf("%#x", localZone(client)), regZone)}
	}
	return nil
}

// toIsolation returns the action that continues with the isolation of a packet to a pod of this node, after the lookup of its connection.
func (n Node) toIsolation(pod netip.Addr) ovs.Action {
	if n.evaluates() {
		return goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=%d", tableIsolation, localZone(pod)))
	}
	return ovs.GotoTable(tableIsolation)
}

// toHost returns the actions that output a packet to the host.
func (n Node) toHost() []ovs.Action {
	if n.BalancesServices {
		return []ovs.Action{loadPort(PortTun), n.output()}
	}
	return []ovs.Action{goovs.Output(PortTun)}
}

// send returns the action that outputs an allowed packet to the port in reg2.
func (n Node) send() ovs.Action {
	if n.evaluates() {
		return ovs.GotoTable(tableCommit)
	}
	return n.output()
}

// sendToNode returns the actions that send a packet, whose tunnel ID is set, to a pod of another node.
func (n Node) sendToNode(vtep netip.Addr) []ovs.Action {
	if n.evaluates() {
		return []ovs.Action{goovs.SetField(vtep.String(), "tun_dst"), loadPort(PortVXLAN), ovs.GotoTable(tableCommit)}
	}
	return toNode(vtep)
}

// commit compiles table 130, which commits the connections that this node has allowed.
func (n Node) commit(s *State) {
	if n.evaluates() {
		// table=130,priority=300,ct_state=+rpl+trk,ct_mark=0x1,ip,actions=set_field:0a:58:0a:80:00:01->eth_dst,output:2
		s.add(tableCommit, ReplyToProxyPriority, ip(isReply(), goovs.ConnectionTrackingMark(uint32(n.viaHost()), 0)),
			goovs.SetField(config.MAC(config.Gateway(n.Subnets[0])).String(), "eth_dst"), goovs.Output(PortTun))
		// table=130,priority=200,ip,reg3=0,actions=goto_table:133
		s.add(tableCommit, 200, ip(ovs.Reg(3, 0)), n.output())
		if n.BalancesServices { // opens no connection, as priority 160
			// table=130,priority=185,tcp,reg4=0x100200/0x100200,actions=ct(zone=NXM_NX_REG3[0..15]),goto_table:132
			s.add(tableCommit, 185, isMidstream(endpointSelected), goovs.ConnectionTracking("zone=NXM_NX_REG3[0..15]"), n.output())
		}
		for _, cluster := range n.ClusterNetworks {
			if n.BalancesServices { // without the lookup, with which the first packet would exceed the six recirculations of the userspace datapath
				// The node's connections get the mark that table 131 expects from tun0.
				first := ip(ovs.RegBits(3, localZones, localZoneMask), ovs.RegBits(4, endpointSelected, endpointSelected), ovs.IPDestination(cluster))
				// table=130,priority=180,ip,reg3=0x6000/0xe000,reg4=0x100000/0x100000,in_port=2,nw_dst=10.128.0.0/14,
				//     actions=ct(commit,zone=NXM_NX_REG3[0..15],exec(load:3->NXM_NX_CT_MARK[])),goto_table:132
				s.add(tableCommit, 180, first.from(PortTun), n.commitAs(markHostPort)...)
				// table=130,priority=175,ip,reg3=0x6000/0xe000,reg4=0x100000/0x100000,nw_dst=10.128.0.0/14,
				//     actions=ct(commit,zone=NXM_NX_REG3[0..15],exec(load:4->NXM_NX_CT_MARK[])),goto_table:132
				s.add(tableCommit, 175, first, n.commitAs(markBalanced)...)
			}
			// table=130,priority=170,ip,reg3=0x6000/0xe000,nw_dst=10.128.0.0/14,actions=ct(table=131,zone=NXM_NX_REG3[0..15])
			s.add(tableCommit, 170, ip(ovs.RegBits(3, localZones, localZoneMask), ovs.IPDestination(cluster)),
				goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=NXM_NX_REG3[0..15]", tableCollision)))
		}
		// table=130,priority=160,tcp,reg4=0x200/0x200,actions=ct(zone=NXM_NX_REG3[0..15]),goto_table:133
		s.add(tableCommit, 160, isMidstream(0), goovs.ConnectionTracking("zone=NXM_NX_REG3[0..15]"), n.output())
		if n.BalancesServices { // the switch translates the replies to hosts outside and to the node, not the host
			// table=130,priority=155,ip,reg4=0x80000/0x80000,in_port=2,actions=ct(commit,zone=NXM_NX_REG3[0..15]),goto_table:132
			s.add(tableCommit, 155, ip(isFromOutside()).from(PortTun), goovs.ConnectionTracking("commit,zone=NXM_NX_REG3[0..15]"), n.output())
			// table=130,priority=152,ip,reg4=0x400/0x400,in_port=2,actions=ct(commit,zone=NXM_NX_REG3[0..15]),goto_table:132
			s.add(tableCommit, 152, ip(fromNode()).from(PortTun), goovs.ConnectionTracking("commit,zone=NXM_NX_REG3[0..15]"), n.output())
		}
		// table=130,priority=150,ip,in_port=2,actions=ct(commit,zone=NXM_NX_REG3[0..15],exec(load:1->NXM_NX_CT_MARK[])),goto_table:133
		s.add(tableCommit, 150, ip().from(PortTun), n.commitAs(n.viaHost())...)
		// table=130,priority=100,ip,actions=ct(commit,zone=NXM_NX_REG3[0..15]),goto_table:133
		s.add(tableCommit, 100, ip(), goovs.ConnectionTracking("commit,zone=NXM_NX_REG3[0..15]"), n.output())
		n.collide(s)
	}
	// table=130,priority=0,actions=drop
	s.add(tableCommit, 0, anything(), goovs.Drop())
	// table=131,priority=0,actions=drop
	s.add(tableCollision, 0, anything(), goovs.Drop())
}

// collide compiles table 131. It passes packets of the connection that the pod's zone has an entry for, and drops those of a second
// connection with the same addresses and ports, since the replies to both are equal. An entry without one of these marks is new.
func (n Node) collide(s *State) {
	viaHost, direct := goovs.ConnectionTrackingMark(uint32(n.viaHost()), 0), goovs.ConnectionTrackingMark(uint32(n.direct()), 0)
	// table=131,priority=300,ct_mark=0x1,ip,in_port=2,actions=goto_table:133
	s.add(tableCollision, 300, ip(viaHost).from(PortTun), n.output())
	// table=131,priority=300,ct_mark=0x2,ip,in_port=2,actions=drop
	s.add(tableCollision, 300, ip(direct).from(PortTun), goovs.Drop())
	// table=131,priority=200,ct_mark=0x1,ip,actions=drop
	s.add(tableCollision, 200, ip(viaHost), goovs.Drop())
	// table=131,priority=200,ct_mark=0x2,ip,actions=goto_table:133
	s.add(tableCollision, 200, ip(direct), n.output())
	// table=131,priority=160,tcp,reg4=0x200/0x200,actions=goto_table:133
	s.add(tableCollision, 160, isMidstream(0), n.output())
	// table=131,priority=150,ip,in_port=2,actions=ct(commit,zone=NXM_NX_REG3[0..15],exec(load:1->NXM_NX_CT_MARK[])),goto_table:133
	s.add(tableCollision, 150, ip().from(PortTun), n.commitAs(n.viaHost())...)
	// table=131,priority=100,ip,actions=ct(commit,zone=NXM_NX_REG3[0..15],exec(load:2->NXM_NX_CT_MARK[])),goto_table:133
	s.add(tableCollision, 100, ip(), n.commitAs(n.direct())...)
}

// isMidstream matches TCP packets that open no connection, and have these bits of reg4.
func isMidstream(bits uint32) match {
	return match{protocol: goovs.ProtocolTCPv4, fields: []ovs.Match{ovs.RegBits(4, midstream|bits, midstream|bits)}}
}

// commitAs returns the actions that commit a connection with a mark, and output the packet.
func (n Node) commitAs(mark int) []ovs.Action {
	return []ovs.Action{
		goovs.ConnectionTracking(fmt.Sprintf("commit,zone=NXM_NX_REG3[0..15],exec(load:%d->NXM_NX_CT_MARK[])", mark)),
		n.output(),
	}
}
