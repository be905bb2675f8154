package pods

import (
	"context"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// podFlows puts pods' flows on the switch, and takes them off.
type podFlows interface {
	ready(ctx context.Context, namespace string) error          // returns when all is known that they depend on
	set(ctx context.Context, p Pod) error                       // returns when they are on the switch
	propose(p Pod) (done func(ctx context.Context) error)       // returns at once; done waits
	remove(a Attachment) (gone func(ctx context.Context) error) // returns at once; gone waits
	want(p Pod) []*ovs.Flow                                     // as they are on the switch
}

// compiledFlows compiles pods for the flow store. While a pod is there, its flows follow its namespace's VNID.
type compiledFlows struct {
	flows   Flows
	compile func(pipeline.Pod) pipeline.State
}

func (f compiledFlows) ready(ctx context.Context, namespace string) error {
	return f.flows.Fetch(ctx, namespace)
}

func (f compiledFlows) set(ctx context.Context, p Pod) error {
	done := f.propose(p)
	if _, known := f.flows.Of(p.Namespace); !known {
		return vnids.Unknown(p.Namespace)
	}
	return done(ctx)
}

func (f compiledFlows) propose(p Pod) func(context.Context) error {
	return f.flows.Set(p.Namespace, p.Owner(), vnids.Dependent{
		Compile: func(vnid config.VNID) pipeline.State { return f.state(p, vnid) },
		OFPort:  p.OFPort,
	}).Wait
}

func (f compiledFlows) remove(a Attachment) func(context.Context) error {
	return f.flows.Delete(a.Owner()).Wait
}

// want leaves out what is shared with other pods, which has another cookie.
func (f compiledFlows) want(p Pod) []*ovs.Flow {
	vnid, known := f.flows.Of(p.Namespace)
	if !known {
		return nil
	}
	var own []*ovs.Flow
	for _, flow := range f.state(p, vnid).Flows {
		if pipeline.IsShared(flow) {
			continue
		}
		flow.Cookie = p.Owner().Cookie()
		own = append(own, flow)
	}
	return own
}

func (f compiledFlows) state(p Pod, vnid config.VNID) pipeline.State {
	return f.compile(pipeline.Pod{OFPort: p.OFPort, MAC: p.MAC(), Addrs: p.Addrs, VNID: vnid})
}
