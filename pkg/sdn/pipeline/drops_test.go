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

// Each flow that drops packets has an explanation: that of its table, except for tables whose last flow no packet reaches.
func TestExplainDrop(t *testing.T) {
	unreached := []int{
		tableServiceAddress, tableOwnNodePort, tableEgressTrack, tableEgressAllowed, tableIngressPolicy, tableIngressAllowed, tableICMPError, tableARPAnswer, tableEndpoint,
		tableAffinity, tableSelect, tableLearn, tableTranslate, tableReject, tableIdled, tableServiceReply, tableOutsideReply, tableCommit,
	}
	for _, mode := range []config.Mode{config.ModeSubnet, config.ModeMultitenant, config.ModeNetworkPolicy} {
		for _, balances := range []bool{false, true} {
			n := Node{
				Mode: mode, ClusterNetworks: prefixes("10.128.0.0/14"), ServiceNetwork: prefixes("172.30.0.0/16")[0], Subnets: prefixes("10.128.0.0/23"), BalancesServices: balances,
				HoldsIdled: balances,
			}
			s, err := n.Static()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range s.Flows {
				if text, err := f.Actions[0].MarshalText(); err != nil || string(text) != "drop" {
					continue
				}
				explained := ExplainDrop(f.Table, f.Priority) != ExplainDrop(tableCommit, 0)
				if want := !slices.Contains(unreached, f.Table) || f.Priority > 0; explained != want {
					t.Errorf("table %d, priority %d: got %q", f.Table, f.Priority, ExplainDrop(f.Table, f.Priority))
				}
			}
		}
	}
}
