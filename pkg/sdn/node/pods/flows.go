package pods

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/vnids"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// podFlows puts pods' flows on the switch, and takes them off.
type podFlows interface {
	ready(ctx context.Context, namespace string) error                                         // returns when all is known that they depend on
	set(ctx context.Context, p Pod, object *corev1.Pod) error                                  // returns when they, and the rules of policies about the pod, are on the switch
	propose(ctx context.Context, p Pod, object *corev1.Pod) (done func(context.Context) error) // returns at once; done waits
	remove(a Attachment) (gone func(ctx context.Context) error)                                // returns at once; gone waits
	want(p Pod) []*ovs.Flow                                                                    // as they are on the switch
}

// compiledFlows compiles pods for the flow store. While a pod is there, its flows follow its namespace's VNID, and what policies make of
// it.
type compiledFlows struct {
	flows    Flows
	policies Policies
	compile  func(pipeline.Pod) pipeline.State
}

func (f compiledFlows) ready(ctx context.Context, namespace string) error {
	if err := f.policies.Fetch(ctx, namespace); err != nil {
		return err
	}
	return f.flows.Fetch(ctx, namespace)
}

func (f compiledFlows) set(ctx context.Context, p Pod, object *corev1.Pod) error {
	done := f.propose(ctx, p, object)
	if _, known := f.flows.Of(p.Namespace); !known {
		return vnids.Unknown(p.Namespace)
	}
	return done(ctx)
}

// propose is first about the rules: a pod whose flows are there may send.
func (f compiledFlows) propose(ctx context.Context, p Pod, object *corev1.Pod) func(context.Context) error {
	ruled := f.policies.Attach(ctx, p.Owner(), p.policyKey(), pipeline.Pod{OFPort: p.OFPort, Addrs: p.Addrs}, object)
	own := f.flows.Set(p.Namespace, p.Owner(), vnids.Dependent{
		Compile: func(vnid config.VNID) pipeline.State { return f.state(p, vnid) },
		OFPort:  p.OFPort,
	}).Wait
	return both(ruled, own)
}

func (f compiledFlows) remove(a Attachment) func(context.Context) error {
	own := f.flows.Delete(a.Owner()).Wait
	return both(own, f.policies.Detach(a.Owner()))
}

func both(first, second func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return errors.Join(first(ctx), second(ctx)) }
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
	return f.compile(pipeline.Pod{OFPort: p.OFPort, MAC: p.MAC(), Addrs: p.Addrs, VNID: vnid, Policies: f.policies.Of(p.policyKey())})
}
