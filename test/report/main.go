// Report prints how long the steps of scripts/test.sh took, and the tests that failed and passed when they were run again. It fails if a test marked the
// run as failed for good, such as for a packet that arrived where it must not, if a package did not run all its tests, and if more than two tests of the step
// lab failed, subtests counted.
//
//	go run ./test/report bin/test                            # what the last run took
//	go run ./test/report -write docs/testing.md bin/test     # and write it there
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) //nolint:forbidigo // this is main
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	flags.SetOutput(stderr)
	page := flags.String("write", "", "`FILE` whose table of durations is replaced, between the lines "+tableStart+" and "+tableEnd)
	past := flags.String("history", "", "`FILE` to which the flakes of the run are appended, and whose last ten runs are printed")
	commit := flags.String("commit", "unknown", "`COMMIT` of the run, for the history")
	if err := flags.Parse(args); err != nil || flags.NArg() != 1 {
		fmt.Fprintln(stderr, "usage: report [-write FILE] [-history FILE -commit COMMIT] DIRECTORY")
		return 2
	}
	if err := report(flags.Arg(0), *page, history(*past), *commit, stdout); err != nil {
		fmt.Fprintln(stderr, "report: "+err.Error())
		return 1
	}
	return 0
}

// report reads a directory that scripts/test.sh wrote.
func report(dir, page string, past history, commit string, stdout io.Writer) error {
	steps, err := readSteps(dir)
	if err != nil {
		return err
	}
	table := durations(steps)
	fmt.Fprint(stdout, table)
	if page != "" {
		if err := replaceTable(page, table); err != nil {
			return err
		}
	}
	for _, s := range steps {
		for _, name := range s.flakes() {
			fmt.Fprintf(stdout, "FLAKE %s\n", name)
		}
	}
	var problems []error
	if past != "" {
		err := past.add(time.Now().UTC().Format(time.DateOnly), commit, steps)
		summary, err2 := past.summary()
		fmt.Fprint(stdout, summary)
		problems = append(problems, err, err2)
	}
	return errors.Join(append(problems, complete(steps), tooManyFailures(steps), fatal(filepath.Join(dir, "fatal")))...)
}

// maxFailures is the number of failed tests that a rerun makes up for. gotestsum counts a test with all its subtests as one.
const maxFailures = 2

// tooManyFailures returns an error if more tests failed than a rerun makes up for.
func tooManyFailures(steps []step) error {
	for _, s := range steps {
		if failed := s.failures(); s.name == rerunning && len(failed) > maxFailures {
			return fmt.Errorf("step %s: %d tests failed, subtests counted; a rerun makes up for at most %d:\n%s", s.name, len(failed), maxFailures, strings.Join(failed, "\n"))
		}
	}
	return nil
}

// complete returns an error if a package did not run all its tests.
func complete(steps []step) error {
	var errs []error
	for _, s := range steps {
		for _, name := range s.incomplete() {
			errs = append(errs, fmt.Errorf("step %s: %s did not run all its tests, or failed outside of them; a rerun does not make up for it", s.name, name))
		}
	}
	return errors.Join(errs...)
}

// fatal returns the failures for which no rerun makes up. Test helpers append them to the file.
func fatal(path string) error {
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("a rerun does not make up for these failures:\n%s", content)
}
