package flowstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

func TestSet_invalidFlows(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	before := f.Flows()
	for name, st := range map[string]pipeline.State{
		"no actions":          flows(flow(1)),
		"no protocol":         flows(&ovs.Flow{Matches: flow(1).Matches, Actions: []ovs.Action{goovs.Drop()}}),
		"one key, two bodies": flows(flow(1, goovs.Output(1)), flow(1, goovs.Output(2))),
	} {
		err := await(t, s.Set(pod("a"), st))
		if err == nil || !strings.Contains(err.Error(), pod("a").String()) {
			t.Errorf("%s: got error %v, want one with the owner", name, err)
		}
	}
	wantFlows(t, f, before...)
}

func TestSet_onlyTheRejectedChangeFails(t *testing.T) {
	f := newFake(t)
	f.RefuseFlow = rejectPort(13)
	s := start(t, f)
	good, bad, late := pod("good"), pod("bad"), pod("late")
	for n, owner := range []pipeline.Owner{good, bad, late} {
		must(t, s.Set(owner, flows(flow(n+1, goovs.Output(n+1)))))
	}
	entered, release := hold(f)
	busy := s.Set(pod("busy"), flows(flow(9, goovs.Drop())))
	<-entered
	commits := []*Commit{s.Set(good, flows(flow(1, goovs.Output(11)))), s.Set(bad, flows(flow(20, goovs.Output(2)), flow(2, goovs.Output(13)))), s.Set(late, flows(flow(4, goovs.Output(4))))}
	release()
	must(t, busy)
	must(t, commits[0])
	must(t, commits[2])
	err := await(t, commits[1])
	var rejected *ovs.FlowError
	if !errors.As(err, &rejected) || !strings.Contains(err.Error(), bad.String()) || !strings.Contains(err.Error(), "output:13") {
		t.Errorf("got error %v, want a rejection with the owner and the flow", err)
	}
	want := []string{
		text(t, good.Cookie(), flow(1, goovs.Output(11))), text(t, bad.Cookie(), flow(2, goovs.Output(2))), text(t, late.Cookie(), flow(4, goovs.Output(4))),
		text(t, pod("busy").Cookie(), flow(9, goovs.Drop())),
	}
	wantFlows(t, f, want...)
	// The state is the current one: no bundle is needed.
	must(t, s.Set(bad, flows(flow(2, goovs.Output(2)))))
	wantFlows(t, f, want...)
}

// anonymous is a bridge whose rejections do not identify the flow.
type anonymous struct{ ovs.Interface }

func (m anonymous) Run(ctx context.Context, tx *ovs.Transaction) error {
	return m.hide(m.Interface.Run(ctx, tx))
}

func (m anonymous) Replace(ctx context.Context, want ovs.State) (ovs.Difference, error) {
	found, err := m.Interface.Replace(ctx, want)
	return found, m.hide(err)
}

func (anonymous) hide(err error) error {
	var rejected *ovs.FlowError
	if errors.As(err, &rejected) {
		return &ovs.FlowError{Reason: "rejected"}
	}
	return err
}

func TestSet_rejectionWithoutAFlow(t *testing.T) {
	for _, first := range []bool{true, false} {
		t.Run(fmt.Sprintf("in the first replacement %t", first), func(t *testing.T) {
			f := newFake(t)
			f.RefuseFlow = rejectPort(13)
			entered, release := hold(f)
			s := New(anonymous{f})
			if !first {
				s.Set(pod("busy"), flows(flow(9, goovs.Drop())))
				run(t, s)
				<-entered
			}
			good, bad, late := s.Set(pod("good"), flows(flow(1, goovs.Output(1)))), s.Set(pod("bad"), flows(flow(2, goovs.Output(13)))), s.Set(pod("late"), flows(flow(3, goovs.Output(3))))
			if first {
				run(t, s)
			}
			release()
			must(t, good)
			must(t, late)
			if err := await(t, bad); err == nil {
				t.Error("the rejected change did not fail")
			}
			must(t, s.Delete(pod("busy")))
			wantFlows(t, f, text(t, pod("good").Cookie(), flow(1, goovs.Output(1))), text(t, pod("late").Cookie(), flow(3, goovs.Output(3))))
		})
	}
}

// Only the owner of a flow that is rejected after a restart of Open vSwitch loses its flows.
func TestResync_rejectedFlowEvictsItsOwner(t *testing.T) {
	f := newFake(t)
	s := start(t, f)
	must(t, s.Set(pod("a"), flows(flow(1, goovs.Output(1)))))
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(13)), flow(3, goovs.Output(1)))))
	must(t, s.Delete(pod("c")))
	f.Restart()
	f.RefuseFlow = rejectPort(13)
	s.Resync()
	commit := s.Set(pod("b"), flows(flow(2, goovs.Output(13)), flow(4, goovs.Output(1))))
	if err := await(t, commit); err == nil {
		t.Error("the rejected change did not fail")
	}
	must(t, s.Set(pod("c"), flows(flow(5, goovs.Output(5)))))
	wantFlows(t, f, text(t, pod("a").Cookie(), flow(1, goovs.Output(1))), text(t, pod("c").Cookie(), flow(5, goovs.Output(5))))
	f.RefuseFlow = nil
	must(t, s.Set(pod("b"), flows(flow(2, goovs.Output(13)))))
}
