package networkpolicy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	apitypes "k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// updateInterval is the minimum time between two compilations of changes. The first change after a pause is compiled at once.
const updateInterval = 50 * time.Millisecond

// fetchTimeout bounds the read of the Namespace that a pod's ADD waits for.
const fetchTimeout = 2 * time.Second

// Bridge reports tracked connections and packets (*native.Native).
type Bridge interface {
	ListConnections(ctx context.Context, zones ovs.Zones, each func(ovs.Connection)) error
	WatchPackets(ctx context.Context, handle func(ovs.PacketIn))
}

// Events emits Warning Events on the Node.
type Events interface {
	WarnNode(reason, message string)
}

// Policies watches the policies of the cluster, and compiles them for the pods of this node.
//
// The lock is held while the store gets a change, so that changes reach it in the order of the engine's states. The store never blocks.
type Policies struct {
	cluster Cluster
	store   *flowstore.Store
	events  Events
	changes changeQueue
	synced  []cache.InformerSynced // of the event handlers, which fill changes
	updates *reconcile.Runner
	bridge  Bridge
	denied  *denied

	previous <-chan time.Time // receives when the lookup of the previous version's connections ends; nil: it is not installed

	compileTime durations
	afterPart   func()   // for tests: nil, or called after each part of a large change, without the lock
	overBudget  []string // policies over budget, as reported

	mu       sync.Mutex
	compiler *Compiler
	podKeys  map[pipeline.Owner]policy.PodKey // of the sandboxes on this node
	started  bool                             // InitialSyncDone was called
	large    *largeChange                     // the change that is being compiled in parts; nil: none

	loggedChanged map[string]bool               // namespaces whose entry in compiler.logged changed since the last update
	unwatched     map[policy.PodKey]*corev1.Pod // pods that Attach got and the watch has not delivered yet
}

// New returns the feature. Its informers need not have synced.
func New(node pipeline.Node, cluster Cluster, st *flowstore.Store, bridge Bridge, events Events) (*Policies, error) {
	p := &Policies{
		cluster:  cluster,
		store:    st,
		bridge:   bridge,
		events:   events,
		compiler: NewCompiler(node, policy.New(cluster.HostNetworkNamespaces...)),
		podKeys:  map[pipeline.Owner]policy.PodKey{},

		loggedChanged: map[string]bool{},
		unwatched:     map[policy.PodKey]*corev1.Pod{},
	}
	if p.cluster.OutsideEndpoints == nil {
		p.cluster.OutsideEndpoints = func(netip.Addr, goovs.Protocol, uint16) pipeline.OutsideEndpoints { return pipeline.OutsideEndpoints{} }
	}
	p.updates = reconcile.NewRunner("policies", updateInterval, p.update)
	p.changes = newChangeQueue(p.updates.Trigger)
	st.EvaluateConnections(pipeline.Zones(), p.evaluateConnections)
	p.denied = newDenied(p.explain, node.Subnets)
	return p, p.watch()
}

// Prime waits for the informers' caches to sync, and updates the engine with all cached objects.
func (p *Policies) Prime(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		return fmt.Errorf("wait for the caches of objects that policies depend on: %w", ctx.Err())
	}
	if err := p.findPrevious(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.syncAll(ctx)
	p.reportHostNetworks(ctx)
	return nil
}

// reportHostNetworks logs host-network namespaces that do not exist.
func (p *Policies) reportHostNetworks(ctx context.Context) {
	for _, name := range p.cluster.HostNetworkNamespaces {
		if reconcile.Cached[corev1.Namespace](p.cluster.Namespaces, name) == nil {
			klog.FromContext(ctx).Info("Host-network namespace does not exist: no namespaceSelector admits nodes by it", "namespace", name,
				"action", "create it, or leave it out of --host-network-namespaces")
		}
	}
}

// Run compiles changes and logs denied packets, until the context ends.
func (p *Policies) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { p.updates.Run(ctx) })
	parts.Go(func() { p.denied.run(ctx) })
	parts.Go(func() { p.expirePrevious(ctx) })
	parts.Go(func() { p.bridge.WatchPackets(ctx, p.denied.handle) })
	parts.Wait()
}

// ReportedPackets returns the number of denied packets that the switch reported, of namespaces that log them.
func (p *Policies) ReportedPackets() (ingress, egress uint64) {
	return p.denied.reported[0].Load(), p.denied.reported[1].Load()
}

// InitialSyncDone is called after the flows of the first sync are installed.
func (p *Policies) InitialSyncDone() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.started = true
}

// maxClauses is the number of changed clauses that are compiled under the lock at once: a pod that starts waits for at most that many. If more have
// changed, they are compiled in parts (largeChange).
const maxClauses = 2_000

// update compiles the changes of the cluster, and returns when their flows are installed. The lock is not held while it waits.
func (p *Policies) update(ctx context.Context) error {
	for more := true; more && ctx.Err() == nil; {
		if err := p.compileLarge(ctx); err != nil {
			return err
		}
		p.mu.Lock()
		start := time.Now()
		more = p.syncSome(ctx)
		commits, postponed := p.send(nil)
		more = more || postponed != nil
		p.compileTime.add(ctx, time.Since(start))
		p.reportOverBudget(ctx)
		p.mu.Unlock()
		reportRejected(ctx, wait(commits)(ctx))
	}
	return ctx.Err()
}

func reportRejected(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Switch rejected flows of policies; allowed connections may be denied", "action", "check ovs-vswitchd's log, and find the program that changes the bridge; the agent retries")
	}
}

// maxNamedPolicies is the number of policies that the Event names.
const maxNamedPolicies = 10

// reportOverBudget reports the policies that exceed a budget after their list has changed.
func (p *Policies) reportOverBudget(ctx context.Context) {
	names := p.compiler.engine.OverBudget()
	if slices.Equal(names, p.overBudget) {
		return
	}
	p.overBudget = names
	klog.FromContext(ctx).Info("NetworkPolicies over budget changed", "policies", len(names))
	if len(names) == 0 {
		return
	}
	p.events.WarnNode(eventreason.NetworkPoliciesBeyondBudgets, fmt.Sprintf(
		"NetworkPolicies %s exceed the budget of their namespace or of this node: they isolate its pods and allow nothing; make them smaller, or move pods to other nodes", reconcile.FirstNames(names, maxNamedPolicies)))
}

// syncSome updates the engine with changed objects until maxClauses have changed, and reports whether objects are left. NetworkPolicies of a namespace
// that changed together are applied together, since a state between them may allow or deny what no user intended.
func (p *Policies) syncSome(ctx context.Context) bool {
	namespace, _ := p.changes.next()
	p.syncNamespace(ctx, namespace)
	for p.compiler.engine.Changed() < maxClauses {
		namespace, more := p.changes.next()
		if !more {
			return false
		}
		p.syncNamespace(ctx, namespace)
	}
	return true
}

// syncAll updates the engine with all changed objects.
func (p *Policies) syncAll(ctx context.Context) {
	for namespace, more := "", true; more; namespace, more = p.changes.next() {
		p.syncNamespace(ctx, namespace)
	}
}

// syncNamespace updates the engine with the changed objects that pods of the namespace depend on: all but NetworkPolicies of other namespaces.
func (p *Policies) syncNamespace(ctx context.Context, namespace string) {
	for _, o := range p.changes.take(namespace) {
		p.sync(ctx, o)
	}
}

// send compiles changed clauses, and sends their flows to the store, with what was revoked. It postpones and returns a large change.
//
// The targets of the given pods, which were attached or detached with the removed addresses, are compiled in any case, since another pod may get the port.
func (p *Policies) send(removed []netip.Addr, pods ...policy.PodKey) (commits []*flowstore.Commit, postponed *largeChange) {
	clauses := p.compiler.engine.Drain()
	revoked := flowstore.Revocation{Permission: len(removed) > 0, Addrs: removed}
	if postponed = p.postpone(clauses); postponed != nil {
		clauses = clauses[:0]
		for _, key := range pods {
			postponed.pods[key] = struct{}{}
			clauses = append(clauses, policy.Clause{Kind: policy.Target, Pod: key})
		}
		return p.compile(clauses, revoked), postponed
	}
	more := p.compiler.engine.Revoked()
	revoked.Permission = revoked.Permission || more.Permission
	revoked.Addrs = slices.Concat(revoked.Addrs, more.Addrs)
	return p.compile(clauses, revoked), nil
}

func wait(commits []*flowstore.Commit) func(context.Context) error {
	return func(ctx context.Context) error {
		var errs []error
		for _, c := range commits {
			errs = append(errs, c.Wait(ctx))
		}
		return errors.Join(errs...)
	}
}

func (p *Policies) compile(clauses []policy.Clause, revoked flowstore.Revocation) []*flowstore.Commit {
	u := flowstore.Update{Changes: make([]flowstore.Change, 0, len(clauses)), Revoked: revoked}
	for _, clause := range clauses {
		u.Changes = append(u.Changes, p.change(clause))
		if clause.Kind == policy.Target {
			p.publish(&u, clause.Pod)
		}
	}
	p.publishLogged(&u)
	return p.store.Update(u)
}

func (p *Policies) change(clause policy.Clause) flowstore.Change {
	owner, state := p.compiler.Compile(clause)
	return flowstore.Change{Owner: owner, State: state}
}

// publish adds the input of a pod's own flows to the update. The input stays as it is while a large change affects the pod.
func (p *Policies) publish(u *flowstore.Update, key policy.PodKey) {
	input := inputs.PodPolicies(key)
	if _, local := p.compiler.local[key]; !local {
		u.Withdraw = append(u.Withdraw, input)
	} else if !p.isPostponed(key) {
		u.Publish = append(u.Publish, flowstore.Published{Input: input, Value: p.compiler.podPolicies(key)})
	}
}

// Fetch sets the namespace's labels in the engine, and returns its UID. It reads the namespace from the API server if it is not cached, since the watch may be
// behind that of kubelet.
func (p *Policies) Fetch(ctx context.Context, namespace string) (apitypes.UID, error) {
	ns := reconcile.Cached[corev1.Namespace](p.cluster.Namespaces, namespace)
	if ns == nil {
		ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
		defer cancel()
		var err error
		if ns, err = p.cluster.GetNamespace(ctx, namespace); err != nil {
			return "", types.NewError(types.ErrTryAgainLater,
				fmt.Sprintf("can't read the labels of namespace %s from the Kubernetes API", namespace), err.Error())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if watched := reconcile.Cached[corev1.Namespace](p.cluster.Namespaces, namespace); watched != nil {
		ns = watched // may be newer, and already removed from the queue
	}
	p.compiler.engine.SetNamespace(ns.Name, ns.Labels)
	p.syncLogged(ns.Name, ns.Annotations)
	return ns.UID, nil
}
