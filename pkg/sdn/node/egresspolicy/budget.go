package egresspolicy

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	networkv1 "github.com/openshift/api/network/v1"
	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/eventreason"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// maxNodeFlows is the budget of a node: the flows of the egress firewalls of all namespaces with pods on it. Reason: docs/decisions/0018-egress-policies.md.
const maxNodeFlows = 200_000

// budget decides which namespaces are beyond the budget. That depends only on the number of their flows, not on the order of events: the namespaces with the
// fewest flows come first, and those of equal number by name. So a large firewall closes no smaller one.
type budget struct {
	limit   int
	flows   map[string]int // by namespace
	total   int
	refused map[string]bool // namespaces beyond the budget
}

func newBudget() budget {
	return budget{limit: maxNodeFlows, flows: map[string]int{}, refused: map[string]bool{}}
}

// set sets the number of flows of a namespace, and returns the others that are beyond the budget now and were not, or the reverse. While all are within it, it
// costs nothing.
func (b *budget) set(namespace string, flows int) (others []string) {
	before := b.flows[namespace]
	if before == flows {
		return nil
	}
	b.total += flows - before
	if b.flows[namespace] = flows; flows == 0 {
		delete(b.flows, namespace)
	}
	if b.total <= b.limit && len(b.refused) == 0 {
		return nil
	}
	refused := b.beyond()
	for _, names := range []map[string]bool{refused, b.refused} {
		for name := range names {
			if name != namespace && refused[name] != b.refused[name] {
				others = append(others, name)
			}
		}
	}
	b.refused = refused
	slices.Sort(others)
	return others
}

// beyond returns the namespaces that are beyond the budget.
func (b *budget) beyond() map[string]bool {
	refused := map[string]bool{}
	if b.total <= b.limit {
		return refused
	}
	smallestFirst := slices.SortedFunc(maps.Keys(b.flows), func(x, y string) int { return cmp.Or(cmp.Compare(b.flows[x], b.flows[y]), cmp.Compare(x, y)) })
	sum := 0
	for _, name := range smallestFirst {
		if sum += b.flows[name]; sum > b.limit {
			refused[name] = true
		}
	}
	return refused
}

// BeyondBudget returns the number of namespaces whose firewall is closed, since it is beyond the budget of the node, and the number of flows that they would have.
func (p *Policies) BeyondBudget() (namespaces, flows int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name := range p.budget.refused {
		flows += p.budget.flows[name]
	}
	return len(p.budget.refused), flows
}

// closed returns a firewall that denies all packets.
func closed(id pipeline.EgressFirewallID, export pipeline.FlowExport) pipeline.EgressFirewall {
	return pipeline.EgressFirewall{ID: id, Export: export, Rules: []pipeline.EgressFirewallRule{{To: everywhere(), Deny: true}}}
}

// reportBudget reports a namespace whose firewall is closed, or no longer.
func (p *Policies) reportBudget(ctx context.Context, name string, n *namespace) {
	refused := p.budget.refused[name]
	if n.refused == refused {
		return
	}
	n.refused = refused
	log := klog.FromContext(ctx).WithValues("namespace", name, "flows", p.budget.flows[name], "limit", p.budget.limit)
	if !refused {
		log.Info("Egress firewall within the budget of the node again")
		return
	}
	log.Info("Egress firewall beyond the budget of the node", "effect", "all packets to outside are denied", "action", "use fewer, wider ranges, or move pods to other nodes")
	objects := p.objects(name)
	if len(objects) == 0 || p.options.Events == nil {
		return
	}
	first := slices.MinFunc(objects, func(a, b *networkv1.EgressNetworkPolicy) int { return cmp.Compare(a.Name, b.Name) })
	p.options.Events.WarnEgressNetworkPolicy(first, eventreason.EgressFirewallBeyondBudget, fmt.Sprintf(
		"the egress firewall of namespace %s has %d flows, and those of all namespaces on node %s exceed the node's budget of %d: packets of the namespace's pods there to hosts outside are dropped; "+
			"use fewer, wider ranges, or move pods to other nodes", name, p.budget.flows[name], p.options.NodeName, p.budget.limit))
}
