package flowstore

import (
	"maps"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// A change that is prepared after another has the same result as one that is compiled completely, and retains the objects that both have.
func TestPrepareAfter(t *testing.T) {
	owner := pod("a")
	first, second := flow(1, goovs.Output(1)), flow(2, goovs.Output(1))
	joined := flow(3, goovs.Conjunction(1, 1, 2))
	before := balanced(4, "10.1.0.1:53")
	before.Flows = append(before.Flows, first, second, joined)
	previous := Change{Owner: owner, State: before}.PrepareAfter(Change{})
	after := balanced(4, "10.1.0.2:53")
	after.Flows = append(after.Flows, first, flow(2, goovs.Output(2)), joined, flow(3, goovs.Conjunction(2, 1, 2)), before.Flows[0])
	for name, st := range map[string]pipeline.State{"changed": after, "none": {}, "the same": before} {
		t.Run(name, func(t *testing.T) {
			got := Change{Owner: owner, State: st}.PrepareAfter(previous)
			want, err := compile(owner, st)
			if err != nil || !got.prepared.equal(want) {
				t.Fatalf("got %v, want %v (error %v)", got.prepared, want, err)
			}
		})
	}
	withoutGroup := Change{Owner: owner, State: flows(before.Flows[0])}.PrepareAfter(previous)
	if withoutGroup.prepared != nil {
		t.Errorf("got %v for a flow to a group that was removed, want no state", withoutGroup.prepared)
	}

	f := newFake(t)
	s := start(t, f)
	must(t, s.SetAll(previous)[0])
	changes := f.Changes()
	must(t, s.SetAll(Change{Owner: owner, State: after}.PrepareAfter(previous))[0])
	if got := f.Changes() - changes; got != 3 {
		t.Errorf("got %d changes, want those of the group and two flows", got)
	}
	must(t, s.SetAll(previous)[0])
	must(t, s.Delete(owner))
	if len(f.Flows()) != 0 || len(s.table.entries) != 0 {
		t.Errorf("got flows %q and entries %v after the deletion, want none", f.Flows(), maps.Collect(maps.All(s.table.entries)))
	}
}
