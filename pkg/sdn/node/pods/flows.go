package pods

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// compiledFlows compiles pods for the flow store, which compiles them again when the VNID of their namespace or their policies change.
type compiledFlows struct {
	store    Store
	policies Policies
	compile  func(pipeline.Pod) pipeline.State

	mu         sync.Mutex                    // held during Store.Update, so that ports are published in order
	ports      map[string]map[Attachment]int // by namespace
	namespaces map[Attachment]string
}

func newCompiledFlows(s Store, p Policies, compile func(pipeline.Pod) pipeline.State) *compiledFlows {
	return &compiledFlows{store: s, policies: p, compile: compile, ports: map[string]map[Attachment]int{}, namespaces: map[Attachment]string{}}
}

func (f *compiledFlows) ready(ctx context.Context, namespace string) error {
	if err := f.policies.Fetch(ctx, namespace); err != nil {
		return err
	}
	return f.store.Require(ctx, inputs.VNID(namespace))
}

func (f *compiledFlows) set(ctx context.Context, p Pod, object *corev1.Pod) error {
	rules, commit := f.update(ctx, p, object)
	err := errors.Join(rules(ctx), commit.Wait(ctx))
	if errors.As(err, new(*flowstore.MissingInputError)) { // the NetNamespace was deleted after ready
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("pod %s/%s has no flows yet", p.Namespace, p.Name), err.Error())
	}
	return err
}

func (f *compiledFlows) setAsync(ctx context.Context, p Pod, object *corev1.Pod) func(context.Context) error {
	rules, commit := f.update(ctx, p, object)
	return func(ctx context.Context) error {
		err := commit.Wait(ctx)
		if errors.As(err, new(*flowstore.MissingInputError)) {
			err = nil // the store installs the pod once its namespace has a VNID
		}
		return errors.Join(rules(ctx), err)
	}
}

// update submits the policies' flows before the pod's: the pod can send as soon as its own flows are installed.
func (f *compiledFlows) update(ctx context.Context, p Pod, object *corev1.Pod) (rules func(context.Context) error, commit *flowstore.Commit) {
	rules = f.policies.Attach(ctx, p.Owner(), p.policyKey(), pipeline.Pod{OFPort: p.OFPort, Addrs: p.Addrs}, object)
	vnid, policies := inputs.VNID(p.Namespace), inputs.PodPolicies(p.Namespace, p.Name)
	change := flowstore.Change{
		Owner: p.Owner(),
		Reads: []flowstore.Input{vnid, policies},
		Compile: func(v *flowstore.Values) pipeline.State {
			return f.compile(pipeline.Pod{
				OFPort: p.OFPort, MAC: p.MAC(), Addrs: p.Addrs,
				VNID: flowstore.Read[config.VNID](v, vnid), Policies: flowstore.Read[pipeline.PodPolicies](v, policies),
			})
		},
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ports[p.Namespace] == nil {
		f.ports[p.Namespace] = map[Attachment]int{}
	}
	if p.OFPort > 0 {
		f.ports[p.Namespace][p.Attachment] = p.OFPort
	}
	f.namespaces[p.Attachment] = p.Namespace
	u := flowstore.Update{Changes: []flowstore.Change{change}}
	f.publishPorts(&u, p.Namespace)
	return rules, f.store.Update(u)[0]
}

// publishPorts adds the OpenFlow port numbers of the namespace's pods to the update.
func (f *compiledFlows) publishPorts(u *flowstore.Update, namespace string) {
	input := inputs.Ports(namespace)
	if len(f.ports[namespace]) == 0 {
		delete(f.ports, namespace)
		u.Withdraw = append(u.Withdraw, input)
		return
	}
	u.Publish = append(u.Publish, flowstore.Published{Input: input, Value: slices.Sorted(maps.Values(f.ports[namespace]))})
}

func (f *compiledFlows) remove(a Attachment) func(context.Context) error {
	commit, policiesDone := f.delete(a), f.policies.Detach(a.Owner())
	return func(ctx context.Context) error { return errors.Join(commit.Wait(ctx), policiesDone(ctx)) }
}

func (f *compiledFlows) delete(a Attachment) *flowstore.Commit {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := flowstore.Update{Changes: []flowstore.Change{{Owner: a.Owner()}}}
	if namespace, known := f.namespaces[a]; known {
		delete(f.namespaces, a)
		delete(f.ports[namespace], a)
		f.publishPorts(&u, namespace)
	}
	return f.store.Update(u)[0]
}

// expected omits flows that are shared with other pods, which have another cookie.
func (f *compiledFlows) expected(p Pod) []*ovs.Flow {
	st := f.store.Compiled(p.Owner())
	if st == nil {
		return nil
	}
	var flows []*ovs.Flow
	for _, flow := range st.Flows {
		if pipeline.IsShared(flow) {
			continue
		}
		flow.Cookie = p.Owner().Cookie()
		flows = append(flows, flow)
	}
	return flows
}
