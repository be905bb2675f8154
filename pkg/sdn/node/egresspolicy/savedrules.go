package egresspolicy

import (
	"context"
	"fmt"
	"maps"
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
		p.addUnsaved(namespace)
	}
	for namespace, err := range damaged {
		klog.FromContext(ctx).Error(err, "Failed to read stored egress rules", "namespace", namespace,
			"effect", "while its policies are invalid, all packets are denied", "action", "correct the policies, if they are invalid")
		p.closeRecovered(namespace)
		p.storedRules[namespace] = lastRules{}
		p.addUnsaved(namespace)
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

// agrees reports whether flows can be those of the rules, whatever addresses the names had: except for addresses that can be those of names, both have the same
// prefixes with the same verdicts.
func agrees(rules []config.EgressRule, flows []pipeline.EgressFirewallRule) bool {
	if len(flows) == 0 {
		return false
	}
	singles := singlesOf(rules)
	got := compileFixed(singles, flows)
	for i := -1; i < len(rules); i++ {
		if i >= 0 && (rules[i].Name == "" || !rules[i].Deny) {
			continue
		}
		var want []pipeline.EgressFirewallRule
		for j, r := range rules {
			if j == i { // a denied name without an answer denied all addresses
				want = append(want, pipeline.EgressFirewallRule{To: everywhere(), Deny: true})
			} else if r.Name == "" {
				want = append(want, pipeline.EgressFirewallRule{To: []netip.Prefix{r.To}, Deny: r.Deny})
			}
		}
		if compileFixed(singles, want).Equal(got) {
			return true
		}
	}
	return false
}

// singlesOf returns the single addresses of the rules, and whether a name before them can have decided their verdict.
func singlesOf(rules []config.EgressRule) map[netip.Prefix]bool {
	singles, afterName := map[netip.Prefix]bool{}, false
	for _, r := range rules {
		afterName = afterName || r.Name != ""
		if _, exists := singles[r.To]; !exists && r.Name == "" && r.To.IsSingleIP() {
			singles[r.To] = afterName
		}
	}
	return singles
}

// compileFixed compiles what does not depend on the addresses of names: single addresses that no rule has are left out, and those behind a name have one verdict.
func compileFixed(singles map[netip.Prefix]bool, rules []pipeline.EgressFirewallRule) pipeline.EgressVerdicts {
	var fixed, behindNames []pipeline.EgressFirewallRule
	for _, r := range rules {
		afterName, exists := singles[r.To[0]]
		switch {
		case !r.To[0].IsSingleIP() || exists && !afterName:
			fixed = append(fixed, r)
		case exists:
			behindNames = append(behindNames, pipeline.EgressFirewallRule{To: r.To})
		}
	}
	return pipeline.EgressFirewall{Rules: append(behindNames, fixed...)}.Compile(pipeline.EgressVerdicts{})
}

// addUnsaved schedules that the file of a namespace is compared with its last valid rules. The lock must be held.
func (p *Policies) addUnsaved(namespace string) {
	p.unsaved[namespace] = true
	p.saveLoop.Add(namespace)
}

// save stores the rules of a namespace if they have names and a restarted agent could need them, else it removes them.
func (p *Policies) save(ctx context.Context, namespace string) error {
	if ctx.Err() != nil {
		return nil // flush stores it
	}
	last, differs := p.takeUnsaved(namespace)
	if !differs {
		return nil
	}
	return p.write(namespace, last)
}

// takeUnsaved returns what the file of a namespace must have, and whether it differs. While the policies are invalid and the last valid rules are unknown, the file
// remains: it makes the next agent close the namespace, if this one stops before it has.
func (p *Policies) takeUnsaved(namespace string) (last lastRules, differs bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.unsaved, namespace)
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
		p.unsaved[namespace] = true
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
	p.mu.Lock()
	names := slices.Collect(maps.Keys(p.unsaved))
	p.mu.Unlock()
	left := 0
	for _, name := range names {
		last, differs := p.takeUnsaved(name)
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
