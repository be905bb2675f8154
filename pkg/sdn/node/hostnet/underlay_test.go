package hostnet

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// host creates two interfaces, an address on lo, and the interfaces of the pod network.
func host(t *testing.T) {
	inNetNS(t)
	addInterface(t, "eth0", nil, "192.0.2.10/24", "192.0.2.11/24")
	addInterface(t, "eth1", nil, "198.51.100.10/24")
	addInterface(t, "bare", nil)
	addInterface(t, Tun0Name, config.MAC(netip.MustParseAddr("10.128.0.1")), "10.128.0.1/23")
	addInterface(t, bridge, nil, "10.9.9.9/24")
	sh(t, "ip link set eth0 mtu 1400; ip addr add 203.0.113.5/32 dev lo")
}

func TestFindUnderlay(t *testing.T) {
	const defaults = "ip route add default via 198.51.100.1 metric 200; ip route add default via 192.0.2.1 metric 100"
	eth0 := Underlay{Name: "eth0", Addr: netip.MustParseAddr("192.0.2.10"), MTU: 1400}
	eth1 := Underlay{Name: "eth1", Addr: netip.MustParseAddr("198.51.100.10"), MTU: 1500}
	second := eth0
	second.Addr = netip.MustParseAddr("192.0.2.11")

	for _, test := range []struct {
		name   string
		routes string
		s      Selector
		want   Underlay
	}{
		{"lowest metric", defaults, Selector{}, eth0},
		{"preferred source", "ip route add default via 192.0.2.1 src 192.0.2.11", Selector{}, second},
		{"source on lo", "ip route add default via 192.0.2.1 src 203.0.113.5", Selector{},
			Underlay{Name: "eth0", Addr: netip.MustParseAddr("203.0.113.5"), MTU: 1400}},
		{"several hops", "ip route add default nexthop via 198.51.100.1 nexthop via 192.0.2.1", Selector{}, eth1},
		{"tun0's default route is not the host's", defaults + "; ip route add default dev tun0", Selector{}, eth0},
		{"node IP", defaults, Selector{NodeIP: eth1.Addr}, eth1},
		{"second address", "", Selector{NodeIP: second.Addr}, second},
		{"address on lo has the MTU of the default route", defaults, Selector{NodeIP: netip.MustParseAddr("203.0.113.5")},
			Underlay{Name: "lo", Addr: netip.MustParseAddr("203.0.113.5"), MTU: 1400}},
		{"interface", "", Selector{Iface: "eth1"}, eth1},
		{"first address of the interface", "", Selector{Iface: "eth0"}, eth0},
		{"regular expression", "", Selector{IfaceRegex: "^e.*1$"}, eth1},
		{"all flags", "", Selector{NodeIP: second.Addr, Iface: "eth0", IfaceRegex: "eth"}, second},
	} {
		t.Run(test.name, func(t *testing.T) {
			host(t)
			sh(t, test.routes)
			got, err := FindUnderlay(test.s)
			must(t, err)
			if diff := cmp.Diff(test.want, got, cmpopts.IgnoreFields(Underlay{}, "Index"), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			if got.Index == 0 {
				t.Error("got interface index 0")
			}
		})
	}
}

func TestFindUnderlay_errors(t *testing.T) {
	const all = "candidates are lo (203.0.113.5), eth0 (192.0.2.10), eth0 (192.0.2.11), eth1 (198.51.100.10)"
	for _, test := range []struct {
		name   string
		routes string
		s      Selector
		want   []string
	}{
		{"no default route", "", Selector{}, []string{"no default route", "--node-ip or --iface", all}},
		{"default route without an address", "ip route add default dev bare", Selector{}, []string{"bare", "no global IPv4 address", "--node-ip", all}},
		{"unknown node IP", "", Selector{NodeIP: netip.MustParseAddr("192.0.2.99")}, []string{"--node-ip=192.0.2.99", all}},
		{"loopback", "", Selector{NodeIP: netip.MustParseAddr("127.0.0.1")}, []string{"--node-ip=127.0.0.1", all}},
		{"unknown interface", "", Selector{Iface: "eth9"}, []string{"--iface=eth9", all}},
		{"interface without an address", "", Selector{Iface: "bare"}, []string{"--iface=bare", all}},
		{"tun0", "", Selector{Iface: "tun0"}, []string{"--iface=tun0", "the pod network's own", all}},
		{"tun0's address", "", Selector{NodeIP: netip.MustParseAddr("10.128.0.1")}, []string{"--node-ip=10.128.0.1", all}},
		{"no regular expression", "", Selector{IfaceRegex: "["}, []string{"--iface-regex=[", "missing closing ]"}},
		{"matches none", "", Selector{IfaceRegex: "^wlan"}, []string{"--iface-regex=^wlan", all}},
		{"matches several", "", Selector{IfaceRegex: "^eth"}, []string{"--iface-regex=^eth", "matches 2 interfaces", "eth0, eth1"}},
		{"contradicting flags", "", Selector{NodeIP: netip.MustParseAddr("192.0.2.10"), Iface: "eth1"}, []string{"--iface=eth1", "candidates are eth0 (192.0.2.10)"}},
		{"address on lo without a default route", "", Selector{NodeIP: netip.MustParseAddr("203.0.113.5")}, []string{"the MTU for lo (203.0.113.5)", "no default route"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			host(t)
			sh(t, test.routes)
			_, err := FindUnderlay(test.s)
			wantError(t, err, test.want...)
		})
	}
}

func TestFindUnderlay_noAddresses(t *testing.T) {
	inNetNS(t)
	_, err := FindUnderlay(Selector{Iface: "eth0"})
	wantError(t, err, "--iface=eth0", "no interface has a global IPv4 address")
}
