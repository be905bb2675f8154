package attacks

import "testing"

// TestAttacks makes all attacks in one world, since its pods take longer to start than an attack takes.
func TestAttacks(t *testing.T) {
	w := newWorld(t)
	for _, theme := range []struct {
		name     string
		test     func(*testing.T, *world)
		complete string // why it is not in the short tier
	}{
		{"spoofing", testSpoofing, ""},
		{"ARP", testARP, "more of what spoofing tries"},
		{"tunnel", testTunnel, ""},
		{"stolen node", testStolenNode, ""},
		{"outside", testOutside, "more pods, and routes of the host outside"},
		{"tenants", testTenants, ""},
		{"policies", testPolicies, "floods and policy bombs"},
		{"connections", testConnections, "more pods, under policies"},
		{"floods", testFloods, "floods, and bounds in time"},
		{"objects", testObjects, "large objects"},
		{"egress firewalls", testEgressFirewalls, "more pods; the short tier has TestPolicies_hostileDNS and TestTraceEgressFirewall_sharedVNID"},
		{"egress IPs", testEgressIPs, "more pods; the short tier has TestEgressIPs of test/datapath"},
		{"credentials", testCredentials, ""},
		{"CNI", testCNI, ""},
		{"macvlan", testMacvlan, ""},
	} {
		t.Run(theme.name, func(t *testing.T) {
			if testing.Short() && theme.complete != "" {
				t.Skip("complete tier: " + theme.complete)
			}
			theme.test(t, w)
		})
	}
}
