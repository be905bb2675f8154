// Mutation puts faults into copies of the product, one at a time, and checks that a test of the short tier fails for each. It prints the test
// that failed, and exits with 1 if a mutation survives. The work tree is not modified; uncommitted changes are part of the check.
//
//	go run ./test/mutation                      # all
//	go run ./test/mutation -run 'VNID|NOTRACK'  # some
//	go run ./test/mutation -list
//
// Most of the tests need root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"syscall"
)

const (
	exitFailed = 1
	exitUsage  = 2
)

var errUsage = errors.New("usage: mutation [-list] [-run REGEXP]")

func main() {
	os.Exit(run()) //nolint:forbidigo // this is main
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := check(ctx, os.Args[1:], os.Stdout)
	switch {
	case err == nil || errors.Is(err, flag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "mutation:", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "mutation:", err)
	return exitFailed
}

func check(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("mutation", flag.ContinueOnError)
	list := flags.Bool("list", false, "list the mutations and their tests, and run nothing")
	pattern := flags.String("run", "", "run the mutations whose names match the regular `expression`")
	if err := flags.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	selected, err := choose(mutations(), *pattern, flags.Args())
	if err != nil {
		return err
	}
	if *list {
		for _, m := range selected {
			fmt.Fprintf(out, "%-40s %s\n%40s %s %s\n", m.Name, m.File, "", m.Test.Package, m.Test.Run)
		}
		return nil
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	return checkAll(ctx, root, selected, out)
}

// choose returns the mutations whose names match the pattern.
func choose(all []Mutation, pattern string, rest []string) ([]Mutation, error) {
	if len(rest) > 0 {
		return nil, fmt.Errorf("%w: unexpected argument %q", errUsage, rest[0])
	}
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("%w: -run: %w", errUsage, err)
	}
	selected := slices.DeleteFunc(all, func(m Mutation) bool { return !re.MatchString(m.Name) })
	if len(selected) == 0 {
		return nil, fmt.Errorf("%w: no mutation matches %q; -list prints their names", errUsage, pattern)
	}
	return selected, nil
}

// moduleRoot returns the nearest parent directory with a go.mod.
func moduleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("go.mod not found; run the command in a directory of the project")
		}
		dir = parent
	}
}
