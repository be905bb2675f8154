package native

import (
	"errors"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

func digestFlow(table int, cookie uint64, actions ...ovs.Action) *ovs.Flow {
	return &ovs.Flow{Table: table, Priority: 100, Protocol: goovs.ProtocolTCPv4, Cookie: cookie, Actions: actions}
}

// statsOf returns the flow as the switch reports it.
func statsOf(t *testing.T, f *ovs.Flow) *openflow.FlowStats {
	t.Helper()
	mod, err := ovs.CompileFlow(f)
	if err != nil {
		t.Fatal(err)
	}
	return &openflow.FlowStats{Table: mod.Table, Priority: mod.Priority, Match: mod.Match, Cookie: mod.Cookie, IdleTimeout: mod.IdleTimeout, Instructions: mod.Instructions}
}

func TestFlowDigestsCompare(t *testing.T) {
	wanted := []*ovs.Flow{digestFlow(1, 7, goovs.Output(1)), digestFlow(2, 7, goovs.Output(1)), digestFlow(3, 7, goovs.Output(1)), digestFlow(4, 7, goovs.Output(1))}
	digests, err := newFlowDigests(ovs.State{Flows: wanted})
	if err != nil {
		t.Fatal(err)
	}
	withFlags := statsOf(t, digestFlow(4, 7, goovs.Output(1)))
	withFlags.Flags = openflow.FlowSendRemoved
	for _, c := range []struct {
		name   string
		is     *openflow.FlowStats
		state  wantedState
		wanted bool
	}{
		{"the same", statsOf(t, digestFlow(1, 7, goovs.Output(1))), isSame, true},
		{"another cookie", statsOf(t, digestFlow(2, 8, goovs.Output(1))), isAltered, true},
		{"other actions", statsOf(t, digestFlow(3, 7, goovs.Output(2))), isAltered, true},
		{"other flags", withFlags, isAltered, true},
		{"another key", statsOf(t, digestFlow(5, 7, goovs.Output(1))), isMissing, false},
	} {
		if state, ok := digests.compare(c.is); state != c.state || ok != c.wanted {
			t.Errorf("%s: got state %d, wanted %t, want %d, %t", c.name, state, ok, c.state, c.wanted)
		}
	}
}

// TestFlowDigestsRetainNoMessages checks that the additions of many flows do not exist at the same time.
func TestFlowDigestsRetainNoMessages(t *testing.T) {
	wanted := []*ovs.Flow{digestFlow(1, 7, goovs.Output(1)), digestFlow(2, 7, goovs.Output(1)), digestFlow(3, 7, goovs.Output(1))}
	digests, err := newFlowDigests(ovs.State{Flows: wanted})
	if err != nil {
		t.Fatal(err)
	}
	digests.compare(statsOf(t, wanted[0]))
	digests.compare(statsOf(t, digestFlow(2, 7, goovs.Output(9))))
	steps, missing, altered := digests.steps()
	if len(steps) != 2 || missing != 1 || altered != 1 {
		t.Fatalf("got %d steps, %d missing, %d altered, want 2, 1, 1", len(steps), missing, altered)
	}
	for i, s := range steps {
		if s.message != nil || s.flow != wanted[i+1] {
			t.Errorf("step %d: got message %v and flow %v, want no message and flow %v", i, s.message, s.flow, wanted[i+1])
		}
		m, err := s.compile()
		if err != nil {
			t.Fatal(err)
		}
		if mod, ok := m.(*openflow.FlowMod); !ok || int(mod.Table) != wanted[i+1].Table {
			t.Errorf("step %d: got message %v, want the addition of %v", i, m, wanted[i+1])
		}
	}
}

// TestFlowDigestsOfTexts checks that flows by their texts are compared and added as others.
func TestFlowDigestsOfTexts(t *testing.T) {
	f := digestFlow(2, 7, goovs.Output(1))
	key, err := ovs.FlowKey(f)
	if err != nil {
		t.Fatal(err)
	}
	actions, err := ovs.ActionsText(f)
	if err != nil {
		t.Fatal(err)
	}
	want := ovs.State{Flows: []*ovs.Flow{digestFlow(1, 7, goovs.Output(1))}, Texts: []ovs.TextFlow{{Key: key, Actions: actions, Cookie: 7}}}
	digests, err := newFlowDigests(want)
	if err != nil {
		t.Fatal(err)
	}
	steps, missing, _ := digests.steps()
	if len(steps) != 2 || missing != 2 || steps[0].addition() != want.Flows[0] || steps[1].addition().Table != 2 {
		t.Errorf("got steps %v and %d missing, want the additions of both flows", steps, missing)
	}
	if state, ok := digests.compare(statsOf(t, f)); state != isSame || !ok {
		t.Errorf("got state %d, wanted %t, want the same flow", state, ok)
	}
}

func TestFlowDigestsRejectTheSameKeyTwice(t *testing.T) {
	_, err := newFlowDigests(ovs.State{Flows: []*ovs.Flow{digestFlow(1, 7, goovs.Output(1)), digestFlow(1, 8, goovs.Output(2))}})
	var rejected *ovs.FlowError
	if !errors.As(err, &rejected) || rejected.Reason != ovs.ReasonTwice || rejected.Key.Table != 1 {
		t.Errorf("got %v, want a flow error of table 1 with reason %q", err, ovs.ReasonTwice)
	}
}
