// Package egresspolicy installs the egress firewalls of the namespaces that have pods on this node, from their EgressNetworkPolicies. Docs: docs/egress.md and
// docs/decisions/0018-egress-policies.md.
package egresspolicy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/dnsresolver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/reconcile"
)

// firstAnswers bounds the wait of a starting agent for the first answers of DNS. The flows of the previous agent remain active for that time.
const firstAnswers = 3 * time.Second

// Pause of a namespace between two updates by answers of DNS: as a multiple of the previous update's duration, so that names whose addresses change all the time
// leave time for other namespaces; and its limit.
const (
	updatePause    = 10
	maxUpdatePause = time.Second
)

// Policies is the feature. It implements podflows.PodHandler.
type Policies struct {
	options  Options
	node     pipeline.Node
	store    *flowstore.Store
	resolver *dnsresolver.Resolver
	loop     *reconcile.Loop // of namespaces
	synced   []cache.InformerSynced
	nodes    *nodeAddrs
	reporter *reporter
	saved    rulesDir
	saveLoop *reconcile.Loop // of namespaces whose rules are stored

	mu          sync.Mutex // held during Store.Update, so that the store gets changes in their order
	namespaces  map[string]*namespace
	sandboxes   map[pipeline.Owner]string  // their namespaces
	users       map[string]map[string]bool // namespaces by DNS name
	recovered   map[string]recovered       // last valid ones of the previous agent, by namespace
	storedRules map[string]lastRules       // as in the files, by namespace
	unsaved     map[string]bool            // namespaces whose files can differ from their last valid rules
	retired     map[string]retired         // of namespaces with invalid policies without pods on this node: the last was removed, or is not attached yet
	budget      budget                     // of flows
	lastID      pipeline.EgressFirewallID  // numbers are not used again, since the switch may have refused to remove flows with them
}

// namespace is a namespace with pods on this node.
type namespace struct {
	addrs map[pipeline.Owner][]netip.Addr // of its sandboxes
	rules []config.EgressRule             // the last valid ones
	valid bool                            // there were valid rules

	rulesVersion []generation // lastRules.version

	reported string                    // the error of invalid policies; "": they are valid
	version  []generation              // of the policies that were read
	id       pipeline.EgressFirewallID // 0: no number was allocated

	firewall pipeline.EgressVerdicts // as in the store
	change   flowstore.Change        // that set it
	refused  bool                    // it is closed, since it is beyond the budget of the node
	compiled bool                    // it was compiled once
	next     time.Time               // of the next update by an answer of DNS, at the earliest
}

// retired is the last valid rules of a namespace for its next pod on this node.
type retired struct {
	lastRules
	id pipeline.EgressFirewallID
}

// recovered is the firewall of the previous agent.
type recovered struct {
	pipeline.EgressFirewall
	version []generation // of the policies when this agent started
}

// New returns the feature. The informer needs an index by namespace, and need not have synced.
func New(o Options) (*Policies, error) {
	p := &Policies{
		options: o, node: o.Node, store: o.Store, namespaces: map[string]*namespace{}, sandboxes: map[pipeline.Owner]string{}, users: map[string]map[string]bool{},
		recovered: map[string]recovered{}, retired: map[string]retired{}, budget: newBudget(),
		saved: rulesDir(o.RulesDir), storedRules: map[string]lastRules{}, unsaved: map[string]bool{},
	}
	p.resolver = dnsresolver.New(o.Servers, p.answerChanged)
	p.loop = reconcile.New("egress-policies", p.reconcile)
	p.saveLoop = reconcile.New("egress-policy-rules", p.save)
	p.reporter = newReporter(p)
	o.Store.Source(inputs.KindEgressFirewall, flowstore.Source{Default: pipeline.EgressFirewallID(0)})
	if o.Node.Mode != config.ModeSubnet {
		o.Store.EvaluateConnections(pipeline.AllowedZones(), p.evaluateConnections)
	}
	reg, err := o.Policies.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: p.enqueue, DeleteFunc: p.enqueue,
		UpdateFunc: func(before, now any) {
			if generationOf(before) != generationOf(now) {
				p.enqueue(now)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("add event handler: %w", err)
	}
	nodes, nodesSynced, err := watchNodeAddrs(o.HostSubnets, p.nodeChanged)
	if err != nil {
		return nil, err
	}
	p.nodes, p.synced = nodes, []cache.InformerSynced{reg.HasSynced, nodesSynced}
	return p, nil
}

// Prime waits for the informer, and reads the firewalls of the previous agent from the switch, and those with names from its files.
func (p *Policies) Prime(ctx context.Context) error {
	if !cache.WaitForCacheSync(ctx.Done(), p.synced...) {
		return fmt.Errorf("wait for the cache of EgressNetworkPolicies: %w", ctx.Err())
	}
	flows, err := p.options.Bridge.DumpFlows(ctx)
	if err != nil {
		return fmt.Errorf("read egress firewalls from the switch: %w", err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	firewalls := pipeline.EgressFirewallsOf(flows)
	for _, f := range firewalls {
		p.lastID = max(p.lastID, f.ID)
	}
	for _, name := range p.options.Policies.GetIndexer().ListIndexFuncValues(cache.NamespaceIndex) {
		if f, ok := firewalls[ownerOf(name).Cookie()]; ok {
			p.recovered[name] = recovered{f, versionOf(p.objects(name))}
		}
	}
	return p.recoverRules(ctx)
}

// AwaitNames returns when the names of the pods' namespaces are resolved, or could not be, within a few seconds. It is called when the pods of this node are
// attached, before the store writes: a name without an answer allows nothing.
func (p *Policies) AwaitNames(ctx context.Context) {
	waiting, cancel := context.WithTimeout(ctx, firstAnswers)
	defer cancel()
	p.resolver.AwaitFirst(waiting)
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.namespaces {
		p.update(ctx, name)
	}
	p.deleteRecovered()
}

// deleteRecovered deletes the firewalls of the previous agent whose namespaces have no invalid policies. The lock must be held.
func (p *Policies) deleteRecovered() {
	for name := range p.recovered {
		if !p.isInvalid(name) {
			delete(p.recovered, name)
		}
	}
	for name := range p.retired {
		if !p.isInvalid(name) {
			delete(p.retired, name)
			p.addUnsaved(name)
		}
	}
}

// Run resolves names and handles changes until the context ends, and then stores the rules that are not stored yet.
func (p *Policies) Run(ctx context.Context) {
	var parts sync.WaitGroup
	parts.Go(func() { p.resolver.Run(ctx) })
	parts.Go(func() { p.loop.Run(ctx, 1) })
	parts.Go(func() { p.reporter.loop.Run(ctx, 1) })
	parts.Go(func() { p.saveLoop.Run(ctx, 1) })
	parts.Wait()
	flushing, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTimeout)
	defer cancel()
	p.flush(flushing)
}

func (p *Policies) enqueue(obj any) {
	key, err := cache.DeletionHandlingObjectToName(obj)
	if err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.namespaces[key.Namespace] != nil {
		p.loop.Add(key.Namespace)
		return
	}
	// Without pods here, rules that are no longer the last valid ones are not retained: the policies may be those of another namespace of the same name.
	last, isRetired := p.retired[key.Namespace]
	flows, isRecovered := p.recovered[key.Namespace]
	_, isStored := p.storedRules[key.Namespace]
	current := versionOf(p.objects(key.Namespace))
	switch {
	case !isRetired && !isRecovered && !isStored:
		return
	case !p.isInvalid(key.Namespace) || isRetired && isOfOthers(last.version, current) || isRecovered && isOfOthers(flows.version, current):
		delete(p.retired, key.Namespace)
		delete(p.recovered, key.Namespace)
	case isRetired:
		last.advance(current)
		p.retired[key.Namespace] = last
	}
	p.addUnsaved(key.Namespace)
}

func (p *Policies) answerChanged(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for namespace := range p.users[name] {
		if n := p.namespaces[namespace]; n != nil {
			p.loop.AddAfter(namespace, time.Until(n.next))
		}
	}
}

// nodeChanged updates the namespaces whose names have an address that became or is no longer a node's.
func (p *Policies) nodeChanged(addr netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, namespaces := range p.users {
		if !slices.Contains(p.resolver.Answer(name).Addrs, addr) {
			continue
		}
		for namespace := range namespaces {
			p.loop.Add(namespace)
		}
	}
}

// reconcile updates the firewall of a namespace, and returns when its flows are installed.
func (p *Policies) reconcile(ctx context.Context, namespace string) error {
	start := time.Now()
	p.mu.Lock()
	commits := p.update(ctx, namespace)
	p.mu.Unlock()
	defer p.pause(namespace, start)
	if err := flowstore.WaitAll(ctx, commits); err != nil && ctx.Err() == nil {
		// The store tries again, and the Node's condition reports it.
		klog.FromContext(ctx).Error(err, "Switch rejected flows of EgressNetworkPolicies", "namespace", namespace)
	}
	return nil
}

// pause delays the next update of a namespace by an answer of DNS.
func (p *Policies) pause(namespace string, start time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := p.namespaces[namespace]; n != nil {
		now := time.Now()
		if next := now.Add(min(updatePause*now.Sub(start), maxUpdatePause)); next.After(n.next) {
			n.next = next
		}
	}
}

// Attach adds a sandbox of this node. The firewall of its pod's namespace goes to the store before the pod's flows.
func (p *Policies) Attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, _ *corev1.Pod) func(context.Context) error {
	commits := p.attach(ctx, owner, key.Namespace, pod.Addrs)
	return func(ctx context.Context) error { return flowstore.WaitAll(ctx, commits) }
}

func (p *Policies) attach(ctx context.Context, owner pipeline.Owner, name string, addrs []netip.Addr) []*flowstore.Commit {
	p.mu.Lock()
	defer p.mu.Unlock()
	if previous, attached := p.sandboxes[owner]; attached && previous != name {
		p.detach(owner)
	}
	n := p.namespaces[name]
	if n == nil {
		n = &namespace{addrs: map[pipeline.Owner][]netip.Addr{}}
		p.namespaces[name] = n
		if last, ok := p.retired[name]; ok {
			n.rules, n.rulesVersion, n.id, n.valid = last.rules, last.version, last.id, true
			p.follow(name, nil, config.EgressNames(n.rules))
			delete(p.retired, name)
		}
	}
	p.sandboxes[owner] = name
	n.addrs[owner] = slices.Clone(addrs)
	if len(n.addrs) > 1 && slices.Equal(n.version, versionOf(p.objects(name))) {
		return nil // the pod's own flows follow those of the firewall
	}
	return p.update(ctx, name) // the informer may have policies whose event has not arrived
}

// Detach removes a sandbox.
func (p *Policies) Detach(owner pipeline.Owner) func(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	commits := p.detach(owner)
	return func(ctx context.Context) error { return flowstore.WaitAll(ctx, commits) }
}

// detach removes a sandbox, and the firewall of a namespace that has no other on this node. The lock must be held.
func (p *Policies) detach(owner pipeline.Owner) []*flowstore.Commit {
	name, attached := p.sandboxes[owner]
	if !attached {
		return nil
	}
	delete(p.sandboxes, owner)
	n := p.namespaces[name]
	if delete(n.addrs, owner); len(n.addrs) > 0 {
		return nil
	}
	p.follow(name, config.EgressNames(n.rules), nil)
	last, current := n.last(), versionOf(p.objects(name)) // which can be newer than those that were read
	if n.valid && !isOfOthers(last.version, current) && p.isInvalid(name) {
		last.advance(current)
		p.retired[name] = retired{last, n.id}
	}
	delete(p.namespaces, name)
	p.reporter.loop.Add(name)
	p.addUnsaved(name)
	for _, opened := range p.budget.set(name, 0) {
		p.loop.Add(opened)
	}
	return p.store.Update(flowstore.Update{
		Changes: []flowstore.Change{{Owner: ownerOf(name)}}, Withdraw: []flowstore.Input{inputs.EgressFirewall(name)},
	})[:1]
}
