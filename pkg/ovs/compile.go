package ovs

import (
	"fmt"
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// EachFlowMod encodes the additions of flows on all processors, and calls each with the index of the flow and its addition, several at once: a flow takes 2 µs, and
// there may be 200,000. each should not retain the additions, which need several times the memory of the flows.
func (s State) EachFlowMod(each func(i int, mod *openflow.FlowMod) error) error {
	return onAllProcessors(s.NumFlows(), func(i int) error {
		mod, err := CompileFlow(s.Flow(i))
		if err != nil {
			return err
		}
		return each(i, mod)
	})
}

// FlowKeys returns the keys of the flows, on all processors.
func FlowKeys(flows []*Flow) ([]Key, error) {
	keys := make([]Key, len(flows))
	return keys, onAllProcessors(len(flows), func(i int) (err error) {
		keys[i], err = FlowKey(flows[i])
		return err
	})
}

// CompileFlowMods encodes the additions and deletions of flows among the operations, on all processors. The others have none.
func CompileFlowMods(ops []Operation) ([]openflow.FlowMod, error) {
	mods := make([]openflow.FlowMod, len(ops))
	return mods, onAllProcessors(len(ops), func(i int) error {
		if err := ops[i].compile(&mods[i]); err != nil {
			return &FlowError{Flow: ops[i].Text(), Key: ops[i].Key, Reason: err.Error()}
		}
		return nil
	})
}

func (op Operation) compile(mod *openflow.FlowMod) error {
	if op.phase != changeFlow {
		return nil
	}
	m, err := openflow.ParseMatch(op.Key.Match)
	if err != nil {
		return err
	}
	*mod = openflow.FlowMod{Table: uint8(op.Key.Table), Priority: uint16(op.Key.Priority), Match: m}
	if op.Verb == VerbDelete {
		mod.Command = openflow.FlowDeleteStrict
		return nil
	}
	actions, err := actionList(op.Flow.Actions)
	if err != nil {
		return err
	}
	mod.Cookie, mod.IdleTimeout = op.Flow.Cookie, uint16(op.Flow.IdleTimeout)
	mod.Instructions, err = openflow.ParseInstructions(m, actions)
	return err
}

// minShare is the number of flows from which a second processor saves more time than its start costs.
const minShare = 100

// onAllProcessors calls f for each index. After an error it does not call it for all.
func onAllProcessors(number int, f func(i int) error) error {
	var workers errgroup.Group
	share := max(number/runtime.GOMAXPROCS(0)+1, minShare)
	for start := 0; start < number; start += share {
		end := min(start+share, number)
		some := func() error {
			for i := start; i < end; i++ {
				if err := f(i); err != nil {
					return err
				}
			}
			return nil
		}
		if number <= share {
			return some()
		}
		workers.Go(some)
	}
	return workers.Wait()
}

// CompileFlow encodes the addition of the flow. It accepts the same matches as FlowKey.
func CompileFlow(f *Flow) (*openflow.FlowMod, error) {
	text, err := matchText(f)
	if err != nil {
		return nil, err
	}
	m, err := openflow.ParseMatch(text)
	if err != nil {
		return nil, flowError(f, err)
	}
	actions, err := ActionsText(f)
	if err != nil {
		return nil, err
	}
	in, err := openflow.ParseInstructions(m, actions)
	if err != nil {
		return nil, NewFlowError(f, err.Error())
	}
	return &openflow.FlowMod{
		Table: uint8(f.Table), Priority: uint16(f.Priority), Match: m, Cookie: f.Cookie, IdleTimeout: uint16(f.IdleTimeout), Instructions: in,
	}, nil
}

// PrintedActions returns the actions of a flow as Open vSwitch prints them: one form for all that mean the same.
func PrintedActions(k Key, actions string) (string, error) {
	m, err := openflow.ParseMatch(k.Match)
	if err != nil {
		return "", err
	}
	in, err := openflow.ParseInstructions(m, actions)
	if err != nil {
		return "", fmt.Errorf("flow %s: %w", k, err)
	}
	return in.String(), nil
}

// NewFlowError returns a *FlowError with the key and text of the flow.
func NewFlowError(f *Flow, reason string) error {
	key, text, err := flowText(f)
	if err != nil {
		return err
	}
	return &FlowError{Flow: text, Key: key, Reason: reason}
}

// KeyOf returns the key of a flow on the wire.
func KeyOf(k openflow.FlowKey) Key {
	return Key{Table: int(k.Table), Priority: int(k.Priority), Match: k.Match.String()}
}
