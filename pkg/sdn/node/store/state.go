package store

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// state is one owner's desired state, by the flow's identity on the switch.
type state map[ovs.Key]contribution

// A contribution is what one owner wants of one flow key.
type contribution struct {
	flow         *ovs.Flow
	body         body
	conjunctions map[string]ovs.Action // by text, when there are no other actions
}

// body is what flows of one key are compared by. The cookie is not part of it: it follows from who the owners are.
type body struct {
	actions     string
	idleTimeout int
	conjunction bool // there are only conjunction actions: such bodies unite
}

// compile turns what an owner asks for into its state. The error names the flow.
func compile(st pipeline.State) (state, error) {
	compiled := make(state, len(st.Flows))
	for _, f := range st.Flows {
		key, err := ovs.FlowKey(f)
		if err != nil {
			return nil, err
		}
		actions, err := ovs.ActionsText(f)
		if err != nil {
			return nil, err
		}
		c := contribution{flow: f, body: body{actions: actions, idleTimeout: f.IdleTimeout}}
		if c.conjunctions, err = conjunctions(f); err != nil {
			return nil, err
		}
		c.body.conjunction = c.conjunctions != nil
		if other, twice := compiled[key]; twice {
			if !c.body.compatible(other.body) {
				return nil, fmt.Errorf("flow %s is wanted with the actions %q and %q", key, other.body.actions, actions)
			}
			maps.Copy(c.conjunctions, other.conjunctions)
		}
		if c.body.conjunction {
			_, c.body.actions = inOrder(c.conjunctions)
		}
		compiled[key] = c
	}
	return compiled, nil
}

// conjunctions returns the flow's actions by text if all are conjunction(…), else nil.
func conjunctions(f *ovs.Flow) (map[string]ovs.Action, error) {
	actions := make(map[string]ovs.Action, len(f.Actions))
	for _, a := range f.Actions {
		b, err := a.MarshalText()
		if err != nil {
			return nil, err
		}
		if !bytes.HasPrefix(b, []byte("conjunction(")) {
			return nil, nil
		}
		actions[string(b)] = a
	}
	return actions, nil
}

// inOrder returns actions by their text in its order, and the text of all.
func inOrder(byText map[string]ovs.Action) ([]ovs.Action, string) {
	texts := slices.Sorted(maps.Keys(byText))
	actions := make([]ovs.Action, len(texts))
	for i, text := range texts {
		actions[i] = byText[text]
	}
	return actions, strings.Join(texts, ",")
}

// equal reports whether both states ask for the same.
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

// compatible reports whether two owners may want these on one key.
func (b body) compatible(other body) bool {
	return b == other || b.conjunction && other.conjunction && b.idleTimeout == other.idleTimeout
}
