// Package podflows compiles the flows of pods: it sets their owners in the flow store, and publishes the inputs that it has from the pods themselves, which are
// the OpenFlow ports of each Namespace and the limits of bandwidth. It reads and writes nothing on the node.
package podflows

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/containernetworking/cni/pkg/types"
	corev1 "k8s.io/api/core/v1"
	apitypes "k8s.io/apimachinery/pkg/types"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/sandbox"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// Flows compiles pods for the flow store, which compiles them again when the VNID of their namespace, their policies or their limits of
// bandwidth change.
type Flows struct {
	store    Store
	handlers []PodHandler
	cache    sandbox.Cache
	events   Events
	compile  func(pipeline.Pod) pipeline.State

	fetchNamespace func(ctx context.Context, name string) (apitypes.UID, error) // nil in mode subnet

	mu         sync.Mutex                               // held during Store.Update, so that ports are published in order
	ports      map[namespace]map[sandbox.Attachment]int // OpenFlow ports
	namespaces map[sandbox.Attachment]namespace
	limits     map[sandbox.Attachment]*limits
}

// namespace is a Namespace. One that was deleted and created again is another.
type namespace struct {
	name string
	uid  apitypes.UID
}

// New returns flows without pods.
func New(d Dependencies) *Flows {
	return &Flows{
		store: d.Store, handlers: d.Handlers, cache: d.Cache, events: d.Events, compile: d.Compile, fetchNamespace: d.FetchNamespace,
		ports: map[namespace]map[sandbox.Attachment]int{}, namespaces: map[sandbox.Attachment]namespace{}, limits: map[sandbox.Attachment]*limits{},
	}
}

// Ready returns when the inputs of the flows of the namespace's pods are available, with the UID of the Namespace; "" if unknown.
func (f *Flows) Ready(ctx context.Context, name string) (apitypes.UID, error) {
	var current apitypes.UID
	if f.fetchNamespace != nil {
		var err error
		if current, err = f.fetchNamespace(ctx, name); err != nil {
			return "", err
		}
	}
	if err := f.store.Require(ctx, inputs.VNID(name)); err != nil {
		return "", err
	}
	uid := f.NamespaceUID(name)
	if uid != "" && current != "" && uid != current {
		return "", types.NewError(types.ErrTryAgainLater, fmt.Sprintf("namespace %s was created again, and its NetNamespace is still that of the previous one", name),
			"ovsdn-controller re-creates it; check that it runs")
	}
	// Until they are known, the pod's packets would leave with another source.
	if err := f.store.Require(ctx, inputs.NamespaceEgressIPs(name, uid)); err != nil {
		return "", err
	}
	return uid, nil
}

// NamespaceUID returns the UID of the Namespace whose VNID is in use; "" if unknown.
func (f *Flows) NamespaceUID(name string) apitypes.UID {
	value, _ := f.store.Value(inputs.NamespaceUID(name))
	uid, _ := value.(apitypes.UID)
	return uid
}

// policyKey returns the key of the pod in policies. Earlier versions wrote the UID of the mirror for static pods.
func (f *Flows) policyKey(p sandbox.Pod) policy.PodKey {
	if object := sandbox.CachedObject(f.cache, p); object != nil {
		return policy.KeyOf(object)
	}
	return policy.PodKey{Namespace: p.Namespace, Name: p.Name, UID: apitypes.UID(p.UID)}
}

// Set returns when the pod's flows, and those of the handlers for it, are installed.
func (f *Flows) Set(ctx context.Context, p sandbox.Pod, object *corev1.Pod) error {
	others, commit := f.update(ctx, p, object)
	err := errors.Join(others(ctx), commit.Wait(ctx))
	if errors.As(err, new(*flowstore.MissingInputError)) { // the NetNamespace was deleted after ready
		return types.NewError(types.ErrTryAgainLater, fmt.Sprintf("pod %s/%s has no flows yet", p.Namespace, p.Name), err.Error())
	}
	return err
}

// SetAsync returns at once. The returned function waits until the flows are installed.
func (f *Flows) SetAsync(ctx context.Context, p sandbox.Pod, object *corev1.Pod) func(context.Context) error {
	others, commit := f.update(ctx, p, object)
	return func(ctx context.Context) error {
		err := commit.Wait(ctx)
		if errors.As(err, new(*flowstore.MissingInputError)) {
			err = nil // the store installs the pod once its namespace has a VNID
		}
		return errors.Join(others(ctx), err)
	}
}

// update submits the handlers' flows before the pod's: the pod can send as soon as its own flows are installed.
func (f *Flows) update(ctx context.Context, p sandbox.Pod, object *corev1.Pod) (others func(context.Context) error, commit *flowstore.Commit) {
	key := f.policyKey(p)
	others = f.attach(ctx, p.Owner(), key, pipeline.Pod{OFPort: p.OFPort, Addrs: p.Addrs}, object)
	vnid, policies, bandwidth, firewall := vnidInput(p), inputs.PodPolicies(key), inputs.Bandwidth(p.Owner()), inputs.EgressFirewall(p.Namespace)
	egressIPs := egressIPsInput(p)
	reads := []flowstore.Input{policies, bandwidth, firewall, egressIPs}
	if p.VNID == nil {
		reads = append(reads, vnid)
	}
	change := flowstore.Change{
		Owner: p.Owner(),
		Reads: reads,
		Compile: func(v *flowstore.Values) pipeline.State {
			pod := pipeline.Pod{
				OFPort: p.OFPort, MAC: p.MAC(), Addrs: p.Addrs,
				Policies: flowstore.Read[pipeline.PodPolicies](v, policies), Bandwidth: flowstore.Read[config.Bandwidth](v, bandwidth),
				EgressFirewall: flowstore.Read[pipeline.EgressFirewallID](v, firewall), EgressIP: flowstore.Read[inputs.EgressIPs](v, egressIPs).Of(p.Addrs),
			}
			if p.VNID != nil {
				pod.VNID = *p.VNID
			} else {
				pod.VNID = flowstore.Read[config.VNID](v, vnid)
			}
			return f.compile(pod)
		},
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	u := flowstore.Update{Changes: []flowstore.Change{change}}
	ns := namespace{p.Namespace, p.NamespaceUID}
	if previous, known := f.namespaces[p.Attachment]; known && previous != ns {
		f.deletePort(&u, p.Attachment)
	}
	if f.ports[ns] == nil {
		f.ports[ns] = map[sandbox.Attachment]int{}
	}
	if p.OFPort > 0 {
		f.ports[ns][p.Attachment] = p.OFPort
	}
	f.namespaces[p.Attachment] = ns
	f.publishPorts(&u, ns)
	f.publishBandwidth(&u, p, object)
	return others, f.store.Update(u)[0]
}

// vnidInput returns the VNID of the Namespace that the pod was attached in.
func vnidInput(p sandbox.Pod) flowstore.Input {
	if p.NamespaceUID == "" {
		return inputs.VNID(p.Namespace)
	}
	return inputs.NamespaceVNID(p.Namespace, p.NamespaceUID)
}

// egressIPsInput returns the egress IPs of the Namespace that the pod was attached in. A pod whose Namespace is unknown has an input of its own.
func egressIPsInput(p sandbox.Pod) flowstore.Input {
	if p.VNID != nil {
		return inputs.NamespaceEgressIPs(p.Namespace, apitypes.UID(p.Owner().Key))
	}
	return inputs.NamespaceEgressIPs(p.Namespace, p.NamespaceUID)
}

// publishPorts adds the OpenFlow port numbers of the namespace's pods to the update.
func (f *Flows) publishPorts(u *flowstore.Update, ns namespace) {
	input := inputs.Ports(ns.name, ns.uid)
	if len(f.ports[ns]) == 0 {
		delete(f.ports, ns)
		u.Withdraw = append(u.Withdraw, input)
		return
	}
	u.Publish = append(u.Publish, flowstore.Published{Input: input, Value: slices.Sorted(maps.Values(f.ports[ns]))})
}

// deletePort deletes the OpenFlow port number of the attachment, and adds the others of its namespace to the update.
func (f *Flows) deletePort(u *flowstore.Update, a sandbox.Attachment) {
	ns := f.namespaces[a]
	delete(f.namespaces, a)
	delete(f.ports[ns], a)
	f.publishPorts(u, ns)
}

// Remove returns at once. The returned function waits until the flows are removed.
func (f *Flows) Remove(a sandbox.Attachment) func(context.Context) error {
	commit, others := f.delete(a), f.detach(a.Owner())
	return func(ctx context.Context) error { return errors.Join(commit.Wait(ctx), others(ctx)) }
}

func (f *Flows) delete(a sandbox.Attachment) *flowstore.Commit {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := flowstore.Update{Changes: []flowstore.Change{{Owner: a.Owner()}}}
	if _, known := f.namespaces[a]; known {
		f.deletePort(&u, a)
	}
	f.deleteBandwidth(&u, a)
	return f.store.Update(u)[0]
}

// Expected returns the flows that should be installed. It omits those that are shared with other pods, which have another cookie.
func (f *Flows) Expected(p sandbox.Pod) []*ovs.Flow {
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
