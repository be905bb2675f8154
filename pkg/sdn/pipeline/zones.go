package pipeline

import (
	"fmt"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// firstZone is that of the first purpose (docs/decisions/0001-conntrack.md). Those below are not ours.
const firstZone = 0x2000

// Zones are all zones in which connections are kept, for whatever purpose.
func Zones() ovs.Zones { return ovs.Zones{First: firstZone, Last: 0xffff} }

// AllowedZones are those of connections that a verdict has allowed, as it was then.
func AllowedZones() ovs.Zones { return ovs.Zones{First: zoneLocal, Last: 0xffff} }

// A zone may have as many connections as the tracker's free room divided by its share. So no number of zones fills the tracker: each takes a
// part of what the others have left.
const (
	openerShare = 16
	targetShare = 8 // a server has more clients than a client has servers
)

// ZoneLimit is how many connections each of the zones may have.
type ZoneLimit struct {
	Zones ovs.Zones
	Limit int
}

// ZoneLimits returns the limits of all zones in which this node commits connections, for a tracker with that much free room.
func (n Node) ZoneLimits(free int) []ZoneLimit {
	var all []ZoneLimit
	for _, subnet := range n.Subnets {
		if !subnet.Addr().Is4() {
			continue
		}
		hosts := min(subnet.Addr().BitLen()-subnet.Bits(), zoneBits)
		low := lowBits(subnet.Masked().Addr()) &^ (1<<hosts - 1)
		last := uint16(1<<hosts - 1) //nolint:gosec // of 13 bits
		for _, kind := range []struct {
			first uint16
			share int
		}{{zoneLocal, openerShare}, {zoneTarget, targetShare}} {
			first := kind.first | low
			all = append(all, ZoneLimit{Zones: ovs.Zones{First: first, Last: first + last}, Limit: max(free/kind.share, 1)})
		}
	}
	return all
}

// The previous version committed connections that no address of this node's subnets opened in a zone of the low previousBits bits of the
// opener, from zoneTarget on.
const previousBits = 15

// IsPrevious reports whether the previous version committed the connection, in a zone in which this version does not look.
func IsPrevious(c ovs.Connection) bool {
	return c.Zone >= zoneTarget && c.Original.Dst.Is4() && c.Zone != zoneTarget|lowBits(c.Original.Dst)
}

// PreviousZones compiles the lookup of replies in the zones of the previous version, for packets that are no reply in the zone of this
// version. Like the previous version, it costs a datapath flow for each value of 15 bits of the destination.
func (n Node) PreviousZones() State {
	var s State
	if !n.judges() {
		return s
	}
	const zones, mask = zoneTarget, 0xffff &^ (1<<zoneBits - 1)
	m := ip(ovs.RegBits(4, sourceJudged, sourceJudged|previousSought), ovs.RegBits(3, zones, mask), goovs.ConnectionTrackingState("+trk", "-rpl"))
	s.add(tableEgressPolicy, policyPrevious, m,
		goovs.Load("0x1", regPreviousSought),
		goovs.Move(fmt.Sprintf("%s[0..%d]", addressDestination, previousBits-1), fmt.Sprintf("NXM_NX_REG3[0..%d]", previousBits-1)),
		goovs.Load(fmt.Sprintf("%#x", zoneTarget>>previousBits), fmt.Sprintf("NXM_NX_REG3[%d..31]", previousBits)),
		goovs.ConnectionTracking(fmt.Sprintf("table=%d,zone=NXM_NX_REG3[0..15]", tableEgressPolicy)))
	return s
}
