package egresspolicy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"k8s.io/klog/v2"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// flushTimeout bounds how long an agent that stops stores rules.
const flushTimeout = 2 * time.Second

// recoverRules reads the rules with names of the previous agent: their addresses on the switch are not retained. The lock must be held.
func (p *Policies) recoverRules(ctx context.Context) error {
	all, damaged, err := p.saved.read()
	if err != nil {
		return fmt.Errorf("read stored egress rules: %w", err)
	}
	for namespace, last := range all {
		p.storedRules[namespace] = last
		p.recoverNamespace(ctx, namespace, last)
		p.saveLoop.Add(namespace)
	}
	for namespace, err := range damaged {
		klog.FromContext(ctx).Error(err, "Failed to read stored egress rules", "namespace", namespace,
			"effect", "while its policies are invalid, all packets are denied", "action", "correct the policies, if they are invalid")
		p.closeRecovered(namespace)
		p.storedRules[namespace] = lastRules{}
		p.saveLoop.Add(namespace)
	}
	return nil
}

// recoverNamespace retires the last valid rules of a namespace, if they are known, for its next pod: stored rules can be older than the flows, since an agent of
// another version ran, or since the last ones could not be stored. The lock must be held.
func (p *Policies) recoverNamespace(ctx context.Context, namespace string, stored lastRules) {
	objects := p.objects(namespace)
	if len(objects) == 0 {
		return
	}
	flows := p.recovered[namespace]
	current := versionOf(objects)
	rules, err := config.MergeEgressNetworkPolicies(objects)
	switch {
	case err == nil:
		p.retired[namespace] = retired{lastRules{rules, current}, flows.ID}
	case isOfOthers(stored.version, current):
		klog.FromContext(ctx).Info("Policies of the stored egress rules were deleted", "namespace", namespace,
			"effect", "all packets are denied while its policies are invalid", "action", "correct the policies")
		p.closeRecovered(namespace)
	case slices.Equal(stored.version, current) || stored.isPrevious(current) && agrees(stored.rules, flows.Rules):
		p.retired[namespace] = retired{stored, flows.ID}
	default:
		klog.FromContext(ctx).Info("Stored egress rules may not be the last valid ones", "namespace", namespace,
			"effect", "the flows of the previous agent remain, without changes of DNS; without flows, all packets are denied", "action", "correct the policies")
	}
}

// closeRecovered makes the previous agent's flows of a namespace deny all packets. The lock must be held.
func (p *Policies) closeRecovered(namespace string) {
	if f, ok := p.recovered[namespace]; ok {
		f.Rules = closed(f.ID, f.Export).Rules
		p.recovered[namespace] = f
	}
}

// isOfOthers reports whether none of the policies exists any longer: their rules may be those of a deleted namespace of the same name.
func isOfOthers(version, current []generation) bool {
	return !slices.ContainsFunc(version, func(g generation) bool {
		return slices.ContainsFunc(current, func(c generation) bool { return c.UID == g.UID })
	})
}

// isPrevious reports whether the same policies had one change: there were no valid rules between, if the current ones are invalid.
func (l lastRules) isPrevious(current []generation) bool {
	if len(l.version) != len(current) {
		return false
	}
	var changes int64
	for i, g := range l.version { // both are sorted
		if g.UID != current[i].UID || g.Number > current[i].Number {
			return false
		}
		changes += current[i].Number - g.Number
	}
	return changes == 1
}

// advance sets the version to that of the current, invalid policies, if there were certainly no valid rules between: several changes can be one event.
func (l *lastRules) advance(current []generation) {
	if l.isPrevious(current) {
		l.version = current
	}
}

// last returns the last valid rules, if there were any.
func (n *namespace) last() lastRules { return lastRules{n.rules, n.rulesVersion} }

// agrees reports whether flows can be those of the rules, whatever addresses the names had: the flows of their ranges are the same, and all others are those of
// single addresses.
func agrees(rules []config.EgressRule, flows []pipeline.EgressFirewallRule) bool {
	if !agreeOnAddrs(rules, flows) {
		return false
	}
	ranges := rangesOf(flows)
	if compileRanges(rules, -1).Equal(ranges) {
		return len(flows) > 0
	}
	for i, r := range rules { // a denied name without an answer denied all addresses
		if r.Name != "" && r.Deny && compileRanges(rules, i).Equal(ranges) {
			return len(flows) > 0
		}
	}
	return false
}

// agreeOnAddrs reports whether the flows have the single addresses of the rules, with their verdicts unless a name before could have the address.
func agreeOnAddrs(rules []config.EgressRule, flows []pipeline.EgressFirewallRule) bool {
	denied := map[netip.Prefix]bool{}
	for _, f := range flows {
		denied[f.To[0]] = f.Deny
	}
	var cidrs []pipeline.EgressFirewallRule
	for _, r := range rules {
		if r.Name == "" {
			cidrs = append(cidrs, pipeline.EgressFirewallRule{To: []netip.Prefix{r.To}, Deny: r.Deny})
		}
	}
	verdicts := pipeline.EgressFirewall{Rules: cidrs}.Compile(pipeline.EgressVerdicts{})
	afterName := false
	for _, r := range rules {
		afterName = afterName || r.Name != ""
		if r.Name != "" || !r.To.IsSingleIP() {
			continue
		}
		if deny, exists := denied[r.To]; !exists || !afterName && deny == verdicts.Allows(r.To.Addr()) {
			return false
		}
	}
	return true
}

// rangesOf compiles the flows without those of single addresses, which can be addresses of names.
func rangesOf(flows []pipeline.EgressFirewallRule) pipeline.EgressVerdicts {
	ranges := slices.DeleteFunc(slices.Clone(flows), func(r pipeline.EgressFirewallRule) bool { return r.To[0].IsSingleIP() })
	return pipeline.EgressFirewall{Rules: ranges}.Compile(pipeline.EgressVerdicts{})
}

// compileRanges compiles the rules without names and single addresses; that of a denied name, by its index, has all addresses.
func compileRanges(rules []config.EgressRule, everything int) pipeline.EgressVerdicts {
	var ranges []pipeline.EgressFirewallRule
	for i, r := range rules {
		switch {
		case i == everything:
			ranges = append(ranges, pipeline.EgressFirewallRule{To: everywhere(), Deny: true})
		case r.Name == "" && !r.To.IsSingleIP():
			ranges = append(ranges, pipeline.EgressFirewallRule{To: []netip.Prefix{r.To}, Deny: r.Deny})
		}
	}
	return pipeline.EgressFirewall{Rules: ranges}.Compile(pipeline.EgressVerdicts{})
}

// save stores the rules of a namespace if they have names and a restarted agent could need them, else it removes them.
func (p *Policies) save(ctx context.Context, namespace string) error {
	last, differs := p.unsaved(namespace)
	if ctx.Err() != nil || !differs {
		return nil
	}
	return p.write(namespace, last)
}

// unsaved returns what the file of a namespace must have, and whether it differs. While the policies are invalid and the last valid rules are unknown, the file
// remains: it makes the next agent close the namespace, if this one stops before it has.
func (p *Policies) unsaved(namespace string) (last lastRules, differs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, known := p.retired[namespace]
	last = r.lastRules
	if n := p.namespaces[namespace]; n != nil {
		last, known = n.last(), n.valid
	}
	if !known && p.isInvalid(namespace) {
		return lastRules{}, false
	}
	if !slices.ContainsFunc(last.rules, func(r config.EgressRule) bool { return r.Name != "" }) {
		last = lastRules{}
	}
	stored, exists := p.storedRules[namespace]
	return last, exists != (last.rules != nil) || !stored.equal(last)
}

func (p *Policies) write(namespace string, last lastRules) error {
	err := p.saved.write(namespace, last)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		return err
	case last.rules == nil:
		delete(p.storedRules, namespace)
	default:
		p.storedRules[namespace] = last
	}
	return nil
}

// flush stores what the loop has not stored yet, or could not, when the agent stops, until the context ends.
func (p *Policies) flush(ctx context.Context) {
	const effect = "the next agent retains the flows, without changes of DNS, if the policies are invalid then"
	all := map[string]bool{}
	p.mu.Lock()
	for name := range p.namespaces {
		all[name] = true
	}
	for name := range p.storedRules {
		all[name] = true
	}
	for name := range p.retired {
		all[name] = true
	}
	p.mu.Unlock()
	left := 0
	for name := range all {
		last, differs := p.unsaved(name)
		if !differs {
			continue
		}
		if ctx.Err() != nil {
			left++
		} else if err := p.write(name, last); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to store egress rules at the end", "namespace", name, "effect", effect)
		}
	}
	if left > 0 {
		klog.FromContext(ctx).Info("Stopped before all egress rules were stored", "namespaces", left, "timeout", flushTimeout, "effect", effect)
	}
}
