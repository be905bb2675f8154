package ovs

import (
	"runtime"

	"golang.org/x/sync/errgroup"

	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

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
