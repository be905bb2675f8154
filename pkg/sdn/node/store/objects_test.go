package store

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/ovstest"
)

func endpoint(addr string) ovs.Bucket {
	return ovs.Bucket{Actions: []ovs.Action{goovs.ConnectionTracking("commit,zone=1,nat(dst=" + addr + "),table=27")}}
}

// balanced is a service's state: a flow, its group, a meter in front, and what the endpoints are vouched for.
func balanced(n int, endpoints ...string) pipeline.State {
	st := flows(flow(n, ovs.ThroughMeter(uint32(n)), pipeline.ToGroup("web")))
	web := pipeline.Group{Name: "web"}
	for _, e := range endpoints {
		web.Buckets = append(web.Buckets, endpoint(e))
		at := netip.MustParseAddrPort(e)
		st.Connections = append(st.Connections, pipeline.Connections{
			Connections: ovs.Connections{Zone: 1, Protocol: 17, Reply: ovs.Tuple{Src: at.Addr(), SrcPort: at.Port()}},
		})
	}
	st.Groups = []pipeline.Group{web}
	st.Meters = []ovs.Meter{{ID: uint32(n), Unit: ovs.Packets, Rate: 100}}
	return st
}

// connection is tracked since the endpoint was chosen for it.
func connection(n int, e string) ovs.Connections {
	at := netip.MustParseAddrPort(e)
	client := netip.AddrFrom4([4]byte{10, 9, 0, byte(n)})
	return ovs.Connections{
		Zone: 1, Protocol: 17, Original: ovs.Tuple{Src: client, Dst: netip.MustParseAddr("172.30.0.1"), SrcPort: 1000, DstPort: 53},
		Reply: ovs.Tuple{Src: at.Addr(), Dst: client, SrcPort: at.Port(), DstPort: 1000},
	}
}

func TestObjectsOfOneOwner(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	a, b := pod("a"), pod("b")
	must(t, s.Set(a, balanced(1, "10.1.0.1:53", "10.1.0.2:53")))
	must(t, s.Set(b, balanced(2, "10.1.0.1:53"))) // the same names, and its own all the same
	if len(f.Groups()) != 2 || len(f.Meters()) != 2 || len(f.Flows()) != 2 {
		t.Fatalf("%q %q %q", f.Groups(), f.Meters(), f.Flows())
	}
	f.Connect(connection(1, "10.1.0.1:53"))
	f.Connect(connection(2, "10.1.0.2:53"))
	before, bundles := f.Changes(), f.Bundles()
	must(t, s.Set(a, balanced(1, "10.1.0.1:53", "10.1.0.3:53")))
	if n := f.Changes() - before; n != 1 || f.Bundles() != bundles+1 {
		t.Errorf("%d changes for another endpoint, want the group's", n)
	}
	if left := f.Tracked(); len(left) != 1 || left[0] != connection(1, "10.1.0.1:53") {
		t.Errorf("connections left: %v", left)
	}
	must(t, s.Delete(b))
	if len(f.Groups()) != 1 || len(f.Meters()) != 1 || len(f.Flows()) != 1 {
		t.Errorf("%q %q %q", f.Groups(), f.Meters(), f.Flows())
	}
	must(t, s.Delete(a))
	if len(f.Groups()) != 0 || len(f.Meters()) != 0 || len(f.Flows()) != 0 || len(f.Tracked()) != 0 {
		t.Errorf("%q %q %q %v", f.Groups(), f.Meters(), f.Flows(), f.Tracked())
	}
	if len(s.table.entries) != 0 || len(s.table.numbers) != 0 {
		t.Errorf("the store remembers %v, %v", s.table.entries, s.table.numbers)
	}
}

func TestConnectionsGoWithTheirGround(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	vouch := func(ground string) pipeline.State {
		return pipeline.State{Connections: []pipeline.Connections{{Connections: ovs.Connections{Zone: 1, Protocol: 17}, Ground: ground}}}
	}
	f.Connect(connection(1, "10.1.0.1:53"))
	must(t, s.Set(pod("a"), vouch("policy 1")))
	must(t, s.Set(pod("a"), vouch("policy 1")))
	if len(f.Tracked()) != 1 {
		t.Error("a connection was forgotten for nothing")
	}
	must(t, s.Set(pod("a"), vouch("policy 2")))
	if len(f.Tracked()) != 0 {
		t.Error("the policy is another, the connections are the old")
	}
	// What a full replacement brings along is forgotten too.
	f.Connect(connection(1, "10.1.0.1:53"))
	s.Resync()
	must(t, s.Delete(pod("a")))
	if len(f.Tracked()) != 0 {
		t.Error("the owner went, its connections did not")
	}
}

func TestLearnedFlowsLastAsLongAsSomebodyNamesThem(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	affinity := ovs.Learned{Table: 61, Cookie: 77}
	learn := func() {
		tx := f.NewTransaction()
		tx.Add(&ovs.Flow{Table: 61, Priority: 1, Cookie: 77, Actions: []ovs.Action{goovs.Drop()}})
		if err := f.Run(t.Context(), tx); err != nil {
			t.Fatal(err)
		}
	}
	must(t, s.Set(pod("a"), pipeline.State{Learned: []ovs.Learned{affinity}}))
	must(t, s.Set(pod("b"), pipeline.State{Learned: []ovs.Learned{affinity}}))
	learn()
	s.Resync()
	must(t, s.Delete(pod("a")))
	if len(f.Flows()) != 1 {
		t.Error("a learned flow is gone though it is named")
	}
	must(t, s.Delete(pod("b")))
	if len(f.Flows()) != 0 {
		t.Errorf("left: %q", f.Flows())
	}
	learn()
	s.Resync()
	must(t, s.Set(pod("c"), flows(flow(1, goovs.Drop()))))
	if len(f.Flows()) != 1 {
		t.Errorf("what nobody names is foreign: %q", f.Flows())
	}
}

func TestBadObjects(t *testing.T) {
	s := New(newFake(t))
	group := pipeline.Group{Name: "g", Buckets: []ovs.Bucket{endpoint("10.1.0.1")}}
	meter := ovs.Meter{ID: 1, Unit: ovs.Packets, Rate: 1}
	vouched := pipeline.Connections{Connections: ovs.Connections{Zone: 1}}
	for name, st := range map[string]pipeline.State{
		"a group that is not there":  flows(flow(1, pipeline.ToGroup("g"))),
		"a bucket to nowhere":        {Groups: []pipeline.Group{{Name: "h", Buckets: []ovs.Bucket{{Actions: []ovs.Action{pipeline.ToGroup("g")}}}}}},
		"two groups of one name":     {Groups: []pipeline.Group{group, group}},
		"two meters of one number":   {Meters: []ovs.Meter{meter, meter}},
		"a meter without a rate":     {Meters: []ovs.Meter{{ID: 1, Unit: ovs.Packets}}},
		"too many buckets":           {Groups: []pipeline.Group{{Name: "g", Buckets: make([]ovs.Bucket, 513)}}},
		"zone 0":                     {Connections: []pipeline.Connections{{}}},
		"connections vouched twice":  {Connections: []pipeline.Connections{vouched, vouched}},
		"learned in table 255":       {Learned: []ovs.Learned{{Table: 255}}},
		"a reference without a name": flows(flow(1, pipeline.ToGroup(""))),
	} {
		select {
		case <-s.Set(pod("a"), st).done:
		default:
			t.Errorf("%s: taken", name)
		}
	}
}

func TestSameNamesOfTwoOwnersAreNotTheSameGroup(t *testing.T) {
	s := start(t, newFake(t))
	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53")))
	var conflict *ConflictError
	if err := await(t, s.Set(pod("b"), balanced(1, "10.1.0.1:53"))); !errors.As(err, &conflict) || conflict.Rival != pod("a") {
		t.Errorf("got %v, want a conflict", err)
	}
}

func TestNumbersThatMeet(t *testing.T) {
	first := newTable()
	k := groupKey(pod("a"), "web")
	n := first.entry(k).number
	again := newTable()
	if m := again.entry(k).number; m != n {
		t.Errorf("number %d, then %d", n, m)
	}
	other := newTable()
	other.numbers[n] = key{kind: kindGroup, name: "another"}
	if m := other.entry(k).number; m != n+1 {
		t.Errorf("number %d is taken: got %d", n, m)
	}
}

// Through the codec and a real switch: every phase, and its messages.
func TestObjectsOnTheSwitch(t *testing.T) {
	sw, bridge, relay := newRelay(t)
	s := New(bridge)
	stop := run(t, s)
	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53", "10.1.0.2:53")))
	must(t, s.Set(pod("b"), balanced(2, "10.1.0.3:53")))
	relay.take()

	must(t, s.Set(pod("a"), balanced(1, "10.1.0.1:53", "10.1.0.9:53")))
	if got, want := relay.take(), (counts{groups: 1, flushes: 1, bundles: 1}); got != want {
		t.Errorf("for another endpoint: %+v, want %+v", got, want)
	}
	must(t, s.Set(pod("b"), balanced(2, "10.1.0.3:53")))
	if got := relay.take(); got != (counts{}) {
		t.Errorf("for nothing: %+v", got)
	}
	// A group that the switch refuses fails alone.
	bad := balanced(3, "10.1.0.4:53")
	bad.Groups[0].Buckets = append(bad.Groups[0].Buckets, ovs.Bucket{Actions: []ovs.Action{ovs.GotoTable(30)}})
	commits := s.SetAll(Change{Owner: pod("bad"), State: bad}, Change{Owner: pod("c"), State: balanced(4, "10.1.0.5:53")})
	must(t, commits[1])
	var refused *ovs.GroupError
	if err := await(t, commits[0]); !errors.As(err, &refused) || !strings.Contains(err.Error(), pod("bad").String()) || !strings.Contains(err.Error(), "goto_table:30") {
		t.Errorf("got %v, want a refusal that names the owner and the group", err)
	}
	stop()

	// The same again, by another agent: nothing to do.
	second := New(bridge)
	desire := []Change{
		{Owner: pod("c"), State: balanced(4, "10.1.0.5:53")}, {Owner: pod("b"), State: balanced(2, "10.1.0.3:53")},
		{Owner: pod("a"), State: balanced(1, "10.1.0.1:53", "10.1.0.9:53")},
	}
	relay.take()
	commits = second.SetAll(desire...)
	second.auditEvery = 10 * time.Millisecond
	stop = run(t, second)
	for _, c := range commits {
		must(t, c)
	}
	if got := relay.take(); got != (counts{}) {
		t.Errorf("for a restart of the agent: %+v", got)
	}

	// What others do is repaired and counted.
	sw.OFCtl(t, "add-flow", ovstest.Bridge, "table=5,priority=9,mpls,mpls_label=5,actions=pop_mpls:0x0800,clone(output:5)")
	sw.OFCtl(t, "add-group", ovstest.Bridge, "group_id=5,type=ff,bucket=watch_port:1,actions=output:1")
	sw.OFCtl(t, "add-meter", ovstest.Bridge, "meter=5,kbps,band=type=drop,rate=5")
	sw.OFCtl(t, "del-flows", ovstest.Bridge, "table=20")
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for second.Drift().Changes() < 6 || len(sw.Dump(t)) != 3 {
		select {
		case <-tick.C:
		case <-t.Context().Done():
			t.Fatalf("drift: %+v; flows: %q", second.Drift(), sw.Dump(t))
		}
	}
	stop()
	if d := second.Drift(); d.Missing != 3 || d.Foreign != 3 || d.Altered != 0 {
		t.Errorf("drift: %+v", d)
	}
	if diff := sw.Diff(t, second.table.state().Flows); diff != "" {
		t.Error(diff)
	}
	if found, err := bridge.Replace(t.Context(), second.table.state()); err != nil || found.Changes() != 0 {
		t.Errorf("still different: %+v, %v", found, err)
	}
}

// A pod costs its own flows, however many there are.
func TestOnePodSendsItsOwnFlows(t *testing.T) {
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
		t.Errorf("added: %+v, want %+v", got, want)
	}
	must(t, s.Delete(pod("new")))
	if got, want := relay.take(), (counts{deletes: 2, bundles: 1}); got != want {
		t.Errorf("deleted: %+v, want %+v", got, want)
	}
	must(t, s.Set(pod("7"), all[7].State))
	if got := relay.take(); got != (counts{}) {
		t.Errorf("unchanged: %+v", got)
	}
}
