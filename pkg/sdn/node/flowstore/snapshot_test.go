package flowstore

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func everything(pipeline.Owner) bool { return true }

func TestSnapshot_flows(t *testing.T) {
	f := newFake(t)
	f.RefuseFlow = rejectPort(9)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)), flow(3, goovs.Conjunction(7, 1, 2)))))
	must(t, s.Set(pod("b"), flows(flow(1, goovs.Output(1)), flow(3, goovs.Conjunction(5, 1, 2)))))
	must(t, s.Set(pod("c"), balanced(2, "10.1.0.1:53")))
	if err := await(t, s.Set(pod("refused"), flows(flow(8, goovs.Output(9))))); err == nil {
		t.Fatal("the switch accepted a flow to port 9")
	}
	sn := s.Snapshot()
	if !s.IsCurrent(sn) {
		t.Error("the snapshot is not current, and nothing was written since")
	}
	got, err := sn.Flows(t.Context(), everything)
	if err != nil {
		t.Fatal(err)
	}
	texts := map[string]bool{}
	for _, d := range got {
		text := d.Key.String() + fmt.Sprintf(",cookie=%#x,actions=%s", d.Cookie, d.Actions)
		texts[text] = true
		if d.Actions == "output:9" && (len(d.Owners) != 1 || d.Owners[0] != pod("refused")) {
			t.Errorf("got owners %v of the refused flow", d.Owners)
		}
	}
	for _, want := range f.Flows() {
		if !texts[want] {
			t.Errorf("the snapshot does not have the flow %s of the switch; it has %v", want, texts)
		}
	}
	if want := len(f.Flows()) + 1; len(got) != want {
		t.Errorf("got %d flows, want %d: those of the switch, and the refused one", len(got), want)
	}
	// The conjunctions of others belong to a chosen owner's flow.
	of, err := sn.Flows(t.Context(), func(o pipeline.Owner) bool { return o == pod("b") })
	if err != nil {
		t.Fatal(err)
	}
	actions := map[string]int{}
	for _, d := range of {
		actions[d.Actions] = len(d.Owners)
	}
	if diff := cmp.Diff(map[string]int{"output:1": 2, "conjunction(5,1/2),conjunction(7,1/2)": 2}, actions); diff != "" {
		t.Errorf("flows of b (-want +got):\n%s", diff)
	}
	must(t, s.Set(pod("d"), flows(flow(5, goovs.Output(1)))))
	if s.IsCurrent(sn) {
		t.Error("the snapshot is current after a write")
	}
	if refusals, more := s.Refusals(1); len(refusals) != 1 || refusals[0].Owner != pod("refused") || more != 0 {
		t.Errorf("got refusals %v and %d more", refusals, more)
	}
	if refusals, more := s.Refusals(0); len(refusals) != 0 || more != 1 {
		t.Errorf("at most 0: got refusals %v and %d more", refusals, more)
	}
}

func TestSnapshot_duringAWrite(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	entered, release := hold(f)
	commit := s.Set(pod("b"), flows(flow(2, goovs.Output(1))))
	<-entered
	if s.IsCurrent(s.Snapshot()) {
		t.Error("a snapshot is current while flows are written")
	}
	release()
	must(t, commit)
}

func TestStatistics_times(t *testing.T) {
	f := newFake(t)
	s := New(f)
	if st := s.Statistics(); !st.LastWrite.IsZero() || !st.LastAudit.IsZero() {
		t.Errorf("before Run: got %v and %v, want no times", st.LastWrite, st.LastAudit)
	}
	run(t, s)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	eventually(t, "a comparison and a write", func() bool { // a commit may end before its write is counted
		first := s.Statistics()
		return !first.LastAudit.IsZero() && !first.LastWrite.Before(first.LastAudit)
	})
}

// The snapshot of a large store takes a moment of the lock: it copies the list of owners.
func TestSnapshot_isQuick(t *testing.T) {
	if testing.Short() {
		t.Skip("complete tier: compares times")
	}
	const number, limit = 50_000, 50 * time.Millisecond
	s := New(sink{})
	s.Resync()
	changes := make([]Change, number)
	for i := range changes {
		changes[i] = Change{Owner: pod(fmt.Sprint(i)), State: flows(flow(i, goovs.Output(1)))}
	}
	s.SetAll(changes...)
	if err := s.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	best := time.Hour
	for range 5 {
		began := time.Now()
		sn := s.Snapshot()
		best = min(best, time.Since(began))
		began = time.Now()
		all, err := sn.Flows(t.Context(), everything)
		if err != nil || len(all) != number {
			t.Fatalf("got %d flows, %v, want %d", len(all), err, number)
		}
		t.Logf("%d flows without the lock: %v", number, time.Since(began))
	}
	t.Logf("%d owners under the lock: %v", number, best)
	if best > limit {
		t.Errorf("the lock was held for %v, want at most %v", best, limit)
	}
}

func TestSnapshot_flowsAt(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)), flow(3, goovs.Conjunction(7, 1, 2)))))
	must(t, s.Set(pod("b"), flows(flow(1, goovs.Output(1)), flow(3, goovs.Conjunction(5, 1, 2)), flow(4, goovs.Output(2)))))
	must(t, s.Set(pod("c"), balanced(2, "10.1.0.1:53")))
	sn := s.Snapshot()
	all, err := sn.Flows(t.Context(), everything)
	if err != nil {
		t.Fatal(err)
	}
	cookies := map[ovs.Key]uint64{}
	for _, d := range all {
		cookies[d.Key] = d.Cookie
	}
	sorted := func(flows []DesiredFlow) []DesiredFlow {
		slices.SortFunc(flows, func(a, b DesiredFlow) int { return strings.Compare(a.Key.String(), b.Key.String()) })
		return flows
	}
	got, err := sn.FlowsAt(t.Context(), cookies)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sorted(all), sorted(got)); diff != "" {
		t.Errorf("by cookie (-want +got):\n%s", diff)
	}
	for key := range cookies {
		cookies[key] = 0
	}
	if got, err = sn.FlowsAt(t.Context(), cookies); err != nil || len(got) != len(all) {
		t.Errorf("without cookies: got %d flows, %v, want %d", len(got), err, len(all))
	}
	for key := range cookies {
		cookies[key] = pipeline.Owner{Kind: pipeline.KindNode, Key: "n"}.Cookie()
	}
	if got, err = sn.FlowsAt(t.Context(), cookies); err != nil || len(got) != 0 {
		t.Errorf("with cookies of another kind: got %v, %v", got, err)
	}
}
