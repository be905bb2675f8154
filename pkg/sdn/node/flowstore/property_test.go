package flowstore

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
	"github.com/ovsdn/ovsdn/test/seed"
)

// The model has few owners and keys, so that owners share keys. Flows are numbered addresses, actions numbered ports or conjunctions. While the switch is
// strict, it rejects rejectedPort and higher ports.
const (
	modelOwners       = 5
	modelKeys         = 4
	rejectedPort      = 4
	modelPorts        = 5
	modelConjunctions = 3
)

// want is the desired state of an owner in the model: numbers of actions by numbers of keys.
type want map[int]int

func (w want) state() pipeline.State {
	var st pipeline.State
	for _, key := range slices.Sorted(maps.Keys(w)) {
		st.Flows = append(st.Flows, flow(key, action(w[key])))
	}
	return st
}

// action returns the action of a number; numbers below zero are conjunctions.
func action(n int) ovs.Action {
	if n < 0 {
		return goovs.Conjunction(-n, 1, 2)
	}
	return goovs.Output(n)
}

func drawWant(t *rapid.T) want {
	return rapid.MapOfN(rapid.IntRange(1, modelKeys), rapid.IntRange(-modelConjunctions, modelPorts), 0, modelKeys).Draw(t, "want")
}

func compatible(a, b int) bool {
	return a == b || a < 0 && b < 0
}

// model is a simple implementation of the store: the state of each owner, and the changes that wait.
type model struct {
	t       *rapid.T
	fake    *ovs.Fake
	store   *Store
	strict  bool // the switch rejects some ports
	down    bool // Open vSwitch is unavailable
	have    map[pipeline.Owner]want
	waiting map[pipeline.Owner]*attempt
	during  map[pipeline.Owner]*attempt // set during a bundle
	inside  bool                        // during a bundle
}

// attempt is an owner's last change with all commits that get its result.
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
		for port := rejectedPort; m.strict && port <= modelPorts; port++ {
			if reason := rejectPort(port)(f); reason != "" {
				return reason
			}
		}
		return ""
	}
	var bridge ovs.Interface = m.fake
	if rapid.Bool().Draw(t, "rejections identify no flow") {
		bridge = anonymous{m.fake}
	}
	m.store = New(bridge)
	m.store.Resync() // as Run does
	return m
}

// compile merges all owners.
func (m *model) compile(have map[pipeline.Owner]want) []string {
	var texts []string
	for key := range modelKeys + 1 {
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
	return pod(fmt.Sprint(rapid.IntRange(1, modelOwners).Draw(t, "owner")))
}

// Set sets or deletes the state of an owner.
func (m *model) Set(t *rapid.T) {
	m.set(t, m.owner(t), drawWant(t))
}

// SetAgain sets the current state of an owner.
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
		// Only the current state may be complete immediately.
		if commit.err != nil || m.waiting[o] != nil || m.during[o] != nil || m.store.resyncs != m.store.synced || !maps.Equal(w, m.have[o]) {
			t.Fatalf("%s: %v was complete immediately with error %v; the current state is %v", o, w, commit.err, m.have[o])
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
	if rapid.Bool().Draw(t, "without flows") {
		m.fake.Restart()
		m.store.Resync()
	}
}

// ToggleStrict changes whether the switch rejects some ports, unless it has flows to them: TestResync_rejectedFlowEvictsItsOwner tests that case.
func (m *model) ToggleStrict(t *rapid.T) {
	for _, w := range m.have {
		for _, n := range w {
			if n >= rejectedPort {
				t.Skip("it has flows that it would reject") // discards a step of rapid, and skips no test
			}
		}
	}
	m.strict = !m.strict
}

// WriteAndSet writes, with changes during the first bundle.
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
		if earlier := m.waiting[o]; earlier != nil {
			a.commits = slices.Concat(earlier.commits, a.commits)
		}
		m.waiting[o] = a
	}
	clear(m.during)
}

// Write writes the queued changes.
func (m *model) Write(t *rapid.T) {
	full := m.store.resyncs != m.store.synced
	queued := len(m.waiting)
	before, changes := m.fake.Flows(), m.fake.Changes()
	old := maps.Clone(m.have)
	err := m.store.write(context.Background())
	switch {
	case m.down && (full || m.hasPending()):
		if !ovs.IsUnavailable(err) {
			t.Fatalf("got %v while Open vSwitch is unavailable", err)
		}
		m.settle(t, old) // conflicts are found without Open vSwitch
		if m.store.resyncs == m.store.synced {
			t.Fatal("no replacement is requested after a failure")
		}
		return
	case err != nil:
		t.Fatal(err)
	}
	m.settle(t, old)
	if len(m.waiting) != 0 {
		t.Fatalf("of %d changes, these are not complete: %v", queued, m.waiting)
	}
	after := m.fake.Flows()
	if diff := cmp.Diff(m.compile(m.have), after, cmpopts.SortSlices(strings.Compare), cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("flows (-want +got):\n%s", diff)
	}
	if sent := m.fake.Changes() - changes; sent != difference(before, after) && !m.oneByOne() {
		t.Fatalf("got %d written flows, want the difference of %d:\n%s", sent, difference(before, after), cmp.Diff(before, after))
	}
}

// hasPending reports whether a change waits for Open vSwitch, while it is unavailable.
func (m *model) hasPending() bool {
	for _, a := range m.waiting {
		if !isDone(a.commits[0]) {
			return true
		}
	}
	return false
}

// oneByOne reports whether changes may have been sent individually, so that flows were written more than once.
func (m *model) oneByOne() bool {
	_, hidden := m.store.bridge.(anonymous)
	return hidden && m.strict
}

// settle records completed changes, and checks the reason of each failure.
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
			t.Fatalf("%s: %d of %d commits are complete, want all or none", o, done, len(a.commits))
		}
		delete(m.waiting, o)
		err := a.commits[0].err
		if err == nil {
			m.have[o] = a.want
			continue
		}
		var conflict *ConflictError
		var rejected *ovs.FlowError
		switch {
		case errors.As(err, &conflict):
			rival := conflict.Rival
			theirs := []want{old[rival]}
			if other := tried[rival]; other != nil {
				theirs = append(theirs, other.want)
			}
			if !slices.ContainsFunc(theirs, func(w want) bool { return conflicting(a.want, w) }) {
				t.Fatalf("%s: got a conflict, but %v does not conflict with %v of %s", o, a.want, theirs, rival)
			}
		case errors.As(err, &rejected):
			if !m.strict || !slices.ContainsFunc(slices.Collect(maps.Values(a.want)), func(n int) bool { return n >= rejectedPort }) {
				t.Fatalf("%s: got a rejection, but the switch accepts %v", o, a.want)
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

// difference returns the number of flows that must be written: one for each key whose flow changed.
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
		if _, remains := a[key]; !remains {
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
			t.Fatalf("%s: got state %v, want %v", o, m.store.current[o], w)
		}
	}
	if len(m.store.queue) != len(m.waiting) || len(m.store.queued) != len(m.waiting) || len(m.store.writing) > 0 {
		t.Fatalf("got queue %d, queued %d, writing %d, want %d, %d, 0", len(m.store.queue), len(m.store.queued), len(m.store.writing), len(m.waiting), len(m.waiting))
	}
	for key, e := range m.store.table.entries {
		if len(e.owners.all()) == 0 && e.installed == (form{}) {
			t.Fatalf("got an entry of %s without owners, want none", key)
		}
	}
}

func TestStoreProperties(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(t)
		t.Repeat(map[string]func(*rapid.T){
			"":             m.Check,
			"Set":          m.Set,
			"Set more":     m.Set,
			"SetAgain":     m.SetAgain,
			"Write":        m.Write,
			"Write+Set":    m.WriteAndSet,
			"Down":         m.Down,
			"Up":           m.Up,
			"ToggleStrict": m.ToggleStrict,
		})
		// All changes can be written at the end.
		m.Up(t)
		m.Write(t)
	})
}
