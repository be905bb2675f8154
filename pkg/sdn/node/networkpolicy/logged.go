package networkpolicy

import (
	"net/netip"

	"github.com/ovsdn/ovsdn/pkg/sdn/config"
	"github.com/ovsdn/ovsdn/pkg/sdn/node/flowstore"
	"github.com/ovsdn/ovsdn/pkg/sdn/policy"
)

// syncLogged sets whether denied packets of a namespace are logged; annotations are nil if it was deleted. ovsdn-controller reports an invalid value,
// once for all nodes.
func (p *Policies) syncLogged(namespace string, annotations map[string]string) {
	logged, _ := config.ParseLogDenied(annotations)
	if logged == p.compiler.logged[namespace] {
		return
	}
	p.loggedChanged[namespace] = true
	if logged {
		p.compiler.logged[namespace] = true
	} else {
		delete(p.compiler.logged, namespace)
	}
}

// publishLogged publishes the pods of the namespaces in loggedChanged.
func (p *Policies) publishLogged(u *flowstore.Update) {
	if len(p.loggedChanged) == 0 {
		return
	}
	for key := range p.compiler.local {
		if p.loggedChanged[key.Namespace] {
			p.publish(u, key)
		}
	}
	clear(p.loggedChanged)
}

// maxIsolators is the number of isolating policies that a log line names.
const maxIsolators = 5

// explain returns the names of the pods and policies of a denial, as far as the engine has them.
func (p *Policies) explain(d denial) explanation {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := explanation{source: p.nameOf(d.source), destination: p.nameOf(d.destination)}
	if d.Rule != 0 {
		if name, ok := p.compiler.engine.RuleName(d.Rule); ok {
			out.policies = []string{name}
		}
		return out
	}
	target, direction := d.destination, policy.Ingress
	if d.Egress {
		target, direction = d.source, policy.Egress
	}
	if key, ok := p.compiler.engine.PodByAddr(target); ok {
		out.policies, out.more = p.compiler.engine.Isolators(key, direction, maxIsolators)
	}
	return out
}

// nameOf returns the name of the pod or node with the address, or the address.
func (p *Policies) nameOf(addr netip.Addr) string {
	key, ok := p.compiler.engine.PodByAddr(addr)
	switch {
	case !ok:
		return addr.String()
	case key.Namespace == "":
		return "node " + key.Name
	}
	return key.Namespace + "/" + key.Name
}
