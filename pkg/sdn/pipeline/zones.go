package pipeline

import (
	"fmt"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// firstZone is the first zone of this program (docs/decisions/0001-conntrack.md). Zones below may be used by other programs.
const firstZone = zoneEgressIP

// Zones are all zones that this program or a previous version of it uses.
func Zones() ovs.Zones { return ovs.Zones{First: firstZone, Last: 0xffff} }

// NATZones are the zones in which connections to services are translated.
func NATZones() ovs.Zones { return ovs.Zones{First: zoneNAT, Last: zoneLocal - 1} }

// EgressIPZones are the zones in which the sources of pods are translated to egress IPs.
func EgressIPZones() ovs.Zones {
	return ovs.Zones{First: zoneEgressIP, Last: zoneEgressIP + 1<<egressIPBits - 1}
}

// AllowedZones are the zones of connections that were allowed when they were opened.
func AllowedZones() ovs.Zones { return ovs.Zones{First: zoneLocal, Last: 0xffff} }

// The limit of a zone is the number of free entries of conntrack, divided by the zone's share. So no number of zones fills conntrack: each uses a
// part of the entries that the others have left.
const (
	openerShare  = 16
	targetShare  = 8 // a server has more clients than a client has servers
	outsideShare = 2 // all clients outside of all services
)

// ZoneLimit is the maximum number of connections in each of the zones.
type ZoneLimit struct {
	Class ZoneClass
	Zones ovs.Zones
	Limit int
}

// ZoneClass is the purpose of zones.
type ZoneClass string

// The classes of zones.
const (
	ZoneOpener  ZoneClass = "opener"  // connections that the pod opened
	ZoneTarget  ZoneClass = "target"  // connections to the pod from outside of the node
	ZoneHairpin ZoneClass = "hairpin" // connections of clients that reach themselves through a service
	ZoneNAT     ZoneClass = "nat"     // translated connections to services

	ZoneNATOutside        ZoneClass = "nat-outside"        // translated connections of all hosts outside to services
	ZoneMasqueradeOutside ZoneClass = "masquerade-outside" // those of them to endpoints that are no pods of this node

	ZoneEgressIP ZoneClass = "egress-ip" // connections to outside with egress IPs that this node hosts
)

// zoneKind has the first zone of one purpose, and the share of the free entries that each of its zones may have.
type zoneKind struct {
	class ZoneClass
	first uint16
	share int
}

// LimitsZones reports whether the node's zones have limits: otherwise nothing tracks connections.
func (n Node) LimitsZones() bool {
	return n.Mode != config.ModeSubnet || n.BalancesServices
}

// ZoneLimits returns the limits of all zones in which this node commits connections. free is the number of free entries of conntrack.
func (n Node) ZoneLimits(free int) []ZoneLimit {
	var all []ZoneLimit
	if n.evaluates() {
		all = append(all, ZoneLimit{Class: ZoneEgressIP, Zones: EgressIPZones(), Limit: max(free/targetShare, 1)})
	}
	for _, subnet := range n.Subnets {
		if !subnet.Addr().Is4() {
			continue
		}
		hosts := min(subnet.Addr().BitLen()-subnet.Bits(), zoneBits)
		low := lowBits(subnet.Masked().Addr()) &^ (1<<hosts - 1)
		last := uint16(1<<hosts - 1) //nolint:gosec // of 13 bits
		kinds := []zoneKind{{ZoneOpener, zoneLocal, openerShare}, {ZoneTarget, zoneTarget, targetShare}}
		if n.BalancesServices {
			kinds = append(kinds, zoneKind{ZoneHairpin, zoneHairpin, openerShare}, zoneKind{ZoneNAT, zoneNAT, openerShare})
		}
		for _, kind := range kinds {
			zones := ovs.Zones{First: kind.first | low, Last: kind.first | low + last}
			if n.BalancesServices && (zones.First == zoneOutside || zones.First == zoneMasquerade) {
				zones.First++ // that of the subnet's network address, which no pod has
			}
			all = append(all, ZoneLimit{Class: kind.class, Zones: zones, Limit: max(free/kind.share, 1)})
		}
	}
	if n.BalancesServices {
		for _, kind := range []zoneKind{{ZoneNATOutside, zoneOutside, outsideShare}, {ZoneMasqueradeOutside, zoneMasquerade, outsideShare}} {
			all = append(all, ZoneLimit{Class: kind.class, Zones: ovs.Zones{First: kind.first, Last: kind.first}, Limit: max(free/kind.share, 1)})
		}
	}
	return all
}

// The previous version committed connections that no address of this node's subnets opened in a zone of the low previousBits bits of the
// opener, from zoneTarget on.
const previousBits = 15

// IsPrevious reports whether the previous version committed the connection, in a zone that this version does not look up.
func IsPrevious(c ovs.Connection) bool {
	return c.Zone >= zoneTarget && c.Original.Dst.Is4() && c.Zone != zoneTarget|lowBits(c.Original.Dst)
}

// PreviousZones compiles the lookup of replies in the zones of the previous version, for packets that are no reply in the zone of this
// version. Like the previous version, it costs a datapath flow for each value of 15 bits of the destination.
func (n Node) PreviousZones() State {
	var s State
	if !n.evaluates() {
		return s
	}
	const zones, mask = zoneTarget, 0xffff &^ (1<<zoneBits - 1)
	m := ip(ovs.RegBits(4, sourceEvaluated, sourceEvaluated|previousLookup), ovs.RegBits(3, zones, mask), goovs.ConnectionTrackingState("+trk", "-rpl"))
	// table=27,priority=64999,ct_state=-rpl+trk,ip,reg3=0x8000/0xe000,reg4=0x1/0x101,
	//     actions=load:0x1->NXM_NX_REG4[8],move:NXM_OF_IP_DST[0..14]->NXM_NX_REG3[0..14],load:0x1->NXM_NX_REG3[15..31],ct(table=27,
	//     zone=NXM_NX_REG3[0..15])
	s.add(tableEgressPolicy, policyPrevious, m,
		goovs.Load("0x1", regPreviousLookup),
		goovs.Move(fmt.Sprintf("%s[0..%d]", addressDestination, previousBits-1), fmt.Sprintf("NXM_NX_REG3[0..%d]", previousBits-1)),
		goovs.Load(fmt.Sprintf("%#x", zoneTarget>>previousBits), fmt.Sprintf("NXM_NX_REG3[%d..31]", previousBits)),
		goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=NXM_NX_REG3[0..15]", tableEgressPolicy)))
	return s
}
