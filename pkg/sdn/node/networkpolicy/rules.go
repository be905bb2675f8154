package networkpolicy

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
