package policies

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// learnLogged takes note of a namespace's annotations, nil of one that is gone. A value that is none is ovsdn-controller's to complain of:
// once, and not by every node.
func (p *Policies) learnLogged(namespace string, annotations map[string]string) {
	is, _ := config.ParseLogDenied(annotations)
	if is == p.compiler.logged[namespace] {
		return
	}
	p.relogged[namespace] = true
	if is {
		p.compiler.logged[namespace] = true
	} else {
		delete(p.compiler.logged, namespace)
	}
}

// relog adds the owners whose pods are logged now, or no longer.
func (p *Policies) relog(owners []pipeline.Owner) []pipeline.Owner {
	if len(p.relogged) == 0 {
		return owners
	}
	for key, pods := range p.compiler.local {
		if p.relogged[key.Namespace] && p.note(key) {
			owners = slices.AppendSeq(owners, maps.Keys(pods))
		}
	}
	clear(p.relogged)
	return owners
}

// mostIsolators is how many policies a line names that isolate a pod.
const mostIsolators = 5

// explain names who takes part in a denial, as far as that is known.
func (p *Policies) explain(what denial) explanation {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := explanation{source: p.who(what.source), destination: p.who(what.destination)}
	if what.Rule != 0 {
		name, ok := p.compiler.engine.RuleName(what.Rule)
		if ok {
			out.policies = []string{name}
		}
		return out
	}
	target, direction := what.destination, policy.Ingress
	if what.Egress {
		target, direction = what.source, policy.Egress
	}
	if key, ok := p.compiler.engine.Who(target); ok {
		out.policies, out.more = p.compiler.engine.Isolators(key, direction, mostIsolators)
	}
	return out
}

func (p *Policies) who(addr netip.Addr) string {
	key, ok := p.compiler.engine.Who(addr)
	switch {
	case !ok:
		return addr.String()
	case key.Namespace == "":
		return "node " + key.Name
	}
	return key.Namespace + "/" + key.Name
}
