package native

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Replace implements Interface. It dumps the current state, compares it with the wanted state and sends the difference.
func (n *Native) Replace(ctx context.Context, want ovs.State) (found ovs.Difference, err error) {
	found, _, err = n.ReplaceIn(ctx, want)
	return found, err
}

// ReplaceIn does the same as Replace and returns the session in which it ran; a new session may have begun since.
func (n *Native) ReplaceIn(ctx context.Context, want ovs.State) (found ovs.Difference, session int64, err error) {
	err = within(ctx, replaceTimeout, n.flows, func(ctx context.Context, c *switchConn) error {
		if err := c.matchFragments(ctx); err != nil {
			return err
		}
		com, err := compare(ctx, c, want)
		session = c.number
		if err != nil || com.Changes() == 0 {
			return err
		}
		found = com.Difference
		return c.apply(ctx, &com.plan)
	})
	return found, session, err
}

// comparison is the difference between the state of the switch and the wanted state, with the plan that removes it.
type comparison struct {
	ovs.Difference
	plan plan
}

func compare(ctx context.Context, c *switchConn, want ovs.State) (*comparison, error) {
	both, dumping := errgroup.WithContext(ctx)
	var is contents
	both.Go(func() (err error) {
		is, err = c.dump(dumping)
		return err
	})
	var wanted *flowDigests
	both.Go(func() (err error) {
		wanted, err = newFlowDigests(want.Flows)
		return err
	})
	if err := both.Wait(); err != nil {
		return nil, err
	}
	com := &comparison{}
	foreign, err := com.groups(is.groups, want.Groups)
	if err != nil {
		return nil, err
	}
	com.flows(is.flows, wanted, want.Learned)
	com.plan.bundle = append(com.plan.bundle, foreign...)
	return com, com.meters(is.meters, want.Meters)
}

// groups compares groups. Foreign groups are deleted last, because flows may use them until then.
func (com *comparison) groups(is []openflow.Group, want []ovs.Group) (deletions []step, err error) {
	left := make(map[uint32]*openflow.Group, len(is))
	for i := range is {
		left[is[i].ID] = &is[i]
	}
	seen := make(map[uint32]bool, len(want))
	for i, g := range want {
		group, err := ovs.CompileGroup(g)
		if err != nil {
			return nil, err
		}
		if seen[g.ID] {
			return nil, &ovs.GroupError{ID: g.ID, Group: group.String(), Reason: ovs.ReasonTwice}
		}
		seen[g.ID] = true
		old, exists := left[g.ID]
		delete(left, g.ID)
		switch {
		case !exists:
			com.Missing++
		case sameGroup(old, group):
			continue
		default:
			com.Altered++
			com.AddExample(old)
		}
		com.plan.bundle = append(com.plan.bundle, step{group: &want[i]})
	}
	for id, old := range left {
		com.Foreign++
		com.AddExample(old)
		deletions = append(deletions, step{message: deletionOfGroup(id)})
	}
	return deletions, nil
}

// sameGroup reports whether the groups are equivalent. A group without canonical form was not written by this package.
func sameGroup(is, want *openflow.Group) bool {
	a, err := is.Canonical()
	if err != nil {
		return false
	}
	b, err := want.Canonical()
	return err == nil && a == b
}

// flows compares flows with the wanted ones.
func (com *comparison) flows(is []*openflow.FlowStatsReply, wanted *flowDigests, learned ovs.LearnedFlows) {
	var deletions []step
	for _, reply := range is {
		for j := range reply.Flows {
			flow := &reply.Flows[j]
			found, ok := wanted.compare(flow)
			switch {
			case ok && found == isSame, !ok && learned.Include(int(flow.Table), flow.Cookie):
				continue
			case !ok:
				com.Foreign++
				deletions = append(deletions, step{message: &openflow.FlowMod{
					Command: openflow.FlowDeleteStrict, Table: flow.Table, Priority: flow.Priority, Match: flow.Match,
				}})
			}
			com.AddExample(flow)
		}
	}
	additions, missing, altered := wanted.steps()
	com.Missing += missing
	com.Altered += altered
	com.plan.bundle = slices.Concat(com.plan.bundle, additions, deletions)
}

// meters compares meters.
func (com *comparison) meters(is []openflow.Meter, want []ovs.Meter) error {
	left := make(map[uint32]*openflow.Meter, len(is))
	for i := range is {
		left[is[i].ID] = &is[i]
	}
	seen := make(map[uint32]bool, len(want))
	for _, m := range want {
		text, err := ovs.MeterText(m)
		if err != nil {
			return err
		}
		if seen[m.ID] {
			return &ovs.MeterError{ID: m.ID, Meter: text, Reason: ovs.ReasonTwice}
		}
		seen[m.ID] = true
		meter := ovs.CompileMeter(m)
		old, exists := left[m.ID]
		delete(left, m.ID)
		switch {
		case !exists:
			com.Missing++
		case old.Flags == meter.Flags && slices.Equal(old.Bands, meter.Bands):
			continue
		default:
			com.Altered++
			com.AddExample(old)
		}
		com.plan.meters = append(com.plan.meters, meter)
	}
	for id, old := range left {
		com.Foreign++
		com.AddExample(old)
		com.plan.deletedMeters = append(com.plan.deletedMeters, id)
	}
	return nil
}
