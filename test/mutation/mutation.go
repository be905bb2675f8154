package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Mutation is a fault: a replacement of text in a file of the product.
type Mutation struct {
	Name string
	File string // relative to the root of the module
	Old  string // occurs exactly once in the file
	New  string
	Test Test
}

// Test selects tests, all of which pass without the mutation. At least one fails with it.
type Test struct {
	Package string // relative to the root of the module
	Run     string // as for `go test -run`
	Race    bool   // the fault is a data race
}

// errMoved reports that the product no longer has the text that a mutation replaces.
var errMoved = errors.New("the text to replace must occur exactly once; adapt the mutation to the product")

// apply mutates the tree at root, and returns a function that reverts it.
func (m Mutation) apply(root string) (revert func() error, err error) {
	path := filepath.Join(root, filepath.FromSlash(m.File))
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("mutation %q: %w", m.Name, err)
	}
	before, after, err := m.mutate(root)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(path, after, info.Mode().Perm()); err != nil {
		return nil, fmt.Errorf("mutation %q: %w", m.Name, err)
	}
	return func() error { return os.WriteFile(path, before, info.Mode().Perm()) }, nil
}

// mutate returns the content of the file without and with the mutation, and writes nothing.
func (m Mutation) mutate(root string) (before, after []byte, err error) {
	before, err = os.ReadFile(filepath.Join(root, filepath.FromSlash(m.File)))
	if err != nil {
		return nil, nil, fmt.Errorf("mutation %q: %w", m.Name, err)
	}
	if n := bytes.Count(before, []byte(m.Old)); n != 1 {
		return nil, nil, fmt.Errorf("mutation %q: %s: got %d occurrences of %q: %w", m.Name, m.File, n, m.Old, errMoved)
	}
	return before, bytes.Replace(before, []byte(m.Old), []byte(m.New), 1), nil
}

// matches reports whether the test or subtest is selected. Run has an expression for each level of names.
func (t Test) matches(name string) bool {
	names := strings.Split(name, "/")
	for i, expression := range strings.Split(t.Run, "/") {
		if i >= len(names) {
			return false
		}
		if ok, err := regexp.MatchString(expression, names[i]); err != nil || !ok {
			return false
		}
	}
	return true
}
