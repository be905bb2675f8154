package policy

// veil hides rules of NetworkPolicies that are compiled in parts, until all parts can go to the switch at once. Other changes that are
// compiled in the meantime have no part of them. Rules that such a change removes from a piece only allow, so what the switch has of them
// allows less until then, and never more.
type veil struct {
	namespaces map[string]struct{}
	ids        map[uint32]struct{} // the switch may still have parts of rules with these
	lifted     bool
}

// recent is what Hide has to know about the changes since Drain.
type recent struct {
	namespaces map[string]struct{} // whose rules changed; "" of ClusterNetworkPolicies
	sets       map[*set]struct{}   // of peers that changed
	made       []*conj
	retired    []uint32
}

func newRecent() recent { return recent{namespaces: map[string]struct{}{}, sets: map[*set]struct{}{}} }

func (r *recent) add(c *conj) { r.namespaces[c.rule.namespace] = struct{}{} }

// addPeers notes that peers of rules changed.
func (r *recent) addPeers(s *set) {
	if !s.group.local && s.used() {
		r.sets[s] = struct{}{}
	}
}

// addTargets notes the rules that have the pod as a target.
func (r *recent) addTargets(p *pod) {
	for _, m := range p.sets.list {
		if !m.set.group.local {
			continue
		}
		for c := range m.set.users {
			r.add(c)
		}
	}
}

func (r *recent) addAll(g *group) {
	for _, s := range g.sets {
		r.addPeers(s)
	}
}

// resolve adds the namespaces of the rules whose peers changed.
func (r *recent) resolve() {
	for s := range r.sets {
		for c := range s.users {
			r.add(c)
		}
	}
}

// Hide hides the rules that changed, or whose peers changed, before the last Drain, and later ones of the same namespaces, until Reveal. It hides nothing and returns
// false if rules of ClusterNetworkPolicies changed, which may deny: a part of these would allow too much.
func (e *Engine) Hide() bool {
	e.drained.resolve()
	if _, cluster := e.drained.namespaces[""]; cluster {
		return false
	}
	if e.veil == nil {
		e.veil = &veil{namespaces: map[string]struct{}{}, ids: map[uint32]struct{}{}}
	}
	for namespace := range e.drained.namespaces {
		e.veil.namespaces[namespace] = struct{}{}
	}
	for _, c := range e.drained.made {
		c.veil = e.veil
	}
	for _, id := range e.drained.retired {
		e.veil.ids[id] = struct{}{}
	}
	e.drained = newRecent()
	return true
}

// Joins reports whether what changed before the last Drain is about rules of hidden namespaces. The switch may still have what these rules were, so a new
// part of them must reach it together with the others.
func (e *Engine) Joins() bool {
	e.drained.resolve()
	for namespace := range e.drained.namespaces {
		if e.Hides(namespace) {
			return true
		}
	}
	return false
}

// Hides reports whether rules of the namespace may be hidden.
func (e *Engine) Hides(namespace string) bool {
	if e.veil == nil {
		return false
	}
	_, is := e.veil.namespaces[namespace]
	return is
}

// Reveal shows all rules again.
func (e *Engine) Reveal() {
	if e.veil != nil {
		e.veil.lifted = true
		e.veil = nil
	}
}

// Preview calls compile with all rules shown, as after Reveal.
func (e *Engine) Preview(compile func()) {
	if v := e.veil; v != nil {
		v.lifted = true
		defer func() { v.lifted = false }()
	}
	compile()
}

// cover hides a new conjunction if it is one of a hidden namespace.
func (e *Engine) cover(c *conj) {
	e.recent.add(c)
	e.recent.made = append(e.recent.made, c)
	if e.Hides(c.rule.namespace) {
		c.veil = e.veil
	}
}

func (c *conj) hidden() bool { return c.veil != nil && !c.veil.lifted }

// hides reports whether the rules of the conjunction's namespace do not have the address yet: a pod got it while they are hidden.
func (a *address) hides(c *conj) bool {
	if a.veil == nil || a.veil.lifted {
		return false
	}
	_, is := a.veil.namespaces[c.rule.namespace]
	return is
}

// reserves reports whether a conjunction can't have the ID: the switch may combine its parts with those of another rule.
func (v *veil) reserves(id uint32, c *conj) bool {
	if v == nil || c.veil == v {
		return false
	}
	_, is := v.ids[id]
	return is
}
