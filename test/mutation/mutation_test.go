package main

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// The product has the text that each mutation replaces, and the tests that detect them.
func TestMutations(t *testing.T) {
	names := map[string]bool{}
	for _, m := range mutations() {
		if names[m.Name] {
			t.Errorf("got two mutations %q, want different names", m.Name)
		}
		names[m.Name] = true
		if _, after, err := m.mutate(root); err != nil {
			t.Error(err)
		} else if !strings.Contains(string(after), m.New) {
			t.Errorf("%s: got a file without %q", m.Name, m.New)
		}
		if !hasTest(t, m.Test) {
			t.Errorf("%s: got no test of %q in %s", m.Name, m.Test.Run, m.Test.Package)
		}
	}
	if len(names) < 10 {
		t.Errorf("got %d mutations, want at least 10", len(names))
	}
}

// hasTest reports whether the package has the top-level test, of which Run is the exact name.
func hasTest(t *testing.T, test Test) bool {
	t.Helper()
	name, _, _ := strings.Cut(test.Run, "/")
	name = strings.TrimSuffix(strings.TrimPrefix(name, "^"), "$")
	files, err := filepath.Glob(filepath.Join(root, test.Package, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(file string) bool {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Contains(string(text), "\nfunc "+name+"(t *testing.T)")
	})
}

func TestApply(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a", "b.go")
	const before = "if a {\n\treturn b\n}\nreturn b\n"
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(before), 0o640); err != nil {
		t.Fatal(err)
	}
	read := func() string {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	revert, err := Mutation{File: "a/b.go", Old: "if a {", New: "if !a {"}.apply(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := read(), strings.Replace(before, "if a", "if !a", 1); got != want {
		t.Errorf("apply: got %q, want %q", got, want)
	}
	if err := revert(); err != nil {
		t.Fatal(err)
	}
	if got := read(); got != before {
		t.Errorf("revert: got %q, want %q", got, before)
	}
	for _, old := range []string{"return b", "return c"} { // twice, never
		if _, err := (Mutation{File: "a/b.go", Old: old, New: "return d"}).apply(dir); !errors.Is(err, errMoved) {
			t.Errorf("apply with the text %q: got error %v, want %v", old, err, errMoved)
		}
		if got := read(); got != before {
			t.Errorf("failed apply: got %q, want %q", got, before)
		}
	}
	if _, err := (Mutation{File: "a/c.go"}).apply(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("apply to a missing file: got error %v, want %v", err, os.ErrNotExist)
	}
}

func TestTestMatches(t *testing.T) {
	for _, tc := range []struct {
		run, name string
		want      bool
	}{
		{"^TestA$", "TestA", true},
		{"^TestA$", "TestA/sub", true},
		{"^TestA$", "TestAB", false},
		{"^TestA$/^sub$", "TestA/sub", true},
		{"^TestA$/^sub$", "TestA", false},
		{"^TestA$/^sub$", "TestA/subs", false},
		{"(", "TestA", false},
	} {
		if got := (Test{Run: tc.run}).matches(tc.name); got != tc.want {
			t.Errorf("%q matches %q: got %t, want %t", tc.run, tc.name, got, tc.want)
		}
	}
}

// Only a failed test counts as detection.
func TestResult(t *testing.T) {
	const (
		passes     = `{"Action":"pass","Test":"TestA/sub"}` + "\n" + `{"Action":"pass","Test":"TestA"}` + "\n" + `{"Action":"pass"}` + "\n"
		fails      = `{"Action":"fail","Test":"TestA/sub"}` + "\n" + `{"Action":"fail","Test":"TestA"}` + "\n" + `{"Action":"fail"}` + "\n"
		skips      = `{"Action":"skip","Test":"TestA"}` + "\n" + `{"Action":"pass"}` + "\n"
		notBuilt   = `{"ImportPath":"p","Action":"build-output","Output":"undefined: x\n"}` + "\n" + `{"Action":"build-fail"}` + "\n" + `{"Action":"fail"}` + "\n"
		panics     = "panic: no test\n" + `{"Action":"fail"}` + "\n"
		otherFails = `{"Action":"fail","Test":"TestB"}` + "\n" + `{"Action":"fail"}` + "\n"
	)
	for name, tc := range map[string]struct {
		events           string
		success          bool
		intact, detected bool
	}{
		"passes":             {passes, true, true, false},
		"fails":              {fails, false, false, true},
		"is skipped":         {skips, true, false, false},
		"does not compile":   {notBuilt, false, false, false},
		"fails without test": {panics, false, false, false},
		"another test fails": {otherFails, false, false, false},
	} {
		r := parse(strings.NewReader(tc.events))
		r.success = tc.success
		selected := Test{Run: "^TestA$/^sub$"}
		if err := r.wantPass(selected); (err == nil) != tc.intact {
			t.Errorf("%s: wantPass: got error %v, want none: %t", name, err, tc.intact)
		}
		err := r.wantFail(selected)
		if (err == nil) != tc.detected {
			t.Errorf("%s: wantFail: got error %v, want none: %t", name, err, tc.detected)
		}
		if errors.Is(err, errSurvived) != tc.success {
			t.Errorf("%s: wantFail: got error %v, want that it survived: %t", name, err, tc.success)
		}
	}
	if got := parse(strings.NewReader(fails)).firstFailure(); got != "TestA/sub" {
		t.Errorf("firstFailure: got %q, want TestA/sub", got)
	}
}

func TestChoose(t *testing.T) {
	got, err := choose(mutations(), "^VNID|NOTRACK", nil)
	if err != nil || len(got) != 2 {
		t.Errorf("got %d mutations and error %v, want 2", len(got), err)
	}
	for _, args := range [][]string{{"-run", "("}, {"-run", "no such mutation"}, {"-unknown"}, {"rest"}} {
		if err := check(t.Context(), args, io.Discard); !errors.Is(err, errUsage) {
			t.Errorf("%v: got error %v, want %v", args, err, errUsage)
		}
	}
}
