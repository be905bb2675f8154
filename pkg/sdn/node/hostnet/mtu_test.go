package hostnet

import (
	"net/netip"
	"testing"
)

func TestMTU(t *testing.T) {
	for _, test := range []struct{ underlay, given, want int }{
		{1500, 0, 1450},
		{9000, 0, 8950},
		{1500, 1450, 1450},
		{1500, 1400, 1400},
		{626, 0, 576},
	} {
		got, err := MTU(Underlay{MTU: test.underlay}, test.given)
		if err != nil || got != test.want {
			t.Errorf("underlay %d, given %d: %d, %v; want %d", test.underlay, test.given, got, err, test.want)
		}
	}
	eth0 := func(mtu int) Underlay { return Underlay{Name: "eth0", MTU: mtu} }
	_, err := MTU(eth0(1500), 1500)
	wantError(t, err, "MTU 1500 is too large", "eth0 has 1500", "VXLAN takes 50", "at most 1450")
	_, err = MTU(eth0(1500), 575)
	wantError(t, err, "MTU 575 is too small", "576")
	_, err = MTU(eth0(1500), -1)
	wantError(t, err, "MTU -1 is too small")
	_, err = MTU(eth0(600), 0)
	wantError(t, err, "eth0 has MTU 600", "leaves 550", "--iface")
}

func TestMAC(t *testing.T) {
	for ip, want := range map[string]string{
		"10.128.0.1":      "0a:58:0a:80:00:01",
		"::ffff:10.1.2.3": "0a:58:0a:01:02:03",
		"fd00::1":         "",
	} {
		if got := MAC(netip.MustParseAddr(ip)).String(); got != want {
			t.Errorf("%s: %s, want %s", ip, got, want)
		}
	}
}

func TestGateway(t *testing.T) {
	for subnet, want := range map[string]string{
		"10.128.2.0/23":   "10.128.2.1",
		"10.128.3.7/23":   "10.128.2.1",
		"10.1.0.64/26":    "10.1.0.65",
		"fd00:0:0:1::/64": "fd00:0:0:1::1",
	} {
		if got := Gateway(netip.MustParsePrefix(subnet)); got != netip.MustParseAddr(want) {
			t.Errorf("%s: %s, want %s", subnet, got, want)
		}
	}
}
