package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	goovs "github.com/digitalocean/go-openvswitch/ovs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// A small world, so that owners meet on keys: flows are numbered addresses, actions numbered ports. Ports of refusedPort and
// above are refused while the switch is in a bad mood; conjunctions stand in for the rest.
const (
	worldOwners = 5
	worldKeys   = 4
	refusedPort = 4
	worldPorts  = 5
	worldConj   = 3
)

// want is what an owner wants in the model: the action's number by the key's.
type want map[int]int

func (w want) state() pipeline.State {
	var st pipeline.State
	for _, key := range slices.Sorted(maps.Keys(w)) {
		st.Flows = append(st.Flows, flow(key, action(w[key])))
	}
	return st
}

// action numbers below zero are conjunctions.
func action(n int) ovs.Action {
	if n < 0 {
		return goovs.Conjunction(-n, 1, 2)
	}
	return goovs.Output(n)
}

func drawWant(t *rapid.T) want {
	return rapid.MapOfN(rapid.IntRange(1, worldKeys), rapid.IntRange(-worldConj, worldPorts), 0, worldKeys).Draw(t, "want")
}

func compatible(a, b int) bool {
	return a == b || a < 0 && b < 0
}

// model is the store in its simplest form: what each owner has, and what waits.
type model struct {
	t       *rapid.T
	fake    *ovs.Fake
	store   *Store
	mood    bool // the switch refuses some ports
	down    bool // Open vSwitch is unavailable
	have    map[pipeline.Owner]want
	waiting map[pipeline.Owner]*attempt
	during  map[pipeline.Owner]*attempt // came while a bundle was under way
	inside  bool                        // a bundle is under way
}

// attempt is an owner's newest change with all commits that share its fate.
type attempt struct {
	want    want
	commits []*Commit
}

func newModel(t *rapid.T) *model {
	m := &model{t: t, fake: ovs.NewFake("br0"), have: map[pipeline.Owner]want{}, waiting: map[pipeline.Owner]*attempt{}, during: map[pipeline.Owner]*attempt{}}
	if err := m.fake.EnsureBridge(context.Background(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
		t.Fatal(err)
	}
	m.fake.RefuseFlow = func(f *ovs.Flow) string {
		for port := refusedPort; m.mood && port <= worldPorts; port++ {
			if reason := refusePort(port)(f); reason != "" {
				return reason
			}
		}
		return ""
	}
	var bridge ovs.Interface = m.fake
	if rapid.Bool().Draw(t, "refusals name no flow") {
		bridge = mute{m.fake}
	}
	m.store = New(bridge)
	m.store.Resync() // as Run does
	return m
}

// compile is the naive merge of all owners.
func (m *model) compile(have map[pipeline.Owner]want) []string {
	var texts []string
	for key := range worldKeys + 1 {
		var owners []pipeline.Owner
		actions := map[int]bool{}
		for o, w := range have {
			if n, ok := w[key]; ok {
				owners = append(owners, o)
				actions[n] = true
			}
		}
		if len(owners) == 0 {
			continue
		}
		f := flow(key)
		f.Cookie = owners[0].Cookie()
		if len(owners) > 1 {
			f.Cookie = pipeline.SharedCookie()
		}
		for _, n := range slices.Backward(slices.Sorted(maps.Keys(actions))) {
			f.Actions = append(f.Actions, action(n))
		}
		if len(actions) > 1 && slices.ContainsFunc(slices.Collect(maps.Keys(actions)), func(n int) bool { return n >= 0 }) {
			m.t.Fatalf("owners %v of key %d have different actions", owners, key)
		}
		text, err := ovs.FlowText(f)
		if err != nil {
			m.t.Fatal(err)
		}
		texts = append(texts, text)
	}
	return texts
}

func (m *model) owner(t *rapid.T) pipeline.Owner {
	return pod(fmt.Sprint(rapid.IntRange(1, worldOwners).Draw(t, "owner")))
}

// Set may be a Delete too.
func (m *model) Set(t *rapid.T) {
	m.set(t, m.owner(t), drawWant(t))
}

// SetAgain asks for what the owner has.
func (m *model) SetAgain(t *rapid.T) {
	o := m.owner(t)
	m.set(t, o, maps.Clone(m.have[o]))
}

func (m *model) set(t *rapid.T, o pipeline.Owner, w want) {
	var commit *Commit
	if len(w) == 0 {
		commit = m.store.Delete(o)
	} else {
		commit = m.store.Set(o, w.state())
	}
	if isDone(commit) {
		// Only what is already there may be done at once.
		if commit.err != nil || m.waiting[o] != nil || m.during[o] != nil || m.store.asked != m.store.synced || !maps.Equal(w, m.have[o]) {
			t.Fatalf("%s: %v was done at once with error %v; it has %v", o, w, commit.err, m.have[o])
		}
		return
	}
	attempts := m.waiting
	if m.inside {
		attempts = m.during
	}
	a := attempts[o]
	if a == nil {
		a = &attempt{}
		attempts[o] = a
	}
	a.want, a.commits = w, append(a.commits, commit)
}

func isDone(c *Commit) bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

func (m *model) Down(t *rapid.T) {
	m.down = true
	m.fake.SetUnavailable(true)
}

func (m *model) Up(t *rapid.T) {
	m.down = false
	m.fake.SetUnavailable(false)
	if rapid.Bool().Draw(t, "its flows are gone") {
		m.fake.Restart()
		m.store.Resync()
	}
}

// ChangeMood of the switch. What it once accepted it goes on accepting: TestRefusedAfterRestart is about the other case.
func (m *model) ChangeMood(t *rapid.T) {
	for _, w := range m.have {
		for _, n := range w {
			if n >= refusedPort {
				t.Skip("it would refuse what it has") // discards rapid's draw of a step, and skips no test
			}
		}
	}
	m.mood = !m.mood
}

// WriteAndSet lets the writer have a turn, and changes come while its first bundle is under way.
func (m *model) WriteAndSet(t *rapid.T) {
	m.fake.BeforeBundle = func(context.Context) error {
		m.fake.BeforeBundle = nil
		m.inside = true
		for range rapid.IntRange(1, 3).Draw(t, "changes") {
			m.Set(t)
		}
		m.inside = false
		return nil
	}
	m.Write(t)
	m.fake.BeforeBundle = nil
	for o, a := range m.during {
		if overtaken := m.waiting[o]; overtaken != nil {
			a.commits = slices.Concat(overtaken.commits, a.commits)
		}
		m.waiting[o] = a
	}
	clear(m.during)
}

// Write lets the writer have a turn.
func (m *model) Write(t *rapid.T) {
	full := m.store.asked != m.store.synced
	queued := len(m.waiting)
	before, changes := m.fake.Flows(), m.fake.Changes()
	old := maps.Clone(m.have)
	err := m.store.write(context.Background())
	switch {
	case m.down && (full || m.somethingToSend()):
		if !ovs.IsUnavailable(err) {
			t.Fatalf("got %v while Open vSwitch is unavailable", err)
		}
		m.settle(t, old) // conflicts are found without it
		if m.store.asked == m.store.synced {
			t.Fatal("no replacement is due after a failure")
		}
		return
	case err != nil:
		t.Fatal(err)
	}
	m.settle(t, old)
	if len(m.waiting) != 0 {
		t.Fatalf("of %d changes these still wait: %v", queued, m.waiting)
	}
	after := m.fake.Flows()
	if diff := cmp.Diff(m.compile(m.have), after, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("flows (-want +got):\n%s", diff)
	}
	if sent := m.fake.Changes() - changes; sent != difference(before, after) && !m.oneByOne() {
		t.Fatalf("%d flows were written, the difference is %d:\n%s", sent, difference(before, after), cmp.Diff(before, after))
	}
}

// somethingToSend is only asked while Open vSwitch is down: then what is done needed nothing of the switch.
func (m *model) somethingToSend() bool {
	for _, a := range m.waiting {
		if !isDone(a.commits[0]) {
			return true
		}
	}
	return false
}

// oneByOne reports whether changes may have gone out singly, so that flows were written more than once.
func (m *model) oneByOne() bool {
	_, muted := m.store.bridge.(mute)
	return muted && m.mood
}

// settle takes note of what is done, and checks that every failure has a reason.
func (m *model) settle(t *rapid.T, old map[pipeline.Owner]want) {
	tried := maps.Clone(m.waiting)
	for o, a := range tried {
		done := 0
		for _, c := range a.commits {
			if isDone(c) {
				done++
			}
		}
		switch {
		case done == 0:
			continue
		case done != len(a.commits):
			t.Fatalf("%s: %d of %d commits are done", o, done, len(a.commits))
		}
		delete(m.waiting, o)
		err := a.commits[0].err
		if err == nil {
			m.have[o] = a.want
			continue
		}
		var conflict *ConflictError
		var refused *ovs.FlowError
		switch {
		case errors.As(err, &conflict):
			rival := conflict.Rival
			theirs := []want{old[rival]}
			if other := tried[rival]; other != nil {
				theirs = append(theirs, other.want)
			}
			if !slices.ContainsFunc(theirs, func(w want) bool { return conflicting(a.want, w) }) {
				t.Fatalf("%s wants %v, which is no conflict with %v of %s", o, a.want, theirs, rival)
			}
		case errors.As(err, &refused):
			if !m.mood || !slices.ContainsFunc(slices.Collect(maps.Values(a.want)), func(n int) bool { return n >= refusedPort }) {
				t.Fatalf("%s wants %v, which the switch takes", o, a.want)
			}
		default:
			t.Fatalf("%s: %v", o, err)
		}
	}
}

func conflicting(a, b want) bool {
	for key, n := range a {
		if other, ok := b[key]; ok && !compatible(n, other) {
			return true
		}
	}
	return false
}

// difference counts the flows that must be written: one for each key whose flow is not the same.
func difference(before, after []string) int {
	byKey := func(texts []string) map[string]string {
		m := map[string]string{}
		for _, s := range texts {
			key, _, _ := strings.Cut(s, ",cookie=")
			m[key] = s
		}
		return m
	}
	b, a := byKey(before), byKey(after)
	n := 0
	for key, s := range a {
		if b[key] != s {
			n++
		}
	}
	for key := range b {
		if _, stays := a[key]; !stays {
			n++
		}
	}
	return n
}

// Check is run after each step.
func (m *model) Check(t *rapid.T) {
	for o, w := range m.have {
		st, err := compile(o, w.state())
		if err != nil {
			t.Fatal(err)
		}
		if !st.equal(m.store.current[o]) {
			t.Fatalf("the store has %v for %s, want %v", m.store.current[o], o, w)
		}
	}
	if len(m.store.queue) != len(m.waiting) || len(m.store.queued) != len(m.waiting) || len(m.store.busy) > 0 {
		t.Fatalf("queue %d, queued %d, busy %d; want %d, %d, 0", len(m.store.queue), len(m.store.queued), len(m.store.busy), len(m.waiting), len(m.waiting))
	}
	for key, e := range m.store.table.entries {
		if len(e.owners.list) == 0 && e.onSwitch == (form{}) {
			t.Fatalf("the store remembers %s for nobody", key)
		}
	}
}

func TestStoreProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"":           m.Check,
			"Set":        m.Set,
			"Set more":   m.Set,
			"SetAgain":   m.SetAgain,
			"Write":      m.Write,
			"Write+Set":  m.WriteAndSet,
			"Down":       m.Down,
			"Up":         m.Up,
			"ChangeMood": m.ChangeMood,
		})
		// Whatever happened: in the end all is well.
		m.Up(t)
		m.Write(t)
	})
}
