// Package attacks tries in the lab what a pod, a tenant, a stolen node, a host on the underlay and a client of the API must not be able to do.
//
// Each attack prints the attacker's position, what it sends, how much of it arrives, which must be nothing, and the counter that shows where it was
// dropped. A legitimate packet to the same receiver follows each attack: it shows that the receiver was listening.
package attacks

import (
	"os"
	"testing"

	"github.com/ovsdn/ovsdn/test/e2e/fixture"
)

// theme is attacks on one part of the network.
type theme struct {
	name     string
	test     func(*testing.T, *world)
	complete string // why it is not in the short tier
}

// Try tries all attacks, or with -short those of the short tier, in a lab of three nodes in mode multitenant, where VNIDs and policies are both evaluated.
// They share the pods, which take longer to start than an attack takes.
func Try(t *testing.T, c *fixture.Cluster) {
	w := newWorld(t, c)
	themes := []theme{
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
	}
	if w.balanced() {
		themes = append(themes, theme{"services in the switch", testBalanced, "services take seconds to be in use; the short tier has TestBalancedServices of test/datapath"})
	}
	for _, theme := range themes {
		t.Run(theme.name, func(t *testing.T) {
			if testing.Short() && theme.complete != "" {
				t.Skip("complete tier: " + theme.complete)
			}
			theme.test(t, w)
		})
	}
}

// wholeVariable has floods and objects of full size tried, which takes minutes.
const wholeVariable = "OVSDN_E2E_WHOLE_ATTACKS"

// sized returns how large a flood is: small in a run of all tests, whole in a soak.
func sized(small, whole int) int {
	if os.Getenv(wholeVariable) != "" {
		return whole
	}
	return small
}
