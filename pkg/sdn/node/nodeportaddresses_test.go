package node

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestConfig_nodePortRanges(t *testing.T) {
	for _, tc := range []struct {
		values []string
		want   string
	}{
		{nil, "[]"},
		{[]string{"primary"}, "[172.31.0.11/32]"},
		{[]string{"192.0.2.9/24", "10.0.0.0/8", "192.0.2.128/25", "192.0.2.0/24"}, "[10.0.0.0/8 192.0.2.0/24]"},
		{[]string{"192.0.2.0/24", "0.0.0.0/0"}, "[]"},
	} {
		c := Config{NodePortAddresses: tc.values}
		got, err := c.nodePortRanges(netip.MustParseAddr("172.31.0.11"))
		if fmt.Sprint(got) != tc.want || err != nil {
			t.Errorf("%q: got %v (%v), want %s", tc.values, got, err, tc.want)
		}
	}
}
