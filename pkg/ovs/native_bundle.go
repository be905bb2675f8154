package ovs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Run implements Interface.
func (n *Native) Run(ctx context.Context, tx *Transaction) error {
	if tx.err != nil {
		return tx.err
	}
	if len(tx.ops) == 0 {
		return nil
	}
	p, err := tx.compile()
	if err != nil {
		return err
	}
	return within(ctx, n.timeout, n.flows, func(ctx context.Context, c *switchConn) error { return c.apply(ctx, p) })
}

// plan is a transaction on the wire.
type plan struct {
	meters []openflow.Meter // to be set
	bundle []step
	after  []openflow.Message
}

// step is a message of a bundle.
type step struct {
	message openflow.Message
	flow    *Flow // that it adds
}

// wanted returns the flows that the plan adds.
func (p *plan) wanted() []*Flow {
	var flows []*Flow
	for _, s := range p.bundle {
		if s.flow != nil {
			flows = append(flows, s.flow)
		}
	}
	return flows
}

func (tx *Transaction) compile() (*plan, error) {
	p := &plan{bundle: make([]step, 0, len(tx.ops))}
	for _, op := range tx.inPhases() {
		switch op.verb {
		case verbAdd, verbDelete:
			mod, err := openflow.ParseFlow(strings.TrimPrefix(string(op.verb), "flow ") + op.text)
			if err != nil {
				return nil, &FlowError{Flow: op.text, Key: op.key, Reason: err.Error()}
			}
			s := step{message: mod}
			if op.verb == verbAdd {
				s.flow = op.flow
			}
			p.bundle = append(p.bundle, s)
		case verbPurge:
			p.bundle = append(p.bundle, step{message: &openflow.FlowMod{
				Command: openflow.FlowDelete, Table: uint8(op.learned.Table), Cookie: op.learned.Cookie, CookieMask: ^uint64(0),
			}})
		case verbSetGroup:
			group, err := parseGroup(op.group.ID, op.text)
			if err != nil {
				return nil, err
			}
			p.bundle = append(p.bundle, step{message: &openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: *group}})
		case verbDeleteGroup:
			p.bundle = append(p.bundle, step{message: deletionOfGroup(op.group.ID)})
		case verbSetMeter:
			p.meters = append(p.meters, compileMeter(op.meter))
		case verbDeleteMeter:
			p.after = append(p.after, deletionOfMeter(op.meter.ID))
		case verbForget:
			p.after = append(p.after, op.connections.compile())
		}
	}
	return p, nil
}

func deletionOfGroup(id uint32) openflow.Message {
	return &openflow.GroupMod{Command: openflow.GroupDelete, Group: openflow.Group{ID: id}}
}

func deletionOfMeter(id uint32) openflow.Message {
	return &openflow.MeterMod{Command: openflow.MeterDelete, Meter: openflow.Meter{ID: id}}
}

// apply carries the plan out, phase by phase. When the switch refuses something, the meters are put back.
func (c *switchConn) apply(ctx context.Context, p *plan) error {
	undo, err := c.setMeters(ctx, p.meters)
	if err == nil && len(p.bundle) > 0 {
		err = c.bundle(ctx, p.bundle)
	}
	if isRefusal(err) && len(undo) > 0 {
		if _, undoErr := c.do(ctx, len(undo), func(i int) openflow.Message { return undo[i] }); undoErr != nil {
			return undoErr
		}
	}
	if err != nil || len(p.after) == 0 {
		return err
	}
	answers, err := c.do(ctx, len(p.after), func(i int) openflow.Message { return p.after[i] })
	if err != nil {
		return err
	}
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			return fmt.Errorf("after the bundle: %T: %w", p.after[a.index], m)
		}
	}
	return nil
}

// setMeters adds the meters, or modifies those that there are, and returns what takes that back.
func (c *switchConn) setMeters(ctx context.Context, meters []openflow.Meter) (undo []openflow.Message, err error) {
	if len(meters) == 0 {
		return nil, nil
	}
	answers, err := c.do(ctx, 1, func(int) openflow.Message { return &openflow.MeterConfigRequest{Meter: openflow.AllMeters} })
	if err != nil {
		return nil, err
	}
	former := map[uint32]openflow.Meter{}
	for _, a := range answers {
		if reply, ok := a.message.(*openflow.MeterConfigReply); ok {
			for _, m := range reply.Meters {
				former[m.ID] = m
			}
		}
	}
	mods := make([]openflow.MeterMod, len(meters))
	set := make(map[uint32]bool, len(meters))
	for i, m := range meters {
		mods[i] = openflow.MeterMod{Command: openflow.MeterModify, Meter: m}
		old, exists := former[m.ID]
		switch {
		case set[m.ID]:
		case exists:
			undo = append(undo, &openflow.MeterMod{Command: openflow.MeterModify, Meter: old})
		default:
			mods[i].Command = openflow.MeterAdd
			undo = append(undo, deletionOfMeter(m.ID))
		}
		set[m.ID] = true
	}
	answers, err = c.do(ctx, len(mods), func(i int) openflow.Message { return &mods[i] })
	if err != nil {
		return undo, err
	}
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			meter := meters[a.index]
			return undo, &MeterError{ID: meter.ID, Meter: meter.String(), Reason: m.Name()}
		}
	}
	return undo, nil
}

const bundleFlags = openflow.BundleAtomic | openflow.BundleOrdered

// bundle applies all steps or none. When the switch refuses one, the error names it.
func (c *switchConn) bundle(ctx context.Context, steps []step) error {
	id := c.newBundle()
	control := func(step openflow.BundleStep) openflow.Message {
		return &openflow.BundleControl{ID: id, Step: step, Flags: bundleFlags}
	}
	filling := c.begin(1 + len(steps))
	defer c.forget(filling)
	err := c.finish(ctx, filling, func(i int) openflow.Message {
		if i == 0 {
			return control(openflow.BundleOpen)
		}
		return &openflow.BundleAdd{ID: id, Flags: bundleFlags, Message: steps[i-1].message}
	})
	var unsendable *messageError
	switch {
	case err == nil:
		err = refusedIn(c.answers(filling), steps)
	case errors.As(err, &unsendable):
		err = steps[unsendable.index-1].refused(unsendable.Error())
	}
	if err != nil {
		// A commit would apply the rest. The answer does not matter: a bundle that nobody touches goes by itself.
		c.post(control(openflow.BundleDiscard))
		return err
	}
	committing, err := c.do(ctx, 1, func(int) openflow.Message { return control(openflow.BundleCommit) })
	if err != nil {
		return err
	}
	// What a commit fails at has the XID with which it was added.
	if err := refusedIn(c.answers(filling), steps); err != nil {
		return err
	}
	return refusedIn(committing, nil)
}

// refusedIn returns the first error among the answers to a bundle's opening and its steps, or to its commit.
func refusedIn(answers []answer, steps []step) error {
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			if a.index == 0 {
				return fmt.Errorf("bundle: %w", m)
			}
			return steps[a.index-1].refused(m.Name())
		}
	}
	return nil
}

// refused is the error that names the step.
func (s step) refused(reason string) error {
	switch m := s.message.(type) {
	case *openflow.GroupMod:
		return &GroupError{ID: m.Group.ID, Group: m.Group.String(), Reason: reason}
	case *openflow.FlowMod:
		if s.flow != nil {
			return flowError(s.flow, reason)
		}
		key := keyOf(m.Key())
		return &FlowError{Flow: key.String(), Key: key, Reason: reason}
	}
	return fmt.Errorf("bundle: %T: %s", s.message, reason)
}

func (c *switchConn) newBundle() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastBundle++
	return c.lastBundle
}
