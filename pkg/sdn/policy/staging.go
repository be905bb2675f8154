package policy

// staging are rules of NetworkPolicies that are compiled in parts, until all parts can be sent to the switch in one bundle. Other changes that are
// compiled in the meantime leave these rules out. Rules of NetworkPolicies only allow, so a clause without them allows less in the meantime, never more.
type staging struct {
	namespaces map[string]struct{}
	ids        map[uint32]struct{} // the switch may still have parts of rules with these
	ended      bool
}

// recent are the changes since Drain, for Stage.
type recent struct {
	namespaces map[string]struct{}  // with changed rules; "" for ClusterNetworkPolicies
	sets       map[*podSet]struct{} // of peers that changed
	made       []*conj
	retired    []uint32
}

func newRecent() recent {
	return recent{namespaces: map[string]struct{}{}, sets: map[*podSet]struct{}{}}
}

func (r *recent) add(c *conj) { r.namespaces[c.rule.namespace] = struct{}{} }

// addPeers records that peers of rules changed.
func (r *recent) addPeers(s *podSet) {
	if !s.group.local && s.used() {
		r.sets[s] = struct{}{}
	}
}

// addTargets records the rules of which the pod is a target.
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

// Stage leaves rules out of Compile until EndStaging: those that changed before the last Drain, or whose peers did, and later ones of the same
// namespaces. It stages nothing and returns false if rules of ClusterNetworkPolicies changed, which may deny: without a part of these too much is allowed.
func (e *Engine) Stage() bool {
	e.drained.resolve()
	if _, cluster := e.drained.namespaces[""]; cluster {
		return false
	}
	if e.staging == nil {
		e.staging = &staging{namespaces: map[string]struct{}{}, ids: map[uint32]struct{}{}}
	}
	for namespace := range e.drained.namespaces {
		e.staging.namespaces[namespace] = struct{}{}
	}
	for _, c := range e.drained.made {
		c.staging = e.staging
	}
	for _, id := range e.drained.retired {
		e.staging.ids[id] = struct{}{}
	}
	e.drained = newRecent()
	return true
}

// JoinsStaged reports whether the changes before the last Drain are about rules of staged namespaces. The switch may still have the previous flows of these
// rules, so new ones must be sent in the same bundle as the others.
func (e *Engine) JoinsStaged() bool {
	e.drained.resolve()
	for namespace := range e.drained.namespaces {
		if e.IsStaged(namespace) {
			return true
		}
	}
	return false
}

// IsStaged reports whether rules of the namespace may be staged.
func (e *Engine) IsStaged(namespace string) bool {
	if e.staging == nil {
		return false
	}
	_, is := e.staging.namespaces[namespace]
	return is
}

// EndStaging includes all rules in Compile again.
func (e *Engine) EndStaging() {
	if e.staging != nil {
		e.staging.ended = true
		e.staging = nil
	}
}

// WithStaged calls compile with all rules included, as after EndStaging.
func (e *Engine) WithStaged(compile func()) {
	if v := e.staging; v != nil {
		v.ended = true
		defer func() { v.ended = false }()
	}
	compile()
}

// stageNew stages a new conjunction if its namespace is staged.
func (e *Engine) stageNew(c *conj) {
	e.recent.add(c)
	e.recent.made = append(e.recent.made, c)
	if e.IsStaged(c.rule.namespace) {
		c.staging = e.staging
	}
}

func (c *conj) staged() bool { return c.staging != nil && !c.staging.ended }

// isStagedFor reports whether the conjunction leaves out the address, because a pod got it while rules of the conjunction's namespace are staged.
func (a *address) isStagedFor(c *conj) bool {
	if a.staging == nil || a.staging.ended {
		return false
	}
	_, is := a.staging.namespaces[c.rule.namespace]
	return is
}

// reserves reports whether the ID is not free for the conjunction: the switch might combine its clauses with those of another rule.
func (v *staging) reserves(id uint32, c *conj) bool {
	if v == nil || c.staging == v {
		return false
	}
	_, is := v.ids[id]
	return is
}
