// Callgraph counts what a request crosses between two functions of the product: functions, goroutines and interfaces. It analyses the
// sources, so that two commits can be compared:
//
//	go run ./test/callgraph 'cnihandler\.Handler\)\.Add$' 'switchConn\)\.write$'
//	go run ./test/callgraph 'networkpolicy\.Policies\)\.update$' 'switchConn\)\.write$'
//	go run ./test/callgraph 'remotenodes\.RemoteNodes\)\.reconcile$' 'switchConn\)\.write$'
//
// FROM and TO are regular expressions for function names as package ssa prints them. It prints the shortest path, and counts all functions
// that are on any path. A call of an interface's method counts for each implementation that the analysis cannot exclude.
//
// With -lines it counts the lines of code of a checkout instead:
//
//	git worktree add /tmp/previous 77e59a8 && go run ./test/callgraph -lines -dir /tmp/previous
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "callgraph:", err)
		os.Exit(1) //nolint:forbidigo // this is main
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("callgraph", flag.ContinueOnError)
	dir := flags.String("dir", ".", "directory of the checkout to analyse")
	list := flags.Bool("list", false, "list all functions that are on any path")
	lines := flags.Bool("lines", false, "count lines of code: of cmd, images and pkg, without comments, empty lines, tests, generated code and ovsdn-lab")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *lines && flags.NArg() == 0 {
		return printLines(out, *dir)
	}
	if *lines || flags.NArg() != 2 {
		return errors.New("usage: callgraph [-dir DIR] [-list] FROM TO, or callgraph [-dir DIR] -lines")
	}
	g, err := load(*dir)
	if err != nil {
		return err
	}
	from, err := g.find(flags.Arg(0))
	if err != nil {
		return err
	}
	to, err := g.find(flags.Arg(1))
	if err != nil {
		return err
	}
	path := g.shortest(from, to)
	if path == nil {
		return errors.New("no path: is a function between them called by another package, or by a channel that is not a struct field?")
	}
	for _, e := range path {
		fmt.Fprintf(out, "%s%s\n", g.name(e.to), e.mark())
	}
	c := count(path)
	fmt.Fprintf(out, "shortest path: %d functions, %d goroutine hand-offs, %d interfaces\n", c.functions, c.handOffs, c.interfaces)
	all := g.between(from, to)
	if *list {
		for _, e := range all {
			fmt.Fprintf(out, "%s -> %s%s\n", g.name(e.from), g.name(e.to), e.mark())
		}
	}
	c = count(all)
	fmt.Fprintf(out, "all paths: %d functions, %d goroutine hand-offs, %d interfaces\n", c.functions, c.handOffs, c.interfaces)
	return nil
}
