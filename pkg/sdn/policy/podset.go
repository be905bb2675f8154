package policy

// podSet has the pods of a group that its rules do not distinguish: all pods, or those with one number for its named port.
type podSet struct {
	group     *group
	number    int32
	pods      []*pod // in no order
	users     map[*conj]struct{}
	active    [actions]int            // number of active users, by action
	isolators [2]map[*policy]struct{} // policies that isolate these pods, by direction
	policies  map[*policy]struct{}    // policies with these pods as their subject
}

// add adds a policy with these pods as its subject.
func (s *podSet) add(p *policy) {
	if s.policies == nil {
		s.policies = map[*policy]struct{}{}
	}
	s.policies[p] = struct{}{}
}

// podSet returns the pod set of a port number, and creates it if it does not exist. Rules get it with its first pod (emptinessChanged).
func (g *group) podSet(number int32) *podSet {
	s := g.sets[number]
	if s == nil {
		s = &podSet{group: g, number: number, users: map[*conj]struct{}{}}
		g.sets[number] = s
	}
	return s
}

// used reports whether an active rule has the set.
func (s *podSet) used() bool { return s.allows() || s.denies() }

func (s *podSet) isolated(d Direction) bool { return len(s.isolators[d]) > 0 }

// isolate adds a policy that isolates the pods.
func (s *podSet) isolate(d Direction, by *policy) {
	if s.isolators[d] == nil {
		s.isolators[d] = map[*policy]struct{}{}
	}
	s.isolators[d][by] = struct{}{}
}

// setMember adds the pod to the set, or removes it.
func (e *Engine) setMember(s *podSet, p *pod, should bool) {
	switch is := p.sets.has(s); {
	case should && !is:
		e.join(s, p)
	case is && !should:
		e.leave(s, p)
	}
}

func (e *Engine) join(s *podSet, p *pod) {
	p.sets.add(s, len(s.pods))
	s.pods = append(s.pods, p)
	if len(s.pods) == 1 {
		e.emptinessChanged(s)
	}
	if s.used() {
		e.touchPod(s, p)
		e.membersChanged(s, p)
	}
	e.revokes = e.revokes || s.denies()
}

func (e *Engine) leave(s *podSet, p *pod) {
	if s.used() {
		e.touchPod(s, p)
		e.membersChanged(s, p)
	}
	e.revokes = e.revokes || s.allows()
	place, last := p.sets.remove(s), len(s.pods)-1
	if place != last {
		s.pods[place] = s.pods[last]
		s.pods[place].sets.move(s, place)
	}
	s.pods[last] = nil
	if s.pods = s.pods[:last]; last == 0 {
		e.emptinessChanged(s)
	}
}

func (e *Engine) membersChanged(s *podSet, p *pod) {
	if len(p.at) > 0 {
		e.recent.addPeers(s)
	}
}

// emptinessChanged updates the rules of a set that has got its first pod, or lost the last.
func (e *Engine) emptinessChanged(s *podSet) {
	switch {
	case !s.group.numbered():
		for c := range s.users {
			e.evaluate(c)
		}
		for p := range s.policies {
			e.localChanged[p] = struct{}{}
		}
	case len(s.pods) > 0:
		for r := range s.group.rules {
			e.number(r, s)
		}
	default:
		e.removeSet(s)
	}
}

// removeSet removes a set whose port number no pod has, and the conjunctions that no other set has.
func (e *Engine) removeSet(s *podSet) {
	delete(s.group.sets, s.number)
	for c := range s.users {
		delete(c.peers, s)
		if c.targets == s || len(c.peers) == 0 {
			e.retire(c)
		} else {
			e.evaluate(c)
		}
	}
}

// touchSet marks the clauses of the set's pods for a rule of the direction as changed. Pods that the rule matches by the VNID of their namespace have no
// clauses for their addresses: they may be all pods of the cluster.
func (e *Engine) touchSet(s *podSet, d Direction) {
	byVNID := !s.group.local && s.group.whole() && d == Ingress
	if byVNID && s.group.admitsNodes() {
		e.touch(Clause{Kind: Nodes})
	}
	for _, p := range s.pods {
		if !byVNID || !e.ownVNID(p.namespace) {
			e.touchPod(s, p)
		}
	}
	if byVNID {
		for ns := range s.group.namespaces {
			e.touchWhole(s.group, ns)
		}
	}
}

func (e *Engine) touchPod(s *podSet, p *pod) {
	if s.group.local {
		e.touch(Clause{Kind: Target, Pod: p.PodKey})
		return
	}
	for _, a := range p.at {
		e.touchAddress(a)
	}
}

// memberships are the sets of a pod. Nearly every pod is in a few, and a map for each would take most of the engine's memory; some pods
// are in thousands, and a linear search would take most of its time.
type memberships struct {
	list  []membership
	few   [2]membership   // backs a short list
	index map[*podSet]int // in the list; nil while the list is short
}

type membership struct {
	set   *podSet
	place int // index of the pod in set.pods
}

// fewSets is the number of sets up to which a linear search is faster than a map.
const fewSets = 16

func (m *memberships) find(s *podSet) int {
	if m.index != nil {
		if i, ok := m.index[s]; ok {
			return i
		}
		return -1
	}
	for i := range m.list {
		if m.list[i].set == s {
			return i
		}
	}
	return -1
}

func (m *memberships) has(s *podSet) bool { return m.find(s) >= 0 }

func (m *memberships) add(s *podSet, place int) {
	m.list = append(m.list, membership{s, place})
	switch {
	case m.index != nil:
		m.index[s] = len(m.list) - 1
	case len(m.list) > fewSets:
		m.index = make(map[*podSet]int, len(m.list))
		for i := range m.list {
			m.index[m.list[i].set] = i
		}
	}
}

// move records the new index of the pod in the set.
func (m *memberships) move(s *podSet, place int) { m.list[m.find(s)].place = place }

// remove returns the index that the pod had in the set.
func (m *memberships) remove(s *podSet) (place int) {
	i, last := m.find(s), len(m.list)-1
	place = m.list[i].place
	m.list[i] = m.list[last]
	m.list[last] = membership{}
	m.list = m.list[:last]
	if m.index != nil {
		delete(m.index, s)
		if i != last {
			m.index[m.list[i].set] = i
		}
	}
	return place
}
