package ovs

import (
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
)

// A flow and a group that are made of texts equal those from which the texts were made.
func TestFlowOf(t *testing.T) {
	all := append(benchFlows(8), &Flow{Table: 3, Priority: 7, IdleTimeout: 9, Actions: []Action{goovs.Drop()}})
	all = append(all, &Flow{Protocol: goovs.ProtocolIPv4, InPort: goovs.PortLOCAL, Actions: []Action{ThroughMeter(5), goovs.Output(2)}})
	for _, want := range all {
		key, err := FlowKey(want)
		if err != nil {
			t.Fatal(err)
		}
		actions, err := ActionsText(want)
		if err != nil {
			t.Fatal(err)
		}
		state := State{Flows: []*Flow{{Table: 9}}, Texts: []TextFlow{{}, {Key: key, Actions: actions, IdleTimeout: want.IdleTimeout, Cookie: want.Cookie}}}
		if n := state.NumFlows(); n != 3 || state.Flow(0) != state.Flows[0] {
			t.Fatalf("got %d flows and first flow %v, want 3 and %v", n, state.Flow(0), state.Flows[0])
		}
		got := state.Flow(2)
		wantText, err := FlowText(want)
		if err != nil {
			t.Fatal(err)
		}
		if text, err := FlowText(got); err != nil || text != wantText {
			t.Errorf("got flow %q (error %v), want %q", text, err, wantText)
		}
	}

	buckets := []Bucket{{Weight: 2, Actions: []Action{goovs.Output(1)}}, {Actions: []Action{goovs.Resubmit(0, 67)}}}
	text, err := BucketsText(buckets)
	if err != nil {
		t.Fatal(err)
	}
	got, err := GroupText(Group{ID: 4, Text: text})
	if want, wantErr := GroupText(Group{ID: 4, Buckets: buckets}); err != nil || wantErr != nil || got != want {
		t.Errorf("got group %q (error %v), want %q (error %v)", got, err, want, wantErr)
	}
}
