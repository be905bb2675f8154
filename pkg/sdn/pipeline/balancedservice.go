package pipeline

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// BalancedService is a service whose connections the switch sends to endpoints.
type BalancedService struct {
	VNID      config.VNID
	Frontends []Frontend
}

// Frontend is an address and port of a service, with the endpoints that this node's clients may use.
type Frontend struct {
	Kind      FrontendKind
	Addr      netip.Addr     // not valid for a NodePort
	Protocol  goovs.Protocol // tcp, udp or sctp
	Port      uint16
	Endpoints []netip.AddrPort // at most MaxEndpoints, sorted, each once

	// Closed drops packets if there are no Endpoints; otherwise the host rejects them, unless the frontend is Idled.
	Closed bool
	// Idled sends packets that open connections to the agent if there are no Endpoints, and the frontend is not Closed. Other packets are dropped. It requires
	// Node.HoldsIdled.
	Idled bool
	// Sources are the clients that may use the frontend, if it is limited to some. Packets of others are dropped.
	Sources []netip.Prefix

	// Affinity is for how many seconds a client without new connections stays with its endpoint; 0: each connection gets its own.
	Affinity uint16

	group   string // which frontends of a service with equal endpoints share
	clients int    // that each flow of table 66 learns
}

// FrontendKind is how clients reach a frontend.
type FrontendKind int

// Kinds of frontends.
const (
	ClusterIP    FrontendKind = iota
	FromOutside               // connections of hosts outside to the other kinds, which the host translates to this cluster IP and port
	NodePort                  // of this node's own addresses, for its pods
	LoadBalancer              // an address that other hosts may have, too: clients may have other connections to it
	ExternalIP                // as well. The owner of the service chooses it: in mode multitenant clients of VNID 0 do not use it, unless the service has VNID 0
)

// isExternal reports whether other hosts may have the address.
func (k FrontendKind) isExternal() bool { return k == LoadBalancer || k == ExternalIP }

// MaxEndpoints is the number of endpoints of a frontend that a node uses. Open vSwitch 3.1 selects a bucket for each connection in ovs-vswitchd if a
// group has more than 256 (MAX_SELECT_GROUP_HASH_VALUES in ofproto-dpif.h).
const MaxEndpoints = maxSlots

// AffinityTable is the table whose flows Open vSwitch learns: the endpoints of clients. They are not part of any State.
const AffinityTable = tableAffinity

// LearnedFlows returns the flows that Open vSwitch learns.
func LearnedFlows() ovs.LearnedFlows {
	return ovs.LearnedFlows{Table: AffinityTable, Cookie: uint64(KindAffinity) << cookieHashBits, CookieMask: 0xff << cookieHashBits}
}

// BalancedService compiles a service. In mode multitenant its clients are those of its VNID and of VNID 0; a service of VNID 0 has all clients.
// VNIDs and policies evaluate the endpoint, too.
func (n Node) BalancedService(svc BalancedService) State {
	var s State
	groups := map[groupKey]string{} // their names
	translated, clients := translations{}, affineClients(svc.Frontends)
	for _, f := range svc.Frontends {
		if f.Protocol == ProtocolSCTP && n.Userspace {
			continue // the userspace datapath can't translate SCTP
		}
		f.group, f.clients = f.String(), clients
		key := f.groupKey()
		if name, ok := groups[key]; ok {
			f.group = name
		} else if len(f.Endpoints) > 0 {
			groups[key] = f.group
			// group=tcp/172.30.0.10:80,type=select,bucket=weight=1,actions=load:0xa800005->NXM_NX_REG8[],load:0x1f90->NXM_NX_REG9[],resubmit(,67),
			//     bucket=weight=21,actions=load:0xa800005->NXM_NX_REG8[],load:0x1f90->NXM_NX_REG9[],resubmit(,67),
			//     bucket=weight=21,actions=load:0xa810007->NXM_NX_REG8[],load:0x1f90->NXM_NX_REG9[],resubmit(,67),
			//     bucket=weight=21,actions=load:0xc0000207->NXM_NX_REG8[],load:0x50->NXM_NX_REG9[],resubmit(,67)
			s.Groups = append(s.Groups, Group{Name: f.group, Buckets: f.buckets(n.slotsOf(len(f.Endpoints)))})
		}
		n.frontend(&s, svc.VNID, f)
		translated.translate(&s, f)
		if f.isIdled() {
			n.idled(&s, f)
		}
	}
	return s
}

// groupKey is what the frontends of one group have in common.
type groupKey struct {
	protocol    goovs.Protocol
	hasAffinity bool
	endpoints   string // 6 bytes of each
}

func (f Frontend) groupKey() groupKey {
	all := make([]byte, 0, 6*len(f.Endpoints))
	for _, endpoint := range f.Endpoints {
		all = binary.BigEndian.AppendUint32(all, addrNumber(endpoint))
		all = binary.BigEndian.AppendUint16(all, endpoint.Port())
	}
	return groupKey{f.Protocol, f.Affinity > 0, string(all)}
}

// frontend compiles one frontend.
func (n Node) frontend(s *State, vnid config.VNID, f Frontend) {
	n.selectFrontend(s, vnid, f)
	for _, client := range n.clientsOf(vnid, f) {
		// table=60,priority=100,tcp,nw_dst=172.30.0.10,tp_dst=80,actions=group:tcp/172.30.0.10:80
		// table=60,priority=100,tcp,nw_dst=172.30.0.10,tp_dst=443,actions=resubmit(,64),goto_table:65
		// table=60,priority=100,udp,nw_dst=172.30.0.10,tp_dst=53,actions=goto_table:69
		// table=60,priority=100,tcp,nw_dst=172.30.0.10,tp_dst=8080,actions=drop
		// table=60,priority=103,ct_state=-dnat,tcp,reg4=0x40000/0x40000,tp_dst=30080,tcp_flags=+syn-ack,actions=resubmit(,64),goto_table:65
		s.add(tableService, f.priority(), f.opening(client...), f.toEndpoint()...)
	}
	n.limitSources(s, vnid, f)
	if f.Affinity > 0 && len(f.Endpoints) > 0 {
		// table=65,priority=100,tcp,reg8=0,nw_dst=172.30.0.10,tp_dst=443,actions=group:tcp/172.30.0.10:443
		s.add(tableSelect, f.priority(), f.packets(ovs.Reg(numberEndpointAddr, 0)), ToGroup(f.group))
	}
	for _, endpoint := range f.Endpoints {
		if f.Affinity > 0 {
			// table=66,priority=100,tcp,reg8=0xa800005,reg9=0x20fb,nw_dst=172.30.0.10,tp_dst=443,
			//     actions=learn(priority=32768,dl_type=0x0800,nw_proto=6,NXM_OF_IP_SRC[]=NXM_OF_IP_SRC[],NXM_OF_IP_DST[]=NXM_OF_IP_DST[],
			//     NXM_OF_TCP_DST[]=NXM_OF_TCP_DST[],table=64,idle_timeout=10800,fin_hard_timeout=0,hard_timeout=0,limit=1024,delete_learned,cookie=0x097f307960607c45,
			//     load:NXM_NX_REG8[]->NXM_NX_REG8[],load:NXM_NX_REG9[]->NXM_NX_REG9[]),goto_table:67
			s.add(tableLearn, f.priority(), f.packets(isEndpoint(endpoint)...), f.learn(endpoint), ovs.GotoTable(tableTranslate))
		}
	}
}

// translations are the endpoints of a service whose flows of table 67 have been added: frontends share them.
type translations map[translation]struct{}

type translation struct {
	protocol goovs.Protocol
	endpoint netip.AddrPort
}

// translate adds the flows of a frontend's endpoints that no other frontend of the service has added.
func (all translations) translate(s *State, f Frontend) {
	for _, endpoint := range f.Endpoints {
		to := translation{f.Protocol, endpoint}
		if _, has := all[to]; has {
			continue
		}
		all[to] = struct{}{}
		// table=67,priority=100,tcp,reg8=0xa800005,reg9=0x1f90,actions=load:0x1->NXM_NX_REG4[20],ct(commit,nat(dst=10.128.0.5:8080),table=68,zone=NXM_NX_REG3[0..15])
		s.add(tableTranslate, endpointPriority, match{protocol: f.Protocol, fields: isEndpoint(endpoint)}, goovs.Load("0x1", regEndpointSelected),
			goovs.ConnectionTracking(fmt.Sprintf("commit,nat(dst=%s),table=%d,zone=NXM_NX_REG3[0..15]", endpoint, tableTranslated)))
	}
}

// selectFrontend compiles that packets of pods to an address outside of the service network, or to a node port, pass table 60.
func (n Node) selectFrontend(s *State, vnid config.VNID, f Frontend) {
	switch {
	case f.Kind == NodePort:
		// table=22,priority=90,tcp,tp_dst=30080,actions=load:0x1->NXM_NX_REG4[18],goto_table:60
		s.add(tableOwnNodePort, 90, match{protocol: f.Protocol, fields: []ovs.Match{goovs.TransportDestinationPort(f.Port)}}, loadToNodePort(), ovs.GotoTable(tableService))
		n.nodePort(s, vnid, f.Protocol, f.Port)
	case f.Kind.isExternal():
		// table=21,priority=100,ip,nw_dst=198.51.100.10,actions=goto_table:60
		s.add(tableServiceAddress, 100, ip(ovs.IPDestination(single(f.Addr))), ovs.GotoTable(tableService))
		// The address may be one of this node, and the port a node port for other clients.
		// table=22,priority=100,tcp,nw_dst=198.51.100.10,tp_dst=443,actions=load:0x1->NXM_NX_REG4[18],goto_table:60
		s.add(tableOwnNodePort, 100, match{protocol: f.Protocol, fields: []ovs.Match{ovs.IPDestination(single(f.Addr)), goovs.TransportDestinationPort(f.Port)}},
			loadToNodePort(), ovs.GotoTable(tableService))
	}
}

// limitSources compiles that clients that the frontend's sources do not include are dropped.
func (n Node) limitSources(s *State, vnid config.VNID, f Frontend) {
	if len(f.Sources) == 0 {
		return
	}
	f.Sources = nil
	for _, client := range n.clientsOf(vnid, f) {
		// table=60,priority=97,ct_state=-dnat,tcp,nw_dst=198.51.100.20,tp_dst=8443,tcp_flags=+syn-ack,actions=drop
		s.add(tableService, serviceLimited, f.opening(client...), goovs.Drop())
	}
}

// clientsOf returns the matches of clients that may use a frontend of a service.
func (n Node) clientsOf(vnid config.VNID, f Frontend) [][]ovs.Match {
	clients := [][]ovs.Match{nil}
	if n.tenants() && !vnid.IsGlobal() {
		clients = [][]ovs.Match{{ovs.Reg(0, uint32(vnid))}}
		if f.Kind != ExternalIP {
			clients = append(clients, []ovs.Match{ovs.Reg(0, uint32(config.GlobalVNID))})
		}
	}
	if len(f.Sources) == 0 {
		return clients
	}
	var limited [][]ovs.Match
	for _, client := range clients {
		for _, source := range f.Sources {
			limited = append(limited, append(slices.Clone(client), ovs.IPSource(source)))
		}
	}
	return limited
}

// Priorities of packets that open connections, in the tables 60, 65 and 66.
const (
	serviceOutside  = 105 // of hosts outside, which may have other endpoints
	serviceNodePort = 103 // to node ports
	serviceUnopened = 102 // of hosts outside to other ports
	servicePort     = 100 // to cluster IPs and external addresses
	serviceLimited  = 97  // of clients that Sources do not have
)

// String returns the frontend as the name of its group: tcp/172.30.0.10:80, or tcp/node:30080.
func (f Frontend) String() string {
	at := netip.AddrPortFrom(f.Addr, f.Port).String()
	switch f.Kind {
	case NodePort:
		at = fmt.Sprintf("node:%d", f.Port)
	case FromOutside:
		at += "/outside"
	}
	return string(f.Protocol) + "/" + at
}

// priority returns the priority of the frontend in the tables 60, 65 and 66. An external IP may be an address of the node, with another service's node port, which
// the API server has allocated.
func (f Frontend) priority() int {
	switch f.Kind {
	case NodePort:
		return serviceNodePort
	case FromOutside:
		return serviceOutside
	}
	return servicePort
}

// packets matches the packets to the frontend. Those to external addresses and node ports are matched by their state, too: the endpoint of a translated packet may have
// another service's address, or its node port.
func (f Frontend) packets(fields ...ovs.Match) match {
	fields = slices.Clone(fields)
	switch {
	case f.Kind == FromOutside:
		fields = append(fields, isFromOutside(), ovs.IPDestination(single(f.Addr)))
	case f.Kind == NodePort:
		fields = append(fields, isNotTranslated(), ovs.RegBits(4, toNodePort, toNodePort))
	case f.Kind.isExternal():
		fields = append(fields, isNotTranslated(), ovs.IPDestination(single(f.Addr)))
	default:
		fields = append(fields, ovs.IPDestination(single(f.Addr)))
	}
	return match{protocol: f.Protocol, fields: append(fields, goovs.TransportDestinationPort(f.Port))}
}

// opening matches packets to the frontend that open connections. Other packets to an external address or a node port may be replies of the client to a host with that
// address, from its port.
func (f Frontend) opening(fields ...ovs.Match) match {
	m := f.packets(fields...)
	if (f.Kind.isExternal() || f.Kind == NodePort) && f.Protocol == goovs.ProtocolTCPv4 {
		m.fields = append(m.fields, goovs.TCPFlags("+syn", "-ack"))
	}
	return m
}

// isNotTranslated matches packets whose destination conntrack has not translated.
func isNotTranslated() ovs.Match { return goovs.ConnectionTrackingState("-dnat") }

// toEndpoint returns the actions for the first packet of a connection.
func (f Frontend) toEndpoint() []ovs.Action {
	switch {
	case len(f.Endpoints) == 0 && f.Closed:
		return []ovs.Action{goovs.Drop()}
	case len(f.Endpoints) == 0:
		return []ovs.Action{ovs.GotoTable(tableReject)}
	case f.Affinity > 0:
		return []ovs.Action{goovs.Resubmit(0, tableAffinity), ovs.GotoTable(tableSelect)}
	}
	return []ovs.Action{ToGroup(f.group)}
}

// buckets returns the buckets of the frontend's group, which have the number of slots together. Open vSwitch gives each bucket as many slots as its weight if
// the weights add up to a power of two and one of them is 1: so the first endpoint has a second bucket, of weight 1. (With one endpoint, only more than minSlots
// require it.)
func (f Frontend) buckets(slots int) []ovs.Bucket {
	next := tableTranslate
	if f.Affinity > 0 {
		next = tableLearn
	}
	shares := sharesOf(slots, len(f.Endpoints))
	buckets := make([]ovs.Bucket, 0, len(f.Endpoints)+1)
	for i, endpoint := range f.Endpoints {
		actions := []ovs.Action{
			goovs.Load(fmt.Sprintf("%#x", addrNumber(endpoint)), regEndpointAddr),
			goovs.Load(fmt.Sprintf("%#x", endpoint.Port()), regEndpointPort),
			goovs.Resubmit(0, next),
		}
		weight := shares[i]
		if i == 0 && weight > 1 {
			buckets = append(buckets, ovs.Bucket{Weight: 1, Actions: actions})
			weight--
		}
		buckets = append(buckets, ovs.Bucket{Weight: weight, Actions: actions})
	}
	return buckets
}

// isEndpoint matches packets for which a bucket has selected the endpoint.
func isEndpoint(endpoint netip.AddrPort) []ovs.Match {
	return []ovs.Match{ovs.Reg(numberEndpointAddr, addrNumber(endpoint)), ovs.Reg(numberEndpointPort, uint32(endpoint.Port()))}
}

// addrNumber returns the endpoint's IPv4 address as a number.
func addrNumber(endpoint netip.AddrPort) uint32 {
	a := endpoint.Addr().As4()
	return binary.BigEndian.Uint32(a[:])
}

// Numbers of slots, the hash values of a select group: powers of two (group_setup_dp_hash_table in ofproto-dpif.c). Each slot costs one datapath flow for a
// client.
const (
	minSlots = 16
	maxSlots = 256
)

// slotsOf returns the number of slots of a group: on the userspace datapath maxSlots, on the kernel's the smallest with which the shares of all endpoints are
// within a twentieth of each other, up to maxSlots.
func (n Node) slotsOf(endpoints int) int {
	if n.Userspace {
		return maxSlots
	}
	slots := minSlots
	for slots < maxSlots && (slots < endpoints || slots%endpoints != 0 && slots/endpoints < 20) {
		slots *= 2
	}
	return slots
}

// sharesOf returns how many of the slots each of the endpoints gets.
func sharesOf(slots, endpoints int) []int {
	shares := make([]int, endpoints)
	for i := range shares {
		shares[i] = slots / endpoints
		if i < slots%endpoints {
			shares[i]++
		}
	}
	return shares
}
