// Command bench measures this project beside a reference: the least that any program must do (a floor), or another program that does the
// same (a peer). A figure and its reference alternate in one run, so that their ratio is valid on a shared and noisy machine, where
// absolute times are not. See docs/bench.md.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// figures are all there is, in the order in which they run.
func figures() []figure {
	return []figure{
		statusFigure(),
		addFigure(),
		verifyFigure(),
		ipv6Figure(),
		bundleFigure(),
		replaceFigure(),
		startFigure(),
		masterFigure(),
		netidFigure(),
		policyFigure(),
		egressFigure(),
		datapathFigure(),
		servicesFigure(),
		endpointFigure(),
		connectFigure(),
		memoryFigure(),
	}
}

const (
	exitFailed = 1
	exitUsage  = 2
)

var errUsage = errors.New("usage")

func main() {
	os.Exit(run()) //nolint:forbidigo // this is main
}

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	var err error
	if len(os.Args) > 1 && os.Args[1] == agentCommand {
		err = runAgent(ctx, os.Args[2:])
	} else {
		err = bench(ctx, os.Args[1:])
	}
	switch {
	case err == nil || errors.Is(err, pflag.ErrHelp):
		return 0
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "bench:", err)
		return exitUsage
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	return exitFailed
}

func bench(ctx context.Context, args []string) error {
	var o options
	var file, other string
	flags := pflag.NewFlagSet("bench", pflag.ContinueOnError)
	flags.IntVar(&o.samples, "samples", 100, "samples of what takes milliseconds; p99 wants 100")
	flags.IntVar(&o.rounds, "rounds", 5, "samples of what takes seconds")
	flags.StringVar(&file, "json", "bench.json", "`file` to write the results to; empty: none")
	flags.StringVar(&other, "against", "", "compare to another checkout, in this `directory`, alternately (see make bench-against)")
	flags.Usage = func() {
		fmt.Fprintf(os.Stderr, "usage: bench [flags] [FIGURE...]\n%s\nfigures (all, unless some are named):\n", flags.FlagUsages())
		for _, f := range figures() {
			fmt.Fprintf(os.Stderr, "  %-8s %s\n", f.name, f.about)
		}
	}
	if err := flags.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	if o.samples < 1 || o.rounds < 1 {
		return fmt.Errorf("%w: --samples and --rounds must be at least 1", errUsage)
	}
	chosen, err := choose(flags.Args())
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes network namespaces and starts Open vSwitch in them")
	}
	klog.SetLogger(logr.Discard()) // what is measured would talk between the lines of progress

	r := newReport(ctx, o)
	if other != "" {
		rows, err := against(ctx, other, o, flags.Args())
		r.add(rows)
		r.print(os.Stdout)
		return errors.Join(err, r.write(file))
	}
	var errs []error
	for _, f := range chosen {
		rows, err := f.measure(ctx, o)
		r.add(rows)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.name, err))
		}
		if err := r.write(file); err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
	}
	r.print(os.Stdout)
	return errors.Join(errs...)
}

// choose returns the figures of these names, all for none.
func choose(wanted []string) ([]figure, error) {
	all := figures()
	if len(wanted) == 0 {
		return all, nil
	}
	var names []string
	for _, f := range all {
		names = append(names, f.name)
	}
	var chosen []figure
	for _, name := range wanted {
		i := slices.Index(names, name)
		if i < 0 {
			return nil, fmt.Errorf("%w: there is no figure %q: choose from %s", errUsage, name, strings.Join(names, ", "))
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}
