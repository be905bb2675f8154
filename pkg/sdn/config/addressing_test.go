package config

import (
	"net/netip"
	"testing"
)

func TestAddressing(t *testing.T) {
	for subnet, want := range map[string]struct{ gateway, mac string }{
		"10.128.0.0/23":   {"10.128.0.1", "0a:58:0a:80:00:01"},
		"10.1.255.192/26": {"10.1.255.193", "0a:58:0a:01:ff:c1"},
		"fd00::/64":       {"fd00::1", "0a:58:00:00:00:01"},
	} {
		gateway := Gateway(netip.MustParsePrefix(subnet))
		if gateway.String() != want.gateway || MAC(gateway).String() != want.mac {
			t.Errorf("%s: got %s, %q", subnet, gateway, MAC(gateway))
		}
	}
}
