package native

import (
	"context"
	"slices"

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
		difference, plan, err := compare(ctx, c, want)
		session = c.number
		if err != nil || difference.Changes() == 0 {
			return err
		}
		found = difference
		return c.apply(ctx, plan)
	})
	return found, session, err
}

// comparison compares the state of the switch with the wanted state.
type comparison struct {
	ovs.Difference

	flows   *flowDigests
	groups  *wantedGroups
	learned ovs.LearnedFlows
	meters  []openflow.Meter // of the switch
	foreign []step           // deletions of flows
	unused  []step           // deletions of groups
}

// compare returns the difference and its plan, apart from the comparison, whose digests are not needed while the plan is applied.
func compare(ctx context.Context, c *switchConn, want ovs.State) (found ovs.Difference, p *plan, err error) {
	com := &comparison{learned: want.Learned}
	if com.flows, err = newFlowDigests(want); err != nil {
		return found, nil, err
	}
	if com.groups, err = newWantedGroups(want.Groups); err != nil {
		return found, nil, err
	}
	err = c.dump(ctx, dumped{flow: com.flow, group: com.group, meter: func(m *openflow.Meter) { com.meters = append(com.meters, *m) }})
	if err == nil {
		err = com.groups.err
	}
	if err != nil {
		return found, nil, err
	}
	// Flows may use a new group, and until they are deleted or replaced one that is not wanted.
	p = &plan{bundle: slices.Concat(com.missing(com.groups.steps()), com.missing(com.flows.steps()), com.foreign, com.unused)}
	err = com.compareMeters(p, want.Meters)
	return com.Difference, p, err
}

// missing counts wanted elements that are not on the switch, or differ there, and returns the steps that add them.
func (com *comparison) missing(steps []step, missing, altered int) []step {
	com.Missing += missing
	com.Altered += altered
	return steps
}

// flow compares a flow of the switch.
func (com *comparison) flow(is *openflow.FlowStats) {
	state, wanted := com.flows.compare(is)
	switch {
	case state == isSame, !wanted && com.learned.Include(int(is.Table), is.Cookie):
		return
	case !wanted:
		com.Foreign++
		com.foreign = append(com.foreign, step{message: &openflow.FlowMod{
			Command: openflow.FlowDeleteStrict, Table: is.Table, Priority: is.Priority, Match: is.Match,
		}})
	}
	com.AddExample(is)
}

// group compares a group of the switch.
func (com *comparison) group(is *openflow.Group) {
	state, wanted := com.groups.compare(is)
	switch {
	case state == isSame:
		return
	case !wanted:
		com.Foreign++
		com.unused = append(com.unused, step{message: deletionOfGroup(is.ID)})
	}
	com.AddExample(is)
}

// compareMeters compares meters, and adds their changes to the plan.
func (com *comparison) compareMeters(p *plan, want []ovs.Meter) error {
	left := make(map[uint32]*openflow.Meter, len(com.meters))
	for i := range com.meters {
		left[com.meters[i].ID] = &com.meters[i]
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
		p.meters = append(p.meters, meter)
	}
	for id, old := range left {
		com.Foreign++
		com.AddExample(old)
		p.deletedMeters = append(p.deletedMeters, id)
	}
	return nil
}
