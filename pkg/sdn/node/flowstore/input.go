package flowstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/ovsdn/ovsdn/pkg/sdn/pipeline"
)

// Input identifies a value that flows depend on, such as the VNID of a namespace. One feature publishes the inputs of a kind; owners of any feature read
// them. A function that compiles an owner publishes nothing, and docs/decisions/0009-inputs.md has the order of the few inputs that depend on others: there is no
// cycle.
type Input struct {
	Kind string // such as "VNID"
	Key  string // of the object: the name of the namespace
}

func (i Input) String() string { return i.Kind + " of " + i.Key }

// Source describes the inputs of a kind. The functions may be nil; they are called without locks of the Store.
type Source struct {
	// Default is the value of an input that is not published; nil: it has none.
	Default any

	// Resolve publishes the input, or returns the reason for which it has no value. Require calls it.
	Resolve func(ctx context.Context, key string) error

	// Missing is called before the owner is set, which reads an input without a value. It may publish it.
	Missing func(key string, owner pipeline.Owner)

	// Changed is called after the value of an input has changed. Calls are not ordered: read the value with Get.
	Changed func(key string)
}

// MissingInputError is the error of an owner that reads inputs without a value.
type MissingInputError struct{ Inputs []Input }

func (e *MissingInputError) Error() string {
	names := make([]string, len(e.Inputs))
	for i, input := range e.Inputs {
		names[i] = input.String()
	}
	return "not known yet: " + strings.Join(names, ", ")
}

// inputs are the values that were published, and the owners that read them.
type inputs struct {
	mu        sync.RWMutex // held while readers are compiled, so that updates reach the queue in their order
	sources   map[string]Source
	published map[Input]any
	retired   map[Input]struct{}
	owners    map[pipeline.Owner]*reader
	readers   map[Input]map[pipeline.Owner]*reader
}

// reader is an owner whose state is a function of inputs.
type reader struct {
	reads   []Input
	compile func(*Values) pipeline.State
	last    *Commit // of the last compilation
}

func newInputs() inputs {
	return inputs{
		sources:   map[string]Source{},
		published: map[Input]any{},
		retired:   map[Input]struct{}{},
		owners:    map[pipeline.Owner]*reader{},
		readers:   map[Input]map[pipeline.Owner]*reader{},
	}
}

// Source describes the inputs of a kind, once, before the first of them is published or read.
func (s *Store) Source(kind string, src Source) {
	s.inputs.mu.Lock()
	defer s.inputs.mu.Unlock()
	s.inputs.sources[kind] = src
}

func (in *inputs) source(kind string) Source {
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.sources[kind]
}

// Get is Value for an input of a known type.
func Get[T any](s *Store, input Input) (value T, ok bool) {
	v, _ := s.Value(input)
	value, ok = v.(T)
	return value, ok
}

// Value returns the value of an input, published or default, and whether it has one.
func (s *Store) Value(input Input) (value any, ok bool) {
	s.inputs.mu.RLock()
	defer s.inputs.mu.RUnlock()
	return s.inputs.value(input)
}

// value returns the value of an input, published or default.
func (in *inputs) value(input Input) (value any, ok bool) {
	if value, ok = in.published[input]; !ok {
		value = in.sources[input.Kind].Default
	}
	return value, value != nil
}

func (in *inputs) known(input Input) bool {
	in.mu.RLock()
	defer in.mu.RUnlock()
	_, known := in.value(input)
	return known
}

// current reports whether the input has a value that is not retired.
func (in *inputs) current(input Input) bool {
	in.mu.RLock()
	defer in.mu.RUnlock()
	_, known := in.value(input)
	_, retired := in.retired[input]
	return known && !retired
}

func (in *inputs) withdraw(input Input) {
	delete(in.published, input)
	delete(in.retired, input)
}

func (in *inputs) register(owner pipeline.Owner, r *reader) {
	in.owners[owner] = r
	for _, input := range r.reads {
		if in.readers[input] == nil {
			in.readers[input] = map[pipeline.Owner]*reader{}
		}
		in.readers[input][owner] = r
	}
}

// unregister removes the owner from the readers of inputs. Those that it reads next are not withdrawn, retired or not.
func (in *inputs) unregister(owner pipeline.Owner, next []Input) {
	r := in.owners[owner]
	if r == nil {
		return
	}
	delete(in.owners, owner)
	for _, input := range r.reads {
		delete(in.readers[input], owner)
		if len(in.readers[input]) > 0 {
			continue
		}
		delete(in.readers, input)
		if _, retired := in.retired[input]; retired && !slices.Contains(next, input) {
			in.withdraw(input)
		}
	}
}

// announceMissing calls the sources of inputs without a value that owners of the update read.
func (in *inputs) announceMissing(u Update) {
	for _, c := range u.Changes {
		for _, input := range c.Reads {
			missing := in.source(input.Kind).Missing
			if missing != nil && !in.known(input) && !slices.ContainsFunc(u.Publish, func(p Published) bool { return p.Input == input }) {
				missing(input.Key, c.Owner)
			}
		}
	}
}

// notify calls the sources of changed inputs.
func (in *inputs) notify(changed []Input) {
	for _, input := range changed {
		if f := in.source(input.Kind).Changed; f != nil {
			f(input.Key)
		}
	}
}

// Values are the inputs that a Compile function reads.
type Values struct {
	of  map[Input]any
	err error
}

func (in *inputs) values(reads []Input) (*Values, error) {
	v := &Values{of: make(map[Input]any, len(reads))}
	var missing []Input
	for _, input := range reads {
		value, ok := in.value(input)
		if !ok {
			missing = append(missing, input)
		}
		v.of[input] = value
	}
	if missing != nil {
		return nil, &MissingInputError{missing}
	}
	return v, nil
}

// Read returns the value of an input. Where the owner has not declared it in Reads, or it is of another type, its change fails.
func Read[T any](v *Values, input Input) T {
	value, ok := v.of[input].(T)
	if !ok && v.err == nil {
		v.err = fmt.Errorf("read %s: got %T, want %T", input, v.of[input], value)
	}
	return value
}
