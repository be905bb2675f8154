package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"
)

const (
	testTimeout = 10 * time.Minute // of one `go test`: longer than any deadline in the tests
	stopTimeout = 20 * time.Second // for an interrupted `go test`
)

// result is the outcome of a `go test`.
type result struct {
	passed, failed []string // names of tests, parents after their subtests
	notBuilt       bool
	success        bool // the exit status
	output         string
}

// goTest runs the tests of the short tier that the expression selects. The error is an interruption, or go could not run.
func (c *checker) goTest(ctx context.Context, t target, run string) (result, error) {
	args := []string{"test", "-json", "-short", "-count=1", "-trimpath", "-vet=off", "-timeout=" + testTimeout.String(), "-run=" + run}
	cgo := "CGO_ENABLED=0"
	if t.race {
		args, cgo = append(args, "-race"), "CGO_ENABLED=1"
	}
	cmd := exec.CommandContext(ctx, "go", append(args, "./"+t.pkg)...)
	cmd.Dir = c.tree
	// The variables of a run of all tests, such as the file that marks it as failed, are not for these.
	cmd.Env = slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "OVSDN_") })
	cmd.Env = append(cmd.Env, cgo, "TMPDIR="+c.temp)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	// A group of its own gets one interrupt, which ends the tests and the programs that they started.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) }
	cmd.WaitDelay = stopTimeout
	err := cmd.Run()
	if ctx.Err() != nil {
		if cmd.Process != nil {
			_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // fails if all have ended
		}
		return result{}, fmt.Errorf("interrupted: %w", ctx.Err())
	}
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && !exited {
		return result{}, fmt.Errorf("run go test: %w", err)
	}
	r := parse(&out)
	r.success = err == nil
	return r, nil
}

// event is a line of `go test -json` (go doc test2json), or of the build that precedes it (go help buildjson).
type event struct {
	Action, Test, Output string
}

func parse(in io.Reader) result {
	var r result
	var output strings.Builder
	data, err := io.ReadAll(in)
	if err != nil {
		return result{output: err.Error()}
	}
	for line := range strings.Lines(string(data)) {
		var e event
		if json.Unmarshal([]byte(line), &e) != nil {
			output.WriteString(line) // of go itself
			continue
		}
		output.WriteString(e.Output)
		switch {
		case e.Action == "build-fail":
			r.notBuilt = true
		case e.Action == "pass" && e.Test != "":
			r.passed = append(r.passed, e.Test)
		case e.Action == "fail" && e.Test != "":
			r.failed = append(r.failed, e.Test)
		}
	}
	r.output = output.String()
	return r
}

// wantPass returns an error unless all tests passed, of which at least one is selected by t.
func (r result) wantPass(t Test) error {
	switch {
	case r.notBuilt:
		return fmt.Errorf("the test does not compile:\n%s", r.tail())
	case !r.success:
		return fmt.Errorf("the test fails:\n%s", r.tail())
	case !slices.ContainsFunc(r.passed, t.matches):
		return fmt.Errorf("no test of %q passed: it needs root, is of the complete tier, or does not exist", t.Run)
	}
	return nil
}

var errSurvived = errors.New("all tests pass with the mutation")

// wantFail returns an error unless a test that t selects failed. It returns errSurvived if all passed.
func (r result) wantFail(t Test) error {
	switch {
	case r.notBuilt:
		return fmt.Errorf("the mutation does not compile:\n%s", r.tail())
	case r.success:
		return errSurvived
	case !slices.ContainsFunc(r.failed, t.matches):
		return fmt.Errorf("go test failed, but no test of %q did:\n%s", t.Run, r.tail())
	}
	return nil
}

// tail returns the last lines of the output.
func (r result) tail() string {
	const limit = 40
	lines := slices.Collect(strings.Lines(r.output))
	return strings.Join(lines[max(0, len(lines)-limit):], "")
}

// firstFailure returns the name of the first test that failed, and the number of others. Failures of their parents do not count.
func (r result) firstFailure() string {
	leaves := slices.DeleteFunc(slices.Clone(r.failed), func(name string) bool {
		return slices.ContainsFunc(r.failed, func(other string) bool { return strings.HasPrefix(other, name+"/") })
	})
	if len(leaves) == 1 {
		return leaves[0]
	}
	return fmt.Sprintf("%s and %d more", leaves[0], len(leaves)-1)
}
