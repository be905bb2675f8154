package servicenat

import (
	"regexp"
	"strings"
	"testing"
)

// Node ports precede addresses of other services, and addresses that tenants choose are not looked up for packets of the node, nor for those to it. Other chains have
// no lookups.
func TestOptions_ruleOrder(t *testing.T) {
	const received = "lo rejected-node-ports dropped-node-ports tenant-external-ips rejected-addresses dropped-addresses"
	want := map[string]string{
		"limit-prerouting": "lo all-node-ports tenant-external-ips limited-addresses source-ranges",
		"limit-output":     "all-node-ports tenant-external-ips limited-addresses source-ranges",
		"prerouting":       "lo node-ports all-node-ports tenant-external-ips external-addresses",
		"output":           "node-ports all-node-ports tenant-external-ips external-addresses",
		"filter-input":     received,
		"filter-forward":   received,
		"filter-output":    "rejected-node-ports dropped-node-ports tenant-external-ips rejected-addresses dropped-addresses",
		"forward":          "",
		"postrouting":      "",
	}
	names := regexp.MustCompile(`@([a-z-]+)|"(lo)"`)
	for _, c := range testOptions().chains() {
		var got []string
		for _, rule := range c.rules {
			for _, m := range names.FindAllStringSubmatch(rule, -1) {
				got = append(got, m[1]+m[2])
			}
			exempts := strings.Contains(rule, `"lo"`) || strings.Contains(rule, "@"+setNodePorts) || strings.Contains(rule, "@"+setTenantIPs)
			if exempts != strings.HasSuffix(rule, " return") {
				t.Errorf("chain %s: got rule %q, want return in the rules of packets that the next ones do not concern", c.name, rule)
			}
		}
		if got := strings.Join(got, " "); got != want[c.name] {
			t.Errorf("chain %s: got lookups %q, want %q", c.name, got, want[c.name])
		}
		delete(want, c.name)
	}
	if len(want) > 0 {
		t.Errorf("got no chains %v", want)
	}
}
