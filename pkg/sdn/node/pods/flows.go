package pods

import (
	"context"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// podFlows puts pods' flows on the switch, and takes them off.
type podFlows interface {
	set(ctx context.Context, p Pod) error                       // returns when they are on the switch
	propose(p Pod) (done func(ctx context.Context) error)       // returns at once; done waits
	remove(a Attachment) (gone func(ctx context.Context) error) // returns at once; gone waits
	want(p Pod) []*ovs.Flow                                     // as they are on the switch
}

// compiledFlows compiles pods for the flow store.
type compiledFlows struct {
	store   Flows
	compile func(pipeline.Pod) pipeline.State
}

func (f compiledFlows) set(ctx context.Context, p Pod) error {
	return f.store.Set(p.Owner(), f.state(p)).Wait(ctx)
}

func (f compiledFlows) propose(p Pod) func(context.Context) error {
	return f.store.Set(p.Owner(), f.state(p)).Wait
}

func (f compiledFlows) remove(a Attachment) func(context.Context) error {
	return f.store.Delete(a.Owner()).Wait
}

func (f compiledFlows) want(p Pod) []*ovs.Flow {
	flows := f.state(p).Flows
	for _, flow := range flows {
		flow.Cookie = p.Owner().Cookie()
	}
	return flows
}

func (f compiledFlows) state(p Pod) pipeline.State {
	return f.compile(pipeline.Pod{OFPort: p.OFPort, MAC: p.MAC(), Addrs: p.Addrs})
}
