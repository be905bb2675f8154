package flowstore

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
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
// and the zone's other connections pass replies only after a packet of the side that opened them. In a zone of all hosts outside it remains until it expires:
// one client must not end the connections of the others.
func (l *connectionList) add(c ovs.Connection) {
	if l.isReplaceable(c) || !l.orphaned(c) && (l.invalid == nil || !l.invalid(c)) {
		return
	}
	_, whole := l.zones[c.Zone]
	switch {
	case whole, !c.CanFlush() && pipeline.IsOfHostsOutside(c.Zone):
	case c.CanFlush() && len(l.selected) < maxConnections:
		l.selected = append(l.selected, c.Filter())
	case !c.CanFlush() && len(l.zones) < maxZones:
		l.zones[c.Zone] = struct{}{}
		l.selected = append(l.selected, ovs.Connections{Zone: c.Zone})
	default:
		l.more = true
	}
}

// isReplaceable reports whether a new connection of the client may have taken the place of the connection since the list: one from the same port to another
// endpoint of the service. A flush would be that of the new one.
func (l *connectionList) isReplaceable(c ovs.Connection) bool {
	_, deleted := l.deleted[c.Original.Src]
	return c.Closed && c.IsTranslated() && !deleted
}

// orphaned reports whether an end of the connection lost its pod.
func (l *connectionList) orphaned(c ovs.Connection) bool {
	if len(l.deleted) == 0 {
		return false
	}
	for _, a := range c.Addrs() {
		if _, deleted := l.deleted[a]; deleted {
			return true
		}
	}
	return false
}
