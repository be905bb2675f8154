package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// checkAll checks the mutations in a copy of the work tree at root, and prints a line for each.
func checkAll(ctx context.Context, root string, selected []Mutation, out io.Writer) (err error) {
	for _, m := range selected {
		_, _, moved := m.mutate(root)
		err = errors.Join(err, moved)
	}
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutation") // a short name: the tests' sockets are below it
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	c := &checker{out: out, tree: filepath.Join(dir, "tree"), temp: filepath.Join(dir, "t"), intact: map[target]result{}}
	if err := os.Mkdir(c.temp, 0o700); err != nil {
		return err
	}
	if err := copyTree(ctx, root, c.tree); err != nil {
		return fmt.Errorf("copy the work tree: %w", err)
	}
	began := time.Now()
	for _, m := range selected {
		if err := c.check(ctx, m, selected); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "%d mutations in %.0f s: %d detected, %d survived, %d not checked\n",
		len(selected), time.Since(began).Seconds(), c.detected, c.survived, c.unchecked)
	if c.survived+c.unchecked > 0 {
		return fmt.Errorf("%d mutations survived, %d were not checked", c.survived, c.unchecked)
	}
	return nil
}

// checker checks mutations in a copy of the work tree.
type checker struct {
	out        io.Writer
	tree, temp string
	intact     map[target]result // without a mutation

	detected, survived, unchecked int
}

// target is what one `go test` runs.
type target struct {
	pkg  string
	race bool
}

func (m Mutation) target() target { return target{m.Test.Package, m.Test.Race} }

// check runs the mutation's test without and with the mutation. The tests of all selected mutations in a package run together without one. The error
// is an interruption or that of the copy; other results are counted.
func (c *checker) check(ctx context.Context, m Mutation, selected []Mutation) error {
	if err := c.checkIntact(ctx, m.target(), selected); err != nil {
		return err
	}
	if err := c.intact[m.target()].wantPass(m.Test); err != nil {
		return c.report("NOT CHECKED", m, 0, fmt.Sprintf("without the mutation: %v", err))
	}
	revert, err := m.apply(c.tree)
	if err != nil {
		return err
	}
	began := time.Now()
	r, err := c.goTest(ctx, m.target(), m.Test.Run)
	if err := errors.Join(err, revert()); err != nil {
		return err
	}
	took := time.Since(began)
	switch err := r.wantFail(m.Test); {
	case errors.Is(err, errSurvived):
		return c.report("SURVIVED", m, took, m.Test.Package+" "+m.Test.Run)
	case err != nil:
		return c.report("NOT CHECKED", m, took, err.Error())
	}
	return c.report("detected", m, took, m.Test.Package+" "+r.firstFailure())
}

// checkIntact runs all tests of the target that mutations use, once, without a mutation.
func (c *checker) checkIntact(ctx context.Context, t target, selected []Mutation) error {
	if _, done := c.intact[t]; done {
		return nil
	}
	var runs []string
	for _, m := range selected {
		if m.target() == t {
			runs = append(runs, m.Test.Run)
		}
	}
	began := time.Now()
	r, err := c.goTest(ctx, t, strings.Join(runs, "|"))
	if err != nil {
		return err
	}
	c.intact[t] = r
	result := "passes"
	if r.wantPass(Test{Run: ""}) != nil {
		result = "FAILS"
	}
	fmt.Fprintf(c.out, "%-12s %5.1f s  %s\n", result, time.Since(began).Seconds(), t.pkg+" without a mutation")
	return nil
}

func (c *checker) report(result string, m Mutation, took time.Duration, detail string) error {
	switch result {
	case "detected":
		c.detected++
	case "SURVIVED":
		c.survived++
	default:
		c.unchecked++
	}
	_, err := fmt.Fprintf(c.out, "%-12s %5.1f s  %s: %s\n", result, took.Seconds(), m.Name, detail)
	return err
}

// copyTree copies the files of the work tree that git tracks or would add.
func copyTree(ctx context.Context, root, tree string) error {
	// Git refuses a directory of another user, as under sudo.
	git := exec.CommandContext(ctx, "git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	git.Dir, git.Stderr = root, os.Stderr
	list, err := git.Output()
	if err != nil {
		return fmt.Errorf("list the files: %w", err)
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(list), "\x00"), "\x00") {
		err := copyFile(filepath.Join(root, name), filepath.Join(tree, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) { // deleted in the work tree only
			return err
		}
	}
	return ctx.Err()
}

func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o700); err != nil {
		return err
	}
	if info.Mode()&os.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, info.Mode().Perm())
}
