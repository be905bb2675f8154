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
	"pgregory.net/rapid"

	"github.com/ovsdn/ovsdn/pkg/ovs"
	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
	"github.com/ovsdn/ovsdn/test/seed"
)

func input(n int) Input { return Input{Kind: "number", Key: fmt.Sprint(n)} }

// outputs returns a change of an owner whose n-th flow outputs to the sum of its inputs.
func outputs(name string, n int, reads ...Input) Change {
	return Change{Owner: pod(name), Reads: reads, Compile: func(v *Values) pipeline.State {
		port := 0
		for _, in := range reads {
			port += Read[int](v, in)
		}
		return flows(flow(n, goovs.Output(port)))
	}}
}

func publish(n, value int) Published { return Published{input(n), value} }

// actionsOf returns the actions of each flow on the bridge by source address.
func actionsOf(fake *ovs.Fake) map[string]string {
	all := map[string]string{}
	for _, text := range fake.Flows() {
		match, actions, _ := strings.Cut(text, "actions=")
		_, source, _ := strings.Cut(match, "nw_src=")
		source, _, _ = strings.Cut(source, ",")
		all[source] = actions
	}
	return all
}

func waitAll(t testing.TB, commits []*Commit) {
	t.Helper()
	for _, c := range commits {
		if err := c.Wait(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestUpdate_publishedInputCompilesItsReaders(t *testing.T) {
	fake := newFake(t)
	s := start(t, fake)
	waitAll(t, s.Update(Update{Publish: []Published{publish(1, 4), publish(2, 10)}, Changes: []Change{
		outputs("a", 1, input(1)), outputs("b", 2, input(1), input(2)), outputs("c", 3, input(2)),
	}}))
	sent := fake.Bundles()
	commits := s.Update(Update{Publish: []Published{publish(1, 5)}})
	if len(commits) != 2 {
		t.Errorf("got %d commits, want those of the 2 readers", len(commits))
	}
	waitAll(t, commits)
	want := map[string]string{"10.0.0.1": "output:5", "10.0.0.2": "output:15", "10.0.0.3": "output:10"}
	if diff := cmp.Diff(want, actionsOf(fake)); diff != "" {
		t.Errorf("flows (-want +got):\n%s", diff)
	}
	if got := fake.Bundles() - sent; got != 1 {
		t.Errorf("got %d bundles, want 1", got)
	}
	if commits := s.Update(Update{Publish: []Published{publish(1, 5)}}); len(commits) != 0 {
		t.Errorf("an equal value was compiled for %d readers", len(commits))
	}
}

func TestUpdate_missingInputHoldsBackItsReader(t *testing.T) {
	fake := newFake(t)
	s := start(t, fake)
	commits := s.SetAll(outputs("a", 1, input(1)), Change{Owner: pod("b"), State: flows(flow(2, goovs.Output(2)))})
	var missing *MissingInputError
	if err := commits[0].Wait(t.Context()); !errors.As(err, &missing) || !strings.Contains(err.Error(), "number of 1") {
		t.Errorf("got error %v, want one with the input", err)
	}
	waitAll(t, commits[1:])
	waitAll(t, s.Update(Update{Publish: []Published{publish(1, 7)}}))
	if got := actionsOf(fake)["10.0.0.1"]; got != "output:7" {
		t.Errorf("got actions %q after the input was published, want output:7", got)
	}
	for _, c := range s.Update(Update{Withdraw: []Input{input(1)}}) {
		if err := c.Wait(t.Context()); !errors.As(err, &missing) {
			t.Errorf("got error %v after the input was withdrawn, want a MissingInputError", err)
		}
	}
	waitAll(t, s.SetAll(Change{Owner: pod("c"), State: flows(flow(3, goovs.Output(3)))}))
	if got, exists := actionsOf(fake)["10.0.0.1"]; exists {
		t.Errorf("got actions %q without the input, want no flow", got)
	}
}

func TestUpdate_undeclaredInputFailsItsOwner(t *testing.T) {
	s := start(t, newFake(t))
	c := outputs("a", 1, input(1))
	c.Reads = nil
	commits := s.Update(Update{Publish: []Published{publish(1, 7)}, Changes: []Change{c, outputs("b", 2, input(1))}})
	if err := commits[0].Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "number of 1") {
		t.Errorf("got error %v, want one with the input", err)
	}
	waitAll(t, commits[1:])
}

func TestUpdate_retiredInputRemainsForItsReaders(t *testing.T) {
	s := start(t, newFake(t))
	waitAll(t, s.Update(Update{Publish: []Published{publish(1, 4)}, Changes: []Change{outputs("a", 1, input(1))}}))
	s.Update(Update{Retire: []Input{input(1), input(2)}})
	if got, ok := Get[int](s, input(1)); got != 4 || !ok {
		t.Errorf("got value %d, %t while it has a reader, want 4", got, ok)
	}
	if err := s.Require(t.Context(), input(1)); !errors.As(err, new(*MissingInputError)) {
		t.Errorf("Require of a retired input: got %v, want a MissingInputError", err)
	}
	waitAll(t, s.SetAll(outputs("a", 1, input(1)))) // which still reads it
	waitAll(t, []*Commit{s.Delete(pod("a"))})
	if got, ok := Get[int](s, input(1)); ok {
		t.Errorf("got value %d after the last reader was deleted, want none", got)
	}
}

func TestSource(t *testing.T) {
	s := start(t, newFake(t))
	var changed []string
	s.Source("number", Source{
		Resolve: func(_ context.Context, key string) error {
			if key == "9" {
				return errors.New("number 9 does not exist")
			}
			s.Update(Update{Publish: []Published{{Input{"number", key}, 3}}})
			return nil
		},
		Missing: func(key string, owner pipeline.Owner) {
			if owner == pod("known") {
				s.Update(Update{Publish: []Published{{Input{"number", key}, 8}}})
			}
		},
		Changed: func(key string) { changed = append(changed, key) },
	})
	s.Source("color", Source{Default: "red"})
	if err := s.Require(t.Context(), input(1), Input{"color", "x"}); err != nil {
		t.Error(err)
	}
	if err := s.Require(t.Context(), input(9)); err == nil || err.Error() != "number 9 does not exist" {
		t.Errorf("got error %v, want that of the source", err)
	}
	waitAll(t, s.SetAll(outputs("known", 1, input(5))))
	if got, _ := Get[string](s, Input{"color", "x"}); got != "red" {
		t.Errorf("got default %q, want red", got)
	}
	if want := []string{"1", "5"}; !slices.Equal(changed, want) {
		t.Errorf("got changes of %v, want %v", changed, want)
	}
	if st := s.Compiled(pod("known")); st == nil || len(st.Flows) != 1 || s.Compiled(pod("unknown")) != nil {
		t.Errorf("Compiled: got %v, want the flows of one owner", st)
	}
}

// An input that is published with the value that it has by default, or withdrawn with it, compiles no reader.
func TestUpdate_publishedDefault(t *testing.T) {
	s := start(t, newFake(t))
	s.Source("number", Source{Default: 7, Changed: func(key string) { t.Errorf("got a change of %s, want none", key) }})
	waitAll(t, s.SetAll(outputs("a", 1, input(1))))
	for _, step := range []struct {
		what   string
		update Update
	}{
		{"published", Update{Publish: []Published{publish(1, 7)}}},
		{"withdrawn", Update{Withdraw: []Input{input(1)}}},
	} {
		if commits := s.Update(step.update); len(commits) != 0 {
			t.Errorf("%s: got %d readers compiled, want none", step.what, len(commits))
		}
	}
}

// TestUpdate_equalsCompilationOfAllOwners compares the store with a model that compiles all owners after each update.
func TestUpdate_equalsCompilationOfAllOwners(t *testing.T) {
	seed.Fix(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &inputModel{fake: ovs.NewFake("br0"), values: map[Input]int{}, retired: map[Input]bool{}, reads: map[int][]Input{}, have: map[int]int{}, failed: map[int]bool{}}
		if err := m.fake.EnsureBridge(context.Background(), ovs.Bridge{Name: "br0", DatapathType: "netdev"}); err != nil {
			t.Fatal(err)
		}
		m.fake.RefuseFlow = func(f *ovs.Flow) string { return rejectPort(rejectedPort)(f) }
		m.store = New(m.fake)
		t.Repeat(map[string]func(*rapid.T){"update": m.update, "": m.check})
	})
}

// inputModel is the expected state of the store. The flow of owner n outputs to the sum of its inputs; the switch rejects the sum rejectedPort.
type inputModel struct {
	fake    *ovs.Fake
	store   *Store
	values  map[Input]int
	retired map[Input]bool
	reads   map[int][]Input
	have    map[int]int  // the port of each owner with a flow
	failed  map[int]bool // owners that the switch rejected
}

func (m *inputModel) update(t *rapid.T) {
	var u Update
	dirty := map[int]bool{}
	inputs := rapid.SliceOfNDistinct(rapid.IntRange(1, 4), 0, 4, rapid.ID).Draw(t, "inputs")
	for _, n := range inputs {
		in := input(n)
		switch rapid.IntRange(0, 3).Draw(t, "verb") {
		case 0, 1:
			value := rapid.IntRange(1, 3).Draw(t, "value")
			old, published := m.values[in]
			for owner := range m.readers(in) {
				dirty[owner] = dirty[owner] || !published || old != value || m.failed[owner]
			}
			u.Publish = append(u.Publish, Published{in, value})
			m.values[in] = value
			delete(m.retired, in)
		case 2:
			u.Withdraw = append(u.Withdraw, in)
			if _, published := m.values[in]; published {
				maps.Copy(dirty, m.readers(in))
			}
			delete(m.values, in)
			delete(m.retired, in)
		case 3:
			u.Retire = append(u.Retire, in)
			if _, published := m.values[in]; published {
				m.retired[in] = true
			}
			m.collect()
		}
	}
	for _, owner := range rapid.SliceOfNDistinct(rapid.IntRange(1, 5), 0, 5, rapid.ID).Draw(t, "owners") {
		dirty[owner] = true
		delete(m.reads, owner)
		if rapid.IntRange(0, 3).Draw(t, "delete") == 0 {
			u.Changes = append(u.Changes, Change{Owner: pod(fmt.Sprint(owner))})
			m.collect()
			continue
		}
		for _, n := range rapid.SliceOfNDistinct(rapid.IntRange(1, 4), 1, 3, rapid.ID).Draw(t, "reads") {
			m.reads[owner] = append(m.reads[owner], input(n))
		}
		u.Changes = append(u.Changes, outputs(fmt.Sprint(owner), owner, m.reads[owner]...))
		m.collect()
	}
	m.store.Update(u)
	if err := m.store.write(context.Background()); err != nil {
		t.Fatal(err)
	}
	for owner, d := range dirty {
		if d {
			m.compile(owner)
		}
	}
}

// compile sets the flow of the owner for the current inputs. An owner that the switch rejects retains its flow.
func (m *inputModel) compile(owner int) {
	port := 0
	m.failed[owner] = false
	for _, in := range m.reads[owner] {
		value, published := m.values[in]
		if !published {
			m.failed[owner] = true
			delete(m.have, owner)
			return
		}
		port += value
	}
	switch port {
	case 0:
		delete(m.have, owner)
	case rejectedPort:
		m.failed[owner] = true
	default:
		m.have[owner] = port
	}
}

func (m *inputModel) readers(in Input) map[int]bool {
	all := map[int]bool{}
	for owner, reads := range m.reads {
		if slices.Contains(reads, in) {
			all[owner] = true
		}
	}
	return all
}

// collect withdraws retired inputs without a reader.
func (m *inputModel) collect() {
	for in := range m.retired {
		if len(m.readers(in)) == 0 {
			delete(m.retired, in)
			delete(m.values, in)
		}
	}
}

func (m *inputModel) check(t *rapid.T) {
	want := map[string]string{}
	for owner, port := range m.have {
		want[fmt.Sprintf("10.0.0.%d", owner)] = fmt.Sprintf("output:%d", port)
	}
	if diff := cmp.Diff(want, actionsOf(m.fake)); diff != "" {
		t.Fatalf("flows (-want +got):\n%s", diff)
	}
	for n := range 4 {
		value, published := m.values[input(n+1)]
		if got, ok := Get[int](m.store, input(n+1)); got != value || ok != published {
			t.Fatalf("input %d: got %d, %t, want %d, %t", n+1, got, ok, value, published)
		}
	}
	if want, got := len(m.reads), len(m.store.inputs.owners); want != got {
		t.Fatalf("got %d readers, want %d", got, want)
	}
}
