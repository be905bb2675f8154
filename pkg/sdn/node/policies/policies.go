package policies

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	goovs "github.com/digitalocean/go-openvswitch/ovs"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// updateInterval is how often what the cluster says is compiled at most. The first change after a pause is compiled at once.
const updateInterval = 50 * time.Millisecond

// fetchTime bounds the one question that a pod's ADD waits for.
const fetchTime = 2 * time.Second

// Switch takes what policies compile to, in one bundle with the flows of pods that policies have changed their mind about (*vnids.VNIDs).
type Switch interface {
	Recompile(changes []store.Change, owners ...pipeline.Owner) []*store.Commit
}

// Bridge is the bridge as it tells of connections and packets (*ovs.Native).
type Bridge interface {
	Tracker
	WatchPackets(ctx context.Context, handle func(ovs.PacketIn))
}

// Events reports to users.
type Events interface {
	WarnNode(reason, message string)
}

// Policies follows what the cluster says of policies, and compiles it for the pods of this node.
//
// Its lock is held while a change is given to the store, which never blocks, so the order of changes is that of what is known.
type Policies struct {
	cluster Cluster
	sw      Switch
	events  Events
	news    news
	synced  []cache.InformerSynced // the handlers, which make the news
	updates *reconcile.Runner
	cuts    *Cuts
	bridge  Bridge
	denied  *denied

	previous <-chan time.Time // when replies to connections of the previous version end; nil: there were none

	compileTime durations
	between     func()   // nil, or called between two parts of a large change, without the lock
	beyond      []string // policies beyond the budgets, as reported

	mu       sync.Mutex
	compiler *Compiler
	relogged map[string]bool                  // namespaces that are logged now, or no longer, since that was sent last
	homes    map[pipeline.Owner]policy.PodKey // of the pods of this node
	early    map[policy.PodKey]*corev1.Pod    // pods of this node that the watch has not told of yet
	written  bool                             // Written has been called
	large    *largeChange                     // the change that is compiled in parts; nil: none is

	// What the flows of pods say of policies. It has a lock of its own, since the switch asks while it is being changed.
	knowledge sync.RWMutex
	known     map[policy.PodKey]pipeline.PodPolicies
}

// New returns the feature. Its informers need not have synced.
func New(node pipeline.Node, cluster Cluster, sw Switch, bridge Bridge, events Events) (*Policies, error) {
	p := &Policies{
		cluster:  cluster,
		sw:       sw,
		bridge:   bridge,
		events:   events,
		compiler: NewCompiler(node, policy.New(cluster.HostNetworkNamespaces...)),
		relogged: map[string]bool{},
		homes:    map[pipeline.Owner]policy.PodKey{},
		early:    map[policy.PodKey]*corev1.Pod{},
		known:    map[policy.PodKey]pipeline.PodPolicies{},
	}
	if p.cluster.OutsideEndpoints == nil {
		p.cluster.OutsideEndpoints = func(netip.Addr, goovs.Protocol, uint16) pipeline.OutsideEndpoints { return pipeline.OutsideEndpoints{} }
	}
	p.updates = reconcile.NewRunner("policies", updateInterval, p.update)
	p.news = news{due: p.updates.Poke, objects: map[object]struct{}{}, policies: map[string]map[object]struct{}{}}
	p.cuts = newCuts(bridge, &p.mu, p.judge)
	p.denied = newDenied(p.explain)
	return p, p.watch()
}

// Prime takes note of all that the informers know, and returns when that is done or the context ends.
func (p *Policies) Prime(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		return fmt.Errorf("wait for what policies depend on: %w", ctx.Err())
	}
	if err := p.findPrevious(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.catchUp(ctx)
	p.reportHostNetworks(ctx)
	return nil
}

// reportHostNetworks logs host-network namespaces that do not exist: no selector admits nodes by them.
func (p *Policies) reportHostNetworks(ctx context.Context) {
	for _, name := range p.cluster.HostNetworkNamespaces {
		if cached[corev1.Namespace](p.cluster.Namespaces, name) == nil {
			klog.FromContext(ctx).Info("Host-network namespace does not exist: no namespaceSelector admits nodes by it", "namespace", name,
				"action", "create it, or leave it out of --host-network-namespaces")
		}
	}
}

// Run follows the cluster until the context ends.
func (p *Policies) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { p.updates.Run(ctx) })
	parts.Go(func() { p.cuts.Run(ctx) })
	parts.Go(func() { p.denied.run(ctx) })
	parts.Go(func() { p.expirePrevious(ctx) })
	parts.Go(func() { p.bridge.WatchPackets(ctx, p.denied.handle) })
	parts.Wait()
}

// Written says that the switch has all that was known at the start. What that forbids is cut: while there was no agent, policies may have
// changed.
//
// Pods may have gone meanwhile, too: what the switch tracks of addresses that nobody has now is forgotten.
func (p *Policies) Written() {
	p.mu.Lock()
	p.written = true
	here := map[netip.Addr]bool{}
	for _, pods := range p.compiler.local {
		for _, pod := range pods {
			for _, a := range pod.Addrs {
				here[a] = true
			}
		}
	}
	p.mu.Unlock()
	var gone []netip.Addr
	for _, subnet := range p.compiler.node.Subnets { // of 65,536 addresses at most (config.Network)
		for a := config.Gateway(subnet).Next(); subnet.Contains(a); a = a.Next() {
			if !here[a] {
				gone = append(gone, a)
			}
		}
	}
	p.cuts.Forget(gone...)
}

// ServiceChanged has connections to services evaluated again, once the switch has the service's flows.
func (p *Policies) ServiceChanged(flows *store.Commit) {
	p.cuts.Heed(policy.Loss{Permission: true}, flows)
}

// sendPieces is how many changed pieces are collected before they are sent. The lock is released afterwards, so a pod that starts waits for
// that many. More are compiled in parts (large).
const sendPieces = 2_000

// update brings the switch to what the cluster says now, and returns when it is there. Large changes go in parts; the
// lock is not held while the switch takes them.
func (p *Policies) update(ctx context.Context) error {
	for more := true; more && ctx.Err() == nil; {
		if err := p.finish(ctx); err != nil {
			return err
		}
		p.mu.Lock()
		start := time.Now()
		more = p.learnSome(ctx)
		commits, postponed := p.send()
		more = more || postponed != nil
		p.compileTime.add(ctx, time.Since(start))
		p.reportBeyond(ctx)
		p.mu.Unlock()
		p.report(ctx, wait(commits)(ctx))
	}
	return ctx.Err()
}

func (p *Policies) report(ctx context.Context, err error) {
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Switch rejected flows of policies; pods may reach less than their policies allow", "action", "check ovs-vswitchd's log, then restart the agent")
	}
}

// ReasonBeyondBudgets is the reason of an Event on the Node: policies that select its pods are not carried out. Alerts match it: it doesn't change.
const ReasonBeyondBudgets = "NetworkPoliciesBeyondBudgets"

// mostBeyond is how many policies the Event names.
const mostBeyond = 10

// reportBeyond reports which policies are beyond the budgets, when that has changed.
func (p *Policies) reportBeyond(ctx context.Context) {
	names := p.compiler.engine.Beyond()
	if slices.Equal(names, p.beyond) {
		return
	}
	p.beyond = names
	klog.FromContext(ctx).Info("Number of NetworkPolicies beyond their budgets changed", "policies", len(names))
	if len(names) == 0 {
		return
	}
	some := strings.Join(names[:min(len(names), mostBeyond)], ", ")
	if more := len(names) - mostBeyond; more > 0 {
		some += fmt.Sprintf(" and %d more", more)
	}
	p.events.WarnNode(ReasonBeyondBudgets, fmt.Sprintf(
		"NetworkPolicies %s exceed the budget of their namespace or of this node: they isolate its pods and allow nothing; make them smaller, or move pods to other nodes", some))
}

// learnSome updates the engine with changed objects until enough pieces have changed, and reports whether objects are left. NetworkPolicies of a
// namespace that changed together are learned together: between them there may be a state that nobody has asked for.
func (p *Policies) learnSome(ctx context.Context) bool {
	namespace, _ := p.news.next()
	p.catchUpOn(ctx, namespace)
	for p.compiler.engine.Changed() < sendPieces {
		namespace, more := p.news.next()
		if !more {
			return false
		}
		p.catchUpOn(ctx, namespace)
	}
	return true
}

// catchUp updates the engine with all changed objects.
func (p *Policies) catchUp(ctx context.Context) {
	for namespace, more := "", true; more; namespace, more = p.news.next() {
		p.catchUpOn(ctx, namespace)
	}
}

// catchUpOn updates the engine with what a pod of the namespace depends on: all but NetworkPolicies of other namespaces, which select other pods.
func (p *Policies) catchUpOn(ctx context.Context, namespace string) {
	for _, o := range p.news.take(namespace) {
		p.learn(ctx, o)
	}
}

// send compiles what has changed, and gives it to the switch. A change that is large is postponed, and returned. When the switch has a change,
// connections that may not go on begin to be cut, whether or not the commits are waited for.
//
// The pods, of this node, came or went: their targets are compiled in any case, since another pod may have the port soon.
func (p *Policies) send(pods ...policy.PodKey) (commits []*store.Commit, postponed *largeChange) {
	pieces := p.compiler.engine.Drain()
	if postponed = p.postpone(pieces); postponed != nil {
		pieces = pieces[:0]
		for _, key := range pods {
			postponed.pods[key] = struct{}{}
			pieces = append(pieces, policy.Piece{Kind: policy.Target, Pod: key})
		}
		return p.compile(pieces), postponed
	}
	commits = p.compile(pieces)
	p.cuts.Heed(p.compiler.engine.Lost(), commits...)
	return commits, nil
}

func wait(commits []*store.Commit) func(context.Context) error {
	return func(ctx context.Context) error {
		var errs []error
		for _, c := range commits {
			errs = append(errs, c.Wait(ctx))
		}
		return errors.Join(errs...)
	}
}

func (p *Policies) compile(pieces []policy.Piece) []*store.Commit {
	changes := make([]store.Change, 0, len(pieces))
	var owners []pipeline.Owner
	for _, piece := range pieces {
		changes = append(changes, p.change(piece))
		if piece.Kind == policy.Target && p.note(piece.Pod) {
			owners = slices.AppendSeq(owners, maps.Keys(p.compiler.local[piece.Pod]))
		}
	}
	owners = p.relog(owners)
	if len(changes) == 0 && len(owners) == 0 {
		return nil
	}
	return p.sw.Recompile(changes, owners...)
}

func (p *Policies) change(piece policy.Piece) store.Change {
	owner, state := p.compiler.Compile(piece)
	return store.Change{Owner: owner, State: state}
}

// note keeps what the flows of a pod of this node are to say, and tells whether that is something else than before. While a large change is about
// the pod, its flows stay as they are.
func (p *Policies) note(key policy.PodKey) bool {
	p.knowledge.Lock()
	defer p.knowledge.Unlock()
	before := p.known[key]
	if _, here := p.compiler.local[key]; !here {
		delete(p.known, key)
		return false
	}
	if p.isPostponed(key) {
		return false
	}
	p.known[key] = p.compiler.podPolicies(key)
	return p.known[key] != before
}

// Of returns what the pod's flows have to say of policies.
func (p *Policies) Of(key policy.PodKey) pipeline.PodPolicies {
	p.knowledge.RLock()
	defer p.knowledge.RUnlock()
	return p.known[key]
}

// Fetch makes sure that the namespace's labels are known. It asks the API server if nobody has told of them, since the watch may be
// behind kubelet's.
func (p *Policies) Fetch(ctx context.Context, namespace string) error {
	ns := cached[corev1.Namespace](p.cluster.Namespaces, namespace)
	if ns == nil {
		ctx, cancel := context.WithTimeout(ctx, fetchTime)
		defer cancel()
		var err error
		if ns, err = p.cluster.GetNamespace(ctx, namespace); err != nil {
			return types.NewError(types.ErrTryAgainLater,
				fmt.Sprintf("can't look up namespace %s, whose labels policies ask for, in the Kubernetes API", namespace), err.Error())
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if watched := cached[corev1.Namespace](p.cluster.Namespaces, namespace); watched != nil {
		ns = watched // which may be newer, and its news taken already
	}
	p.compiler.engine.SetNamespace(ns.Name, ns.Labels)
	p.learnLogged(ns.Name, ns.Annotations)
	return nil
}

// Attach makes a sandbox on this node the pod's: from now on rules about it are compiled. object is the pod as the API server has it, or
// nil if only the watch is to be asked, which may be behind. The returned function waits until the rules are on the switch.
func (p *Policies) Attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, object *corev1.Pod) func(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	defer func() { p.compileTime.add(ctx, time.Since(start)) }()
	p.catchUpOn(ctx, key.Namespace) // the pod may be judged by what the watches have told of, and the engine not
	if object != nil {
		if watched := p.cachedPod(key); watched == nil || watched.UID != object.UID {
			p.early[key] = object
			p.compiler.engine.SetPod(policy.NewPod(object))
		} else {
			delete(p.early, key) // of one before of the same name, of which the watch will not tell any more
			p.learnPod(key)
		}
	}
	p.compiler.Place(key, owner, pod)
	p.homes[owner] = key
	p.attach(key)
	commits, _ := p.send(key)
	if !p.isPostponed(key) {
		return wait(commits)
	}
	p.isolate(key)
	return both(wait(commits), p.large.wait)
}

func both(first, second func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error { return errors.Join(first(ctx), second(ctx)) }
}

// isolate has the flows of a pod that starts let nothing through until its policies are on the switch.
func (p *Policies) isolate(key policy.PodKey) {
	p.knowledge.Lock()
	defer p.knowledge.Unlock()
	p.known[key] = pipeline.PodPolicies{Judged: true, Ingress: true, Egress: true}
}

// Detach takes Attach back. When the returned function has waited, the pod's connections begin to be forgotten.
func (p *Policies) Detach(owner pipeline.Owner) func(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, attached := p.homes[owner]
	if !attached {
		return func(context.Context) error { return nil }
	}
	addrs := p.compiler.local[key][owner].Addrs
	delete(p.homes, owner)
	delete(p.compiler.local[key], owner)
	p.attach(key)
	commits, _ := p.send(key)
	return func(ctx context.Context) error {
		defer p.cuts.Forget(addrs...)
		return wait(commits)(ctx)
	}
}

// attach tells the engine of the sandboxes that the pod has now.
func (p *Policies) attach(key policy.PodKey) {
	var addrs []netip.Addr
	for _, pod := range p.compiler.local[key] {
		addrs = append(addrs, pod.Addrs...)
	}
	if len(addrs) > 0 {
		p.compiler.engine.Attach(key, addrs...)
		return
	}
	delete(p.compiler.local, key)
	delete(p.early, key)
	p.compiler.engine.Detach(key)
	p.learnPod(key) // it may have ended, or the watch may never have told of it
}
