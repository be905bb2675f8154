package native

import (
	"encoding/binary"
	"hash/maphash"
	"sync"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/ovs/openflow"
)

// flowDigests are the flows of a comparison, with digests of their compiled forms. These would need several times the memory of the flows, so each is compiled for
// its digests, and again if it has to be sent.
type flowDigests struct {
	seeds    [2]maphash.Seed
	want     ovs.State
	byKey    map[digest]int // index of the flow
	contents []digest       // by index
	states   []wantedState  // by index

	buffers sync.Pool // of *[]byte
}

// digest identifies bytes: those with equal digests differ with a probability of 2^-128, and no other program knows the seeds.
type digest [2]uint64

// wantedState is what the comparison has found of a wanted flow or group.
type wantedState uint8

const (
	isMissing wantedState = iota
	isAltered
	isSame
)

// newFlowDigests compiles the flows. Two flows with the same key are an error (*ovs.FlowError).
func newFlowDigests(want ovs.State) (*flowDigests, error) {
	n := want.NumFlows()
	w := &flowDigests{
		seeds: [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}, want: want,
		byKey: make(map[digest]int, n), contents: make([]digest, n), states: make([]wantedState, n),
	}
	keys := make([]digest, n)
	err := want.EachFlowMod(func(i int, mod *openflow.FlowMod) (err error) {
		keys[i] = w.key(mod.Key())
		if w.contents[i], err = w.content(contentOf(mod)); err != nil {
			return ovs.NewFlowError(want.Flow(i), err.Error())
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i, key := range keys {
		if _, twice := w.byKey[key]; twice {
			return nil, ovs.NewFlowError(want.Flow(i), ovs.ReasonTwice)
		}
		w.byKey[key] = i
	}
	return w, nil
}

// compare compares a flow of the switch with the wanted one of the same key. wanted is false if there is none.
func (w *flowDigests) compare(is *openflow.FlowStats) (found wantedState, wanted bool) {
	i, wanted := w.byKey[w.key(is.Key())]
	if !wanted {
		return isMissing, false
	}
	// Instructions without canonical form were not written by this package.
	content, err := w.content(flowContent{is.Cookie, is.IdleTimeout, is.HardTimeout, is.Flags, is.Importance, is.Instructions})
	w.states[i] = isAltered
	if err == nil && content == w.contents[i] {
		w.states[i] = isSame
	}
	return w.states[i], true
}

// flowContent is a flow without its key and counters.
type flowContent struct {
	cookie                   uint64
	idleTimeout, hardTimeout uint16
	flags                    openflow.FlowFlags
	importance               uint16
	instructions             openflow.Instructions
}

func contentOf(m *openflow.FlowMod) flowContent {
	return flowContent{m.Cookie, m.IdleTimeout, m.HardTimeout, m.Flags, m.Importance, m.Instructions}
}

func (w *flowDigests) key(k openflow.FlowKey) digest {
	return digest{maphash.Comparable(w.seeds[0], k), maphash.Comparable(w.seeds[1], k)}
}

// content returns the digest of a flow's content. Equivalent instructions are equal.
func (w *flowDigests) content(c flowContent) (digest, error) {
	buffer, ok := w.buffers.Get().(*[]byte)
	if !ok {
		buffer = new([]byte)
	}
	defer w.buffers.Put(buffer)
	b := binary.BigEndian.AppendUint64((*buffer)[:0], c.cookie)
	for _, n := range []uint16{c.idleTimeout, c.hardTimeout, uint16(c.flags), c.importance} {
		b = binary.BigEndian.AppendUint16(b, n)
	}
	b, err := c.instructions.AppendCanonical(b)
	*buffer = b
	return digest{maphash.Bytes(w.seeds[0], b), maphash.Bytes(w.seeds[1], b)}, err
}

// steps returns the additions of flows that are not on the switch, or differ there, and their numbers.
func (w *flowDigests) steps() (steps []step, missing, altered int) {
	return stepsOf(w.states, func(i int) step {
		if own := len(w.want.Flows); i >= own {
			return step{text: &w.want.Texts[i-own]}
		}
		return step{flow: w.want.Flows[i]}
	})
}
