package ovs

import "fmt"

// TextFlow is a flow by its key and the text of its actions, which FlowKey and ActionsText have returned. It needs less than half of the memory of its Flow.
type TextFlow struct {
	Key         Key
	Actions     string
	IdleTimeout int
	Cookie      uint64
}

// Flow returns the flow.
func (t *TextFlow) Flow() *Flow {
	f := FlowOf(t.Key, t.Actions)
	f.Cookie, f.IdleTimeout = t.Cookie, t.IdleTimeout
	return f
}

// FlowOf returns the flow with a key and the text of its actions, which FlowKey and ActionsText have returned. The texts need a third of the memory of the matches
// and actions from which they were made.
func FlowOf(k Key, actions string) *Flow {
	f := &struct { // one allocation
		flow    Flow
		matches [1]Match
		actions [1]Action
	}{flow: Flow{Table: k.Table, Priority: k.Priority}}
	if k.Match != "" {
		f.matches[0], f.flow.Matches = rawText(k.Match), f.matches[:]
	}
	f.actions[0], f.flow.Actions = rawText(actions), f.actions[:]
	return &f.flow
}

// rawText is a whole match, or all actions of a flow.
type rawText string

func (t rawText) MarshalText() ([]byte, error) { return []byte(t), nil }

func (t rawText) GoString() string { return fmt.Sprintf("ovs.rawText(%q)", string(t)) }
