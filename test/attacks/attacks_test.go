package attacks

import "testing"

// TestAttacks makes all attacks in one world, since its pods take longer to start than an attack takes.
func TestAttacks(t *testing.T) {
	w := newWorld(t)
	for _, theme := range []struct {
		name string
		test func(*testing.T, *world)
	}{
		{"spoofing", testSpoofing},
		{"ARP", testARP},
		{"tunnel", testTunnel},
		{"stolen node", testStolenNode},
		{"outside", testOutside},
		{"tenants", testTenants},
		{"policies", testPolicies},
		{"connections", testConnections},
		{"floods", testFloods},
		{"objects", testObjects},
		{"credentials", testCredentials},
		{"CNI", testCNI},
	} {
		t.Run(theme.name, func(t *testing.T) { theme.test(t, w) })
	}
}
