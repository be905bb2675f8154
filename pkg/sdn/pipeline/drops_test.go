package pipeline

import (
	"slices"
	"testing"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Each reason but other has a flow that drops packets.
func TestDropReason(t *testing.T) {
	seen := []string{DropForeignSource} // of remote nodes
	n := Node{Mode: config.ModeMultitenant, ClusterNetworks: prefixes("10.128.0.0/14"), ServiceNetwork: prefixes("172.30.0.0/16")[0], Subnets: prefixes("10.128.0.0/23")}
	balances := n
	balances.Mode, balances.BalancesServices = config.ModeNetworkPolicy, true
	for _, n := range []Node{n, balances} {
		s, err := n.Static()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range s.Flows {
			if text, err := f.Actions[0].MarshalText(); err == nil && string(text) == "drop" {
				seen = append(seen, DropReason(f.Table, f.Priority))
			}
		}
	}
	slices.Sort(seen)
	want := DropReasons()
	slices.Sort(want)
	if got := slices.Compact(seen); !slices.Equal(got, want) {
		t.Errorf("got reasons %q, want %q", got, want)
	}
}
