package pipeline

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
)

// Samples are all that the export changes: without them the flows decide as those of a node without the export.
func TestFlowExport_changesNoVerdict(t *testing.T) {
	states := goldenStates(t)
	for with, without := range map[string]string{
		"export-node-networkpolicy": "node-networkpolicy", "export-node-multitenant": "node-multitenant", "export-egress-firewall": "egress-firewall",
	} {
		sampled := 0
		var got []string
		for line := range strings.Lines(lines(t, states[with])) {
			if match, after, ok := strings.Cut(line, "sample("); ok {
				sampled++
				_, actions, _ := strings.Cut(after, ")")
				if actions = strings.TrimPrefix(actions, ","); actions == "\n" {
					actions = "drop\n"
				}
				line = match + actions
			}
			got = append(got, line)
		}
		want := slices.Collect(strings.Lines(lines(t, states[without])))
		note := func(line string) bool { return strings.HasPrefix(line, "table=253,") }
		if diff := cmp.Diff(slices.DeleteFunc(want, note), slices.DeleteFunc(got, note)); diff != "" || sampled == 0 {
			t.Errorf("%s: %d flows with samples; flows without them (-want +got):\n%s", with, sampled, diff)
		}
	}
}

// The flows of an agent with the export are read as those of one without it, and the other way round.
func TestEgressFirewallsOf_sampled(t *testing.T) {
	dump := func(f EgressFirewall) (flows []ovs.DumpedFlow) {
		for _, flow := range f.Compile(EgressVerdicts{}).State().Flows {
			flow.Cookie = Owner{Kind: KindEgressFirewall, Key: "default"}.Cookie()
			text, err := ovs.FlowText(flow)
			if err != nil {
				t.Fatal(err)
			}
			key, err := ovs.FlowKey(flow)
			if err != nil {
				t.Fatal(err)
			}
			flows = append(flows, ovs.DumpedFlow{Key: key, Text: text, Cookie: flow.Cookie})
		}
		return flows
	}
	plain, sampled := goldenFirewall(), goldenFirewall()
	sampled.Export = exporting(inMode(config.ModeNetworkPolicy)).FlowExport
	want, got := EgressFirewallsOf(dump(plain)), EgressFirewallsOf(dump(sampled))
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b EgressFirewallRule) bool { return a.Deny == b.Deny && slices.Equal(a.To, b.To) })); diff != "" || len(got) != 1 {
		t.Errorf("firewalls read from sampled flows (-want +got):\n%s", diff)
	}
}

func TestIsDrop(t *testing.T) {
	for actions, want := range map[string]bool{
		"drop": true, "sample(probability=1,obs_point_id=4)": true, "sample(probability=1,obs_point_id=4),goto_table:29": false, "goto_table:29": false, "": false,
		"sample(": false,
	} {
		if got := IsDrop(actions); got != want {
			t.Errorf("%q: got %t, want %t", actions, got, want)
		}
	}
}

func TestExplain_samples(t *testing.T) {
	for point, want := range map[string]string{
		"1": "sampled as denied by isolation", "2": "sampled as denied, since no rule allows it", "4": "sampled as denied by an egress firewall", "435269352": "sampled as of rule 435269352",
	} {
		got := Explain(80, "", "sample(probability=1,collector_set_id=4739,obs_domain_id=7,obs_point_id="+point+"),goto_table:82")
		if diff := cmp.Diff([]string{want}, got); diff != "" {
			t.Errorf("point %s (-want +got):\n%s", point, diff)
		}
	}
}
