package flowstore

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
	"github.com/ovsdn/ovsdn/test/tier"
)

func endpoint(addr string) ovs.Bucket {
	return ovs.Bucket{Actions: []ovs.Action{goovs.ConnectionTracking("commit,zone=1,nat(dst=" + addr + "),table=27")}}
}

// balanced is the state of a service: a flow with a meter and a group.
func balanced(n int, endpoints ...string) pipeline.State {
	st := flows(flow(n, ovs.ThroughMeter(uint32(n)), pipeline.ToGroup("web")))
	web := pipeline.Group{Name: "web"}
	for _, e := range endpoints {
		web.Buckets = append(web.Buckets, endpoint(e))
	}
	st.Groups = []pipeline.Group{web}
	st.Meters = []ovs.Meter{{ID: uint32(n), Unit: ovs.Packets, Rate: 100}}
	return st
}

func TestSet_groupAndMeter(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, b := pod("a"), pod("b")
	must(t, s.Set(a, balanced(1, "10.1.0.1:53", "10.1.0.2:53")))
	must(t, s.Set(b, balanced(2, "10.1.0.1:53"))) // with the same group name
	if len(f.Groups()) != 2 || len(f.Meters()) != 2 || len(f.Flows()) != 2 {
		t.Fatalf("got groups %q, meters %q, flows %q, want two each", f.Groups(), f.Meters(), f.Flows())
	}
	before, bundles := f.Changes(), f.Bundles()
	must(t, s.Set(a, balanced(1, "10.1.0.1:53", "10.1.0.3:53")))
	if n := f.Changes() - before; n != 1 || f.Bundles() != bundles+1 {
		t.Errorf("got %d changes for another endpoint, want only that of the group", n)
	}
	must(t, s.Delete(b))
	if len(f.Groups()) != 1 || len(f.Meters()) != 1 || len(f.Flows()) != 1 {
		t.Errorf("got groups %q, meters %q, flows %q, want one each", f.Groups(), f.Meters(), f.Flows())
	}
	must(t, s.Delete(a))
	if len(f.Groups()) != 0 || len(f.Meters()) != 0 || len(f.Flows()) != 0 {
		t.Errorf("got groups %q, meters %q, flows %q, want none", f.Groups(), f.Meters(), f.Flows())
	}
	if len(s.table.entries) != 0 || len(s.table.numbers.keys) != 0 {
		t.Errorf("got entries %v and numbers %v in the store, want none", s.table.entries, s.table.numbers.keys)
	}
}

func TestSet_invalidObjects(t *testing.T) {
	s := New(newFake(t))
	group := pipeline.Group{Name: "g", Buckets: []ovs.Bucket{endpoint("10.1.0.1")}}
	meter := ovs.Meter{ID: 1, Unit: ovs.Packets, Rate: 1}
	for name, st := range map[string]pipeline.State{
		"a group that does not exist":             flows(flow(1, pipeline.ToGroup("g"))),
		"a bucket to a group that does not exist": {Groups: []pipeline.Group{{Name: "h", Buckets: []ovs.Bucket{{Actions: []ovs.Action{pipeline.ToGroup("g")}}}}}},
		"two groups of one name":                  {Groups: []pipeline.Group{group, group}},
		"two meters of one number":                {Meters: []ovs.Meter{meter, meter}},
		"a meter without a rate":                  {Meters: []ovs.Meter{{ID: 1, Unit: ovs.Packets}}},
		"too many buckets":                        {Groups: []pipeline.Group{{Name: "g", Buckets: make([]ovs.Bucket, 513)}}},
		"a reference without a name":              flows(flow(1, pipeline.ToGroup(""))),
	} {
		select {
		case <-s.Set(pod("a"), st).done:
		default:
			t.Errorf("%s: the commit is not complete", name)
		}
	}
}

func TestSet_groupsOfTwoOwnersWithOneName(t *testing.T) {
	s := start(t, newFake(t))
	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53")))
	var conflict *ConflictError
	if err := await(t, s.Set(pod("b"), balanced(1, "10.1.0.1:53"))); !errors.As(err, &conflict) || conflict.Rival != pod("a") {
		t.Errorf("got error %v, want a conflict", err)
	}
}

func TestAllocateNumber_collision(t *testing.T) {
	first := newTable()
	k := groupKey(pod("a"), "web")
	n := first.entry(k).number
	again := newTable()
	if m := again.entry(k).number; m != n {
		t.Errorf("got number %d the second time, want %d", m, n)
	}
	other := newTable()
	other.numbers.keys[n] = key{kind: kindGroup, text: "another"}
	if m := other.entry(k).number; m != n+1 {
		t.Errorf("got number %d, want %d after the allocated one", m, n+1)
	}
}

// The changes of flows, groups and meters on a real switch, with the messages of each phase.
func TestRun_groupsAndMetersOnTheSwitch(t *testing.T) {
	tier.Parallel(t)
	sw, bridge, relay := newRelay(t)
	s := New(bridge)
	stop := run(t, s)
	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53", "10.1.0.2:53")))
	must(t, s.Set(pod("b"), balanced(2, "10.1.0.3:53")))
	relay.take()

	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53", "10.1.0.9:53")))
	if got, want := relay.take(), (counts{groups: 1, bundles: 1}); got != want {
		t.Errorf("another endpoint: got %+v, want %+v", got, want)
	}
	must(t, s.Set(pod("b"), balanced(2, "10.1.0.3:53")))
	if got := relay.take(); got != (counts{}) {
		t.Errorf("equal state: got %+v, want no change", got)
	}
	// Only the group that the switch rejects fails.
	bad := balanced(3, "10.1.0.4:53")
	bad.Groups[0].Buckets = append(bad.Groups[0].Buckets, ovs.Bucket{Actions: []ovs.Action{ovs.GotoTable(30)}})
	commits := s.SetAll(Change{Owner: pod("bad"), State: bad}, Change{Owner: pod("c"), State: balanced(4, "10.1.0.5:53")})
	must(t, commits[1])
	var rejected *ovs.GroupError
	if err := await(t, commits[0]); !errors.As(err, &rejected) || !strings.Contains(err.Error(), pod("bad").String()) || !strings.Contains(err.Error(), "goto_table:30") {
		t.Errorf("got error %v, want a rejection with the owner and the group", err)
	}
	stop()

	// Another agent with the same state changes nothing.
	second := New(bridge)
	desired := []Change{
		{Owner: pod("c"), State: balanced(4, "10.1.0.5:53")}, {Owner: pod("b"), State: balanced(2, "10.1.0.3:53")},
		{Owner: pod("a"), State: balanced(1, "10.1.0.1:53", "10.1.0.9:53")},
	}
	relay.take()
	commits = second.SetAll(desired...)
	second.auditInterval = 10 * time.Millisecond
	stop = run(t, second)
	for _, c := range commits {
		must(t, c)
	}
	if got := relay.take(); got != (counts{}) {
		t.Errorf("restart of the agent: got %+v, want no change", got)
	}

	repairsForeignChanges(t, sw, second)
	stop()
	if diff := sw.Diff(t, allFlows(second.table.state())); diff != "" {
		t.Error(diff)
	}
	if found, err := bridge.Replace(t.Context(), second.table.state()); err != nil || found.Changes() != 0 {
		t.Errorf("got difference %+v and error %v, want none", found, err)
	}
}

// repairsForeignChanges checks that changes by other programs are repaired and counted.
func repairsForeignChanges(t *testing.T, sw *ovstest.Switch, s *Store) {
	t.Helper()
	sw.OFCtl(t, "add-flow", ovstest.Bridge, "table=5,priority=9,mpls,mpls_label=5,actions=pop_mpls:0x0800,clone(output:5)")
	sw.OFCtl(t, "add-group", ovstest.Bridge, "group_id=5,type=ff,bucket=watch_port:1,actions=output:1")
	sw.OFCtl(t, "add-meter", ovstest.Bridge, "meter=5,kbps,band=type=drop,rate=5")
	sw.OFCtl(t, "del-flows", ovstest.Bridge, "table=20")
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for s.Drift().Changes() < 6 || len(sw.Dump(t)) != 3 {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("got drift %+v and flows %q, want 6 changes and 3 flows", s.Drift(), sw.Dump(t))
		}
	}
	if d := s.Drift(); d.Missing != 3 || d.Foreign != 3 || d.Altered != 0 {
		t.Errorf("got drift %+v, want 3 missing and 3 foreign", d)
	}
}

// A change of one pod sends the flows of that pod only.
func TestSet_onePodSendsItsOwnFlows(t *testing.T) {
	tier.Parallel(t)
	_, bridge, relay := newRelay(t)
	s := start(t, bridge)
	var all []Change
	for n := range 500 {
		all = append(all, Change{Owner: pod(fmt.Sprint(n)), State: flows(flow(2*n, goovs.Output(n+3)), flow(2*n+1, goovs.Output(n+3)), flow(60_000, ovs.GotoTable(30)))})
	}
	for _, c := range s.SetAll(all...) {
		must(t, c)
	}
	relay.take()
	must(t, s.Set(pod("new"), flows(flow(50_000, goovs.Output(9)), flow(50_001, goovs.Output(9)), flow(60_000, ovs.GotoTable(30)))))
	if got, want := relay.take(), (counts{flows: 2, bundles: 1}); got != want {
		t.Errorf("added: got %+v, want %+v", got, want)
	}
	must(t, s.Delete(pod("new")))
	if got, want := relay.take(), (counts{deletes: 2, bundles: 1}); got != want {
		t.Errorf("deleted: got %+v, want %+v", got, want)
	}
	must(t, s.Set(pod("7"), all[7].State))
	if got := relay.take(); got != (counts{}) {
		t.Errorf("unchanged: got %+v, want no change", got)
	}
}

// TestStateHasTexts checks that the state for a comparison has no object for a flow, except for those to groups, whose numbers their texts do not have.
func TestStateHasTexts(t *testing.T) {
	s := New(nil)
	owner := pod("a")
	st, err := compile(owner, pipeline.State{
		Flows:  []*ovs.Flow{flow(1, goovs.Output(1)), flow(2, pipeline.ToGroup("g"))},
		Groups: []pipeline.Group{{Name: "g", Buckets: []ovs.Bucket{{Actions: []ovs.Action{goovs.Output(1)}}}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	newRound(s.table, []*change{{owner: owner, new: st}})
	all := s.table.state()
	if len(all.Flows) != 1 || len(all.Texts) != 1 || all.Texts[0].Actions != "output:1" || all.Texts[0].Cookie != owner.Cookie() {
		t.Errorf("got flows %v and texts %v, want one of each", all.Flows, all.Texts)
	}
}

// TestReplacementRecordsNoKeys checks that a replacement of all flows, which installs all keys, has no second list of them.
func TestReplacementRecordsNoKeys(t *testing.T) {
	s := New(nil)
	owner := pod("a")
	st, err := compile(owner, pipeline.State{Flows: []*ovs.Flow{flow(1, goovs.Output(1))}})
	if err != nil {
		t.Fatal(err)
	}
	if r := newFullRound(s.table, []*change{{owner: owner, new: st}}); r.touched != nil || len(s.table.entries) != 1 {
		t.Errorf("got touched keys %v and %d entries, want no record and 1", r.touched, len(s.table.entries))
	}
}
