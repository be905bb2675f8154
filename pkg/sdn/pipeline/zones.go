package pipeline

import "github.com/ovsdn/ovsdn/pkg/ovs"

// firstZone is that of the first purpose (docs/decisions/0001-conntrack.md). Those below are not ours.
const firstZone = 0x2000

// Zones are all zones in which connections are kept, for whatever purpose.
func Zones() ovs.Zones { return ovs.Zones{First: firstZone, Last: 0xffff} }

// AllowedZones are those of connections that a verdict has allowed, as it was then.
func AllowedZones() ovs.Zones { return ovs.Zones{First: zoneLocal, Last: 0xffff} }

// ZoneShare is which part of the tracker a zone may fill: one by this number, so that nobody who opens connections without end keeps
// others from opening any.
const ZoneShare = 16
