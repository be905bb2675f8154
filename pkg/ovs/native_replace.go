package ovs

import (
	"context"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Replace implements Interface. It dumps what there is, compares what it does, and sends the difference.
func (n *Native) Replace(ctx context.Context, want State) (found Difference, err error) {
	found, _, err = n.ReplaceIn(ctx, want)
	return found, err
}

// ReplaceIn is Replace, and returns the session in which it was done: by the time that it returns there may be another.
func (n *Native) ReplaceIn(ctx context.Context, want State) (found Difference, session int64, err error) {
	err = within(ctx, replaceTimeout, n.flows, func(ctx context.Context, c *switchConn) error {
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

// comparison is what the switch lacks of the wanted state and has too much, and how to change that.
type comparison struct {
	Difference
	plan plan
}

func compare(ctx context.Context, c *switchConn, want State) (*comparison, error) {
	both, dumping := errgroup.WithContext(ctx)
	var is contents
	both.Go(func() (err error) {
		is, err = c.dump(dumping)
		return err
	})
	var wanted []openflow.FlowMod
	var index map[openflow.FlowKey]int
	both.Go(func() (err error) {
		if wanted, err = compileAll(want.Flows); err == nil {
			index, err = indexOf(wanted, want.Flows)
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

// groups compares groups. Those that are foreign are deleted last, since flows may use them until then.
func (com *comparison) groups(is []openflow.Group, want []Group) (deletions []step, err error) {
	left := make(map[uint32]*openflow.Group, len(is))
	for i := range is {
		left[is[i].ID] = &is[i]
	}
	seen := make(map[uint32]bool, len(want))
	for _, g := range want {
		group, err := compileGroup(g)
		if err != nil {
			return nil, err
		}
		if seen[g.ID] {
			return nil, &GroupError{ID: g.ID, Group: group.String(), Reason: reasonTwice}
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
			com.example(old)
		}
		com.plan.bundle = append(com.plan.bundle, step{message: &openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: *group}})
	}
	for id, old := range left {
		com.Foreign++
		com.example(old)
		deletions = append(deletions, step{message: deletionOfGroup(id)})
	}
	return deletions, nil
}

// sameGroup: what can't be brought into canonical form is nothing of ours.
func sameGroup(is, want *openflow.Group) bool {
	a, err := is.Canonical()
	if err != nil {
		return false
	}
	b, err := want.Canonical()
	return err == nil && a == b
}

// flows compares flows, of which the wanted ones are compiled and found by key in the index.
func (com *comparison) flows(is []*openflow.FlowStatsReply, want State, wanted []openflow.FlowMod, index map[openflow.FlowKey]int) error {
	learned := make(map[Learned]bool, len(want.Learned))
	for _, l := range want.Learned {
		learned[l] = true
	}
	kept := make([]bool, len(wanted))
	altered := make([]bool, len(wanted))
	var deletions []step
	var a, b []byte // one buffer for all
	for _, reply := range is {
		for j := range reply.Flows {
			flow := &reply.Flows[j]
			i, ok := index[flow.Key()]
			if !ok {
				if !learned[Learned{int(flow.Table), flow.Cookie}] {
					com.Foreign++
					com.example(flow)
					deletions = append(deletions, step{message: &openflow.FlowMod{
						Command: openflow.FlowDeleteStrict, Table: flow.Table, Priority: flow.Priority, Match: flow.Match,
					}})
				}
				continue
			}
			var err error
			if b, err = wanted[i].Instructions.AppendCanonical(b[:0]); err != nil {
				return flowError(want.Flows[i], err.Error())
			}
			// What can't be brought into canonical form is nothing of ours.
			a, err = flow.Instructions.AppendCanonical(a[:0])
			kept[i] = err == nil && slices.Equal(a, b) && sameProperties(flow, &wanted[i])
			if !kept[i] {
				altered[i] = true
				com.example(flow)
			}
		}
	}
	for i := range wanted {
		switch {
		case kept[i]:
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
func (com *comparison) meters(is []openflow.Meter, want []Meter) error {
	left := make(map[uint32]*openflow.Meter, len(is))
	for i := range is {
		left[is[i].ID] = &is[i]
	}
	seen := make(map[uint32]bool, len(want))
	for _, m := range want {
		text, err := MeterText(m)
		if err != nil {
			return err
		}
		if seen[m.ID] {
			return &MeterError{ID: m.ID, Meter: text, Reason: reasonTwice}
		}
		seen[m.ID] = true
		meter := compileMeter(m)
		old, exists := left[m.ID]
		delete(left, m.ID)
		switch {
		case !exists:
			com.Missing++
		case old.Flags == meter.Flags && slices.Equal(old.Bands, meter.Bands):
			continue
		default:
			com.Altered++
			com.example(old)
		}
		com.plan.meters = append(com.plan.meters, meter)
	}
	for id, old := range left {
		com.Foreign++
		com.example(old)
		com.plan.after = append(com.plan.after, deletionOfMeter(id))
	}
	return nil
}
