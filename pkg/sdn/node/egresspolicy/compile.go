package egresspolicy

import (
	"context"
	"net/netip"
	"slices"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/dnsresolver"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/inputs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// everywhere is all addresses.
func everywhere() []netip.Prefix { return []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0)} }

// update compiles the firewall of a namespace with pods on this node, and sends it to the store, with its number for the pods' flows, as one change: with the
// firewalls that the node's budget closes or opens in turn, for which no client of the namespace waits. The lock must be held.
func (p *Policies) update(ctx context.Context, name string) []*flowstore.Commit {
	var u flowstore.Update
	others := p.compileTo(ctx, name, &u)
	own := len(u.Changes)
	for len(others) > 0 {
		others = append(others[1:], p.compileTo(ctx, others[0], &u)...)
	}
	if len(u.Changes) == 0 {
		return nil
	}
	return slices.Delete(p.store.Update(u), own, len(u.Changes))
}

// compileTo adds the firewall of a namespace with pods on this node to the update, if it has changed, and returns the namespaces whose firewalls the node's budget
// closes or opens in turn. The lock must be held.
func (p *Policies) compileTo(ctx context.Context, name string, u *flowstore.Update) (others []string) {
	n := p.namespaces[name]
	if n == nil {
		return nil
	}
	p.reporter.loop.Add(name)
	p.addUnsaved(name)
	isNew := !n.compiled
	n.compiled = true
	rules, exists := p.read(ctx, name, n)
	if !exists {
		others = p.budget.set(name, 0)
		n.refused = false
		if n.firewall.ID() == 0 {
			return others
		}
		n.firewall, n.change = pipeline.EgressVerdicts{}, flowstore.Change{}
		u.Changes = append(u.Changes, flowstore.Change{Owner: ownerOf(name)})
		u.Publish = append(u.Publish, flowstore.Published{Input: inputs.EgressFirewall(name), Value: pipeline.EgressFirewallID(0)})
		return others
	}
	id := p.idOf(name, n)
	firewall := pipeline.EgressFirewall{ID: id, Rules: rules, Export: p.node.FlowExport}.Compile(n.firewall)
	others = p.budget.set(name, firewall.Len())
	if p.budget.refused[name] {
		firewall = closed(id, p.node.FlowExport).Compile(n.firewall)
	}
	p.reportBudget(ctx, name, n)
	if n.firewall.Equal(firewall) {
		return others // the store tries flows again that the switch has refused
	}
	revoked := !isNew && !n.firewall.IsWithin(firewall) // a namespace's first pod has no connections; after a restart all are evaluated
	n.firewall, n.change = firewall, flowstore.Change{Owner: ownerOf(name), State: firewall.State()}.PrepareAfter(n.change)
	u.Changes = append(u.Changes, n.change)
	u.Publish = append(u.Publish, flowstore.Published{Input: inputs.EgressFirewall(name), Value: id})
	u.Revoked.Permission = u.Revoked.Permission || revoked
	return others
}

// idOf returns the namespace's number: that of the previous agent, if it had one, so that a restart changes no flow.
func (p *Policies) idOf(name string, n *namespace) pipeline.EgressFirewallID {
	if n.id == 0 {
		if n.id = p.recovered[name].ID; n.id == 0 {
			p.lastID++
			n.id = p.lastID
		}
	}
	return n.id
}

// read returns the rules of the namespace's policies, and whether it has any. Invalid policies retain the last valid rules, also those of the previous agent, which
// are in its files if they have names, else in its flows; if there are none, or none of their policies exists any longer, all packets are denied.
func (p *Policies) read(ctx context.Context, name string, n *namespace) (rules []pipeline.EgressFirewallRule, exists bool) {
	objects := p.objects(name)
	previous := config.EgressNames(n.rules)
	n.version = versionOf(objects)
	if len(objects) == 0 {
		p.dropRules(name, n)
		return nil, false
	}
	merged, err := config.MergeEgressNetworkPolicies(objects)
	if last := n.last(); err != nil && n.valid && isOfOthers(last.version, n.version) {
		p.dropRules(name, n)
	} else if err != nil {
		last.advance(n.version)
		n.rulesVersion = last.version
	}
	switch {
	case err == nil:
		n.rules, n.rulesVersion, n.valid, n.reported = merged, n.version, true, ""
		p.idOf(name, n) // before it is deleted
		delete(p.recovered, name)
		p.follow(name, previous, config.EgressNames(merged))
	case !n.valid:
		n.report(ctx, name, err, "the rules of the previous agent apply, or all packets are denied")
		if flows, ok := p.recovered[name]; ok && !isOfOthers(flows.version, n.version) {
			return flows.Rules, true
		}
		delete(p.recovered, name)
		return closed(0, pipeline.FlowExport{}).Rules, true
	default:
		n.report(ctx, name, err, "the last valid rules apply")
	}
	for _, r := range n.rules {
		rules = append(rules, p.compile(r))
	}
	return rules, true
}

// dropRules deletes the last valid rules, also those of the previous agent.
func (p *Policies) dropRules(name string, n *namespace) {
	p.follow(name, config.EgressNames(n.rules), nil)
	n.rules, n.rulesVersion, n.valid, n.reported = nil, nil, false, ""
	delete(p.recovered, name)
}

// report logs an error once. The controller reports it to users.
func (n *namespace) report(ctx context.Context, name string, err error, effect string) {
	if n.reported == err.Error() {
		return
	}
	n.reported = err.Error()
	klog.FromContext(ctx).Info("Invalid EgressNetworkPolicies", "namespace", name, "err", err, "effect", effect, "action", "correct the policies")
}

// compile returns the rule with the addresses of its name.
func (p *Policies) compile(r config.EgressRule) pipeline.EgressFirewallRule {
	if r.Name == "" {
		return pipeline.EgressFirewallRule{To: []netip.Prefix{r.To}, Deny: r.Deny}
	}
	answer := p.resolver.Answer(r.Name)
	if r.Deny {
		return pipeline.EgressFirewallRule{To: denied(answer), Deny: true}
	}
	return pipeline.EgressFirewallRule{To: p.allowed(answer)}
}

// denied returns the destinations of a Deny rule with a name. While its addresses are not known, it denies all.
func denied(a dnsresolver.Answer) []netip.Prefix {
	if !a.Known || a.Excess {
		return everywhere()
	}
	return single(append(slices.Clone(a.Addrs), a.Latest...))
}

// allowed returns the destinations of an Allow rule with a name: hosts outside. DNS must not open services, pods, nodes, or link-local services of the host's
// environment, whatever it answers.
func (p *Policies) allowed(a dnsresolver.Answer) []netip.Prefix {
	return single(slices.DeleteFunc(slices.Clone(a.Addrs), func(addr netip.Addr) bool {
		return !addr.IsGlobalUnicast() || p.nodes.has(addr) || p.node.ServiceNetwork.IsValid() && p.node.ServiceNetwork.Contains(addr) ||
			slices.ContainsFunc(p.node.ClusterNetworks, func(n netip.Prefix) bool { return n.Contains(addr) })
	}))
}

func single(addrs []netip.Addr) []netip.Prefix {
	all := make([]netip.Prefix, len(addrs))
	for i, a := range addrs {
		all[i] = netip.PrefixFrom(a, a.BitLen())
	}
	return all
}

// follow changes the names that are resolved for the namespace. The lock must be held.
func (p *Policies) follow(namespace string, before, now []string) {
	for _, name := range now {
		if !slices.Contains(before, name) {
			if p.users[name] == nil {
				p.users[name] = map[string]bool{}
			}
			p.users[name][namespace] = true
			p.resolver.Follow(name)
		}
	}
	for _, name := range before {
		if !slices.Contains(now, name) {
			if delete(p.users[name], namespace); len(p.users[name]) == 0 {
				delete(p.users, name)
			}
			p.resolver.Unfollow(name)
		}
	}
}
