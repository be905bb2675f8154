package flowstore

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/ovs"
)

// Limits of one list. For each zone Open vSwitch searches all connections.
const (
	maxConnections = 100_000
	maxZones       = 64
)

// connectionList selects connections to be flushed.
type connectionList struct {
	deleted map[netip.Addr]struct{}
	invalid func(ovs.Connection) bool // nil: none are

	selected []ovs.Connections
	zones    map[uint16]struct{} // to be flushed as a whole
	more     bool                // another list is needed
}

// add selects a connection that is not valid. One without ports, or of SCTP, can't be flushed alone from the kernel's tracker: its whole zone is flushed,
// and the zone's other connections pass replies only after a packet of the side that opened them.
func (l *connectionList) add(c ovs.Connection) {
	if !l.orphaned(c) && (l.invalid == nil || !l.invalid(c)) {
		return
	}
	_, whole := l.zones[c.Zone]
	switch {
	case whole:
	case c.CanFlush() && len(l.selected) < maxConnections:
		l.selected = append(l.selected, c.Filter())
	case !c.CanFlush() && len(l.zones) < maxZones:
		l.zones[c.Zone] = struct{}{}
		l.selected = append(l.selected, ovs.Connections{Zone: c.Zone})
	default:
		l.more = true
	}
}

// orphaned reports whether an end of the connection lost its pod. A closed connection to an endpoint of a service is not: since the list, a new connection of the
// client, from the same port to another endpoint, may have taken its place, and would be flushed.
func (l *connectionList) orphaned(c ovs.Connection) bool {
	if len(l.deleted) == 0 {
		return false
	}
	addrs := c.Addrs()
	if c.Closed && c.IsTranslated() {
		addrs = []netip.Addr{c.Original.Src}
	}
	for _, a := range addrs {
		if _, deleted := l.deleted[a]; deleted {
			return true
		}
	}
	return false
}
