package native

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// Run implements Interface.
func (n *Native) Run(ctx context.Context, tx *ovs.Transaction) error {
	if tx.Err() != nil {
		return tx.Err()
	}
	if tx.NumOperations() == 0 {
		return nil
	}
	p, err := compile(tx)
	if err != nil {
		return err
	}
	return within(ctx, n.timeout, n.flows, func(ctx context.Context, c *switchConn) error { return c.apply(ctx, p) })
}

// plan is a transaction as OpenFlow messages.
type plan struct {
	meters        []openflow.Meter // to set
	bundle        []step
	deletedMeters []uint32
	flushes       []openflow.Message
}

// step is one message of a bundle.
type step struct {
	message openflow.Message // nil: compiled when it is sent, since all need several times the memory of their texts
	flow    *ovs.Flow        // nil unless it adds a flow
	text    *ovs.TextFlow    // nil unless it adds a flow that is not compiled
	group   *ovs.Group       // nil unless it sets a group that is not compiled
}

// addition returns the flow that the step adds, or nil.
func (s step) addition() *ovs.Flow {
	if s.text != nil {
		return s.text.Flow()
	}
	return s.flow
}

// compile returns the message.
func (s step) compile() (openflow.Message, error) {
	switch {
	case s.message != nil:
		return s.message, nil
	case s.group != nil:
		group, err := ovs.CompileGroup(*s.group)
		if err != nil {
			return nil, err
		}
		return &openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: *group}, nil
	}
	return ovs.CompileFlow(s.addition())
}

// wanted returns the flows that the plan adds.
func (p *plan) wanted() []*ovs.Flow {
	var flows []*ovs.Flow
	for _, s := range p.bundle {
		if f := s.addition(); f != nil {
			flows = append(flows, f)
		}
	}
	return flows
}

func compile(tx *ovs.Transaction) (*plan, error) {
	p := &plan{bundle: make([]step, 0, tx.NumOperations())}
	ops := tx.Operations()
	mods, err := ovs.CompileFlowMods(ops)
	if err != nil {
		return nil, err
	}
	for i, op := range ops {
		switch op.Verb {
		case ovs.VerbAdd, ovs.VerbDelete:
			p.bundle = append(p.bundle, step{message: &mods[i], flow: op.Flow})
		case ovs.VerbSetGroup:
			group, err := ovs.ParseGroup(op.Group.ID, op.Text())
			if err != nil {
				return nil, err
			}
			p.bundle = append(p.bundle, step{message: &openflow.GroupMod{Command: openflow.GroupAddOrModify, Group: *group}})
		case ovs.VerbDeleteGroup:
			p.bundle = append(p.bundle, step{message: deletionOfGroup(op.Group.ID)})
		case ovs.VerbSetMeter:
			p.meters = append(p.meters, ovs.CompileMeter(op.Meter))
		case ovs.VerbDeleteMeter:
			p.deletedMeters = append(p.deletedMeters, op.Meter.ID)
		case ovs.VerbFlush:
			p.flushes = append(p.flushes, op.Connections.Compile())
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

// apply executes the phases of the plan. If the switch rejects a message of the bundle, the meters are restored.
func (c *switchConn) apply(ctx context.Context, p *plan) error {
	meters := newMeterChange(p.meters)
	var err error
	switch {
	case len(p.bundle) > 0:
		err = c.bundle(ctx, meters, p.bundle)
	case len(p.meters) > 0:
		err = c.setMeters(ctx, meters)
	}
	if undo := meters.undo(); ovs.IsRefusal(err) && len(undo) > 0 {
		if _, undoErr := c.do(ctx, len(undo), func(i int) openflow.Message { return undo[i] }); undoErr != nil {
			return undoErr
		}
	}
	if err != nil {
		return err
	}
	if err := c.deleteMeters(ctx, p.deletedMeters); err != nil {
		return err
	}
	return c.flush(ctx, p.flushes)
}

// flush deletes conntrack entries.
func (c *switchConn) flush(ctx context.Context, flushes []openflow.Message) error {
	if len(flushes) == 0 {
		return nil
	}
	answers, err := c.do(ctx, len(flushes), func(i int) openflow.Message { return flushes[i] })
	if err != nil {
		return err
	}
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			return fmt.Errorf("flush of conntrack entries: %w", m)
		}
	}
	return nil
}

const bundleFlags = openflow.BundleAtomic | openflow.BundleOrdered

// bundle sets the meters and applies all steps or none. If the switch rejects a step, the error identifies it. The meters are sent
// together with the bundle, before it: each wait for vswitchd takes up to one iteration of its main loop, which is milliseconds with
// hundreds of ports.
func (c *switchConn) bundle(ctx context.Context, meters *meterChange, steps []step) error {
	id := c.newBundle()
	control := func(step openflow.BundleStep) openflow.Message {
		return &openflow.BundleControl{ID: id, Step: step, Flags: bundleFlags}
	}
	opening := len(meters.meters) // index of the message that opens the bundle
	filling := c.begin(opening+1+len(steps), nil)
	defer c.remove(filling)
	err := c.finish(ctx, filling, func(i int) (openflow.Message, error) {
		switch {
		case i < opening:
			return meters.addition(i), nil
		case i == opening:
			return control(openflow.BundleOpen), nil
		}
		m, err := steps[i-opening-1].compile()
		return &openflow.BundleAdd{ID: id, Flags: bundleFlags, Message: m}, err
	})
	var unsendable *messageError
	switch {
	case err == nil:
		answers := c.answers(filling)
		if err = cmp.Or(meters.read(answers, opening), refusedIn(answers, opening, steps)); err == nil {
			err = c.modify(ctx, meters)
		}
	case errors.As(err, &unsendable) && unsendable.index > opening:
		err = steps[unsendable.index-opening-1].refused(unsendable.Error())
		if syncErr := c.readSent(ctx, meters, filling); syncErr != nil {
			return syncErr
		}
	}
	if err != nil {
		// A commit would apply the other steps. The answer is ignored: vswitchd deletes an idle bundle by itself.
		c.post(control(openflow.BundleDiscard))
		return err
	}
	committing, err := c.do(ctx, 1, func(int) openflow.Message { return control(openflow.BundleCommit) })
	if err != nil {
		return err
	}
	// An error of the commit has the XID with which the message was added.
	if err := refusedIn(c.answers(filling), opening, steps); err != nil {
		return err
	}
	return refusedIn(committing, 0, nil)
}

// refusedIn returns the first error among the answers to the message that opens a bundle, whose index is opening, and the steps after it.
func refusedIn(answers []answer, opening int, steps []step) error {
	for _, a := range answers {
		m, ok := a.message.(*openflow.Error)
		switch {
		case !ok || a.index < opening:
		case a.index == opening:
			return fmt.Errorf("bundle: %w", m)
		default:
			return steps[a.index-opening-1].refused(m.Name())
		}
	}
	return nil
}

// refused returns the error that identifies the step.
func (s step) refused(reason string) error {
	if f := s.addition(); f != nil {
		return ovs.NewFlowError(f, reason)
	}
	message, err := s.compile()
	if err != nil {
		return err
	}
	switch m := message.(type) {
	case *openflow.GroupMod:
		return &ovs.GroupError{ID: m.Group.ID, Group: m.Group.String(), Reason: reason}
	case *openflow.FlowMod:
		key := ovs.KeyOf(m.Key())
		return &ovs.FlowError{Flow: key.String(), Key: key, Reason: reason}
	}
	return fmt.Errorf("bundle: %T: %s", message, reason)
}

func (c *switchConn) newBundle() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastBundle++
	return c.lastBundle
}
