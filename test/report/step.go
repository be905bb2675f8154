package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// step is a step of scripts/test.sh.
type step struct {
	name    string
	seconds int
	events  []event // none for a step that runs no tests
}

// event is what `go test -json` prints, without its output.
type event struct {
	Action  string
	Package string
	Test    string
	Elapsed float64 // seconds
}

// readSteps reads the file steps, with a line "NAME SECONDS" for each step, and the events of each in NAME.json.
func readSteps(dir string) ([]step, error) {
	content, err := os.ReadFile(filepath.Join(dir, "steps"))
	if err != nil {
		return nil, err
	}
	var steps []step
	for line := range strings.Lines(string(content)) {
		var s step
		if _, err := fmt.Sscan(line, &s.name, &s.seconds); err != nil {
			return nil, fmt.Errorf("line %q of steps: %w", line, err)
		}
		if s.events, err = readEvents(filepath.Join(dir, s.name+".json")); err != nil {
			return nil, err
		}
		steps = append(steps, s)
	}
	return steps, nil
}

func readEvents(file string) ([]event, error) {
	content, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var events []event
	lines := bufio.NewScanner(bytes.NewReader(content))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if slices.Contains([]string{"run", "pass", "fail", "skip"}, e.Action) {
			events = append(events, e)
		}
	}
	return events, lines.Err()
}

// flakes returns the tests that failed and then passed, without those that have such subtests.
func (s step) flakes() []string {
	failed, flaky := map[string]bool{}, map[string]bool{}
	for _, e := range s.events {
		switch name := e.name(); {
		case e.Test == "":
		case e.Action == "fail":
			failed[name] = true
		case e.Action == "pass" && failed[name]:
			flaky[name] = true
		}
	}
	return lowest(flaky)
}

// failures returns the tests that failed, without those that have such subtests.
func (s step) failures() []string {
	failed := map[string]bool{}
	for _, e := range s.events {
		if e.Action == "fail" && e.Test != "" {
			failed[e.name()] = true
		}
	}
	return lowest(failed)
}

// name returns the test with its package.
func (e event) name() string { return path.Base(e.Package) + "." + e.Test }

// lowest returns the tests of which no subtest is in the set, sorted.
func lowest(tests map[string]bool) []string {
	parents := map[string]bool{}
	for name := range tests {
		for at := strings.LastIndexByte(name, '/'); at >= 0; at = strings.LastIndexByte(name[:at], '/') {
			parents[name[:at]] = true
		}
	}
	return slices.DeleteFunc(slices.Sorted(maps.Keys(tests)), func(name string) bool { return parents[name] })
}

// incomplete returns the packages that failed outside of their tests, or ended before all had run. gotestsum reruns only the tests that failed, so a
// package without its lab, or one that was aborted, would pass.
func (s step) incomplete() []string {
	type run struct{ started, ended, failed int }
	runs, incomplete := map[string]run{}, map[string]bool{}
	for _, e := range s.events {
		r := runs[e.Package]
		switch {
		case e.Test == "":
			if e.Action == "fail" && (r.failed == 0 || r.started > r.ended) {
				incomplete[path.Base(e.Package)] = true
			}
			r = run{} // the next events are of a rerun
		case e.Action == "run":
			r.started++
		default:
			r.ended++
			if e.Action == "fail" {
				r.failed++
			}
		}
		runs[e.Package] = r
	}
	return slices.Sorted(maps.Keys(incomplete))
}

// part is a package, or a top-level test of a step with few packages.
type part struct {
	name    string
	seconds float64
}

// fewPackages is the number of packages up to which a step's tests are listed instead.
const fewPackages = 3

// largest returns the parts that take longest, at most count.
func (s step) largest(count int) []part {
	packages := map[string]float64{}
	tests := map[string]float64{}
	for _, e := range s.events {
		if e.Test == "" {
			packages[e.Package] += e.Elapsed
		} else if !strings.Contains(e.Test, "/") {
			tests[e.Test] += e.Elapsed
		}
	}
	chosen := packages
	if len(packages) <= fewPackages {
		chosen = tests
	}
	var parts []part
	for name, seconds := range chosen {
		parts = append(parts, part{strings.TrimPrefix(name, "github.com/ovsdn/ovsdn/"), seconds})
	}
	slices.SortFunc(parts, func(a, b part) int {
		return cmp.Or(-cmp.Compare(a.seconds, b.seconds), strings.Compare(a.name, b.name))
	})
	return parts[:min(count, len(parts))]
}
