package networkpolicy

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// RuleIDs returns the conjunction IDs of the flows that a policy has on this node, and whether it isolates pods of this node. The namespace of a
// ClusterNetworkPolicy is "". It returns false if the policy does not exist, or selects no pod of this node.
func (p *Policies) RuleIDs(namespace, name string) (ids []uint32, isolates, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.compiler.engine.RuleIDs(namespace, name)
}

// RuleNames returns the names of the rules with these conjunction IDs, such as "default/web/ingress/0", without unknown ones.
func (p *Policies) RuleNames(ids []uint32) []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var names []string
	for _, id := range ids {
		if name, ok := p.compiler.engine.RuleName(id); ok {
			names = append(names, name)
		}
	}
	return names
}

// Isolators returns the names of at most most policies that isolate the pod of this node with the address in the direction, sorted, and the number of further ones.
func (p *Policies) Isolators(pod netip.Addr, egress bool, most int) (names []string, more int) {
	direction := policy.Ingress
	if egress {
		direction = policy.Egress
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	key, ok := p.compiler.engine.PodByAddr(pod)
	if !ok {
		return nil, 0
	}
	return p.compiler.engine.Isolators(key, direction, most)
}

// NameOf returns the name of the pod with the address, or that of the node, for which the namespace is ""; false if neither is known.
func (p *Policies) NameOf(addr netip.Addr) (namespace, name string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	key, ok := p.compiler.engine.PodByAddr(addr)
	return key.Namespace, key.Name, ok
}
