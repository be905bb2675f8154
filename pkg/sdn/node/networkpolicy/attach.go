package networkpolicy

import (
	"context"
	"errors"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// Attach adds a sandbox of the pod on this node, and compiles the pod's rules. object is the pod as read from the API server; nil: the cached one, which
// may be older. The returned function waits until the rules are installed.
func (p *Policies) Attach(ctx context.Context, owner pipeline.Owner, key policy.PodKey, pod pipeline.Pod, object *corev1.Pod) func(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := time.Now()
	defer func() { p.compileTime.add(ctx, time.Since(start)) }()
	p.syncNamespace(ctx, key.Namespace) // informers may have changes that the engine does not have yet
	if object != nil {
		if p.cachedPod(key) == nil {
			p.unwatched[key] = object
			p.compiler.engine.SetPod(policy.NewPod(object))
		} else {
			p.syncPod(key)
		}
	}
	if previous, attached := p.podKeys[owner]; attached && previous != key {
		p.detach(owner)
	}
	p.compiler.AddSandbox(key, owner, pod)
	p.podKeys[owner] = key
	p.setAddrs(key)
	commits, _ := p.send(nil, key)
	if !p.isPostponed(key) {
		return wait(commits)
	}
	p.isolate(key)
	large := p.large
	return func(ctx context.Context) error { return errors.Join(wait(commits)(ctx), large.wait(ctx)) }
}

// isolate makes the flows of a pod that starts allow nothing until its policies are active.
func (p *Policies) isolate(key policy.PodKey) {
	p.store.Update(flowstore.Update{Publish: []flowstore.Published{{
		Input: inputs.PodPolicies(key),
		Value: pipeline.PodPolicies{Evaluated: true, Ingress: true, Egress: true},
	}}})
}

// Detach removes a sandbox and its rules, and revokes its addresses. The returned function waits until the rules are removed.
func (p *Policies) Detach(owner pipeline.Owner) func(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, attached := p.podKeys[owner]; !attached {
		return func(context.Context) error { return nil }
	}
	return wait(p.detach(owner))
}

func (p *Policies) detach(owner pipeline.Owner) []*flowstore.Commit {
	key := p.podKeys[owner]
	addrs := p.compiler.local[key][owner].Addrs
	delete(p.podKeys, owner)
	delete(p.compiler.local[key], owner)
	p.setAddrs(key)
	commits, _ := p.send(addrs, key)
	return commits
}

// setAddrs sets the addresses of the pod's sandboxes in the engine.
func (p *Policies) setAddrs(key policy.PodKey) {
	var addrs []netip.Addr
	for _, pod := range p.compiler.local[key] {
		addrs = append(addrs, pod.Addrs...)
	}
	if len(addrs) > 0 {
		p.compiler.engine.Attach(key, addrs...)
		return
	}
	delete(p.compiler.local, key)
	delete(p.unwatched, key)
	p.compiler.engine.Detach(key)
	p.syncPod(key) // the pod may have ended, or may not be cached yet
}

// NamespaceOf returns the namespace of the pod with the address, on any node; false if there is none.
func (p *Policies) NamespaceOf(addr netip.Addr) (namespace string, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod, known := p.compiler.engine.PodByAddr(addr)
	return pod.Namespace, known && pod.Namespace != ""
}
