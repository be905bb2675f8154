package ovs

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strconv"

	"golang.org/x/sync/errgroup"

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
	mods := make([]openflow.FlowMod, len(tx.ops))
	for i, op := range tx.ops {
		mod, err := openflow.ParseFlow(string(op.verb) + " " + op.text)
		if err != nil {
			return &FlowError{Flow: op.text, Key: op.key, Reason: err.Error()}
		}
		mods[i] = *mod
	}
	return within(ctx, n.timeout, n.flows, func(ctx context.Context, c *switchConn) error {
		err := c.bundle(ctx, mods)
		var refused *refusedError
		if errors.As(err, &refused) {
			op := tx.ops[refused.index]
			return &FlowError{Flow: op.text, Key: op.key, Reason: refused.reason}
		}
		return err
	})
}

// Replace implements Interface. It dumps the flows, compares what they do, and sends the difference.
func (n *Native) Replace(ctx context.Context, flows []*Flow) error {
	return within(ctx, replaceTimeout, n.flows, func(ctx context.Context, c *switchConn) error {
		mods, origins, err := difference(ctx, c, flows)
		if err != nil || len(mods) == 0 {
			return err
		}
		err = c.bundle(ctx, mods)
		var refused *refusedError
		if !errors.As(err, &refused) {
			return err
		}
		if refused.index >= len(origins) {
			mod := &mods[refused.index]
			return &FlowError{Flow: mod.String(), Key: keyOf(mod.Key()), Reason: refused.reason}
		}
		return flowError(origins[refused.index], refused.reason)
	})
}

// difference returns the changes that make the switch's flows equal to the wanted ones: additions, each with the flow that it
// comes from, and then deletions.
func difference(ctx context.Context, c *switchConn, flows []*Flow) ([]openflow.FlowMod, []*Flow, error) {
	both, dumping := errgroup.WithContext(ctx)
	var dump []*openflow.FlowStatsReply
	both.Go(func() (err error) {
		dump, err = c.dump(dumping)
		return err
	})
	var wanted []openflow.FlowMod
	var index map[openflow.FlowKey]int
	both.Go(func() (err error) {
		if wanted, err = compileAll(flows); err == nil {
			index, err = indexOf(wanted, flows)
		}
		return err
	})
	if err := both.Wait(); err != nil {
		return nil, nil, err
	}

	kept := make([]bool, len(wanted))
	var deletions []openflow.FlowMod
	var is, want []byte // one buffer for all
	for _, reply := range dump {
		for j := range reply.Flows {
			flow := &reply.Flows[j]
			i, ok := index[flow.Key()]
			if !ok {
				deletions = append(deletions, openflow.FlowMod{
					Command: openflow.FlowDeleteStrict, Table: flow.Table, Priority: flow.Priority, Match: flow.Match,
				})
				continue
			}
			var err error
			if want, err = wanted[i].Instructions.AppendCanonical(want[:0]); err != nil {
				return nil, nil, flowError(flows[i], err.Error())
			}
			// What can't be brought into canonical form is nothing of ours.
			is, err = flow.Instructions.AppendCanonical(is[:0])
			kept[i] = err == nil && string(is) == string(want) && sameProperties(flow, &wanted[i])
		}
	}
	var mods []openflow.FlowMod
	var origins []*Flow
	for i := range wanted {
		if !kept[i] {
			mods = append(mods, wanted[i])
			origins = append(origins, flows[i])
		}
	}
	return append(mods, deletions...), origins, nil
}

func sameProperties(is *openflow.FlowStats, want *openflow.FlowMod) bool {
	return is.Cookie == want.Cookie && is.IdleTimeout == want.IdleTimeout && is.HardTimeout == want.HardTimeout &&
		is.Flags == want.Flags && is.Importance == want.Importance
}

// compileAll encodes the flows on all processors: a flow takes 4 µs, and there may be 200,000.
func compileAll(flows []*Flow) ([]openflow.FlowMod, error) {
	mods := make([]openflow.FlowMod, len(flows))
	var workers errgroup.Group
	share := len(flows)/runtime.GOMAXPROCS(0) + 1
	for start := 0; start < len(flows); start += share {
		end := min(start+share, len(flows))
		workers.Go(func() error {
			for i := start; i < end; i++ {
				if err := compileFlow(&mods[i], flows[i]); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return mods, workers.Wait()
}

// compileFlow makes the flow's addition. It accepts what FlowText accepts.
func compileFlow(mod *openflow.FlowMod, f *Flow) error {
	text, err := looseText(f)
	if err != nil {
		return err
	}
	m, err := openflow.ParseFlow(text)
	if err != nil {
		// Perhaps only in the way in which it was written.
		key, text, textErr := flowText(f)
		if textErr != nil {
			return textErr
		}
		if m, err = openflow.ParseFlow(text); err != nil {
			return &FlowError{Flow: text, Key: key, Reason: err.Error()}
		}
	}
	*mod = *m
	return nil
}

// indexOf finds flows by key. Two of one key are an error.
func indexOf(wanted []openflow.FlowMod, flows []*Flow) (map[openflow.FlowKey]int, error) {
	index := make(map[openflow.FlowKey]int, len(wanted))
	for i := range wanted {
		key := wanted[i].Key()
		if _, twice := index[key]; twice {
			return nil, flowError(flows[i], reasonTwice)
		}
		index[key] = i
	}
	return index, nil
}

// flowError names the flow.
func flowError(f *Flow, reason string) error {
	key, text, err := flowText(f)
	if err != nil {
		return err
	}
	return &FlowError{Flow: text, Key: key, Reason: reason}
}

// dump asks for all flows.
func (c *switchConn) dump(ctx context.Context) ([]*openflow.FlowStatsReply, error) {
	answers, err := c.do(ctx, 1, func(int) openflow.Message {
		return &openflow.FlowStatsRequest{FlowFilter: openflow.FlowFilter{Table: openflow.AllTables}}
	})
	if err != nil {
		return nil, err
	}
	replies := make([]*openflow.FlowStatsReply, 0, len(answers))
	for _, a := range answers {
		switch m := a.message.(type) {
		case *openflow.FlowStatsReply:
			replies = append(replies, m)
		case *openflow.Error:
			return nil, m
		}
	}
	return replies, nil
}

// refusedError says which change of a bundle the switch refused.
type refusedError struct {
	index  int
	reason string
}

func (e *refusedError) Error() string { return e.reason }

const bundleFlags = openflow.BundleAtomic | openflow.BundleOrdered

// bundle applies all changes or none. A change that the switch refuses makes a *refusedError.
func (c *switchConn) bundle(ctx context.Context, mods []openflow.FlowMod) error {
	id := c.newBundle()
	control := func(step openflow.BundleStep) openflow.Message {
		return &openflow.BundleControl{ID: id, Step: step, Flags: bundleFlags}
	}
	filling := c.begin(1 + len(mods))
	defer c.forget(filling)
	err := c.finish(ctx, filling, func(i int) openflow.Message {
		if i == 0 {
			return control(openflow.BundleOpen)
		}
		return &openflow.BundleAdd{ID: id, Flags: bundleFlags, Message: &mods[i-1]}
	})
	var unsendable *messageError
	switch {
	case err == nil:
		err = refusedIn(c.answers(filling))
	case errors.As(err, &unsendable):
		err = &refusedError{index: unsendable.index - 1, reason: unsendable.Error()}
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
	if err := refusedIn(c.answers(filling)); err != nil {
		return err
	}
	return refusedIn(committing)
}

// refusedIn returns the first error among the answers to a bundle's opening and its changes, or to its commit.
func refusedIn(answers []answer) error {
	for _, a := range answers {
		if m, ok := a.message.(*openflow.Error); ok {
			if a.index == 0 {
				return fmt.Errorf("bundle: %w", m)
			}
			return &refusedError{index: a.index - 1, reason: m.Name()}
		}
	}
	return nil
}

func (c *switchConn) newBundle() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastBundle++
	return c.lastBundle
}

// DumpedFlow is a flow as the switch has it.
type DumpedFlow struct {
	Key     Key
	Text    string // as FlowText gives it
	Cookie  uint64
	Packets uint64
	Bytes   uint64
}

// DumpFlows returns the flows of all tables, in no order.
func (n *Native) DumpFlows(ctx context.Context) ([]DumpedFlow, error) {
	var dump []*openflow.FlowStatsReply
	err := within(ctx, replaceTimeout, n.flows, func(ctx context.Context, c *switchConn) (err error) {
		dump, err = c.dump(ctx)
		return err
	})
	if err != nil {
		return nil, err
	}
	var flows []DumpedFlow
	for _, reply := range dump {
		for i := range reply.Flows {
			f := &reply.Flows[i]
			flows = append(flows, DumpedFlow{Key: keyOf(f.Key()), Text: textOf(f), Cookie: f.Cookie, Packets: f.Packets, Bytes: f.Bytes})
		}
	}
	return flows, nil
}

func keyOf(k openflow.FlowKey) Key {
	return Key{Table: int(k.Table), Priority: int(k.Priority), Match: k.Match.String()}
}

func textOf(f *openflow.FlowStats) string {
	s := keyOf(f.Key()).String()
	if f.IdleTimeout != 0 {
		s += ",idle_timeout=" + strconv.Itoa(int(f.IdleTimeout))
	}
	if f.Cookie != 0 {
		s += ",cookie=0x" + strconv.FormatUint(f.Cookie, 16)
	}
	return s + ",actions=" + f.Instructions.String()
}
