package policy

// set are pods that are alike for the rules of a group.
type set struct {
	group     *group
	number    int32
	pods      []*pod // in no order
	users     map[*conj]struct{}
	active    [actions]int            // of the users, by what they do
	isolators [2]map[*policy]struct{} // policies that isolate these pods, by direction
	policies  map[*policy]struct{}    // policies with these pods as their subject
}

// add adds a policy with these pods as its subject.
func (s *set) add(p *policy) {
	if s.policies == nil {
		s.policies = map[*policy]struct{}{}
	}
	s.policies[p] = struct{}{}
}

// set returns the set of a number, made when it is missing, which is for a pod that comes: rules hear of it then (filled).
func (g *group) set(number int32) *set {
	s := g.sets[number]
	if s == nil {
		s = &set{group: g, number: number, users: map[*conj]struct{}{}}
		g.sets[number] = s
	}
	return s
}

// used says whether a rule in force has the set.
func (s *set) used() bool { return s.lets() || s.stops() }

func (s *set) isolated(d Direction) bool { return len(s.isolators[d]) > 0 }

// isolate takes note of a policy that isolates the pods.
func (s *set) isolate(d Direction, by *policy) {
	if s.isolators[d] == nil {
		s.isolators[d] = map[*policy]struct{}{}
	}
	s.isolators[d][by] = struct{}{}
}

// place sees to it that the pod is in the set, or is not.
func (e *Engine) place(s *set, p *pod, should bool) {
	switch is := p.sets.has(s); {
	case should && !is:
		e.join(s, p)
	case is && !should:
		e.leave(s, p)
	}
}

func (e *Engine) join(s *set, p *pod) {
	p.sets.add(s, len(s.pods))
	s.pods = append(s.pods, p)
	if len(s.pods) == 1 {
		e.filled(s)
	}
	if s.used() {
		e.touchPod(s, p)
		e.joinedOrLeft(s, p)
	}
	e.forbids = e.forbids || s.stops()
}

func (e *Engine) leave(s *set, p *pod) {
	if s.used() {
		e.touchPod(s, p)
		e.joinedOrLeft(s, p)
	}
	e.forbids = e.forbids || s.lets()
	place, last := p.sets.remove(s), len(s.pods)-1
	if place != last {
		s.pods[place] = s.pods[last]
		s.pods[place].sets.move(s, place)
	}
	s.pods[last] = nil
	if s.pods = s.pods[:last]; last == 0 {
		e.filled(s)
	}
}

func (e *Engine) joinedOrLeft(s *set, p *pod) {
	if len(p.at) > 0 {
		e.recent.addPeers(s)
	}
}

// filled is for a set that is no longer empty, or empty now.
func (e *Engine) filled(s *set) {
	switch {
	case !s.group.numbered():
		for c := range s.users {
			e.judge(c)
		}
		for p := range s.policies {
			e.flipped[p] = struct{}{}
		}
	case len(s.pods) > 0:
		for r := range s.group.rules {
			e.number(r, s)
		}
	default:
		e.vacate(s)
	}
}

// vacate is for a number that no pod gives its port any more: the set goes, and the conjunctions that no other set has.
func (e *Engine) vacate(s *set) {
	delete(s.group.sets, s.number)
	for c := range s.users {
		delete(c.peers, s)
		if c.targets == s || len(c.peers) == 0 {
			e.retire(c)
		} else {
			e.judge(c)
		}
	}
}

// touchSet marks what a rule of that direction makes of the set's pods. Those whose namespace it knows by its VNID it does not know by their
// addresses: they may be all of the cluster.
func (e *Engine) touchSet(s *set, d Direction) {
	byVNID := !s.group.local && s.group.whole() && d == Ingress
	if byVNID && s.group.admitsNodes() {
		e.touch(Piece{Kind: Nodes})
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

func (e *Engine) touchPod(s *set, p *pod) {
	if s.group.local {
		e.touch(Piece{Kind: Target, Pod: p.PodKey})
		return
	}
	for _, a := range p.at {
		e.touchAddress(a)
	}
}

// memberships are the sets that a pod is in. Nearly every pod is in a few, and a map for each would be most of the engine's memory; one
// may be in thousands, and a search through them would be most of its time.
type memberships struct {
	list  []membership
	few   [2]membership // where the list begins
	index map[*set]int  // in the list; nil while the list is short
}

type membership struct {
	set   *set
	place int // of the pod in it
}

// fewSets are searched faster than looked up.
const fewSets = 16

func (m *memberships) find(s *set) int {
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

func (m *memberships) has(s *set) bool { return m.find(s) >= 0 }

func (m *memberships) add(s *set, place int) {
	m.list = append(m.list, membership{s, place})
	switch {
	case m.index != nil:
		m.index[s] = len(m.list) - 1
	case len(m.list) > fewSets:
		m.index = make(map[*set]int, len(m.list))
		for i := range m.list {
			m.index[m.list[i].set] = i
		}
	}
}

// move notes that the pod has another place in the set.
func (m *memberships) move(s *set, place int) { m.list[m.find(s)].place = place }

// remove returns the place that the pod had.
func (m *memberships) remove(s *set) (place int) {
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
