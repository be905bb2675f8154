// Language counts the words of words.txt, which this project avoids, in its sources and documents.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

const (
	wordsFile  = "test/language/words.txt"
	budgetFile = "test/language/budget.txt"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "language:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("language", flag.ContinueOnError)
	list := flags.String("list", "", "print each occurrence in files whose path starts with this; \".\" is all files")
	write := flags.Bool("write", false, "lower the budget to the current counts")
	if err := flags.Parse(args); err != nil {
		return err
	}
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	report, err := count(root)
	if err != nil {
		return err
	}
	if *list != "" {
		report.list(out, *list)
	}
	report.summary(out)
	if *write {
		budget, err := readBudget(filepath.Join(root, budgetFile))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		return writeBudget(filepath.Join(root, budgetFile), report.lower(budget))
	}
	return nil
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
