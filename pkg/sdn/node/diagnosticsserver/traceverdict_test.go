package diagnosticsserver

import (
	"testing"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Flows with a sample deny an endpoint only if they have no other action.
func TestDeniesEndpoint(t *testing.T) {
	for name, test := range map[string]struct {
		actions []string
		want    bool
	}{
		"drop":           {[]string{"drop"}, true},
		"logged":         {[]string{"meter:65539", "controller(id=1)"}, true},
		"sampled drop":   {[]string{"sample(probability=163,obs_point_id=4)"}, true},
		"sampled denial": {[]string{"sample(probability=163,obs_point_id=9)", "load:0x9->NXM_NX_REG5[]", "goto_table:29"}, false},
		"sampled":        {[]string{"sample(probability=163,obs_point_id=9)", "goto_table:28"}, false},
		"allowed":        {[]string{"goto_table:28"}, false},
	} {
		flow := &ovs.TracedFlow{Key: ovs.Key{Table: pipeline.EgressFirewallTable}}
		for _, a := range test.actions {
			flow.Actions = append(flow.Actions, ovs.TracedAction{Text: a})
		}
		if got := deniesEndpoint(place{flow: flow}); got != test.want {
			t.Errorf("%s: got %t, want %t", name, got, test.want)
		}
	}
}
