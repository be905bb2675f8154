package policies

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/policy"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/store"
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

// sendLogged adds what follows from namespaces that are logged now, or no longer: the flows that tell the agent are there while there are
// any.
func (p *Policies) sendLogged(changes []store.Change, owners []pipeline.Owner) ([]store.Change, []pipeline.Owner) {
	if len(p.relogged) == 0 {
		return changes, owners
	}
	for key, pods := range p.compiler.local {
		if p.relogged[key.Namespace] && p.note(key) {
			for owner := range pods {
				owners = append(owners, owner)
			}
		}
	}
	clear(p.relogged)
	owner, state := p.compiler.logDenied()
	return append(changes, store.Change{Owner: owner, State: state}), owners
}

// logDenied returns what tells the agent of denied packets, which is nothing while no namespace is logged.
func (c *Compiler) logDenied() (pipeline.Owner, pipeline.State) {
	owner := pipeline.Owner{Kind: pipeline.KindPolicy, Key: "denied packets"}
	if len(c.logged) == 0 {
		return owner, pipeline.State{}
	}
	return owner, c.node.LogDenied()
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
