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
	var wanted []openflow.FlowMod
	var index map[openflow.FlowKey]int
	both.Go(func() (err error) {
		if wanted, err = ovs.CompileFlows(want.Flows); err == nil {
			index, err = ovs.IndexFlows(wanted, want.Flows)
		}
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
	if err := com.flows(is.flows, want, wanted, index); err != nil {
		return nil, err
	}
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
	for _, g := range want {
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
		com.plan.bundle = append(com.plan.bundle, step{message: &openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: *group}})
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

// flows compares flows with the compiled wanted ones, which index contains by key.
func (com *comparison) flows(is []*openflow.FlowStatsReply, want ovs.State, wanted []openflow.FlowMod, index map[openflow.FlowKey]int) error {
	retained := make([]bool, len(wanted))
	altered := make([]bool, len(wanted))
	var deletions []step
	var a, b []byte // reused for all flows
	for _, reply := range is {
		for j := range reply.Flows {
			flow := &reply.Flows[j]
			i, ok := index[flow.Key()]
			if !ok && want.Learned.Include(int(flow.Table), flow.Cookie) {
				continue
			}
			if !ok {
				com.Foreign++
				com.AddExample(flow)
				deletions = append(deletions, step{message: &openflow.FlowMod{
					Command: openflow.FlowDeleteStrict, Table: flow.Table, Priority: flow.Priority, Match: flow.Match,
				}})
				continue
			}
			var err error
			if b, err = wanted[i].Instructions.AppendCanonical(b[:0]); err != nil {
				return ovs.NewFlowError(want.Flows[i], err.Error())
			}
			// Instructions without canonical form were not written by this package.
			a, err = flow.Instructions.AppendCanonical(a[:0])
			retained[i] = err == nil && slices.Equal(a, b) && sameProperties(flow, &wanted[i])
			if !retained[i] {
				altered[i] = true
				com.AddExample(flow)
			}
		}
	}
	for i := range wanted {
		switch {
		case retained[i]:
			continue
		case altered[i]:
			com.Altered++
		default:
			com.Missing++
		}
		com.plan.bundle = append(com.plan.bundle, step{message: &wanted[i], flow: want.Flows[i]})
	}
	com.plan.bundle = append(com.plan.bundle, deletions...)
	return nil
}

func sameProperties(is *openflow.FlowStats, want *openflow.FlowMod) bool {
	return is.Cookie == want.Cookie && is.IdleTimeout == want.IdleTimeout && is.HardTimeout == want.HardTimeout &&
		is.Flags == want.Flags && is.Importance == want.Importance
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
