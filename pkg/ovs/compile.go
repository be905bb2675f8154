package ovs

import (
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// CompileFlows encodes the flows on all processors: a flow takes 2 µs, and there may be 200,000.
func CompileFlows(flows []*Flow) ([]openflow.FlowMod, error) {
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

// compileFlow encodes the addition of the flow. It accepts the same matches as FlowKey.
func compileFlow(mod *openflow.FlowMod, f *Flow) error {
	text, err := matchText(f)
	if err != nil {
		return err
	}
	m, err := openflow.ParseMatch(text)
	if err != nil {
		return flowError(f, err)
	}
	actions, err := ActionsText(f)
	if err != nil {
		return err
	}
	in, err := openflow.ParseInstructions(m, actions)
	if err != nil {
		return NewFlowError(f, err.Error())
	}
	*mod = openflow.FlowMod{
		Table: uint8(f.Table), Priority: uint16(f.Priority), Match: m, Cookie: f.Cookie, IdleTimeout: uint16(f.IdleTimeout), Instructions: in,
	}
	return nil
}

// IndexFlows returns the index of every flow by its key. Two flows with the same key are an error (*FlowError).
func IndexFlows(wanted []openflow.FlowMod, flows []*Flow) (map[openflow.FlowKey]int, error) {
	index := make(map[openflow.FlowKey]int, len(wanted))
	for i := range wanted {
		key := wanted[i].Key()
		if _, twice := index[key]; twice {
			return nil, NewFlowError(flows[i], ReasonTwice)
		}
		index[key] = i
	}
	return index, nil
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
