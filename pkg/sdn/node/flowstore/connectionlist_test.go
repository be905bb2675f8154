package flowstore

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/test/tier"
)

const protoSCTP = 132

func newConnectionList(invalid func(ovs.Connection) bool, deleted ...string) *connectionList {
	l := &connectionList{invalid: invalid, deleted: map[netip.Addr]struct{}{}, zones: map[uint16]struct{}{}}
	for _, a := range deleted {
		l.deleted[netip.MustParseAddr(a)] = struct{}{}
	}
	return l
}

func all(ovs.Connection) bool { return true }

func TestConnectionList_addressOfADeletedPod(t *testing.T) {
	const deleted, pod, other = "10.128.0.9", "10.128.0.3", "10.129.0.2"
	translated := tracked(0x4003, protoTCP, pod+":1000", "172.30.0.10:80")
	translated.Reply.Src = netip.MustParseAddr(deleted)
	for name, c := range map[string]ovs.Connection{
		"opened by the pod":            tracked(testZone, protoTCP, deleted+":1000", other+":80"),
		"opened to the pod":            tracked(0x8002, protoUDP, other+":1000", deleted+":53"),
		"of the pod to a service":      tracked(0x4009, protoTCP, deleted+":1000", "172.30.0.10:80"),
		"to the pod through a service": translated,
	} {
		l := newConnectionList(nil, deleted)
		if l.add(c); len(l.selected) != 1 {
			t.Errorf("%s: the connection is not selected", name)
		}
	}
	closed := translated
	closed.Closed = true
	for name, c := range map[string]ovs.Connection{
		"between other pods":                   tracked(testZone, protoTCP, pod+":1000", other+":80"),
		"to the pod through a service, closed": closed,
	} {
		l := newConnectionList(nil, deleted)
		if l.add(c); len(l.selected) > 0 {
			t.Errorf("%s: the connection is selected", name)
		}
	}
	l := newConnectionList(all) // as after a restart
	if l.add(closed); len(l.selected) > 0 {
		t.Error("the closed connection to a service is selected after a restart")
	}
	l = newConnectionList(nil, pod)
	if l.add(closed); len(l.selected) != 1 {
		t.Error("the closed connection of a deleted client is not selected")
	}
}

// A connection that Open vSwitch can't flush alone is flushed with its zone, and a bounded number of zones at a time.
func TestConnectionList_zones(t *testing.T) {
	l := newConnectionList(all)
	l.add(tracked(testZone, protoSCTP, "10.128.0.2:1000", "192.0.2.1:9"))
	for i := range 10 {
		l.add(tracked(testZone, protoGRE, "10.128.0.2:0", fmt.Sprintf("192.0.2.%d:0", i)))
	}
	if len(l.selected) != 1 || l.selected[0] != (ovs.Connections{Zone: testZone}) {
		t.Errorf("got %v, want the zone", l.selected)
	}
	const first = 0x8002
	for zone := range uint16(2 * maxZones) {
		l.add(tracked(first+zone, protoGRE, "192.0.2.1:0", "10.128.0.2:0"))
	}
	if len(l.selected) != maxZones || !l.more {
		t.Errorf("got %d zones, want %d; another list is needed: %t", len(l.selected), maxZones, l.more)
	}
	l.add(tracked(first+2*maxZones, protoTCP, "192.0.2.1:1000", "10.128.0.2:80"))
	if len(l.selected) != maxZones+1 {
		t.Error("a connection that can be flushed alone is not selected")
	}
}

// One client outside must not end the connections of the others by one that Open vSwitch can't flush alone, such as UDP from port 0.
func TestConnectionList_zonesOfHostsOutside(t *testing.T) {
	for _, zone := range []uint16{0x4000, 0x2000} {
		l := newConnectionList(all)
		l.add(tracked(zone, protoUDP, "192.0.2.1:0", "172.30.0.10:53"))
		l.add(tracked(zone, protoSCTP, "192.0.2.1:1000", "172.30.0.10:9"))
		if len(l.selected) != 0 || l.more {
			t.Errorf("zone %#x: got %v selected, another list is needed: %t; want none", zone, l.selected, l.more)
		}
		if l.add(tracked(zone, protoUDP, "192.0.2.1:1000", "172.30.0.10:53")); len(l.selected) != 1 {
			t.Errorf("zone %#x: a connection that can be flushed alone is not selected", zone)
		}
	}
}

// The memory of a list is bounded.
func TestConnectionList_manyConnections(t *testing.T) {
	tier.Parallel(t)
	l := newConnectionList(all)
	for i := range maxConnections + 5 {
		l.add(tracked(testZone, protoTCP, fmt.Sprintf("10.128.0.2:%d", 1+i%50_000), "192.0.2.1:80"))
	}
	if len(l.selected) != maxConnections || !l.more {
		t.Errorf("got %d connections, want %d; another list is needed: %t", len(l.selected), maxConnections, l.more)
	}
}
