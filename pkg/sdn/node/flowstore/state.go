package flowstore

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// state is one owner's desired state, by key.
type state map[key]contribution

// A contribution is one owner's desired flow, group or meter of a key: its text, and not the objects of the owner, which need three times the memory.
type contribution struct {
	body    body
	details *details // nil for most
}

// details are parts of few contributions.
type details struct {
	flow         *ovs.Flow    // object of the owner, if its next state may have the same (Change.PrepareAfter)
	actions      []ovs.Action // of a flow to groups
	conjunctions []string     // texts in order, if all actions are conjunctions
	buckets      []ovs.Bucket // of a group with buckets to groups
	meter        ovs.Meter
}

// object returns the object of the owner; nil if its flow is not compared with others.
func (c contribution) object() *ovs.Flow {
	if c.details == nil {
		return nil
	}
	return c.details.flow
}

// hasReferences reports whether the contribution is a flow to groups, whose numbers its text does not have.
func (c contribution) hasReferences() bool { return c.details != nil && c.details.actions != nil }

// conjunctions returns the conjunctions; nil if the flow has other actions.
func (c contribution) conjunctions() []string {
	if c.details == nil {
		return nil
	}
	return c.details.conjunctions
}

// body is compared between contributions to one key. It has no cookie, which follows from the owners.
type body struct {
	text        string // of the flow's actions, the group's buckets or the meter; never ""
	idleTimeout uint16
	conjunction bool // all actions are conjunctions, which are merged
}

// compile returns the owner's state by key. The error names the flow, group or meter.
func compile(owner pipeline.Owner, st pipeline.State) (state, error) {
	c := compiler{owner: owner, state: make(state, len(st.Flows)+len(st.Groups)+len(st.Meters))}
	return c.compile(st, nil)
}

// compileAfter is compile for a state with flows that are the same objects in an earlier one, which it does not compile again, or in the next one.
func compileAfter(owner pipeline.Owner, st pipeline.State, earlier state) (state, error) {
	c := compiler{owner: owner, state: make(state, len(st.Flows)+len(st.Groups)+len(st.Meters)), retains: true}
	return c.compile(st, earlier)
}

func (c *compiler) compile(st pipeline.State, earlier state) (state, error) {
	for _, m := range st.Meters {
		if err := c.meter(m); err != nil {
			return nil, err
		}
	}
	for _, g := range st.Groups { // before their buckets, which may refer to any of them
		if err := c.add(groupKey(c.owner, g.Name), contribution{}); err != nil {
			return nil, err
		}
	}
	for _, g := range st.Groups {
		if err := c.buckets(g); err != nil {
			return nil, err
		}
	}
	flows := c.reuse(st.Flows, earlier)
	keys, err := ovs.FlowKeys(flows)
	if err != nil {
		return nil, err
	}
	for i, f := range flows {
		if err := c.flow(f, keys[i]); err != nil {
			return nil, err
		}
	}
	return c.state, nil
}

// reuse adds the flows that are the same objects in the earlier state, except for those whose compilation depends on other flows or groups. It returns the others.
func (c *compiler) reuse(flows []*ovs.Flow, earlier state) []*ovs.Flow {
	if len(earlier) == 0 {
		return flows
	}
	known := make(map[*ovs.Flow]key, len(earlier))
	for k, con := range earlier {
		if f := con.object(); f != nil {
			known[f] = k
		}
	}
	var others []*ovs.Flow
	for _, f := range flows {
		if k, ok := known[f]; !ok || c.add(k, earlier[k]) != nil {
			others = append(others, f)
		}
	}
	return others
}

// compiler compiles one owner's state.
type compiler struct {
	owner   pipeline.Owner
	state   state
	retains bool // the objects of flows
}

func (c *compiler) add(k key, con contribution) error {
	if _, twice := c.state[k]; twice {
		return fmt.Errorf("%s is specified twice", k)
	}
	c.state[k] = con
	return nil
}

func (c *compiler) meter(m ovs.Meter) error {
	text, err := ovs.MeterText(m)
	if err != nil {
		return err
	}
	return c.add(meterKey(m.ID), contribution{body: body{text: text}, details: &details{meter: m}})
}

func (c *compiler) buckets(g pipeline.Group) error {
	buckets := make([]ovs.Bucket, len(g.Buckets))
	var unresolved *details
	for i, b := range g.Buckets {
		if slices.ContainsFunc(b.Actions, isReference) {
			unresolved = &details{buckets: g.Buckets}
		}
		actions, err := c.resolve(b.Actions)
		if err != nil {
			return fmt.Errorf("group %s: bucket %d: %w", g.Name, i+1, err)
		}
		buckets[i] = ovs.Bucket{Weight: b.Weight, Actions: actions}
	}
	text, err := ovs.BucketsText(buckets)
	if err != nil {
		return fmt.Errorf("group %s: %w", g.Name, err)
	}
	c.state[groupKey(c.owner, g.Name)] = contribution{body: body{text: text}, details: unresolved}
	return nil
}

// resolve replaces references to groups by names that include the owner: groups of two owners with the same name differ.
func (c *compiler) resolve(actions []ovs.Action) ([]ovs.Action, error) {
	return replaceReferences(actions, func(r pipeline.Reference) (ovs.Action, error) {
		if _, exists := c.state[groupKey(c.owner, r.Group)]; !exists {
			return nil, fmt.Errorf("group %s is not part of the same state", r.Group)
		}
		return pipeline.ToGroup(r.Group + " of " + c.owner.String()), nil
	})
}

func isReference(a ovs.Action) bool {
	_, ok := a.(pipeline.Reference)
	return ok
}

// replaceReferences returns the actions with their references replaced, in a copy if there are any.
func replaceReferences(actions []ovs.Action, replacement func(pipeline.Reference) (ovs.Action, error)) ([]ovs.Action, error) {
	replaced := actions
	for i, a := range actions {
		r, ok := a.(pipeline.Reference)
		if !ok {
			continue
		}
		if &replaced[0] == &actions[0] {
			replaced = slices.Clone(actions)
		}
		var err error
		if replaced[i], err = replacement(r); err != nil {
			return nil, err
		}
	}
	return replaced, nil
}

func (c *compiler) flow(f *ovs.Flow, at ovs.Key) error {
	actions, err := c.resolve(f.Actions)
	if err != nil {
		return fmt.Errorf("flow %s: %w", at, err)
	}
	resolved := *f
	resolved.Actions = actions
	text, err := ovs.ActionsText(&resolved)
	if err != nil {
		return err
	}
	con := contribution{body: body{text: text, idleTimeout: uint16(f.IdleTimeout)}} // FlowKeys has validated it
	joined, err := conjunctions(f)
	switch {
	case err != nil:
		return err
	case joined != nil:
		con.body.conjunction = true
		con.details = &details{conjunctions: joined}
	case slices.ContainsFunc(f.Actions, isReference):
		con.details = &details{actions: f.Actions}
	case c.retains:
		con.details = &details{flow: f}
	}
	if other, twice := c.state[flowKey(at)]; twice {
		if !con.body.compatible(other.body) {
			return fmt.Errorf("flow %s is specified twice, with the actions %q and %q", at, other.body.text, text)
		}
		if con.body.conjunction {
			con.details.conjunctions = append(con.details.conjunctions, other.details.conjunctions...)
		}
	}
	if con.body.conjunction {
		slices.Sort(con.details.conjunctions)
		con.details.conjunctions = slices.Compact(con.details.conjunctions)
		con.body.text = strings.Join(con.details.conjunctions, ",")
	}
	c.state[flowKey(at)] = con
	return nil
}

// conjunctions returns the texts of the flow's actions if all are conjunction(…), else nil.
func conjunctions(f *ovs.Flow) ([]string, error) {
	var texts []string
	for _, a := range f.Actions {
		b, err := a.MarshalText()
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(b, []byte("conjunction(")) {
			return nil, nil
		}
		texts = append(texts, string(b))
	}
	return texts, nil
}

// equal reports whether both states have the same flows, groups and meters.
func (st state) equal(other state) bool {
	if len(st) != len(other) {
		return false
	}
	for key, c := range st {
		if o, ok := other[key]; !ok || o.body != c.body {
			return false
		}
	}
	return true
}

// compatible reports whether two owners may contribute the bodies to one key.
func (b body) compatible(other body) bool {
	return b == other || b.conjunction && other.conjunction && b.idleTimeout == other.idleTimeout
}
