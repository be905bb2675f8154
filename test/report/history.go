package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

const (
	// rerunning is the step of scripts/test.sh whose failed tests are run again.
	rerunning = "lab"
	// historyRuns is the number of runs whose flakes are printed.
	historyRuns = 10
)

// history is a file with a line "DATE COMMIT [TEST…]" for each run, with the tests that were flakes in it.
type history string

// add appends a run, unless it left the step out whose tests are run again.
func (h history) add(date, commit string, steps []step) error {
	for _, s := range steps {
		if s.name != rerunning || len(s.events) == 0 {
			continue
		}
		f, err := os.OpenFile(string(h), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintln(f, strings.Join(append([]string{date, commit}, s.flakes()...), " "))
		return errors.Join(err, f.Close())
	}
	return nil
}

// summary lists the flakes of the last ten runs, each with its number and the runs.
func (h history) summary() (string, error) {
	content, err := os.ReadFile(string(h))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var runs [][]string
	for line := range strings.Lines(string(content)) {
		if fields := strings.Fields(line); len(fields) >= 2 {
			runs = append(runs, fields)
		}
	}
	runs = runs[max(0, len(runs)-historyRuns):]
	of := map[string][]string{}
	for _, run := range runs {
		for _, test := range run[2:] {
			of[test] = append(of[test], run[0]+" "+run[1])
		}
	}
	var summary strings.Builder
	fmt.Fprintf(&summary, "flakes of the last %d runs: %d tests\n", len(runs), len(of))
	for _, test := range slices.Sorted(maps.Keys(of)) {
		fmt.Fprintf(&summary, "%d times %s (%s)\n", len(of[test]), test, strings.Join(of[test], ", "))
	}
	return summary.String(), nil
}
