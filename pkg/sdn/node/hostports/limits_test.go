package hostports

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/listeners"
)

func TestAdd_limits(t *testing.T) {
	n := newNode(t)
	var many []Mapping
	for i := range maxMappings + 1 {
		many = append(many, tcp("", 1000+i))
	}
	wantCNIError(t, n.add(t, "s1", "a", many...), types.ErrInvalidNetworkConfig, "the pod has 65, the maximum is 64")
	n.mustAdd(t, "s1", "a", many[:maxMappings]...)
	wantCNIError(t, n.add(t, "s2", "b", udp("", 53), udp("0.0.0.0", 53)), types.ErrInvalidNetworkConfig, "host port 53/UDP: the pod declares it twice")
	n.mustAdd(t, "s2", "b", udp("", 53), udp("192.0.2.1", 53), tcp("", 53))
	n.ports.nodeLimit = maxMappings + 4
	wantCNIError(t, n.add(t, "s3", "c", tcp("", 1), tcp("", 2)), types.ErrTryAgainLater, "the node's pods have 67 host ports, the maximum is 68")
	n.mustAdd(t, "s3", "c", tcp("", 1))
	n.wantRules(t, "s1 s2 s3")
}

// Rules that can't be listed are not written again.
func TestRestore_unknownRules(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 8080))
	n.plugin.flush()
	n.plugin.unlisted = errors.New("no list today")
	adds := n.plugin.adds
	if restored, err := n.ports.restore(testContext(t)); !errors.Is(err, n.plugin.unlisted) || len(restored) > 0 || n.plugin.adds != adds {
		t.Errorf("got restored %v, error %v, %d more ADDs, want only the error", restored, err, n.plugin.adds-adds)
	}
	wantCNIError(t, n.Check(testContext(t), request(t, "CHECK", "s1", "a")), types.ErrTryAgainLater, "no list today")
}

// Rules that all pods share are written again with those of one pod.
func TestRestore_sharedRules(t *testing.T) {
	n := newNode(t)
	for i, pod := range []string{"a", "b", "c"} {
		n.mustAdd(t, "s"+pod, pod, tcp("", 8080+i))
	}
	n.plugin.unshared = true
	adds := n.plugin.adds
	restored, err := n.ports.restore(testContext(t))
	if want := []string{"default/a", "default/b", "default/c"}; !slices.Equal(restored, want) || err != nil || n.plugin.adds != adds+1 {
		t.Errorf("got restored %v, error %v, %d ADDs, want %v and one ADD", restored, err, n.plugin.adds-adds, want)
	}
	n.wantRules(t, "sa sb sc")
}

// Services and programs that appear after ADD are reported once, with both names, if two rounds find them.
func TestReconciler_conflicts(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("", 30080), tcp("", 9000))
	r := reconciler{Ports: n.ports}
	n.listening = []listeners.Listener{{Addr: netip.IPv4Unspecified(), Port: 9000, UID: 0}}
	r.round(testContext(t))
	n.listening = nil // for a moment only
	for range 2 {
		r.round(testContext(t))
	}
	n.wantEvents(t)
	n.declared, n.listening = map[string]string{"30080/TCP": "Service tenant/web"}, []listeners.Listener{{Addr: netip.IPv4Unspecified(), Port: 9000, UID: 7}}
	for range 4 {
		r.round(testContext(t))
	}
	n.wantEvents(t, "node: "+eventreason.HostPortConflict+": host port 30080/TCP of pod default/a is also used by Service tenant/web; "+
		"host port 9000/TCP of pod default/a is also used by a process of the host's user 7")
}

// Mappings that no packet matches are reported on the pod.
func TestAdd_ignoredAddresses(t *testing.T) {
	n := newNode(t)
	n.mustAdd(t, "s1", "a", tcp("2001:db8::1", 80), tcp("198.51.100.1", 81), tcp("127.0.0.1", 82), tcp("192.0.2.1", 83))
	n.wantEvents(t, "default/a: "+eventreason.NotSupported+": the network ignores host port 2001:db8::1:80/TCP, since the pod has no IPv6 address; "+
		"host port 198.51.100.1:81/TCP, since the node does not have the address")
}

// portmap gets canonical addresses, a name of UDP for which it flushes no connections, and an id that no other plugin uses.
func TestRecord_portmap(t *testing.T) {
	r := record{Attachment: Attachment{"s1", "eth0"}, Mappings: []Mapping{udp("::ffff:192.0.2.1", 53), tcp("0.0.0.0", 80), tcp("2001:db8::1", 80)}}
	if got, want := r.mappings(), []Mapping{udp("192.0.2.1", 53), tcp("", 80)}; !slices.Equal(got, want) {
		t.Errorf("got mappings %#v, want %#v", got, want)
	}
	for backend, want := range map[Backend]string{BackendNFTables: "meta l4proto udp th", BackendIPTables: "17", BackendLegacy: "17"} {
		if got := backend.mapping(udp("", 53)).Protocol; got != want {
			t.Errorf("%s: got protocol %q, want %q", backend, got, want)
		}
	}
	other := record{Attachment: Attachment{"s1", "eth1"}}
	if r.ruleID() == other.ruleID() || r.ruleID() == r.Sandbox {
		t.Errorf("got ids %q and %q, want different ones", r.ruleID(), other.ruleID())
	}
}

// Only connections of the host, to addresses of the node, are flushed for a new UDP host port.
func TestNotMapped(t *testing.T) {
	pod, node, outside := net.IPv4(10, 128, 2, 5), net.IPv4(192, 0, 2, 1), net.IPv4(198, 51, 100, 1)
	flow := func(to, by net.IP, toPort, byPort, zone uint16) *netlink.ConntrackFlow {
		return &netlink.ConntrackFlow{Zone: zone,
			Forward: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, DstIP: to, DstPort: toPort}, Reverse: netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: by, SrcPort: byPort}}
	}
	loopback := net.IPv4(127, 0, 0, 1)
	for name, tc := range map[string]struct {
		flow      *netlink.ConntrackFlow
		all, node bool // flushed for a mapping of all addresses, and of the node's
	}{
		"to the node":                      {flow(node, node, 53, 53, 0), true, true},
		"to the loopback":                  {flow(loopback, loopback, 53, 53, 0), true, false},
		"to another port":                  {flow(node, node, 54, 54, 0), false, false},
		"to another host":                  {flow(outside, outside, 53, 53, 0), false, false},
		"in the switch":                    {flow(node, node, 53, 53, 7), false, false},
		"translated to a pod of a service": {flow(node, pod, 53, 5353, 0), false, false},
		"translated to the same port":      {flow(node, pod, 53, 53, 0), false, false},
	} {
		for _, m := range []struct {
			mapping Mapping
			want    bool
		}{{udp("", 53), tc.all}, {udp("192.0.2.1", 53), tc.node}, {tcp("", 53), false}} {
			r := record{Mappings: []Mapping{m.mapping}}
			if got := notMapped(r, []netip.Addr{netip.MustParseAddr("192.0.2.1")}).MatchConntrackFlow(tc.flow); got != m.want {
				t.Errorf("%s, host port %s: flushed %t, want %t", name, m.mapping, got, m.want)
			}
		}
	}
}
